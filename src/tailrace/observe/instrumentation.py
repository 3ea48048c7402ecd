"""Interface of hooks that wrap handlers and the publisher, for example in spans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tailrace.observe.hooks import Hook, Observer

__all__ = ["HandlerInfo", "Instrumentation", "Publish", "instrumentations_of"]

Publish: TypeAlias = Callable[..., Awaitable[Any]]
"""Function with the parameters and the result of ``tailrace.producer.publisher.Publisher.publish``."""


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """Handler that an ``Instrumentation`` wraps."""

    name: str
    group_id: str
    is_batch: bool


@runtime_checkable
class Instrumentation(Hook, Protocol):
    """Hook that also wraps the handlers and the publisher of an app.

    At its start, an app calls ``around_handler`` once for each handler, and ``around_publish`` once.
    """

    def around_handler(
        self, call: Callable[[Any], Awaitable[Any]], handler: HandlerInfo, /
    ) -> Callable[[Any], Awaitable[Any]]:
        """Return the function that the app calls instead of ``call`` for each attempt to handle a record or batch.

        For a batch handler, the argument of both functions is a list of records, and ``call`` returns the exceptions of
        the failed records by their index. For other handlers, the argument is a record, and ``call`` raises if the
        record fails.
        """

    def around_publish(self, publish: Publish, /) -> Publish:
        """Return the function that the app calls instead of ``publish``.

        The app calls it for results of handlers, ``app.publish``, retry topics and dead-letter topics.
        """


def instrumentations_of(observer: Observer) -> Sequence[Instrumentation]:
    """Return the hooks of an observer that are instrumentations."""
    return tuple(hook for hook in observer.hooks if isinstance(hook, Instrumentation))
