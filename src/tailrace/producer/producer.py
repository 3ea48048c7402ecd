"""Producer: the class with which users publish records, alone or in transactions."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar
from threading import get_ident
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeAlias, cast

import msgspec
from typing_extensions import Unpack

from tailrace.codecs.json_codec import JsonCodec
from tailrace.codecs.protocols import AnyCodec
from tailrace.config import (
    ClientOptions,
    KeyT_contra,
    ProducerConfig,
    ProducerOptions,
    ValueT_contra,
    check_names,
    hide_secrets,
    resolve_producer,
)
from tailrace.core.transaction_offsets import OffsetSource, TransactionOffsets
from tailrace.errors import ConfigurationError, ConsumerStateError, PublishError, PublishTooLargeError, TailraceError
from tailrace.net.cluster import Cluster
from tailrace.observe.hooks import Hook, Instrumentation
from tailrace.observe.statistics import ProducerStatistics
from tailrace.producer.encoding import Message, MessageDetails, RecordEncoder, check_not_delayed, messages_of
from tailrace.producer.publisher import OutgoingRecord, Published, error_of_several
from tailrace.producer.record_producer import RecordProducer
from tailrace.producer.runtime import DEFAULT_LOOKUP_S
from tailrace.producer.traces import (
    OPENTELEMETRY,
    current_trace,
    record_trace,
    with_trace,
    within_instrumentations,
)
from tailrace.producer.transaction_machine import ProducerState
from tailrace.producer.transactional_producer import ABORT_S, TransactionalProducer
from tailrace.records import TopicPartition
from tailrace.values import robust_repr

__all__ = ["Producer", "SharedConnections", "Transaction"]

_NOT_STARTED = "this producer is not started - use `async with Producer(...)`, or await start() first"
_STOPPED = "this producer was stopped - create another"
_OTHER_LOOP = "this producer was started in another event loop"
_OVERHEAD_BYTES = 70
"""Maximum size of a record in a batch of its own, without key, value and headers."""
_Layered: TypeAlias = Callable[[OutgoingRecord], Coroutine[Any, Any, Published]]
"""Function that publishes a record within the spans of instrumentations."""
_forks: list[None] = []
"""Has an item for each ``fork`` between the first process and this one."""
os.register_at_fork(after_in_child=lambda: _forks.append(None))
_appended: ContextVar[asyncio.Future[None] | None] = ContextVar("tailrace_appended", default=None)
"""Future that completes when the record of an instrumented call is in a batch."""


class SharedConnections(Protocol):
    """``SharedCluster``, whose connections a producer uses."""

    options: dict[str, Any]
    cluster: Cluster | None


class Producer(Generic[KeyT_contra, ValueT_contra]):
    """Publisher of records: ``async with Producer(bootstrap_servers="localhost:9092") as producer``.

    ``await producer.send("orders", order, key=order.id)`` publishes a record and returns its place. ``enqueue`` adds
    the record to a batch and returns a future of the place, so that many records share a request.

    A value that a handler can decode can be published: a ``msgspec.Struct``, pydantic model, dataclass, ``dict`` and
    others as JSON, ``str`` as text, and ``bytes`` unchanged; ``codec=`` replaces JSON. None publishes a tombstone. Keys
    are encoded in the form that a handler's ``Key`` reads: text for ``str``, numbers, dates, UUIDs and enums, otherwise
    JSON; or by the codec if it encodes keys. ``key_serializer=`` and ``value_serializer=`` replace the codec, and set
    the types of keys and values: with a serializer that takes an ``Order``, the producer is a
    ``Producer[object, Order]``.

    With acks="all" and idempotence, which are the defaults, a record is stored once, and the records of a partition are
    stored in the order of the calls. The end of the ``async with`` waits until all records are acknowledged, for at
    most ``stop_timeout_ms``.

    Args:
        cluster: connections and metadata that are shared with consumers; by default, this producer has its own.
        codec: codec of values, and of keys if its ``keys`` is True; by default JSON.
        options: see ``tailrace.ProducerOptions`` and docs/options.md. The value of an option that is not given comes
            from its ``TAILRACE_...`` variable, or is the default.

    Raises:
        ConfigurationError: an option is unknown, has a wrong type, or contradicts another.
    """

    def __init__(
        self,
        *,
        cluster: SharedConnections | None = None,
        codec: AnyCodec | None = None,
        **options: Unpack[ProducerOptions[KeyT_contra, ValueT_contra]],
    ) -> None:
        options = hide_secrets(options)
        shared = {} if cluster is None else _client_options(cluster.options)
        self._options: dict[str, Any] = {**shared, **options}
        check_names(self._options, kind=ProducerConfig)
        self._config: ProducerConfig = resolve_producer(self._options)
        self._max_request_size = self._config.max_request_size
        self._max_plain_size = self._max_request_size - _OVERHEAD_BYTES
        _check_codec(codec)
        self._encoder = RecordEncoder(
            JsonCodec() if codec is None else codec, self._config.key_serializer, self._config.value_serializer
        )
        self._cluster = cluster
        self._engine: RecordProducer | TransactionalProducer | None = None
        self.event_loop: asyncio.AbstractEventLoop | None = None
        """Event loop of the started producer; None before the start. It is internal to tailrace."""
        self._starting: asyncio.Timeout | None = None
        """Limit of the start in progress, by which ``stop()`` ends it."""
        self._thread_id = self._forks = 0
        self._is_stopped = False
        self._layered: _Layered | None = None
        """Function that publishes within the spans of instrumentations; None without instrumentations."""
        self._instrumented_calls: set[asyncio.Task[Published]] = set()

    @robust_repr
    def __repr__(self) -> str:
        state = "stopped" if self._is_stopped else "new" if self._engine is None else "started"
        name = self._config.transactional_id
        return f"<Producer {f'transactional_id={name!r} ' if name else ''}{state}>"

    def __del__(self) -> None:
        if getattr(self, "_engine", None) is not None and not self._is_stopped:
            warnings.warn(f"{self!r} was never stopped - use `async with`", ResourceWarning, source=self, stacklevel=1)

    # ---- lifecycle ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to the cluster and, with idempotence or a ``transactional_id``, request a producer id.

        Raises:
            ConfigurationError: ``bootstrap_servers`` is missing.
            ConsumerStateError: the producer was started or stopped before, or is stopped while it starts.
            BrokerConnectionError: no broker answers within ``start_timeout_ms``.
            AuthenticationError: the brokers refuse the credentials.
            UnsupportedVersionError: the brokers are too old.
            PublishError: the brokers give no producer id.
        """
        if self._is_stopped:
            raise ConsumerStateError(_STOPPED)
        if self._engine is not None or self._starting is not None:
            raise ConsumerStateError("this producer is already started")
        shared = None if self._cluster is None else self._cluster.cluster
        if self._cluster is not None and shared is None:
            raise ConsumerStateError(
                "the shared cluster is not started, or was stopped - enclose its producers in `async with cluster`"
            )
        self._config = resolve_producer(self._options)
        self._max_request_size = self._config.max_request_size
        self._max_plain_size = self._max_request_size - _OVERHEAD_BYTES
        is_transactional = self._config.transactional_id is not None
        engine = TransactionalProducer(self._config) if is_transactional else RecordProducer(self._config)
        engine.creates_topics, engine.shared_cluster = True, shared
        self.event_loop, self._thread_id, self._forks = asyncio.get_running_loop(), get_ident(), len(_forks)
        try:
            async with asyncio.timeout(None) as limit:
                self._starting = limit
                await engine.start()
        except TimeoutError:
            raise ConsumerStateError("this producer was stopped while it started") from None
        except TailraceError as error:
            self._is_stopped = True
            # The message has the last error; the attempts before it would fill a screen.
            raise copy.copy(error) from None
        except BaseException:
            self._is_stopped = True
            raise
        finally:
            self._starting = None
        if limit.expired():
            await engine.close(0)
            raise ConsumerStateError("this producer was stopped while it started")
        self._engine = engine
        layers = [one for one in cast("tuple[Hook, ...]", self._config.hooks) if isinstance(one, Instrumentation)]
        if layers:
            self._layered = within_instrumentations(self._publish, layers)

    async def stop(self) -> None:
        """Wait until all records are acknowledged, abort an open transaction, and close the connections.

        The call takes at most ``stop_timeout_ms``. Records that are not acknowledged by then fail, and the event
        RecordsAbandoned has their number. A start in progress ends with an error.

        Raises:
            ConsumerStateError: the producer was started in another event loop, which is not closed.
        """
        engine, loop, was_stopped = self._engine, self.event_loop, self._is_stopped
        if was_stopped or loop is None:
            self._is_stopped = True
            return
        is_here = loop is asyncio.get_running_loop()
        if not is_here and not loop.is_closed():
            raise ConsumerStateError(f"{_OTHER_LOOP} - stop it there")
        self._is_stopped = True
        if is_here and self._starting is not None:
            self._starting.reschedule(loop.time())
        elif is_here and engine is not None:
            await engine.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- publishing --------------------------------------------------------------------------------------------

    async def send(  # noqa: PLR0913 - public
        self,
        topic: str,
        value: ValueT_contra | None,
        *,
        key: KeyT_contra | None = None,
        headers: Sequence[tuple[str, bytes | str | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Published:
        """Publish a record, and wait until it is acknowledged.

        Records of concurrent calls share batches. If the call is canceled after the record was added to a batch, the
        record is published nevertheless. In a transaction, the record becomes visible to readers with
        ``isolation_level="read_committed"`` when the transaction is committed.

        Args:
            topic: name of the topic. The brokers create a missing topic if their ``auto.create.topics.enable`` is set.
            value: value to encode; None for a tombstone.
            key: key to encode; it selects the partition.
            headers: names and values. The trace of the active span, or of the handled record, is added unless the
                headers contain a trace.
            partition: number of the partition; None to let ``partitioner`` choose.
            timestamp_ms: time in milliseconds since 1970; None for the current time.

        Raises:
            ConsumerStateError: the producer is not started, or was stopped; or, with a ``transactional_id``, no
                transaction is open, or it is being committed.
            BufferFullError: there was no memory for the record within ``max_block_ms``.
            PublishTooLargeError: the record is larger than ``max_request_size``, or than its topic allows.
            ProducerFencedError: another producer has the same ``transactional_id``.
            PublishTimeoutError: the record was not acknowledged within ``delivery_timeout_ms``, and may be stored.
            PublishError: the record cannot be encoded, the topic or partition does not exist, or the broker refused the
                record.
            SchemaRegistryError: a schema could not be fetched.
        """
        return await (
            await self.enqueue(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        )

    async def enqueue(  # noqa: PLR0913 - public
        self,
        topic: str,
        value: ValueT_contra | None,
        *,
        key: KeyT_contra | None = None,
        headers: Sequence[tuple[str, bytes | str | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[Published]:
        """Add a record to a batch as ``send`` does, and return a future of its place.

        The call returns at once, unless it has to wait for memory, for the metadata of a topic that is used for the
        first time, or for a schema; it does so for at most ``max_block_ms``. If it is canceled while it waits for
        these, the record is not published. To wait for several records, await their futures, or ``flush()``.

        The future raises what ``send`` raises after the record was added to a batch. Canceling the future does not
        withdraw the record.

        Args:
            topic: as in ``send``.
            value: as in ``send``.
            key: as in ``send``.
            headers: as in ``send``.
            partition: as in ``send``.
            timestamp_ms: as in ``send``.

        Raises:
            ConsumerStateError, BufferFullError, PublishError, SchemaRegistryError: see ``send``.
        """
        engine = self._started()
        if type(topic) is not str:
            _check_topic(topic)
        if self._encoder.is_immediate:
            record = self._encoder.encode_now(topic, value, key, (headers, partition, timestamp_ms))
        else:
            record = await self._encode(topic, value, key, (headers, partition, timestamp_ms))
        if self._layered is not None:
            return await self._enqueue_instrumented(self._layered, record)
        future = self._append_now(engine, record)
        if future is None:
            future = await self._append_later(engine, record)
        if engine.sender.is_batch_due:
            await engine.sender.yield_to_batch()
        return future

    async def publish_encoded(self, record: OutgoingRecord) -> Published:
        """Publish a record that is encoded already, as ``send`` does. It is internal to tailrace."""
        engine = self._started()
        if self._layered is not None:
            return await self._layered(record)
        return await (await self._append(engine, record))

    async def send_many(self, messages: Iterable[Message], topic: str | None = None) -> list[Published]:
        """Publish several records, wait until all are acknowledged, and return their places in order.

        All messages are encoded first: if one cannot be encoded, nothing is published.

        Args:
            messages: records to publish, with their topics.
            topic: topic of the messages that have none.

        Raises:
            PublishError: a message has no topic; or one or more records were not stored: the error is that of the
                first one, and says how many.
            ConsumerStateError, BufferFullError, SchemaRegistryError: see ``send``. After a BufferFullError, the records
                before this one may be stored.
        """
        engine = self._started()
        records = [await self._encode_message(one, topic) for one in messages_of(messages)]
        futures: list[asyncio.Future[Published]] = []
        try:
            for record in records:
                if self._layered is not None:
                    futures.append(await self._enqueue_instrumented(self._layered, record))
                elif (future := self._append_now(engine, record)) is not None:
                    futures.append(future)
                else:
                    futures.append(await self._append_later(engine, record))
                if engine.sender.is_batch_due:
                    await engine.sender.yield_to_batch()
        except BaseException:
            # No caller waits for the records before this one, so their errors count as retrieved.
            for future in futures:
                future.add_done_callback(_error_of)
            raise
        failures = await _failures_of(futures)
        if failures:
            raise error_of_several(failures[0], len(failures), len(futures))
        return [one.result() for one in futures]

    async def flush(self) -> None:
        """Wait until all records that were published before this call are acknowledged or have failed.

        Records are sent at once, without waiting for ``linger_ms``. The futures of the records have the errors.

        Raises:
            ConsumerStateError: the producer is not started, or was stopped.
            PublishError: the producer has failed.
        """
        await self._started().running.flush()

    async def partitions_for(self, topic: str) -> frozenset[int]:
        """Return the numbers of the partitions of a topic.

        Raises:
            ConsumerStateError: the producer is not started, or was stopped.
            PublishError: the topic does not exist, or no broker answers within ``max_block_ms``.
        """
        running = self._started().running
        _check_topic(topic)
        return frozenset(await running.partitions_of(topic))

    def statistics(self) -> ProducerStatistics:
        """Return the state of the buffer, and counters since the start.

        Raises:
            ConsumerStateError: the producer is not started, or was stopped.
        """
        found = None if self._engine is None or self._is_stopped else self._engine.statistics()
        if found is None:
            raise ConsumerStateError(_STOPPED if self._is_stopped else _NOT_STARTED)
        return found

    def transaction(self) -> Transaction:
        """Return the context manager of a transaction: ``async with producer.transaction() as transaction``.

        The end of the block commits the transaction; an exception in the block aborts it. All records that are
        published meanwhile, by any task, belong to the transaction.

        Raises:
            ConfigurationError: the producer has no ``transactional_id``.
        """
        if self._config.transactional_id is None:
            raise ConfigurationError("transactions need a transactional_id - pass it to Producer()")
        return Transaction(self._transactional)

    # ---- internals ---------------------------------------------------------------------------------------------

    @property
    def config(self) -> ProducerConfig:
        """Resolved options. They are internal to tailrace."""
        return self._config

    def _started(self) -> RecordProducer | TransactionalProducer:
        engine = self._engine
        if engine is None or self._is_stopped:
            raise ConsumerStateError(_STOPPED if self._is_stopped else _NOT_STARTED)
        loop = self.event_loop
        # Only one loop of a thread runs. In Python 3.11, get_running_loop() asks the system for the id of the process,
        # and takes longer than all other checks.
        is_forked = len(_forks) != self._forks
        is_here = get_ident() == self._thread_id and loop is not None and loop.is_running()
        if is_forked or (not is_here and asyncio.get_running_loop() is not loop):
            raise ConsumerStateError(f"{_OTHER_LOOP} - publish there, or start a producer in this one")
        return engine

    def _transactional(self) -> TransactionalProducer:
        return cast("TransactionalProducer", self._started())

    def _check_size(self, record: OutgoingRecord) -> None:
        value, key, headers = record.value, record.key, record.headers
        size = _OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers:
            size += sum(len(name) + len(value or b"") + 4 for name, value in headers)
        if size > self._max_request_size:
            raise PublishTooLargeError(
                f"{record.topic}: the record has {size} bytes, more than max_request_size="
                f"{self._max_request_size} - publish smaller records, or raise max_request_size here and"
                " max.message.bytes of the topic",
                setting="max_request_size",
            )

    def _append_now(
        self, engine: RecordProducer | TransactionalProducer, record: OutgoingRecord
    ) -> asyncio.Future[Published] | None:
        """Add a record to a batch and return its future; return None if only ``_append_later`` can.

        The caller awaits ``yield_to_batch`` of the sender if ``is_batch_due``.
        """
        if record_trace.get() or OPENTELEMETRY in sys.modules:
            record = _with_current_trace(record)
        value = record.value
        if record.key is not None or record.headers or (value is not None and len(value) > self._max_plain_size):
            self._check_size(record)
        return engine.send_now(record)

    async def _append_later(
        self, engine: RecordProducer | TransactionalProducer, record: OutgoingRecord
    ) -> asyncio.Future[Published]:
        """Add a record that waits for metadata or memory; raise the error if no transaction is open."""
        if isinstance(engine, TransactionalProducer) and engine.state in {
            ProducerState.READY,
            ProducerState.UNINITIALIZED,
        }:
            raise ConsumerStateError("no transaction is open - publish inside `async with producer.transaction()`")
        return await engine.send(_with_current_trace(record))

    async def _append(
        self, engine: RecordProducer | TransactionalProducer, record: OutgoingRecord
    ) -> asyncio.Future[Published]:
        future = self._append_now(engine, record)
        if future is None:
            future = await self._append_later(engine, record)
        if engine.sender.is_batch_due:
            await engine.sender.yield_to_batch()
        return future

    async def _encode_message(self, message: Message, topic: str | None) -> OutgoingRecord:
        to = message.topic or topic
        if to is None:
            raise PublishError("a Message has no topic - set topic= of the Message or of send_many()")
        _check_topic(to)
        check_not_delayed(message, "a Producer")
        key = None if message.key is msgspec.UNSET else message.key
        details = (message.headers, message.partition, message.timestamp_ms)
        if self._encoder.is_immediate:
            record = self._encoder.encode_now(to, message.value, key, details)
        else:
            record = await self._encode(to, message.value, key, details)
        self._check_size(record)
        return record

    async def _encode(self, topic: str, value: object, key: object, details: MessageDetails) -> OutgoingRecord:
        """Encode a record; fetch its schemas within ``max_block_ms`` if they are unknown."""
        limit_s = self._config.max_block_ms / 1000 or DEFAULT_LOOKUP_S
        try:
            async with asyncio.timeout(limit_s):
                return await self._encoder.encode(topic, value, key, details)
        except TimeoutError:
            raise PublishError(
                f"{topic}: no schema within max_block_ms ({limit_s:.1f} s) - check the schema registry"
            ) from None

    # ---- instrumentation ---------------------------------------------------------------------------------------

    async def _enqueue_instrumented(self, layered: _Layered, record: OutgoingRecord) -> asyncio.Future[Published]:
        """Run the instrumentations in a task of their own, and return it when the record is in a batch."""
        appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        token = _appended.set(appended)
        try:
            task = asyncio.create_task(layered(record), name="tailrace publish")
        finally:
            _appended.reset(token)
        self._instrumented_calls.add(task)
        task.add_done_callback(self._instrumented_calls.discard)
        try:
            await asyncio.wait((appended, task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not appended.done():
                task.cancel()
            raise
        if not appended.done():
            await task
        return task

    async def _publish(self, record: OutgoingRecord) -> Published:
        future = await self._append(self._started(), record)
        if (appended := _appended.get()) is not None and not appended.done():
            appended.set_result(None)
        return await future


class Transaction:
    """Transaction of a producer; see ``Producer.transaction``."""

    def __init__(self, engine: Callable[[], TransactionalProducer]) -> None:
        self._engine = engine
        self._is_open = False
        self._offsets: TransactionOffsets | None = None

    async def send_offsets(self, consumer: OffsetSource, offsets: Mapping[TopicPartition, Any] | None = None) -> None:
        """Commit the offsets of a consumer's group together with the records of this transaction (KIP-447).

        The consumer must have ``enable_auto_commit=False``, and should have ``isolation_level="read_committed"``. After
        an aborted transaction, ``await consumer.seek_to_committed()`` returns to the records of the transaction.

        Args:
            consumer: consumer of the records that this transaction has processed.
            offsets: offset of the next record to read of each partition; None for all delivered records, records in
                flight too.

        Raises:
            ConsumerStateError: this transaction is not open, or another consumer's offsets were added to it; or the
                consumer is in no generation of its group.
            ConfigurationError: ``consumer`` is no ``Consumer``, or commits automatically; or an offset is invalid.
        """
        if not self._is_open:
            raise ConsumerStateError("this transaction is not open - call send_offsets() inside its `async with`")
        if not hasattr(consumer, "transaction_offsets"):
            raise ConfigurationError(
                f"send_offsets() takes the tailrace.Consumer that has read the records, not {consumer!r} - the brokers"
                " check its membership of the group (KIP-447)"
            )
        added = consumer.transaction_offsets(offsets)
        if self._offsets is not None:
            if self._offsets.group_id != added.group_id:
                raise ConsumerStateError("a transaction commits the offsets of one group - use one consumer")
            added = msgspec.structs.replace(
                added,
                offsets={**self._offsets.offsets, **added.offsets},
                topic_ids={**self._offsets.topic_ids, **added.topic_ids},
            )
        self._offsets = added

    async def __aenter__(self) -> Self:
        engine = self._engine()
        if self._is_open or engine.state is ProducerState.IN_TRANSACTION:
            raise ConsumerStateError("a transaction of this producer is open - end it before you begin another")
        await engine.begin()
        self._is_open, self._offsets = True, None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        if error is not None:
            # The next transaction, or stop(), completes an abort that fails here.
            with contextlib.suppress(TailraceError, TimeoutError):
                async with asyncio.timeout(ABORT_S):
                    await self._engine().abort()
            return
        engine, added = self._engine(), self._offsets
        if added is None:
            await engine.commit()
        else:
            await engine.commit(added.offsets, added.identity, added.group_id, added.topic_ids, added.current_identity)


def _client_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a cluster's options that producers have, too."""
    return {name: value for name, value in options.items() if name in ClientOptions.__annotations__}


async def _failures_of(futures: Sequence[asyncio.Future[Published]]) -> list[BaseException]:
    """Wait for all futures and return their errors, so that asyncio logs none of them; cancel them if canceled.

    Most futures are done when the first one is: ``asyncio.gather`` would call a function for each.
    """
    try:
        for one in futures:
            if not one.done():
                await asyncio.wait((one,))
    except asyncio.CancelledError:
        for one in futures:
            one.cancel()
        raise
    return [error for one in futures if (error := _error_of(one)) is not None]


def _error_of(future: asyncio.Future[Published]) -> BaseException | None:
    return asyncio.CancelledError() if future.cancelled() else future.exception()


def _with_current_trace(record: OutgoingRecord) -> OutgoingRecord:
    headers = with_trace(record.headers, current_trace())
    return record if headers is record.headers else msgspec.structs.replace(record, headers=headers)


def _check_topic(topic: object) -> None:
    if not isinstance(topic, str):
        raise PublishError(f"topic must be a string such as 'orders', not {topic!r:.100}")


def _check_codec(codec: object) -> None:
    encode = getattr(codec, "encode_for", None) or getattr(codec, "encode", None)
    if codec is not None and (isinstance(codec, type | str) or not callable(encode)):
        raise ConfigurationError(
            f"codec must be an object with encode(value), not {codec!r:.100} - correct it, or leave out codec= for JSON"
        )
