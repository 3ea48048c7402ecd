"""What an app may be given in place of Kafka."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from penstock.app.group import Connect
from penstock.app.plan import Plan
from penstock.app.publisher import Publisher
from penstock.app.signatures.dependencies import Overrides
from penstock.observe.hooks import Hook

__all__ = ["StandIn"]


@dataclass(frozen=True)
class StandIn:
    """What takes the place of Kafka."""

    connect: Connect
    open_publisher: Callable[[], AbstractAsyncContextManager[Publisher]]
    overrides: Overrides
    hooks: tuple[Hook, ...]
    adapt: Callable[[Plan], Plan]
