"""Publishing for handlers: what they return, and what they publish themselves, with the trace of their record.

Rule of this file: whose code it is that publishes is known by the context, so that tasks and threads which a handler
has begun are its own. Only what carries a trace pays for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from contextvars import ContextVar

from penstock.app.codecs import AnyCodec
from penstock.app.handlers import Handle
from penstock.app.publisher import Published, Publisher
from penstock.app.results import Headers, Outgoing, messages_in, outgoing, trace_in, with_trace
from penstock.app.together import all_of
from penstock.records import Record

__all__ = ["Results", "carrying", "publish_one"]

_trace: ContextVar[Headers] = ContextVar("penstock_trace", default=())


def carrying(call: Handle) -> Handle:
    """``call``, and whatever is published by it or by what it begins carries its record's trace on."""

    async def within_trace(record: Record, trace: Headers) -> object:
        token = _trace.set(trace)
        try:
            return await call(record)
        finally:
            _trace.reset(token)

    def carry(record: Record) -> Awaitable[object]:
        if record.headers and (trace := trace_in(record.headers)):
            return within_trace(record, trace)
        return call(record)

    return carry


async def publish_one(publisher: Publisher, one: Outgoing, trace: Headers | None = None) -> Published | None:
    """Publish a record; with the trace of the record whose handler runs here, if none is given.

    Raises:
        PublishError: it was refused, or not acknowledged in time.
    """
    headers = with_trace(one.headers, _trace.get() if trace is None else trace)
    return await publisher.publish(one.topic, one.value, key=one.key, headers=headers, partition=one.partition)


class Results:
    """Publishes what a handler returns.

    Args:
        publisher: publishes it.
        codec: makes bytes of it.
        topic: where it goes; None if only a Message goes anywhere, by its own.
        where: the handler, as errors name it.
    """

    def __init__(self, publisher: Publisher, codec: AnyCodec, topic: str | None, where: str) -> None:
        self._publisher, self._codec, self._topic, self._where = publisher, codec, topic, where

    async def publish(self, results: Iterable[tuple[object, Headers]]) -> None:
        """Publish results, each with the trace that it carries on; when this returns, all are acknowledged.

        All of it is encoded first, so that nothing is published of what cannot be.

        Raises:
            PublishError: a result cannot be encoded, has no topic, was refused, or was not acknowledged in time.
            SchemaRegistryError: a schema is not known yet, and the registry could not be asked.
        """
        everything: list[tuple[Outgoing, Headers]] = []
        for result, trace in results:
            if messages := messages_in(result, are_values_meant=self._topic is not None):
                encoded = await outgoing(messages, self._topic, self._codec, self._where)
                everything += [(one, trace) for one in encoded]
        await all_of([self._publish(one, trace) for one, trace in everything])

    async def _publish(self, one: Outgoing, trace: Headers) -> None:
        await publish_one(self._publisher, one, trace)
