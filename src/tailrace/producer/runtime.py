"""Parts of a running producer, idempotent or transactional."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import difflib
import random
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from tailrace.batches.batch_writer import BatchWriter
from tailrace.config import ClientConfig, ConsumerConfig, Partitioning, ProducerConfig
from tailrace.core.backoff import Backoff
from tailrace.core.cluster_metadata import Leadership, topic_name_fault
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    PublishError,
    PublishTimeoutError,
    TailraceError,
    broker_error,
)
from tailrace.installation import murmur2 as compiled_murmur2
from tailrace.net.cluster import Cluster
from tailrace.observe.events import PublishDelayed, RecordsAbandoned
from tailrace.observe.hooks import Hook, Observer
from tailrace.producer.accumulator import ProducerSettings
from tailrace.producer.partitioner import Partitioner, murmur2
from tailrace.producer.sender import RecordSender
from tailrace.protocol.metadata import MetadataRequest, MetadataTopic
from tailrace.records import TopicPartition

__all__ = [
    "DEFAULT_LOOKUP_S",
    "PartitionResolver",
    "ProducerRuntime",
    "content_of",
    "new_cluster",
    "new_observer",
    "settings_of",
]

ResultT = TypeVar("ResultT")

# ---- partitions of the records to publish: given by the caller, or chosen by the partitioner -------------------------

DEFAULT_LOOKUP_S = 5.0
"""Default of ``PartitionResolver.timeout_s``, and limit with ``max_block_ms=0``."""
_MISSING_AFTER_S = 2.0
"""Seconds from which an answer that the topic is unknown ends a look-up: a new topic may not be known everywhere."""
_REPORTED_AFTER_S = 1.0
"""Seconds after which PublishDelayed reports a look-up."""
_SIMILARITY = 0.7
"""Minimum similarity of topic names, between 0 and 1, for a hint."""


class PartitionResolver:
    """Resolver of the partitions of one producer's records, which looks up topics that are not in the metadata.

    Args:
        cluster: source of metadata.
        timeout_s: maximum time of a look-up in seconds; five seconds if None. A look-up waits for a topic that does not
            exist yet for two seconds, and not for a partition.
        partitioning: option ``partitioner``.
        creates_topics: True to let brokers create missing topics, if their ``auto.create.topics.enable`` is set.

    Attributes:
        observer: receives events; by default that of the cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        timeout_s: float | None = None,
        partitioning: Partitioning = "murmur2",
        *,
        creates_topics: bool = False,
    ) -> None:
        self._cluster, self._timeout_s = cluster, timeout_s
        self._partitioner = Partitioner(random.random, partitioning, compiled_murmur2 or murmur2)
        self._creates_topics = creates_topics
        self.observer: Observer = cluster.observer
        self._topics: dict[str, _Partitions] = {}
        self._topology, self._keyless = cluster.topology, dict[str, TopicPartition]()
        """Metadata, and the partitions that the partitioner has chosen from it for records without a key."""
        self._lookups: dict[str, _Lookup] = {}

    def resolve_known(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition | None:
        """Return the partition of a record; None if ``resolve`` must be called, because metadata is missing."""
        topology = self._cluster.topology
        if topology is not self._topology:
            self._topology = topology
            self._keyless.clear()
        if key is None and partition is None and (kept := self._keyless.get(topic)) is not None:
            return kept
        topic_partitions, known = self._topics.get(topic), topology.topics.get(topic)
        if topic_partitions is None or known is None or not known.partitions:
            return None
        if partition is None:
            chosen = topic_partitions[self._partitioner.choose(topic, key, known.partitions)]
            if key is None and self._partitioner.keeps_partition:
                self._keyless[topic] = chosen
            return chosen
        return topic_partitions[partition] if partition in known.partitions else None

    async def resolve(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Return the partition of a record: ``partition``, or if it is None, the choice of the partitioner.

        Raises:
            PublishError: the topic or partition does not exist.
        """
        if (topic_partition := self.resolve_known(topic, key, partition)) is not None:
            return topic_partition
        self._watch(topic)
        # A partition that is not in the metadata may have been added since the last refresh.
        partitions = await self._look_up(topic, partition)
        if partition is not None and partition not in partitions:
            raise PublishError(f"{topic} has no partition {partition} - its partitions are 0 to {len(partitions) - 1}")
        chosen = self._partitioner.choose(topic, key, partitions) if partition is None else partition
        return TopicPartition(topic, chosen)

    async def partitions_of(self, topic: str) -> Collection[int]:
        """Return the numbers of a topic's partitions.

        Raises:
            PublishError: the topic does not exist.
        """
        known = self._cluster.topology.topics.get(topic)
        if topic in self._topics and known is not None and known.partitions:
            return known.partitions
        self._watch(topic)
        return await self._look_up(topic, None)

    def _watch(self, topic: str) -> None:
        if topic not in self._topics:
            self._topics[topic] = _Partitions(topic)
            self._cluster.watch(self, self._topics)

    def change_partition(self, topic: str | None = None) -> None:
        """Let the next record without a key get another partition, in ``topic`` or in all topics if None."""
        self._partitioner.change_partition(topic)
        if topic is None:
            self._keyless.clear()
        else:
            self._keyless.pop(topic, None)

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
        loop = asyncio.get_running_loop()
        lookup.missing_at = loop.time() + _MISSING_AFTER_S
        reminder = loop.call_later(_REPORTED_AFTER_S, self._report_delay, topic)
        try:
            return await self._cluster.retrying(
                lambda: self._fetch_partitions(topic, lookup.missing_at),
                timeout_s=DEFAULT_LOOKUP_S if self._timeout_s is None else self._timeout_s,
                what=f"finding topic {topic!r}",
            )
        except (BrokerError, BrokerConnectionError, PublishError) as error:
            self._topics.pop(topic, None)
            self._cluster.watch(self, self._topics)
            lookup.error = _lookup_error(error)
            raise lookup.error from None
        finally:
            reminder.cancel()
            del self._lookups[topic]
            lookup.has_ended.set()

    def _report_delay(self, topic: str) -> None:
        code = self._cluster.topology.errors.get(topic)
        answer = "no broker has answered yet" if code is None else f"the brokers answer {name_of(code)}"
        self.observer.emit(PublishDelayed(topic, answer))

    async def _fetch_partitions(self, topic: str, missing_at: float) -> Mapping[int, Leadership]:
        await self._cluster.refresh()
        topology = self._cluster.topology
        known = topology.topics.get(topic)
        if known is not None and known.partitions:
            return known.partitions
        code = topology.errors.get(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if asyncio.get_running_loop().time() >= missing_at and (error := await self._missing(topic)) is not None:
                raise error
            if self._creates_topics:
                answer = await self._cluster.send_to_any(MetadataRequest((MetadataTopic(topic),), True))
                for refusal in (broker_error(one.error_code, topic, permission="CREATE") for one in answer.topics):
                    if refusal.code and not refusal.retriable:
                        raise refusal
        raise broker_error(code, topic, permission="WRITE")

    async def _missing(self, topic: str) -> PublishError | None:
        """Return the error of a topic that the brokers do not know, with the name of a similar topic.

        Return None if the list of all topics contains it, because it was created since the last refresh.
        """
        try:
            everything = await self._cluster.send_to_any(MetadataRequest(None))
        except (BrokerError, BrokerConnectionError):
            names: list[str] = []
        else:
            names = [one.name for one in everything.topics if one.name and not one.is_internal]
        if topic in names:
            return None
        close = difflib.get_close_matches(topic, names, n=1, cutoff=_SIMILARITY)
        hint = f"did you mean {close[0]!r}?" if close else "create the topic"
        created = ", and the brokers do not create it" if self._creates_topics else ""
        return PublishError(f"{topic}: the topic does not exist{created} - {hint}")


def _lookup_error(error: TailraceError) -> PublishError:
    match error:
        case PublishError():
            return error
        case AuthenticationError() | BrokerError():
            return PublishError(str(error))
        case _:
            return PublishTimeoutError(
                f"{error}; the record was not sent, and is not stored - check that the brokers are reachable"
            )


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
        missing_at: time from which an answer that the topic is unknown is final.
        error: error of the look-up; None if it succeeds.
    """

    def __init__(self) -> None:
        self.has_ended = asyncio.Event()
        self.missing_at = 0.0
        self.error: TailraceError | None = None


# ---- parts of a running producer, idempotent or transactional --------------------------------------------------------

_GRACE_S = 1.0
"""Seconds by which a call outlasts its look-up, so that the look-up fails first, with a more detailed error."""


def new_cluster(config: ProducerConfig) -> Cluster:
    """Create a cluster that emits its events to the hooks of ``config``.

    Its options that only consumers have, such as ``isolation_level`` for listing offsets, have their defaults.
    """
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(ClientConfig)}
    return Cluster(ConsumerConfig(**shared), new_observer(config))


def new_observer(config: ClientConfig) -> Observer:
    """Create an observer that passes events to the hooks of ``config``."""
    return Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)


def settings_of(config: ProducerConfig) -> ProducerSettings:
    """Return the limits of a producer."""
    return ProducerSettings(
        config.linger_ms / 1000,
        config.delivery_timeout_ms / 1000,
        config.buffer_memory,
        Backoff.of_ms(config.retry_backoff_ms, config.retry_backoff_max_ms),
        config.max_request_size,
        -1 if config.acks == "all" else config.acks,
    )


def content_of(config: ProducerConfig) -> Callable[[], BatchWriter]:
    """Return a function that creates the content of a batch."""
    return partial(
        BatchWriter,
        config.max_batch_size,
        config.compression_type,
        config.compression_level,
        is_transactional=config.transactional_id is not None,
    )


class ProducerRuntime:
    """Parts of a producer from its start until it is closed, and the task that sends its records.

    Args:
        cluster: connections to the brokers.
        sender: sender of the records.
        resolver: resolver of partitions.
        timeout_s: maximum time in seconds for which a record waits for metadata.
        background: coroutine functions to run as long as the sender runs.

    Attributes:
        is_closed: True once ``end`` was called.
        owns_cluster: True if ``end`` closes the cluster; False for a shared cluster.
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
        self.is_closed, self.owns_cluster = False, True
        sender.on_batch = resolver.change_partition
        self._task = asyncio.create_task(sender.run(*background), name="tailrace producer")
        self._task.add_done_callback(self._report_failure)

    async def resolve(
        self, topic: str, key: bytes | None, partition: int | None, timeout_s: float | None = None
    ) -> TopicPartition:
        """Return the partition of a record; look up the topic if necessary, for at most ``timeout_s`` seconds.

        Raises:
            PublishError: the topic or partition does not exist, no metadata came in time, or the producer was closed.
        """
        return await self._within_limit(topic, self.resolver.resolve(topic, key, partition), timeout_s)

    async def partitions_of(self, topic: str) -> Collection[int]:
        """Return the numbers of a topic's partitions; look up the topic if necessary.

        Raises:
            PublishError: see ``resolve``.
        """
        return await self._within_limit(topic, self.resolver.partitions_of(topic))

    async def _within_limit(
        self, topic: str, look_up: Coroutine[Any, Any, ResultT], timeout_s: float | None = None
    ) -> ResultT:
        # No caller should wait for a topic that cannot exist.
        if fault := topic_name_fault(topic):
            look_up.close()
            raise PublishError(f"{topic!r:.300} is not a legal topic name: {fault}")
        limit_s = self._timeout_s + _GRACE_S
        limit = asyncio.timeout(limit_s if timeout_s is None else min(timeout_s, limit_s))
        began_at = self.loop.time()
        self._timeouts.add(limit)
        try:
            async with limit:
                return await look_up
        except TimeoutError:
            if self.is_closed:
                raise PublishError(f"{topic}: the producer was closed before the record was sent") from None
            raise PublishTimeoutError(
                f"{topic}: no metadata within {self.loop.time() - began_at:.0f} s; the record was not sent, and is not"
                " stored - check that the brokers are reachable"
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
            if not limit.expired():
                limit.reschedule(self.loop.time())
        try:
            await asyncio.wait({self._task})
        finally:
            if self.owns_cluster:
                self._cluster.close()
            else:
                self._cluster.unwatch(self.resolver)

    def _report_failure(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() and self.sender.abandoned:
            self.sender.observer.emit(RecordsAbandoned(self.sender.abandoned))
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.call_exception_handler({"message": "a producer has failed", "exception": error, "task": task})
