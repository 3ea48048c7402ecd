"""Parts of a running producer, idempotent or transactional."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import cast

from tailrace.config import ConsumerConfig
from tailrace.core.cluster_metadata import Leadership, topic_name_fault
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, PublishError, TailraceError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.observe.hooks import Hook, Observer
from tailrace.producer.partitioner import Partitioner
from tailrace.producer.sender import RecordSender
from tailrace.records import TopicPartition

__all__ = ["PartitionResolver", "ProducerRuntime", "new_cluster"]

# ---- partitions of the records to publish: given by the caller, or chosen by the partitioner -------------------------

_TOPIC_GRACE_S = 5.0
"""Default of ``PartitionResolver.timeout_s``."""


class PartitionResolver:
    """Resolver of the partitions of one producer's records, which looks up topics that are not in the metadata.

    Args:
        cluster: source of metadata.
        timeout_s: maximum time of a look-up in seconds; five seconds if None. A look-up waits for a topic that does not
            exist yet, but not for a partition.
    """

    def __init__(self, cluster: Cluster, timeout_s: float | None = None) -> None:
        self._cluster, self._timeout_s = cluster, timeout_s
        self._partitioner = Partitioner(random.random)
        self._topics: dict[str, _Partitions] = {}
        self._lookups: dict[str, _Lookup] = {}

    def resolve_known(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition | None:
        """Return the partition of a record; None if ``resolve`` must be called, because metadata is missing."""
        topic_partitions, known = self._topics.get(topic), self._cluster.topology.topics.get(topic)
        if topic_partitions is None or known is None or not known.partitions:
            return None
        if partition is None:
            return topic_partitions[self._partitioner.choose(topic, key, known.partitions)]
        return topic_partitions[partition] if partition in known.partitions else None

    async def resolve(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Return the partition of a record: ``partition``, or if it is None, the choice of the partitioner.

        Raises:
            PublishError: the topic or partition does not exist.
        """
        if (topic_partition := self.resolve_known(topic, key, partition)) is not None:
            return topic_partition
        if topic not in self._topics:
            self._topics[topic] = _Partitions(topic)
            self._cluster.watch(self, self._topics)
        # A partition that is not in the metadata may have been added since the last refresh.
        partitions = await self._look_up(topic, partition)
        if partition is not None and partition not in partitions:
            raise PublishError(f"{topic} has no partition {partition} - its partitions are 0 to {len(partitions) - 1}")
        chosen = self._partitioner.choose(topic, key, partitions) if partition is None else partition
        return TopicPartition(topic, chosen)

    def change_partition(self, topic: str | None = None) -> None:
        """Let the next record without a key get another partition, in ``topic`` or in all topics if None."""
        self._partitioner.change_partition(topic)

    async def _look_up(self, topic: str, partition: int | None) -> Mapping[int, Leadership]:
        """Look up the partitions of a topic and return them; concurrent calls share one look-up.

        Raises:
            PublishError: the topic was not found in time.
        """
        while (lookup := self._lookups.get(topic)) is not None:
            await lookup.has_ended.wait()
            if lookup.error is not None:
                raise copy.copy(lookup.error)
            known = self._cluster.topology.topics.get(topic)
            if known is not None and known.partitions and (partition is None or partition in known.partitions):
                return known.partitions
        lookup = self._lookups[topic] = _Lookup()
        try:
            return await self._cluster.retrying(
                lambda: self._fetch_partitions(topic),
                timeout_s=_TOPIC_GRACE_S if self._timeout_s is None else self._timeout_s,
                what=f"finding topic {topic!r}",
            )
        except (BrokerError, BrokerConnectionError) as error:
            self._topics.pop(topic, None)
            self._cluster.watch(self, self._topics)
            lookup.error = PublishError(str(error))
            raise lookup.error from error
        finally:
            del self._lookups[topic]
            lookup.has_ended.set()

    async def _fetch_partitions(self, topic: str) -> Mapping[int, Leadership]:
        await self._cluster.refresh()
        topology = self._cluster.topology
        known = topology.topics.get(topic)
        if known is None or not known.partitions:
            code = topology.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise broker_error(code, topic, permission="WRITE")
        return known.partitions


class _Partitions(dict[int, TopicPartition]):
    """Partitions of one topic by number; each ``TopicPartition`` is created at its first use."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic

    def __missing__(self, partition: int) -> TopicPartition:
        created = self[partition] = TopicPartition(self._topic, partition)
        return created


class _Lookup:
    """Look-up in progress of a topic.

    Attributes:
        has_ended: event that is set at the end of the look-up.
        error: error of the look-up; None if it succeeds.
    """

    def __init__(self) -> None:
        self.has_ended = asyncio.Event()
        self.error: TailraceError | None = None


# ---- parts of a running producer, idempotent or transactional --------------------------------------------------------

_GRACE_S = 1.0
"""Seconds by which a call outlasts its look-up, so that the look-up fails first, with a more detailed error."""


def new_cluster(config: ConsumerConfig) -> Cluster:
    """Create a cluster that emits its events to the hooks of ``config``."""
    return Cluster(config, Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id))


class ProducerRuntime:
    """Parts of a producer from its start until it is closed, and the task that sends its records.

    Args:
        cluster: connections to the brokers, which ``end`` closes.
        sender: sender of the records.
        resolver: resolver of partitions.
        timeout_s: maximum time in seconds for which a record waits for metadata.
        background: coroutine functions to run as long as the sender runs.

    Attributes:
        is_closed: True once ``end`` was called.
        loop: event loop.
        sender: sender of the records.
        resolver: resolver of partitions.
    """

    def __init__(
        self,
        cluster: Cluster,
        sender: RecordSender,
        resolver: PartitionResolver,
        timeout_s: float,
        *background: Callable[[], Coroutine[object, object, None]],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.sender, self.resolver = sender, resolver
        self._cluster, self._timeout_s = cluster, timeout_s
        self._timeouts: set[asyncio.Timeout] = set()
        """Timeouts of the calls that wait for metadata."""
        self.is_closed = False
        sender.on_batch = resolver.change_partition
        self._task = asyncio.create_task(sender.run(*background), name="tailrace producer")
        self._task.add_done_callback(self._report_failure)

    async def resolve(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Return the partition of a record; look up the topic if necessary.

        Raises:
            PublishError: the topic or partition does not exist, no metadata came in time, or the producer was closed.
        """
        # No caller should wait for a topic that cannot exist.
        if fault := topic_name_fault(topic):
            raise PublishError(f"{topic!r} is not a legal topic name: {fault}")
        limit = asyncio.timeout(self._timeout_s + _GRACE_S)
        self._timeouts.add(limit)
        try:
            async with limit:
                return await self.resolver.resolve(topic, key, partition)
        except TimeoutError:
            if self.is_closed:
                raise PublishError(f"{topic}: the producer was closed before the record was sent") from None
            raise PublishError(
                f"{topic}: no metadata within {self._timeout_s:.0f} s - check that the brokers are reachable"
            ) from None
        finally:
            self._timeouts.discard(limit)

    async def flush(self) -> None:
        """Wait until every record is delivered or has failed."""
        if not self._task.done():
            await self.sender.flush()

    async def end(self) -> None:
        """Stop the sender, fail the undelivered records, and close the connections."""
        self._task.cancel()
        self.is_closed = True
        for limit in self._timeouts:
            limit.reschedule(self.loop.time())
        try:
            await asyncio.wait({self._task})
        finally:
            self._cluster.close()

    def _report_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.call_exception_handler({"message": "a producer has failed", "exception": error, "task": task})
