"""An app whose handlers run elsewhere: in tests without Kafka, on Spark.

Rule of this file: for this package's own use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.app.app import App
from penstock.app.running import Running
from penstock.app.signatures.dependencies import Overrides
from penstock.app.stand_in import StandIn
from penstock.app.terms import Terms
from penstock.app.transactions.exactly_once import TransactionOptions

__all__ = ["Outline", "outline_of", "running_of", "standing_in"]


@contextmanager
def standing_in(app: App, instead: StandIn) -> Iterator[None]:
    """Have the next start of an app use something else than Kafka."""
    app._instead = instead  # noqa: SLF001 - this room's own
    try:
        yield
    finally:
        app._instead = None  # noqa: SLF001


@dataclass(frozen=True)
class Outline:
    """What an app says for all its handlers."""

    defaults: Terms
    overrides: Overrides
    transactions: TransactionOptions | None

    @property
    def is_exactly_once(self) -> bool:
        """Whether records are handled in transactions."""
        return self.transactions is not None


def outline_of(app: App) -> Outline:
    """What whoever runs an app's handlers elsewhere has to know, started or not."""
    return Outline(app._defaults, app._overrides, app._transactions)  # noqa: SLF001 - this room's own


def running_of(app: App) -> Running:
    """What runs of a started app."""
    return app._started  # noqa: SLF001 - this room's own
