"""Parts of a consumer group that its handlers share."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from tailrace.app.declare.arguments import Opened
from tailrace.app.failures.dead_letter_publisher import DeadLetterPublisher
from tailrace.app.handlers import Handler
from tailrace.app.sources import Transactions
from tailrace.observe.hooks import Observer
from tailrace.observe.instrumentation import Instrumentation
from tailrace.producer.publisher import Publisher
from tailrace.records import Record

__all__ = ["HandlerContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContext:
    """Parts of a consumer group that its handlers share."""

    opened: Opened
    """Values of app-scoped dependencies."""
    publisher: Publisher
    """Publisher of results."""
    dead_letter_publisher: DeadLetterPublisher
    transactions: Transactions | None
    """Transactions in which results are published; None for at-least-once delivery."""
    observer: Observer
    instrumentations: Sequence[Instrumentation]
    """Hooks that surround the calls of handlers, the outermost first."""
    group_id: str
    origins: Container[str]
    """The group's own topics, whose records are passed to handlers as they were in their origin topic."""
    delay_of: Callable[[str], int | None]
    """Returns the delay of a retry topic in milliseconds; None for other topics."""
    window: int
    """Maximum number of records that may wait in one executor."""
    on_progress: Callable[[], None]
    """Called when a record is finished, or there is room for more records."""
    on_full: Callable[[Handler, Record, int], None]
    """Called with the handler, the record that fills a lane or a partition, and the number of records waiting there."""
