"""Access to private state of an app, for running its handlers without Kafka in tests and on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.app.app import App
from tailrace.app.declare.dependencies import Overrides
from tailrace.app.handlers import ResolvedOptions
from tailrace.app.kafka_substitute import KafkaSubstitute
from tailrace.app.lifecycle import AppRun
from tailrace.app.transactions.exactly_once import TransactionOptions
from tailrace.context_managers import contextmanager

__all__ = ["AppSettings", "app_run_of", "settings_of", "substitute_kafka"]


@contextmanager
def substitute_kafka(app: App, substitute: KafkaSubstitute) -> Iterator[None]:
    """Make ``app`` use ``substitute`` in place of Kafka if it starts within this context."""
    app._substitute = substitute  # noqa: SLF001 - same package
    try:
        yield
    finally:
        app._substitute = None  # noqa: SLF001


@dataclass(frozen=True)
class AppSettings:
    """Settings of an app that apply to all its handlers.

    Attributes:
        defaults: options of handlers that do not set them.
        overrides: replacements of providers, by the provider that ``Depends`` names.
        transactions: options of transactions; None for at-least-once delivery.
    """

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


def app_run_of(app: App) -> AppRun:
    """Return the current or last run of an app; raise ConsumerStateError if the app was never started."""
    return app._started  # noqa: SLF001 - same package
