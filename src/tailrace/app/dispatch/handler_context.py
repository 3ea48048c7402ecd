"""Context of a handler: the parts of its consumer group that all handlers of the group use."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from tailrace.app.declare.arguments import Opened
from tailrace.app.failures.dead_letter_publisher import DeadLetterPublisher
from tailrace.app.handlers import Handler
from tailrace.app.sources import Transactions
from tailrace.observe.hooks import Instrumentation, Observer
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
    own_topics: Container[str]
    """Retry and replay topics of the group; handlers receive each of the records there as it was first read."""
    delay_of: Callable[[str], int | None]
    """Returns the delay of a retry topic in milliseconds; None for other topics."""
    window: int
    """Maximum number of records that wait for one handler."""
    on_progress: Callable[[], None]
    """Called when a record is finished or there is room for more records."""
    on_full: Callable[[Handler, Record, int], None]
    """Called when so many records wait for a record that no more records of its partition are read.

    The arguments are the handler, that record, and the number of records that wait in its lane or partition.
    """
