"""Substitute for Kafka, with which an app runs in tests and on Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from tailrace.app.declare.dependencies import Overrides
from tailrace.app.declare.plan import Plan
from tailrace.app.dispatch.group_runtime import Connect
from tailrace.observe.hooks import Hook
from tailrace.producer.publisher import Publisher

__all__ = ["KafkaSubstitute"]


@dataclass(frozen=True)
class KafkaSubstitute:
    """Sources, publisher, dependencies and hooks that an app uses in place of Kafka."""

    connect: Connect
    open_publisher: Callable[[], AbstractAsyncContextManager[Publisher]]
    overrides: Overrides
    hooks: tuple[Hook, ...]
    adapt: Callable[[Plan], Plan]
