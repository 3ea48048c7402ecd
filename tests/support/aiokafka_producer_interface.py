"""aiokafka's producer interface over ``tailrace.Producer``, for the tests that aiokafka's producer has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from tailrace import Message, OffsetAndMetadata, Producer, Published, TopicPartition
from tailrace.producer.producer import Transaction
from tests.support.aiokafka_interface import AiokafkaInterface

__all__ = ["AiokafkaProducerInterface", "BatchBuilder"]

_OVERHEAD_BYTES = 70


class UserAbortedError(Exception):
    """Exception that makes a transaction abort."""


class BatchBuilder:
    """Records of one partition, up to the size of a batch; a list of ``Message`` replaces it."""

    def __init__(self, max_batch_size: int) -> None:
        self._max_batch_size, self._size, self._is_closed = max_batch_size, 0, False
        self.messages: list[Message] = []

    def append(self, *, timestamp: int | None, key: Any, value: Any) -> Message | None:
        """Return the message; None if the batch is full or closed."""
        size = _OVERHEAD_BYTES + sum(len(str(one)) for one in (key, value) if one is not None)
        if self._is_closed or (self.messages and self._size + size > self._max_batch_size):
            return None
        self._size += size
        self.messages.append(Message(value, key, timestamp_ms=timestamp))
        return self.messages[-1]

    def close(self) -> None:
        self._is_closed = True

    def record_count(self) -> int:
        return len(self.messages)


class AiokafkaProducerInterface:
    """``AIOKafkaProducer`` with the same signatures and defaults.

    Args:
        consumers: consumers whose offsets ``send_offsets_to_transaction`` finds by their group.
        acks: "all" by default if the producer is idempotent, otherwise 1.
        enable_idempotence: as in aiokafka.
        transactional_id: as in aiokafka.
        request_timeout_ms: maximum time of a request, and of the delivery of a record.
        max_batch_size: as in aiokafka.
        options: other options.
    """

    def __init__(
        self,
        *,
        consumers: Iterable[AiokafkaInterface] = (),
        acks: object = None,
        enable_idempotence: bool = False,
        transactional_id: str | None = None,
        request_timeout_ms: int = 40_000,
        max_batch_size: int = 16_384,
        **options: Any,
    ) -> None:
        is_idempotent = enable_idempotence or transactional_id is not None
        options |= {"request_timeout_ms": request_timeout_ms, "delivery_timeout_ms": request_timeout_ms}
        options |= {"max_batch_size": max_batch_size, "transactional_id": transactional_id}
        options["acks"] = acks if acks is not None else "all" if is_idempotent else 1
        options["enable_idempotence"] = is_idempotent
        self.inner: Producer[Any, Any] = Producer(**options)
        self._consumers, self._max_batch_size = consumers, max_batch_size
        self._transaction: Transaction | None = None

    async def start(self) -> None:
        await self.inner.start()

    async def stop(self) -> None:
        await self.inner.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def flush(self) -> None:
        await self.inner.flush()

    async def partitions_for(self, topic: str) -> frozenset[int]:
        return await self.inner.partitions_for(topic)

    # ---- records -----------------------------------------------------------------------------------------------

    async def send(self, topic: str, value: Any = None, key: Any = None, **details: Any) -> asyncio.Future[Published]:
        return await self.inner.enqueue(topic, value, key=key, **details)

    async def send_and_wait(self, topic: str, value: Any = None, key: Any = None, **details: Any) -> Published:
        return await self.inner.send(topic, value, key=key, **details)

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(self._max_batch_size)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> asyncio.Future[Published]:
        """Enqueue the records of a batch, and return the future of the first record's place."""
        futures = [
            await self.inner.enqueue(topic, one.value, key=one.key, partition=partition, timestamp_ms=one.timestamp_ms)
            for one in batch.messages
        ]
        return futures[0]

    # ---- transactions ------------------------------------------------------------------------------------------

    async def begin_transaction(self) -> None:
        self._transaction = await self.inner.transaction().__aenter__()

    async def commit_transaction(self) -> None:
        assert self._transaction is not None
        await self._transaction.__aexit__(None, None, None)

    async def abort_transaction(self) -> None:
        assert self._transaction is not None
        error = UserAbortedError()
        await self._transaction.__aexit__(UserAbortedError, error, None)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.inner.transaction() as self._transaction:
            yield

    async def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, Any], group_id: str) -> None:
        assert self._transaction is not None
        (consumer,) = (one.inner for one in self._consumers if one.group_id == group_id)
        pairs = {at: OffsetAndMetadata(*one) if isinstance(one, tuple) else one for at, one in offsets.items()}
        await self._transaction.send_offsets(consumer, pairs)
