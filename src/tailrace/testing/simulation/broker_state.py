"""Brokers of a simulated cluster: their stored state, and their answers to requests.

No clock and no IO. ``receive`` takes a request with the time; answers go to ``answer``, some of them later:
``tick`` does what is due, and ``next_at`` tells when something will be. Behaviour follows Apache Kafka 4.x; a request
that is not implemented is not listed in ApiVersions, and so never guessed. There are no transactions.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tailrace.error_codes import ErrorCode
from tailrace.protocol.groups import (
    CommitResult,
    CommittedOffset,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tailrace.protocol.handshake import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse, FinalizedFeature
from tailrace.protocol.message import NO_TOPIC_ID, Api
from tailrace.protocol.metadata import (
    BrokerMetadata,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedBroker,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from tailrace.protocol.records import (
    EpochEndOffset,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderEpochEndOffset,
    LeaderIdAndEpoch,
    ListedOffset,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
)
from tailrace.protocol.transactions import InitProducerIdRequest, InitProducerIdResponse
from tailrace.testing.simulation.classic_group import ClassicGroup, CommittedEntry
from tailrace.testing.simulation.consumer_group import ConsumerGroup, TopicSizes
from tailrace.testing.simulation.partition_log import PartitionLog

__all__ = ["APIS", "BrokerState", "Topic"]

APIS: tuple[Api[Any], ...] = tuple(
    request.api
    for request in (
        ApiVersionsRequest,
        MetadataRequest,
        DescribeClusterRequest,
        FindCoordinatorRequest,
        ProduceRequest,
        FetchRequest,
        ListOffsetsRequest,
        OffsetForLeaderEpochRequest,
        InitProducerIdRequest,
        JoinGroupRequest,
        SyncGroupRequest,
        HeartbeatRequest,
        LeaveGroupRequest,
        ConsumerGroupHeartbeatRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
    )
)
"""APIs that simulated brokers answer, in all versions that tailrace supports."""

_MAX_METADATA_BYTES = 4_096


@dataclass
class Topic:
    """Topic of the cluster."""

    name: str
    topic_id: UUID
    partitions: list[PartitionLog]


@dataclass
class _Session:
    """Fetch session (KIP-227): partitions that the client follows, and what it knows of them."""

    epoch: int
    wanted: dict[tuple[UUID, str, int], FetchPartition] = field(default_factory=dict)
    known: dict[tuple[UUID, str, int], tuple[int, int]] = field(default_factory=dict)
    """High watermark and start of the log in the last answer."""


@dataclass(eq=False)
class _HeldFetch:
    """Fetch that waits for records."""

    token: object
    broker_id: int
    request: FetchRequest
    session: _Session | None
    session_id: int
    is_full: bool
    until: float
    logs: set[PartitionLog] | None = None
    """Partitions of which it was last answered whether it waits; None if it was not yet."""


@dataclass(eq=False)
class _HeldProduce:
    """Produce that waits for the replicas."""

    token: object
    broker_id: int
    until: float
    results: list[ProducedPartition]
    waiting: dict[tuple[str, int], tuple[PartitionLog, int, int]]
    """Partition, leader epoch and offset that the high watermark must reach."""


class BrokerState:
    """State of all brokers.

    Args:
        addresses: host and port by broker id.
        seed: determines ids, elections, and the time that replication takes.
        answer: function that answers the request of a token.

    Attributes:
        topics: topics by name.
        groups: groups of the classic protocol by id.
        consumer_groups: groups of the consumer protocol by id.
        alive: ids of the brokers that run.
        registered: ids of the brokers that the controller takes for alive.
    """

    def __init__(self, addresses: dict[int, tuple[str, int]], seed: int, answer: Callable[[Any, Any], None]) -> None:
        self.addresses, self.answer = addresses, answer
        self.chance = random.Random(f"{seed} brokers")  # noqa: S311 - not for secrets
        self.cluster_id = f"simulation-{seed}"
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.alive, self.registered = set(addresses), set(addresses)
        self.on_commit: Callable[[str, str, int, int], object] | None = None
        """Function that is called with group, topic, partition and offset of each stored commit."""
        self.replication_s = (0.0005, 0.003)
        self.session_s = 2.0
        """Time after which the controller takes a broker without heartbeats for dead, in seconds."""
        self.group_session_s, self.group_heartbeat_ms = 45.0, 5_000
        """Settings group.consumer.session.timeout.ms and group.consumer.heartbeat.interval.ms."""
        self._names: dict[UUID, str] = {}
        """Names of all topics that there were, by id."""
        self._coordinators: dict[str, int] = {}
        self._sessions: dict[tuple[int, int], _Session] = {}
        self._next_session = 0
        self._next_producer = 1_000
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._timers_made = 0
        self._fetches: list[_HeldFetch] = []
        self._produces: list[_HeldProduce] = []
        self._changed: set[PartitionLog] | None = set()
        """Partitions that have changed since held fetches were looked at; None if all may have."""
        self._handlers: dict[type, Callable[[int, object, Any, float], None]] = {
            ApiVersionsRequest: self._api_versions,
            MetadataRequest: self._metadata,
            DescribeClusterRequest: self._describe_cluster,
            FindCoordinatorRequest: self._find_coordinator,
            ProduceRequest: self._produce,
            FetchRequest: self._fetch,
            ListOffsetsRequest: self._list_offsets,
            OffsetForLeaderEpochRequest: self._offset_for_leader_epoch,
            InitProducerIdRequest: self._init_producer_id,
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            HeartbeatRequest: self._heartbeat,
            LeaveGroupRequest: self._leave,
            ConsumerGroupHeartbeatRequest: self._consumer_heartbeat,
            OffsetCommitRequest: self._commit,
            OffsetFetchRequest: self._committed,
        }

    # ---- time --------------------------------------------------------------------------------------------------

    def receive(self, broker_id: int, token: object, request: object, now: float) -> None:
        """Answer a request now, or later."""
        self._handlers[type(request)](broker_id, token, request, now)
        self._settle(now)

    def next_at(self) -> float | None:
        """Return the time at which ``tick`` has work; None if there is none."""
        times = [one.until for one in self._fetches] + [one.until for one in self._produces]
        times += [at for group in self._all_groups() if (at := group.next_at()) is not None]
        if self._timers:
            times.append(self._timers[0][0])
        return min(times, default=None)

    def settle(self, now: float) -> None:
        """Answer what has waited, after a change of leaders, topics or logs."""
        self._changed = None
        self._settle(now)

    def tick(self, now: float) -> None:
        """Do what is due."""
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2](now)
        for group in self.groups.values():
            if self._coordinator(group.group_id) in self.alive:
                group.tick(now)
        for consumer_group in self.consumer_groups.values():
            if self._coordinator(consumer_group.group_id) in self.alive:
                consumer_group.tick(self._counts(), now)
        self._settle(now)

    def _all_groups(self) -> Iterator[ClassicGroup | ConsumerGroup]:
        yield from self.groups.values()
        yield from self.consumer_groups.values()

    def _counts(self) -> TopicSizes:
        return {one.name: (one.topic_id, len(one.partitions)) for one in self.topics.values()}

    def later(self, at: float, action: Callable[[float], None]) -> None:
        """Call ``action`` with the time, at ``at``."""
        self._timers_made += 1
        heapq.heappush(self._timers, (at, self._timers_made, action))

    # ---- administration and faults -----------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int, replicas: int = 3) -> Topic:
        """Create a topic whose leaders are spread over the brokers."""
        ids = sorted(self.addresses)
        logs = []
        for number in range(partitions):
            order = ids[number % len(ids) :] + ids[: number % len(ids)]
            logs.append(PartitionLog(name, number, tuple(order[:replicas])))
        topic = self.topics[name] = Topic(name, UUID(int=self.chance.getrandbits(128), version=4), logs)
        self._names[topic.topic_id] = name
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and the offsets that groups have committed of it."""
        del self.topics[name]
        for group in self._all_groups():
            for key in [one for one in group.offsets if one[0] == name]:
                del group.offsets[key]

    def add_partitions(self, name: str, count: int) -> None:
        """Raise the number of a topic's partitions to ``count``."""
        topic, ids = self.topics[name], sorted(self.addresses)
        for number in range(len(topic.partitions), count):
            order = ids[number % len(ids) :] + ids[: number % len(ids)]
            topic.partitions.append(PartitionLog(name, number, tuple(order[: len(topic.partitions[0].replicas)])))

    def kill(self, broker_id: int, now: float) -> None:
        """End a broker: what it held is lost, and the controller notices after its session."""
        self.alive.discard(broker_id)
        self._fetches = [one for one in self._fetches if one.broker_id != broker_id]
        self._produces = [one for one in self._produces if one.broker_id != broker_id]
        self._sessions = {key: one for key, one in self._sessions.items() if key[0] != broker_id}
        self.later(now + self.session_s, lambda at: self._fence(broker_id, at))

    def restart(self, broker_id: int, now: float) -> None:
        """Start a broker again; it rejoins the in-sync replicas after it has caught up."""
        if broker_id in self.registered and broker_id not in self.alive:
            self._fence(broker_id, now)
        self.alive.add(broker_id)
        self.registered.add(broker_id)
        self.later(now + self.chance.uniform(0.1, 1.0), lambda _: self._catch_up(broker_id))

    def move_leader(self, topic: str, partition: int, *, truncate_to: int | None = None) -> None:
        """Elect another leader; without the records from ``truncate_to`` on (an unclean election)."""
        log = self.topics[topic].partitions[partition]
        others = [one for one in log.isr if one != log.leader and one in self.alive] or [log.leader]
        log.elect(self.chance.choice(others), truncate_to)
        log.high_watermark = min(log.high_watermark, log.end)

    def move_coordinator(self, group_id: str, now: float) -> None:
        """Let another broker coordinate a group."""
        others = [one for one in sorted(self.alive) if one != self._coordinators.get(group_id)]
        if others:
            self._coordinators[group_id] = self.chance.choice(others)
            self._reload(group_id, now)

    def _reload(self, group_id: str, now: float) -> None:
        for group in self._all_groups():
            if group.group_id == group_id:
                group.reload(now)

    def _fence(self, broker_id: int, now: float) -> None:
        if broker_id in self.alive or broker_id not in self.registered:
            return
        self.registered.discard(broker_id)
        for log in self._logs():
            if broker_id in log.isr and len(log.isr) > 1:
                log.isr.remove(broker_id)
            if log.leader == broker_id:
                self._elect(log)
            self._raise_high_watermark(log)
        self._changed = None
        for group_id, coordinator in [*self._coordinators.items()]:
            if coordinator == broker_id:
                del self._coordinators[group_id]
                self._reload(group_id, now)
        self._settle(now)

    def _catch_up(self, broker_id: int) -> None:
        if broker_id not in self.alive:
            return
        for log in self._logs():
            if broker_id in log.replicas and broker_id not in log.isr:
                log.isr.append(broker_id)
            if log.leader < 0:
                self._elect(log)
        self._changed = None

    def _elect(self, log: PartitionLog) -> None:
        """Elect the first replica that is in sync; it may lack records above the high watermark."""
        found = next((one for one in log.replicas if one in log.isr and one in self.registered), None)
        if found is None:
            log.leader = -1
            return
        unacknowledged = [one.base for one in log.batches if one.base >= log.high_watermark]
        end = self.chance.choice([*unacknowledged, log.end]) if log.leader != found else None
        log.elect(found, end)

    def _logs(self) -> Iterator[PartitionLog]:
        for topic in self.topics.values():
            yield from topic.partitions

    # ---- brokers and topics ------------------------------------------------------------------------------------

    def _api_versions(self, _broker_id: int, token: object, request: ApiVersionsRequest, _now: float) -> None:
        ranges = tuple(ApiVersionRange(api.key, api.versions[0], api.versions[-1]) for api in APIS)
        error = ErrorCode.NONE
        if request.cluster_id not in {None, self.cluster_id} or request.node_id not in {-1, _broker_id}:
            error = ErrorCode.REBOOTSTRAP_REQUIRED
        features = (FinalizedFeature("metadata.version", 25, 25),)
        self.answer(token, ApiVersionsResponse(error, ranges, finalized_features_epoch=1, finalized_features=features))

    def _listed_brokers(self) -> tuple[BrokerMetadata, ...]:
        return tuple(BrokerMetadata(one, *self.addresses[one]) for one in sorted(self.registered))

    def _metadata(self, _broker_id: int, token: object, request: MetadataRequest, _now: float) -> None:
        topics: list[TopicMetadata] = []
        if request.topics is None:
            topics = [self._topic_metadata(one) for one in self.topics.values()]
        for wanted in request.topics or ():
            if wanted.name is None:
                found = self._topic(wanted.topic_id, "")
                missing = TopicMetadata(ErrorCode.UNKNOWN_TOPIC_ID, None, wanted.topic_id)
            else:
                found = self.topics.get(wanted.name)
                missing = TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, wanted.name)
            topics.append(missing if found is None else self._topic_metadata(found))
        controller = min(self.registered, default=-1)
        self.answer(
            token,
            MetadataResponse(
                self._listed_brokers(), tuple(topics), cluster_id=self.cluster_id, controller_id=controller
            ),
        )

    def _topic_metadata(self, topic: Topic) -> TopicMetadata:
        partitions = tuple(
            PartitionMetadata(
                ErrorCode.NONE if one.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                one.number,
                one.leader,
                one.epoch,
                one.replicas,
                tuple(one.isr),
            )
            for one in topic.partitions
        )
        return TopicMetadata(ErrorCode.NONE, topic.name, topic.topic_id, partitions=partitions)

    def _describe_cluster(self, _broker_id: int, token: object, _request: DescribeClusterRequest, _now: float) -> None:
        brokers = tuple(DescribedBroker(one, *self.addresses[one]) for one in sorted(self.registered))
        self.answer(token, DescribeClusterResponse(ErrorCode.NONE, cluster_id=self.cluster_id, brokers=brokers))

    def _find_coordinator(self, _broker_id: int, token: object, request: FindCoordinatorRequest, _now: float) -> None:
        node = self._coordinator(request.key)
        if node not in self.registered:
            answer = FindCoordinatorResponse(
                -1, "", -1, key=request.key, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        else:
            answer = FindCoordinatorResponse(node, *self.addresses[node], key=request.key)
        self.answer(token, answer)

    def _coordinator(self, key: str) -> int:
        node = self._coordinators.get(key)
        if node is None and self.registered:
            ids = sorted(self.registered)
            node = self._coordinators[key] = ids[sum(key.encode()) % len(ids)]
        return -1 if node is None else node

    def _topic(self, topic_id: UUID, name: str) -> Topic | None:
        if topic_id == NO_TOPIC_ID:
            return self.topics.get(name)
        name = self._names.get(topic_id, name)
        found = self.topics.get(name)
        return found if found is not None and found.topic_id == topic_id else None

    def _log(
        self, broker_id: int, topic_id: UUID, name: str, partition: int, leader_epoch: int = -1
    ) -> tuple[ErrorCode, PartitionLog | None]:
        """Return a partition that a broker leads, or the error that it answers."""
        topic = self._topic(topic_id, name)
        if topic is None:
            is_by_id = topic_id != NO_TOPIC_ID
            return ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        if not 0 <= partition < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        log = topic.partitions[partition]
        if leader_epoch >= 0 and leader_epoch != log.epoch:
            is_old = leader_epoch < log.epoch
            return ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH, log
        return (ErrorCode.NONE if log.leader == broker_id else ErrorCode.NOT_LEADER_OR_FOLLOWER), log

    # ---- producing ---------------------------------------------------------------------------------------------

    def _init_producer_id(self, _broker_id: int, token: object, request: InitProducerIdRequest, _now: float) -> None:
        if request.transactional_id is not None:
            self.answer(token, InitProducerIdResponse(ErrorCode.INVALID_REQUEST))
            return
        self._next_producer += 1
        self.answer(token, InitProducerIdResponse(ErrorCode.NONE, self._next_producer, 0))

    def _produce(self, broker_id: int, token: object, request: ProduceRequest, now: float) -> None:
        results: list[ProducedPartition] = []
        waiting: dict[tuple[str, int], tuple[PartitionLog, int, int]] = {}
        for one in request.partitions:
            error, log = self._log(broker_id, NO_TOPIC_ID, one.topic, one.partition)
            base = -1
            if not error and log is not None and one.records is not None:
                error, base = log.append(memoryview(one.records))
                if not error:
                    self._replicate(log, now)
                    waiting[one.topic, one.partition] = (log, log.epoch, log.end)
            results.append(
                ProducedPartition(one.topic, one.partition, error, base, -1, 0 if log is None else log.start)
            )
        if not request.acks:
            return
        if request.acks == 1:
            waiting.clear()
        held = _HeldProduce(token, broker_id, now + request.timeout_ms / 1000, results, waiting)
        self._produces.append(held)

    def append(self, topic: str, partition: int, records: memoryview, now: float) -> int:
        """Append a batch at the leader, as a producer without faults; return its base offset."""
        log = self.topics[topic].partitions[partition]
        _, base = log.append(records)
        self._replicate(log, now)
        self._settle(now)
        return base

    def _replicate(self, log: PartitionLog, now: float) -> None:
        if len(log.isr) == 1:
            self._raise_high_watermark(log)
            return
        epoch, end = log.epoch, log.end
        self.later(
            now + self.chance.uniform(*self.replication_s),
            lambda _: self._raise_high_watermark(log, end) if log.epoch == epoch else None,
        )

    def _raise_high_watermark(self, log: PartitionLog, end: int | None = None) -> None:
        if log.leader >= 0:
            log.high_watermark = max(log.high_watermark, log.end if end is None else min(end, log.end))
            if self._changed is not None:
                self._changed.add(log)

    # ---- consuming ---------------------------------------------------------------------------------------------

    def _fetch(self, broker_id: int, token: object, request: FetchRequest, now: float) -> None:
        session, session_id, is_full = None, 0, True
        if request.session_epoch == 0:
            self._sessions.pop((broker_id, request.session_id), None)
            self._next_session += 1
            session_id = self._next_session
            session = self._sessions[broker_id, session_id] = _Session(1)
        elif request.session_epoch > 0:
            session_id, is_full = request.session_id, False
            session = self._sessions.get((broker_id, session_id))
            if session is None:
                self.answer(token, FetchResponse((), error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
                return
            if session.epoch != request.session_epoch:
                self.answer(token, FetchResponse((), error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
                return
            session.epoch += 1
        else:
            self._sessions.pop((broker_id, request.session_id), None)
        if session is not None:
            for gone in request.forgotten:
                session.wanted.pop((gone.topic_id, gone.topic, gone.partition), None)
                session.known.pop((gone.topic_id, gone.topic, gone.partition), None)
            for one in request.partitions:
                key = (one.topic_id, one.topic, one.partition)
                # A changed partition moves to the end, so that each has its turn.
                session.wanted.pop(key, None)
                session.wanted[key] = one
        held = _HeldFetch(token, broker_id, request, session, session_id, is_full, now + request.max_wait_ms / 1000)
        self._fetches.append(held)

    def _fetched(self, held: _HeldFetch, *, is_due: bool) -> FetchResponse | None:
        """Return the answer of a fetch; None if it waits for more."""
        session = held.session
        wanted = held.request.partitions if session is None else tuple(session.wanted.values())
        left, results, size, is_urgent = held.request.max_bytes, [], 0, not wanted and session is None
        held.logs = set()
        for one in wanted:
            result = self._fetched_partition(held, one, left, at_least_one=not size)
            count = len(result.records or b"")
            size, left = size + count, left - count
            is_urgent |= bool(result.error_code) or result.diverging_epoch.epoch >= 0
            key = (one.topic_id, one.topic, one.partition)
            news = (result.high_watermark, result.log_start_offset)
            is_news = session is not None and session.known.get(key) != news
            if held.is_full or is_news or count or result.error_code or result.diverging_epoch.epoch >= 0:
                results.append((key, news, result))
        if size < held.request.min_bytes and not is_urgent and not is_due:
            return None
        if session is not None:
            for key, news, result in results:
                session.known[key] = news
                if result.records:
                    session.wanted[key] = session.wanted.pop(key)
        return FetchResponse(tuple(result for _, _, result in results), session_id=held.session_id)

    def _fetched_partition(
        self, held: _HeldFetch, one: FetchPartition, left: int, *, at_least_one: bool
    ) -> FetchedPartition:
        error, log = self._log(held.broker_id, one.topic_id, one.topic, one.partition, one.current_leader_epoch)
        names: dict[str, Any] = {"topic": one.topic, "topic_id": one.topic_id}
        if log is not None and held.logs is not None:
            held.logs.add(log)
        if error or log is None:
            leader = LeaderIdAndEpoch() if log is None else LeaderIdAndEpoch(log.leader, log.epoch)
            return FetchedPartition(one.partition, error, -1, current_leader=leader, **names)
        if one.last_fetched_epoch >= 0:
            epoch, end = log.end_of_epoch(one.last_fetched_epoch)
            if epoch < 0:
                return FetchedPartition(one.partition, ErrorCode.OFFSET_OUT_OF_RANGE, -1, **names)
            if epoch < one.last_fetched_epoch or end < one.fetch_offset:
                diverging = EpochEndOffset(epoch, end)
                return FetchedPartition(
                    one.partition, 0, log.high_watermark, log.high_watermark, log.start, diverging, **names
                )
        if not log.start <= one.fetch_offset <= log.end:
            return FetchedPartition(one.partition, ErrorCode.OFFSET_OUT_OF_RANGE, -1, **names)
        limit = min(one.partition_max_bytes, left)
        content = log.read(one.fetch_offset, limit, log.high_watermark, at_least_one=at_least_one)
        return FetchedPartition(
            one.partition,
            0,
            log.high_watermark,
            log.high_watermark,  # no transaction is open
            log.start,
            aborted_transactions=() if held.request.isolation_level else None,
            records=memoryview(content),
            **names,
        )

    def _list_offsets(self, broker_id: int, token: object, request: ListOffsetsRequest, _now: float) -> None:
        results = []
        for one in request.partitions:
            error, log = self._log(broker_id, NO_TOPIC_ID, one.topic, one.partition, one.current_leader_epoch)
            offset = timestamp = -1
            if not error and log is not None:
                if one.timestamp == -1:
                    offset = log.high_watermark
                elif one.timestamp == -2:
                    offset = log.start
                elif one.timestamp >= 0:
                    offset, timestamp = log.offset_at(one.timestamp)
            epoch = -1 if log is None or error else log.epoch
            results.append(ListedOffset(one.topic, one.partition, error, timestamp, offset, epoch))
        self.answer(token, ListOffsetsResponse(tuple(results)))

    def _offset_for_leader_epoch(
        self, broker_id: int, token: object, request: OffsetForLeaderEpochRequest, _now: float
    ) -> None:
        results = []
        for one in request.partitions:
            error, log = self._log(broker_id, NO_TOPIC_ID, one.topic, one.partition, one.current_leader_epoch)
            epoch, end = (-1, -1) if error or log is None else log.end_of_epoch(one.leader_epoch)
            results.append(LeaderEpochEndOffset(one.topic, error, one.partition, epoch, end))
        self.answer(token, OffsetForLeaderEpochResponse(tuple(results)))

    def _settle(self, now: float) -> None:
        """Answer requests that have waited for what has happened since."""
        for produce in [*self._produces]:
            if self._is_stored(produce) or produce.until <= now:
                self._produces.remove(produce)
                self.answer(produce.token, ProduceResponse(self._stored(produce)))
        changed, self._changed = self._changed, set()
        for held in [*self._fetches]:
            is_due = held.until <= now
            if not is_due and changed is not None and held.logs is not None and held.logs.isdisjoint(changed):
                continue
            if (answer := self._fetched(held, is_due=is_due)) is not None:
                self._fetches.remove(held)
                self.answer(held.token, answer)

    @staticmethod
    def _is_stored(produce: _HeldProduce) -> bool:
        return all(log.epoch != epoch or log.high_watermark >= end for log, epoch, end in produce.waiting.values())

    @staticmethod
    def _stored(produce: _HeldProduce) -> tuple[ProducedPartition, ...]:
        results = []
        for one in produce.results:
            log, epoch, end = produce.waiting.get((one.topic, one.partition), (None, 0, 0))
            error = one.error_code
            if log is not None and log.epoch != epoch:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif log is not None and log.high_watermark < end:
                error = ErrorCode.REQUEST_TIMED_OUT
            base = -1 if error else one.base_offset
            results.append(ProducedPartition(one.topic, one.partition, error, base, -1, one.log_start_offset))
        return tuple(results)

    # ---- groups ------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup:
        """Return the group of an id; a missing one is created."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = ClassicGroup(group_id, self._new_member_id, self.answer)
        return found

    def _new_member_id(self, instance_id: str | None) -> str:
        return f"{instance_id or 'member'}-{self.chance.getrandbits(64):016x}"

    def _coordinator_error(self, broker_id: int, group_id: str) -> ErrorCode:
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        return ErrorCode.NONE if self._coordinator(group_id) == broker_id else ErrorCode.NOT_COORDINATOR

    def _join(self, broker_id: int, token: object, request: JoinGroupRequest, now: float) -> None:
        if error := self._coordinator_error(broker_id, request.group_id):
            self.answer(token, JoinGroupResponse(error, protocol_name=""))
        else:
            self.group(request.group_id).join(token, request, now, needs_id=True)

    def _sync(self, broker_id: int, token: object, request: SyncGroupRequest, now: float) -> None:
        if error := self._coordinator_error(broker_id, request.group_id):
            self.answer(token, SyncGroupResponse(error, b""))
        else:
            self.group(request.group_id).sync(token, request, now)

    def _heartbeat(self, broker_id: int, token: object, request: HeartbeatRequest, now: float) -> None:
        if error := self._coordinator_error(broker_id, request.group_id):
            self.answer(token, HeartbeatResponse(error))
        else:
            self.group(request.group_id).heartbeat(token, request, now)

    def _leave(self, broker_id: int, token: object, request: LeaveGroupRequest, now: float) -> None:
        if error := self._coordinator_error(broker_id, request.group_id):
            self.answer(token, LeaveGroupResponse(error))
        else:
            self.group(request.group_id).leave(token, request, now)

    def _consumer_heartbeat(
        self, broker_id: int, token: object, request: ConsumerGroupHeartbeatRequest, now: float
    ) -> None:
        if error := self._coordinator_error(broker_id, request.group_id):
            self.answer(token, ConsumerGroupHeartbeatResponse(error))
            return
        group = self.consumer_groups.get(request.group_id)
        if group is None:
            group = self.consumer_groups[request.group_id] = ConsumerGroup(
                request.group_id, self.answer, self.group_session_s, self.group_heartbeat_ms
            )
            # The offsets that were committed while the group had no members stay.
            group.offsets = self.group(request.group_id).offsets
        group.heartbeat(token, request, self._counts(), now)

    def _commit(self, broker_id: int, token: object, request: OffsetCommitRequest, now: float) -> None:
        error = self._coordinator_error(broker_id, request.group_id)
        group = self.group(request.group_id)
        if not error and request.group_id in self.consumer_groups:
            error = self.consumer_groups[request.group_id].member_error(request.member_id, request.generation_id)
        elif not error:
            error = group.commit_error(request.member_id, request.group_instance_id, request.generation_id, now)
        results = []
        for one in request.partitions:
            topic, own = self._topic(one.topic_id, one.topic), error
            if not own and topic is None:
                is_by_id = one.topic_id != NO_TOPIC_ID
                own = ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not own and len((one.metadata or "").encode()) > _MAX_METADATA_BYTES:
                own = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif not own and topic is not None:
                group.offsets[topic.name, one.partition] = CommittedEntry(one.offset, one.leader_epoch, one.metadata)
                if self.on_commit is not None:
                    self.on_commit(group.group_id, topic.name, one.partition, one.offset)
            results.append(CommitResult(one.topic, one.partition, own, one.topic_id))
        self.answer(token, OffsetCommitResponse(tuple(results)))

    def _committed(self, broker_id: int, token: object, request: OffsetFetchRequest, _now: float) -> None:
        if error := self._coordinator_error(broker_id, request.group_id):
            self.answer(token, OffsetFetchResponse((), error, group_id=request.group_id))
            return
        if request.member_id and request.group_id in self.consumer_groups:
            error = self.consumer_groups[request.group_id].member_error(request.member_id, request.member_epoch)
            if error:
                self.answer(token, OffsetFetchResponse((), error, group_id=request.group_id))
                return
        offsets = self.group(request.group_id).offsets
        results: Iterable[CommittedOffset]
        if request.partitions is None:
            results = [
                CommittedOffset(name, number, one.offset, one.leader_epoch, one.metadata)
                for (name, number), one in offsets.items()
            ]
        else:
            results = []
            for wanted in request.partitions:
                topic = self._topic(wanted.topic_id, wanted.topic)
                found = None if topic is None else offsets.get((topic.name, wanted.partition))
                error = ErrorCode.NONE
                if topic is None and wanted.topic_id != NO_TOPIC_ID:
                    error = ErrorCode.UNKNOWN_TOPIC_ID
                entry = found or CommittedEntry(-1, -1, "")
                results.append(
                    CommittedOffset(
                        wanted.topic,
                        wanted.partition,
                        entry.offset,
                        entry.leader_epoch,
                        entry.metadata,
                        error,
                        wanted.topic_id,
                    )
                )
        self.answer(token, OffsetFetchResponse(tuple(results), group_id=request.group_id))
