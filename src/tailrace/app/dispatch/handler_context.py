"""Parts of a consumer group that its handlers share."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from tailrace.app.declare.arguments import Opened
from tailrace.app.failures.dead_letter_publisher import DeadLetterPublisher
from tailrace.app.handlers import Handler
from tailrace.app.sources import Transactions
from tailrace.observe.hooks import Observer
from tailrace.producer.publisher import Publisher
from tailrace.records import Record

__all__ = ["HandlerContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContext:
    """Parts of a consumer group that its handlers share."""

    opened: Opened
    """Values of the dependencies of the app's scope."""
    publisher: Publisher
    """Publishes results."""
    letter_publisher: DeadLetterPublisher
    transactions: Transactions | None
    """Transactions to which results belong; None without."""
    observer: Observer
    origins: Container[str]
    """Topics of the group's own, whose records look to handlers as they did in their first topic."""
    delay_of: Callable[[str], int | None]
    """Returns the delay of a retry topic in milliseconds; None for other topics."""
    window: int
    """Most records that may wait in one executor."""
    on_progress: Callable[[], None]
    """Called when a record is finished, or there is room for more."""
    on_full: Callable[[Handler, Record, int], None]
    """Called with the last record that a lane or a partition takes, and the number that wait there."""
