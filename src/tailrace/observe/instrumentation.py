"""Interface of hooks that surround the calls of handlers and of publishers, for example with spans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tailrace.observe.hooks import Hook, Observer

__all__ = ["HandlerInfo", "Instrumentation", "Publish", "instrumentations_of"]

Publish: TypeAlias = Callable[..., Awaitable[Any]]
"""Publishes one record, with the parameters and the result of ``tailrace.producer.publisher.Publisher.publish``."""


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """Handler whose calls are surrounded."""

    name: str
    group_id: str
    is_batch: bool


@runtime_checkable
class Instrumentation(Hook, Protocol):
    """Hook that also surrounds the calls of an app's handlers and of its publisher.

    An app asks for the surrounding functions once, at its start, so that an app without such hooks calls its handlers
    directly.
    """

    def around_handler(
        self, call: Callable[[Any], Awaitable[Any]], handler: HandlerInfo, /
    ) -> Callable[[Any], Awaitable[Any]]:
        """Return ``call``, surrounded; each attempt is one call.

        The call for a record raises if the record fails. The call for the list of records of a batch returns the failed
        records: a mapping from index to exception.
        """

    def around_publish(self, publish: Publish, /) -> Publish:
        """Return ``publish``, surrounded: for results, ``app.publish``, retry topics and dead-letter topics."""


def instrumentations_of(observer: Observer) -> Sequence[Instrumentation]:
    """Return the hooks of an observer that surround calls."""
    return tuple(hook for hook in observer.hooks if isinstance(hook, Instrumentation))
