"""An app whose handlers run elsewhere: in tests without Kafka, on Spark.

Rule of this file: for this package's own use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tailrace.app.app import App
from tailrace.app.declare.dependencies import Overrides
from tailrace.app.declare.resolved_options import ResolvedOptions
from tailrace.app.kafka_substitute import KafkaSubstitute
from tailrace.app.lifecycle import AppRun
from tailrace.app.transactions.exactly_once import TransactionOptions

__all__ = ["AppSettings", "running_of", "settings_of", "substitute_kafka"]


@contextmanager
def substitute_kafka(app: App, instead: KafkaSubstitute) -> Iterator[None]:
    """Have the next start of an app use something else than Kafka."""
    app._instead = instead  # noqa: SLF001 - this room's own
    try:
        yield
    finally:
        app._instead = None  # noqa: SLF001


@dataclass(frozen=True)
class AppSettings:
    """What an app says for all its handlers."""

    defaults: ResolvedOptions
    overrides: Overrides
    transactions: TransactionOptions | None

    @property
    def is_exactly_once(self) -> bool:
        """Whether records are handled in transactions."""
        return self.transactions is not None


def settings_of(app: App) -> AppSettings:
    """What whoever runs an app's handlers elsewhere has to know, started or not."""
    return AppSettings(app._defaults, app._overrides, app._transactions)  # noqa: SLF001 - this room's own


def running_of(app: App) -> AppRun:
    """What runs of a started app."""
    return app._started  # noqa: SLF001 - this room's own
