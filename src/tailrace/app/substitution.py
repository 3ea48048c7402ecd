"""Internal access to an app whose handlers run without Kafka, in tests and on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tailrace.app.app import App
from tailrace.app.declare.dependencies import Overrides
from tailrace.app.kafka_substitute import KafkaSubstitute
from tailrace.app.lifecycle import AppRun
from tailrace.app.resolved_options import ResolvedOptions
from tailrace.app.transactions.exactly_once import TransactionOptions

__all__ = ["AppSettings", "running_of", "settings_of", "substitute_kafka"]


@contextmanager
def substitute_kafka(app: App, instead: KafkaSubstitute) -> Iterator[None]:
    """Make an app that starts within this context use ``instead`` in place of Kafka."""
    app._instead = instead  # noqa: SLF001 - same package
    try:
        yield
    finally:
        app._instead = None  # noqa: SLF001


@dataclass(frozen=True)
class AppSettings:
    """Settings of an app that apply to all its handlers."""

    defaults: ResolvedOptions
    overrides: Overrides
    transactions: TransactionOptions | None

    @property
    def is_exactly_once(self) -> bool:
        """True if records are handled in transactions."""
        return self.transactions is not None


def settings_of(app: App) -> AppSettings:
    """Return the settings of an app, started or not."""
    return AppSettings(app._defaults, app._overrides, app._transactions)  # noqa: SLF001 - same package


def running_of(app: App) -> AppRun:
    """Return the run of a started app."""
    return app._started  # noqa: SLF001 - same package
