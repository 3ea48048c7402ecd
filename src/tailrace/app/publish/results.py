"""Publishing of the results and messages of handlers, with the trace of the handled record.

A trace is a list of headers. A context variable contains the trace, also in tasks and threads that a handler has
started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextvars import Context, ContextVar
from typing import Any

import msgspec

from tailrace.app.publish.delays import PublishDelays
from tailrace.app.publish.encoding import encode_messages, messages_in
from tailrace.codecs.protocols import AnyCodec
from tailrace.errors import PublishError, PublishTimeoutError
from tailrace.observe.hooks import Instrumentation
from tailrace.producer.encoding import Message, RecordEncoder
from tailrace.producer.publisher import Headers, OutgoingRecord, Published, Publisher
from tailrace.producer.record_producer import RecordProducer
from tailrace.producer.traces import current_trace, with_trace, within_instrumentations

__all__ = [
    "HandlerTask",
    "LimitedPublisher",
    "ResultPublisher",
    "check_not_abandoned",
    "encode_in_time",
    "gather_in_order",
    "instrumented",
    "publish_one",
]

# ---- check that prevents abandoned handlers from publishing ----------------------------------------------------------


class HandlerTask:
    """Task that runs a handler.

    Args:
        context: context in which the task runs; its context variable for the handler is set to this object.

    Attributes:
        is_abandoned: True if the app has stopped while the task was still running.
    """

    __slots__ = ("is_abandoned",)

    def __init__(self, context: Context) -> None:
        self.is_abandoned = False
        context.run(_task.set, self)


_task: ContextVar[HandlerTask | None] = ContextVar("tailrace_handler_task", default=None)


def check_not_abandoned(topic: str) -> None:
    """Check that the caller may publish to ``topic``; only an abandoned handler may not.

    Raises:
        PublishError: the handler was abandoned; its record is delivered again.
    """
    task = _task.get()
    if task is not None and task.is_abandoned:
        raise PublishError(
            f"{topic}: the app has stopped, but this handler still runs after its cancellation; the record is delivered"
            " again, so this message would be published twice - make the handler end when it is canceled"
        )


# ---- concurrent execution of coroutines that are started in order ----------------------------------------------------


async def gather_in_order(coroutines: Sequence[Coroutine[Any, Any, object]]) -> None:
    """Start coroutines in order and run them concurrently; if one fails, cancel the others.

    Raises:
        Exception: the error of the coroutine that failed first.
    """
    if len(coroutines) == 1:
        await coroutines[0]
        return
    tasks: list[asyncio.Task[object]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(one) for one in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors.exceptions[0].__cause__


# ---- publishing of the results and messages of handlers, with the trace of the handled record ------------------------


async def publish_one(publisher: Publisher, record: OutgoingRecord, trace: Headers | None = None) -> Published | None:
    """Publish a record with ``trace``; if it is None, with the active span or the trace of the handled record.

    If the headers of the record contain a trace already, they are left unchanged.

    Returns:
        Partition and offset; None for a record of a transaction that is not committed yet.

    Raises:
        PublishError: the record was rejected or not acknowledged in time, or the calling handler was abandoned.
    """
    check_not_abandoned(record.topic)
    headers = with_trace(record.headers, current_trace() if trace is None else trace)
    if headers is not record.headers:
        record = msgspec.structs.replace(record, headers=headers)
    return await publisher.publish(record)


async def encode_in_time(
    messages: Iterable[Message],
    topic: str | None,
    encoder: RecordEncoder,
    delays: PublishDelays | None,
    timeout_s: float,
) -> list[OutgoingRecord]:
    """Encode messages as ``encode_messages`` does; outside of handlers, fetch schemas for at most ``timeout_s``.

    Raises:
        PublishTimeoutError: a schema was not fetched in time.
        PublishError, SchemaRegistryError: see ``encode_messages``.
    """
    if encoder.is_immediate or _task.get() is not None:
        return await encode_messages(messages, topic, encoder, delays)
    try:
        async with asyncio.timeout(timeout_s):
            return await encode_messages(messages, topic, encoder, delays)
    except TimeoutError:
        raise PublishTimeoutError(
            f"{encoder.where}no schema within {timeout_s:g} s; the message was not sent, and is not stored - check"
            " the schema registry"
        ) from None


class LimitedPublisher:
    """Publisher that limits the time of calls outside of handlers, for which a client of a service may wait.

    Records of handlers wait for ``delivery_timeout_ms`` of the producer, as a failure would call the handler again.

    Args:
        producer: publishes records.
        timeout_s: maximum time in seconds of a call outside of handlers.
    """

    def __init__(self, producer: RecordProducer, timeout_s: float) -> None:
        self._producer, self._timeout_s = producer, timeout_s

    async def publish(self, record: OutgoingRecord) -> Published:
        """Publish a record as ``RecordProducer.publish`` does."""
        return await self._producer.publish(record, self._timeout_s if _task.get() is None else None)


class ResultPublisher:
    """Publisher of a handler's results.

    Args:
        publisher: publishes records.
        codec: encodes results.
        topic: topic of results that have no topic; None to publish only results that are a ``Message`` with a topic.
        where: name of the handler in errors.
        delays: declared delays of the app; None if there are none.
    """

    def __init__(
        self, publisher: Publisher, codec: AnyCodec, topic: str | None, where: str, delays: PublishDelays | None
    ) -> None:
        self._publisher, self._topic, self._encoder = publisher, topic, RecordEncoder(codec, where=where)
        self._delays = delays

    async def publish(self, results: Iterable[tuple[object, Headers]], key: bytes | None = None) -> None:
        """Publish results, each with its trace, and wait until all are acknowledged.

        ``key`` is the key of results that have no key of their own.

        All results are encoded first, so that nothing is published if one of them cannot be encoded.

        Raises:
            PublishError: a result cannot be encoded, has no topic, was rejected, or was not acknowledged in time.
            SchemaRegistryError: a schema could not be fetched.
        """
        records: list[tuple[OutgoingRecord, Headers]] = []
        for result, trace in results:
            if messages := messages_in(result, publish_values=self._topic is not None):
                encoded = await encode_messages(messages, self._topic, self._encoder, self._delays, key)
                records += [(record, trace) for record in encoded]
        if records:
            await gather_in_order([publish_one(self._publisher, record, trace) for record, trace in records])


# ---- instrumentation of a publisher ----------------------------------------------------------------------------------


def instrumented(publisher: Publisher, instrumentations: Sequence[Instrumentation]) -> Publisher:
    """Return a publisher that calls ``publisher`` within ``instrumentations``; the first one is the outermost."""
    return _InstrumentedPublisher(publisher, instrumentations) if instrumentations else publisher


class _InstrumentedPublisher:
    def __init__(self, publisher: Publisher, instrumentations: Sequence[Instrumentation]) -> None:
        self._publish = within_instrumentations(publisher.publish, instrumentations)

    async def publish(self, record: OutgoingRecord) -> Published | None:
        return await self._publish(record)
