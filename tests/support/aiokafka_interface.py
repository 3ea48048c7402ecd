"""aiokafka's consumer interface over ``tailrace.Consumer``, for the tests that aiokafka's consumer has."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Self

from tailrace import Consumer, OffsetAndMetadata, Record, TopicPartition

__all__ = ["AiokafkaInterface", "values_of"]


class _Listener:
    """Forwards the calls of tailrace's only listener to the listener of the last ``subscribe``."""

    def __init__(self) -> None:
        self.current: Any = None

    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        if self.current is not None:
            await self.current.on_partitions_revoked(set(partitions))

    async def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        if self.current is not None:
            await self.current.on_partitions_assigned(set(partitions))


class AiokafkaInterface:
    """``AIOKafkaConsumer`` with the same signatures and defaults.

    ``assign``, ``subscribe``, ``unsubscribe`` and ``seek`` are plain functions here; the coroutines of ``Consumer`` run
    before the next call that is awaited.
    """

    def __init__(
        self,
        *topics: str,
        group_id: str | None = None,
        enable_auto_commit: bool = True,
        auto_offset_reset: str = "latest",
        max_poll_records: int | None = None,
        partition_assignment_strategy: Iterable[str] = ("roundrobin",),
        **options: Any,
    ) -> None:
        if max_poll_records is not None and max_poll_records < 1:
            raise ValueError("max_poll_records must be at least 1")
        self._max_poll_records, self._listener, self.group_id = max_poll_records, _Listener(), group_id
        options |= {"group_id": group_id, "auto_offset_reset": auto_offset_reset}
        if group_id is not None:
            strategies = tuple(partition_assignment_strategy)
            options |= {"enable_auto_commit": enable_auto_commit, "partition_assignment_strategy": strategies}
            options["rebalance_listener"] = self._listener
        self.inner: Consumer[Any, Any] = Consumer(*topics, **options)
        self._reads = bool(topics)
        self._pending: list[Callable[[], Awaitable[object]]] = []

    async def start(self) -> None:
        await self.inner.start()
        await self.settle()

    async def stop(self) -> None:
        await self.inner.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def settle(self) -> None:
        """Run the coroutines of the plain functions, and wait for the assignment."""
        while self._pending:
            await self._pending.pop(0)()
        if self._reads:
            await self.inner.assigned()

    # ---- plain functions ---------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] = (), pattern: str | None = None, listener: Any = None) -> None:
        if isinstance(topics, str):
            raise TypeError("topics must be a list of names")
        names = tuple(topics)
        if bool(names) is (pattern is not None):
            raise TypeError("give topics or a pattern")
        # aiokafka matches beginnings of names.
        expression = None if pattern is None else re.compile(f"(?:{pattern}).*")
        self._listener.current, self._reads = listener, True
        self._pending.append(lambda: self.inner.subscribe(*names, pattern=expression))

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._reads = True
        self._pending.append(lambda: self.inner.assign(partitions))

    def unsubscribe(self) -> None:
        self._reads = False
        self._pending.append(self.inner.unsubscribe)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._pending.append(lambda: self.inner.seek(partition, offset))

    def assignment(self) -> frozenset[TopicPartition]:
        return self.inner.assignment()

    def subscription(self) -> frozenset[str]:
        return self.inner.subscription()

    def highwater(self, partition: TopicPartition) -> int | None:
        return self.inner.highwater(partition)

    def pause(self, *partitions: TopicPartition) -> None:
        self.inner.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.inner.resume(*partitions)

    def paused(self) -> frozenset[TopicPartition]:
        return self.inner.paused()

    # ---- reading -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record[Any, Any]:
        await self.settle()
        return await anext(self.inner)

    async def getone(self, *partitions: TopicPartition) -> Record[Any, Any]:
        await self.settle()
        return await self.inner.getone(*partitions)

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record[Any, Any]]]:
        await self.settle()
        count = self._max_poll_records if max_records is None else max_records
        found: dict[TopicPartition, list[Record[Any, Any]]] = {}
        for record in await self.inner.getmany(*partitions, max_records=count, timeout_ms=timeout_ms):
            found.setdefault(record.topic_partition, []).append(record)
        return found

    # ---- offsets -----------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, Any] | None = None) -> None:
        await self.settle()
        if offsets is None:
            await self.inner.commit()
        elif isinstance(offsets, Mapping):
            pairs = {at: OffsetAndMetadata(*one) if isinstance(one, tuple) else one for at, one in offsets.items()}
            await self.inner.commit(pairs)
        else:
            await self.inner.commit(offsets)

    async def committed(self, partition: TopicPartition) -> int | None:
        await self.settle()
        found = await self.inner.committed(partition)
        return None if found is None else found.offset

    async def position(self, partition: TopicPartition) -> int:
        await self.settle()
        return await self.inner.position(partition)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        await self.settle()
        await self.inner.seek_to_beginning(*partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        await self.settle()
        await self.inner.seek_to_end(*partitions)

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        await self.settle()
        return await self.inner.seek_to_committed(*partitions)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self.inner.beginning_offsets(partitions)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self.inner.end_offsets(partitions)

    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        return await self.inner.offsets_for_times(times)

    async def topics(self) -> frozenset[str]:
        return await self.inner.topics()

    async def partitions_for_topic(self, topic: str) -> frozenset[int]:
        return await self.inner.partitions_for_topic(topic)


async def values_of(consumer: AiokafkaInterface, count: int, *partitions: TopicPartition) -> list[bytes]:
    """Return the values of the next records."""
    return [(await consumer.getone(*partitions)).value for _ in range(count)]
