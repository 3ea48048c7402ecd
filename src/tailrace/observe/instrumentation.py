"""Interface of hooks that wrap handlers and the publisher, for example in spans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tailrace.observe.hooks import Hook, Observer

__all__ = ["HandlerInfo", "Instrumentation", "Publish", "instrumentations_of"]

Publish: TypeAlias = Callable[..., Awaitable[Any]]
"""Function that publishes one record, with the parameters and result of ``producer.publisher.Publisher.publish``."""


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """Handler that an ``Instrumentation`` wraps."""

    name: str
    group_id: str
    is_batch: bool


@runtime_checkable
class Instrumentation(Hook, Protocol):
    """Hook that also wraps the handlers and the publisher of an app.

    An app calls ``around_handler`` and ``around_publish`` once, at its start. Without such hooks, it calls its handlers
    directly.
    """

    def around_handler(
        self, call: Callable[[Any], Awaitable[Any]], handler: HandlerInfo, /
    ) -> Callable[[Any], Awaitable[Any]]:
        """Return a function to call instead of ``call``, once for each attempt.

        If ``handler`` is not a batch handler, the argument is a record, and ``call`` raises if the record fails. If it
        is one, the argument is the list of the batch's records, and ``call`` returns the exceptions of the failed
        records by their index.
        """

    def around_publish(self, publish: Publish, /) -> Publish:
        """Return a function to call instead of ``publish``.

        It is used for results of handlers, ``app.publish``, retry topics and dead-letter topics.
        """


def instrumentations_of(observer: Observer) -> Sequence[Instrumentation]:
    """Return the hooks of an observer that are instrumentations."""
    return tuple(hook for hook in observer.hooks if isinstance(hook, Instrumentation))
