"""Publishing: aiokafka's producer, idempotent, with our options, our errors and an end to every wait.

Rule of this file: the one door to ``AIOKafkaProducer``, and what it lacks. Idempotent, it tries a batch again for ever,
so each wait for it has a deadline here. It cannot give up, so ``close`` takes its sender from it when the time is over.
A batch that is refused leaves a gap in its sequence numbers, behind which the broker takes nothing more of it for that
partition: who runs into one gives it a new producer id. And when its sender has failed, another takes its place.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    BrokerResponseError,
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    RecordListTooLargeError,
    UnknownError,
)
from aiokafka.producer.sender import Sender
from aiokafka.producer.transaction_manager import TransactionManager

from tailrace.config import ConsumerConfig
from tailrace.core.producer.partitioner import partition_of
from tailrace.errors import (
    BrokerConnectionError,
    ConsumerStateError,
    PublishError,
    PublishTooLargeError,
    broker_error,
)
from tailrace.net.cluster import Cluster
from tailrace.producer.aiokafka_options import TokenSource, connection_options
from tailrace.producer.publisher import Published, check_topic_name
from tailrace.records import TopicPartition

__all__ = ["Producer"]

_GIVING_UP_S = 1
_A_MOMENT_S = 5
"""For what is under way when its user fails or is cancelled."""

_LARGEST_RECORD_BYTES = 2**31 - 1
"""How large a record may be is its topic's to say."""

# It asserts what its callers may get wrong, such as a partition that the topic has not.
_REFUSALS = (KafkaError, TimeoutError, AssertionError)

_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
# Also what it has no name for, among it INVALID_RECORD: one without a key, for a compacted topic.
_OF_ONE_RECORD = (*_TOO_LARGE, InvalidTimestampError, UnknownError)
"""For which a whole batch is refused, however many good records are in it, or because there are so many."""


class _Content(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int | None

    @property
    def is_empty(self) -> bool:
        """Whether it has neither key nor value, which aiokafka's ``send`` refuses."""
        return self.value is None and self.key is None


class Producer:
    """Publishes for as long as an ``async with`` lasts.

    Leaving it waits until all is acknowledged; leaving it by an error waits a moment.

    Args:
        config: how to reach the brokers and get in; the rest of it is not looked at.
        max_batch_bytes: records of one partition go together up to this size.
        linger_ms: how long a batch that is not full waits for more.

    Raises:
        ConfigurationError: a TLS file cannot be read.
        BrokerConnectionError: at start, no broker answers in ``start_timeout_ms``.
    """

    def __init__(self, config: ConsumerConfig, *, max_batch_bytes: int = 262_144, linger_ms: int = 0) -> None:
        self._config, self._max_batch_bytes, self._linger_ms = config, max_batch_bytes, linger_ms
        self._timeout_s = config.default_api_timeout_ms / 1000
        self._producer: Any = None
        self._mending = asyncio.Lock()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """To travel alone to a topic: of many that wait for a place at once, aiokafka gives up most."""
        self._waiting: set[asyncio.Future[Any]] = set()
        self._refused: BaseException | None = None

    def __repr__(self) -> str:
        state = "not started" if self._producer is None else f"{len(self._waiting)} batches under way"
        return f"<Producer {','.join(self._config.bootstrap_servers)} {state}>"

    # ---- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reach the brokers and get a producer id.

        Raises:
            ConfigurationError: no address is given.
            AuthenticationError: the brokers refuse us.
            BrokerConnectionError: none answers in ``start_timeout_ms``.
        """
        # aiokafka gives up when nobody is there yet, and does not tell what a broker has against us.
        timeout_s = self._config.start_timeout_ms / 1000
        with closing(Cluster(self._config)) as cluster:
            await cluster.reach(timeout_s)
        self._producer = await self._opened()

    async def close(self, timeout_s: float | None = None) -> None:
        """Wait until all is acknowledged, ``stop_timeout_ms`` at most, and close the connections."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        is_through = False
        try:
            async with asyncio.timeout(self._config.stop_timeout_ms / 1000 if timeout_s is None else timeout_s):
                await producer.flush()
                is_through = True
        except TimeoutError:
            pass
        finally:
            await (producer.stop() if is_through else _give_up(producer))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self.close(None if error is None else _A_MOMENT_S)

    # ---- publishing --------------------------------------------------------------------------------------------

    async def publish(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Published:
        """Publish one record and wait until all replicas have it; calls that come together travel together.

        Without ``partition`` the key decides, as with Kafka's own clients. In its partition a record stands behind all
        that were acknowledged before the call; calls that begin together, as by ``asyncio.gather``, keep their order.
        One that the broker refuses fails alone: what travelled with it is sent again, and may come behind later ones.

        Raises:
            PublishTooLargeError: it is larger than the topic allows.
            PublishError: it was refused, or not acknowledged in ``default_api_timeout_ms``; it may still arrive then.
        """
        check_topic_name(topic)
        content = _Content(value, key, list(headers), timestamp_ms)
        try:
            async with asyncio.timeout(self._timeout_s):
                placed = await self._acknowledged(topic, partition, content)
        except _REFUSALS as error:
            raise self._refusal(topic, error, is_known=self._knows(topic)) from error
        return Published(TopicPartition(topic, placed.partition), placed.offset)

    async def publish_many(
        self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]
    ) -> None:
        """Publish keys and values to one partition, in order and in few batches: nearly twice as fast as singly.

        It returns when the last batch is on its way; ``flush`` says whether all arrived.

        Raises:
            PublishError: an earlier batch was refused, or there is no place for another in time.
        """
        batch = self._started.create_batch()
        for key, value in records:
            if batch.append(timestamp=None, key=key, value=value) is None:
                await self._send_batch(topic, partition, batch)
                batch = self._started.create_batch()
                batch.append(timestamp=None, key=key, value=value)
        if batch.record_count():
            await self._send_batch(topic, partition, batch)

    async def flush(self) -> None:
        """Wait until all that ``publish_many`` took is acknowledged.

        Raises:
            PublishError: some of it was refused, or not acknowledged in ``default_api_timeout_ms``.
        """
        pending: set[asyncio.Future[Any]] = set()
        if self._waiting:
            _, pending = await asyncio.wait(self._waiting, timeout=self._timeout_s)
        if pending or self._refused is not None:
            error = self._refused or TimeoutError()
            raise self._refusal(f"{len(pending)} batches", error) from error

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> Any:  # noqa: ANN401 - aiokafka is untyped
        if self._producer is None:
            raise ConsumerStateError("this producer is not started - use it in an `async with`")
        return self._producer

    async def _at_work(self) -> Any:  # noqa: ANN401
        """The producer; another one, if it has failed, and with it all that was under way."""
        producer = self._started
        if not producer._sender.sender_task.done():  # noqa: SLF001 - it tells nobody
            return producer
        async with self._mending:
            if self._producer is producer:
                try:
                    another = await self._opened()
                except BrokerConnectionError as error:
                    raise PublishError(str(error)) from error
                if self._producer is producer:
                    self._producer, another = another, producer
                await _give_up(another)
        return self._started

    async def _begin_anew(self, producer: Any) -> None:  # noqa: ANN401
        """Have it go on under a new producer id, and count from nought.

        What is under way keeps the old one. Of each partition that is one batch at most: nothing arrives twice, and
        nothing is overtaken.
        """
        old = producer._txn_manager  # noqa: SLF001 - as is all of it: it has no other way
        async with self._mending:
            if producer._txn_manager is not old:  # noqa: SLF001
                return
            new = TransactionManager(None, old.transaction_timeout_ms)
            asking = Sender(
                producer.client,
                acks=-1,
                txn_manager=new,
                message_accumulator=None,
                retry_backoff_ms=self._config.retry_backoff_ms,
                request_timeout_ms=self._config.request_timeout_ms,
            )
            await asking._maybe_wait_for_pid()  # noqa: SLF001
            for part in (producer, producer._sender, producer._message_accumulator):  # noqa: SLF001
                part._txn_manager = new  # noqa: SLF001

    async def _opened(self) -> Any:  # noqa: ANN401 - aiokafka is untyped
        provider = self._config.sasl_oauth_token_provider
        token = None if provider is None else TokenSource(provider)
        producer = AIOKafkaProducer(
            **connection_options(self._config),
            sasl_oauth_token_provider=token,
            enable_idempotence=True,
            max_batch_size=self._max_batch_bytes,
            max_request_size=_LARGEST_RECORD_BYTES,
            linger_ms=self._linger_ms,
        )
        try:
            async with asyncio.timeout(self._config.start_timeout_ms / 1000):
                await producer.start()
        except BaseException as error:
            await producer.stop()
            if not isinstance(error, Exception):
                raise
            # Also what Kerberos raises.
            reason = (token and token.error) or str(error) or "no answer in time"
            raise BrokerConnectionError(
                f"no producer on {','.join(self._config.bootstrap_servers)}: {reason}"
            ) from error
        return producer

    async def _acknowledged(self, topic: str, partition: int | None, content: _Content) -> Any:  # noqa: ANN401
        """Where the record is now."""
        is_alone = content.is_empty
        while True:
            producer = await self._at_work()
            if is_alone:
                async with self._turns[topic]:
                    acknowledged = await _send_alone(producer, topic, partition, content)
            else:
                acknowledged = await _send(producer, topic, partition, content)
            try:
                return await acknowledged
            except OutOfOrderSequenceNumber:
                await self._begin_anew(producer)
            except _OF_ONE_RECORD:
                if is_alone:
                    raise
                is_alone = True

    async def _send_batch(self, topic: str, partition: int, batch: Any) -> None:  # noqa: ANN401
        check_topic_name(topic)
        if self._refused is not None:
            raise self._refusal(topic, self._refused) from self._refused
        try:
            async with asyncio.timeout(self._timeout_s):
                acknowledged = await self._started.send_batch(batch, topic, partition=partition)
        except _REFUSALS as error:
            raise self._refusal(topic, error, is_known=self._knows(topic)) from error
        self._waiting.add(acknowledged)
        acknowledged.add_done_callback(self._told)

    def _told(self, acknowledged: asyncio.Future[Any]) -> None:
        self._waiting.discard(acknowledged)
        if not acknowledged.cancelled() and (error := acknowledged.exception()) is not None:
            self._refused = self._refused or error

    def _refusal(self, what: str, error: BaseException, *, is_known: bool = True) -> PublishError:
        if isinstance(error, _TOO_LARGE):
            return PublishTooLargeError(
                f"{what}: {broker_error(error.errno, 'larger than the topic allows')} - max.message.bytes of the topic"
            )
        match error:
            case UnknownError():
                reason = (
                    "refused by the broker, it is not known why - has the record no key, and is the topic compacted?"
                )
            case BrokerResponseError():
                reason = str(broker_error(error.errno, "refused by the broker"))
            case TimeoutError():
                advice = "are enough replicas alive?" if is_known else "does the topic exist, and may we see it?"
                reason = f"no acknowledgement within {self._timeout_s:.0f} s - {advice}"
            case AssertionError():
                reason = "it has no such partition"
            case _:
                reason = f"{type(error).__name__}: {error}"
        return PublishError(f"{what}: {reason}")

    def _knows(self, topic: str) -> bool:
        """Whether brokers have told of a topic."""
        return self._producer is None or bool(self._producer.client.cluster.partitions_for_topic(topic))


async def _give_up(producer: Any) -> None:  # noqa: ANN401
    """End a producer whose batches nobody acknowledges; its own ``stop`` would wait for them, for ever."""
    producer._closed = True  # noqa: SLF001 - it has no other way
    sender = producer._sender.sender_task  # noqa: SLF001
    try:
        # The first time it waits for requests under way, the second it does not.
        for _ in range(2):
            sender.cancel()
            await asyncio.wait({sender}, timeout=_GIVING_UP_S)
    finally:
        sender.cancel()
        await producer.client.close()


async def _send(producer: Any, topic: str, partition: int | None, content: _Content) -> Any:  # noqa: ANN401
    value, key, headers, timestamp_ms = content
    try:
        return await producer.send(topic, value, key, partition, timestamp_ms, headers)
    except AssertionError:
        # The partition may have been added since it has looked.
        await producer.client.force_metadata_update()
        return await producer.send(topic, value, key, partition, timestamp_ms, headers)


async def _send_alone(producer: Any, topic: str, partition: int | None, content: _Content) -> Any:  # noqa: ANN401
    """Send it in a batch that no other joins; also a record with neither key nor value."""
    value, key, headers, timestamp_ms = content
    if partition is None:
        count = len(await producer.partitions_for(topic))
        partition = random.randrange(count) if key is None else partition_of(key, count)  # noqa: S311 - any will do
    batch = producer.create_batch()
    batch.append(timestamp=timestamp_ms, key=key, value=value, headers=headers)
    batch.close()
    return await producer.send_batch(batch, topic, partition=partition)
