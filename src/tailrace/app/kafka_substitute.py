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
    """Substitute for Kafka in one run of an app.

    Attributes:
        connect: returns the source of a group's records.
        open_publisher: returns a context manager that opens the publisher of messages.
        overrides: replacements of providers, in addition to those of the app.
        hooks: receivers of events, in addition to those of the app.
        adapt: called with the app's plan; returns the plan to run in its place.
    """

    connect: Connect
    open_publisher: Callable[[], AbstractAsyncContextManager[Publisher]]
    overrides: Overrides
    hooks: tuple[Hook, ...]
    adapt: Callable[[Plan], Plan]
