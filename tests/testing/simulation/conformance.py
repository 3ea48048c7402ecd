"""Behaviours of a broker, each observed by raw requests, with what Apache Kafka answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from tailrace.batches.batch_writer import BatchWriter
from tailrace.batches.record_batch import split
from tailrace.net.connection import Connection
from tailrace.protocol.groups import (
    CommitOffset,
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberSubscription,
    OffsetCommitRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
    TopicIdPartitions,
    encode_subscription,
)
from tailrace.protocol.metadata import FindCoordinatorRequest, MetadataRequest, MetadataTopic
from tailrace.protocol.records import (
    FetchPartition,
    FetchRequest,
    ForgottenPartition,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    RecordsToProduce,
)
from tailrace.protocol.transactions import InitProducerIdRequest

__all__ = ["ROWS", "Broker"]


class Broker:
    """Access to the only broker of a cluster, with a topic and a group of its own."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], topic: str, group: str) -> None:
        self._connect, self.topic, self.group = connect, topic, group
        self._connections: list[Connection] = []
        self.topic_id = uuid.UUID(int=0)

    async def connection(self) -> Connection:
        """Open a connection."""
        self._connections.append(await self._connect())
        return self._connections[-1]

    async def ask(self, request: Any, connection: Connection | None = None) -> Any:
        """Send a request in the newest version, and return the answer."""
        connection = connection or (self._connections[0] if self._connections else await self.connection())
        newest, oldest = getattr(request, "newest_version", None), getattr(request, "oldest_version", None)
        version = connection.broker_versions.version_of(request.api, newest, oldest)
        return await connection.send(request, 20, version=version)

    async def ask_until_ready(self, request: Any) -> Any:
        """Repeat a request until a coordinator that has just started answers it without an error."""
        while True:
            answer = await self.ask(request)
            if not answer.error_code:
                return answer
            await asyncio.sleep(0.1)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()

    async def start(self) -> None:
        """Wait until topic and coordinator are there."""
        found = await self.ask(MetadataRequest((MetadataTopic(name=self.topic),)))
        self.topic_id = found.topics[0].topic_id
        await self.ask_until_ready(FindCoordinatorRequest(self.group))
        # The coordinator may still load the group.
        await self.ask_until_ready(OffsetFetchRequest(self.group, ()))

    # ---- records -------------------------------------------------------------------------------------------------

    async def produce(
        self,
        *values: bytes,
        producer: tuple[int, int, int] = (-1, -1, -1),
        partition: int = 0,
        topic: str | None = None,
    ) -> tuple[int, int]:
        """Produce a batch of records a second apart, and return error code and base offset."""
        answer = await self.ask(_produce(topic or self.topic, partition, batch(*values, producer=producer)))
        return answer.partitions[0].error_code, answer.partitions[0].base_offset

    async def producer_id(self) -> int:
        """Return the id of a new idempotent producer."""
        return int((await self.ask_until_ready(InitProducerIdRequest(None, 60_000))).producer_id)

    async def fetch(self, offset: int, **options: Any) -> Any:
        """Fetch from the first partition, and return the answer of the partition."""
        answer = await self.ask(self.fetch_request(offset, **options))
        return answer.partitions[0]

    def fetch_request(
        self,
        offset: int,
        *,
        partition: int = 0,
        wait_ms: int = 0,
        max_bytes: int = 1 << 20,
        session: tuple[int, int] = (0, -1),
        partitions: tuple[FetchPartition, ...] | None = None,
        forgotten: tuple[ForgottenPartition, ...] = (),
        **of_partition: Any,
    ) -> FetchRequest:
        """Return a request for one partition."""
        of_partition.setdefault("topic_id", self.topic_id)
        one = FetchPartition(partition, offset, max_bytes, **of_partition)
        return FetchRequest(
            wait_ms,
            1,
            1 << 20,
            (one,) if partitions is None else partitions,
            forgotten,
            session_id=session[0],
            session_epoch=session[1],
        )

    # ---- groups --------------------------------------------------------------------------------------------------

    async def member(self, connection: Connection | None = None) -> str:
        """Return a new member id."""
        return (await self.ask(self.join_request(""), connection)).member_id

    def join_request(
        self, member_id: str, *, protocol: str = "range", instance_id: str | None = None
    ) -> JoinGroupRequest:
        """Return a request to join."""
        return JoinGroupRequest(
            self.group,
            10_000,
            20_000,
            member_id,
            "consumer",
            (JoinGroupProtocol(protocol, encode_subscription(MemberSubscription((self.topic,)))),),
            group_instance_id=instance_id,
        )

    async def joined(self, instance_id: str | None = None) -> tuple[str, int]:
        """Join as the only member, and return member id and generation."""
        member_id = "" if instance_id else await self.member()
        answer = await self.ask(self.join_request(member_id, instance_id=instance_id))
        await self.ask(self.sync_request(answer.generation_id, answer.member_id, (answer.member_id,), instance_id))
        return answer.member_id, answer.generation_id

    def sync_request(
        self, generation: int, member_id: str, given: tuple[str, ...] = (), instance_id: str | None = None
    ) -> SyncGroupRequest:
        """Return a request whose assignments are ``given`` members' names."""
        assignments = tuple(SyncGroupAssignment(one, b"for " + one.encode()) for one in given)
        return SyncGroupRequest(self.group, generation, member_id, instance_id, "consumer", "range", assignments)

    async def beat(self, generation: int, member_id: str, instance_id: str | None = None) -> int:
        """Return the error code of a heartbeat."""
        return (await self.ask(HeartbeatRequest(self.group, generation, member_id, instance_id))).error_code

    async def beat_until_error(self, generation: int, member_id: str) -> int:
        """Repeat heartbeats until one has an error, and return it."""
        while True:
            if error := await self.beat(generation, member_id):
                return error
            await asyncio.sleep(0.05)

    async def commit(self, offset: int, generation: int = -1, member_id: str = "", metadata: str = "") -> int:
        """Return the error code of a commit."""
        one = CommitOffset(self.topic, 0, offset, -1, metadata, self.topic_id)
        request = OffsetCommitRequest(self.group, (one,), generation_id=generation, member_id=member_id)
        return (await self.ask(request)).partitions[0].error_code

    async def committed(self) -> tuple[int, str | None]:
        """Return committed offset and metadata."""
        asked = OffsetFetchPartition(self.topic, 0, self.topic_id)
        one = (await self.ask(OffsetFetchRequest(self.group, (asked,)))).partitions[0]
        return one.offset, one.metadata


def batch(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> memoryview:
    writer = BatchWriter(1 << 20, is_transactional=False)
    for number, value in enumerate(values):
        writer.append(None, value, (), 1_790_000_000_000 + 1_000 * number)
    return writer.encode(*producer)


def _produce(topic: str, partition: int, records: memoryview, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(None, acks, 10_000, (RecordsToProduce(topic, partition, records),))


def values_of(records: memoryview | None) -> list[bytes | None]:
    found: list[bytes | None] = []
    for one in split(records or memoryview(b"")):
        found += [record.value for record in one.decode("", 0, 0).take(1_000)]
    return found


Row = Callable[[Broker], Awaitable[object]]
ROWS: dict[str, tuple[Row, object]] = {}
"""Observation and what Kafka shows, by the behaviour in words."""


def row(what: str, expected: object) -> Callable[[Row], Row]:
    def add(observe: Row) -> Row:
        ROWS[what] = (observe, expected)
        return observe

    return add


# ---- produce and fetch -------------------------------------------------------------------------------------------


@row("batches get consecutive offsets", [(0, 0), (0, 2), (0, 3)])
async def _(b: Broker) -> object:
    return [await b.produce(b"a", b"b"), await b.produce(b"c"), await b.produce(b"d", b"e")]


@row("a missing topic or partition refuses records", [(3, -1), (3, -1)])
async def _(b: Broker) -> object:
    return [await b.produce(b"a", topic="missing"), await b.produce(b"a", partition=9)]


@row("a batch with a wrong checksum is refused", [2, 0])
async def _(b: Broker) -> object:
    broken = bytearray(batch(b"a"))
    broken[-1] ^= 1
    answer = await b.ask(_produce(b.topic, 0, memoryview(bytes(broken))))
    return [answer.partitions[0].error_code, (await b.fetch(0)).high_watermark]


@row("a repeated batch has its first offset, and is stored once", [(0, 0), (0, 1), (0, 0), (0, 1), 2])
async def _(b: Broker) -> object:
    producer = await b.producer_id()
    sent = [await b.produce(b"a", producer=(producer, 0, number)) for number in (0, 1, 0, 1)]
    return [*sent, (await b.fetch(0)).high_watermark]


@row("a gap in the sequence is refused", [(0, 0), (45, -1), (0, 1)])
async def _(b: Broker) -> object:
    producer = await b.producer_id()
    return [await b.produce(b"a", producer=(producer, 0, number)) for number in (0, 2, 1)]


@row("an older producer epoch is refused, and a new one begins at sequence 0", [(0, 0), (45, -1), (0, 1), (47, -1)])
async def _(b: Broker) -> object:
    producer = await b.producer_id()
    states = [(0, 0), (1, 1), (1, 0), (0, 1)]
    return [await b.produce(b"a", producer=(producer, *one)) for one in states]


@row("a sixth repetition is too late", [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (45, -1)])
async def _(b: Broker) -> object:
    producer = await b.producer_id()
    return [await b.produce(b"a", producer=(producer, 0, number)) for number in (0, 1, 2, 3, 4, 5, 0)]


@row("a fetch returns the batches from its offset on", [[b"a", b"b", b"c"], [b"c"], 3, 3, 0])
async def _(b: Broker) -> object:
    await b.produce(b"a", b"b")
    await b.produce(b"c")
    first, second = await b.fetch(0), await b.fetch(2)
    found = [values_of(first.records), values_of(second.records)]
    return [*found, first.high_watermark, first.last_stable_offset, first.log_start_offset]


@row("a fetch in the middle of a batch returns the whole batch", [b"a", b"b", b"c"])
async def _(b: Broker) -> object:
    await b.produce(b"a", b"b", b"c")
    return values_of((await b.fetch(1)).records)


@row("a batch larger than the limit is returned if it is the first", [[b"x" * 500], [b"y" * 500]])
async def _(b: Broker) -> object:
    await b.produce(b"x" * 500)
    await b.produce(b"y" * 500)
    return [values_of((await b.fetch(offset, max_bytes=100)).records) for offset in (0, 1)]


@row("a fetch at the end is held for max_wait_ms", [True, [], 0])
async def _(b: Broker) -> object:
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = await b.fetch(0, wait_ms=300)
    return [loop.time() - began >= 0.29, values_of(found.records), found.error_code]


@row("a held fetch is answered when records arrive", [True, [b"a"]])
async def _(b: Broker) -> object:
    loop, other = asyncio.get_running_loop(), await b.connection()
    began = loop.time()
    held = asyncio.create_task(b.ask(b.fetch_request(0, wait_ms=15_000), await b.connection()))
    await b.ask(_produce(b.topic, 0, batch(b"a")), other)
    found = (await held).partitions[0]
    return [loop.time() - began < 10, values_of(found.records)]


@row("requests behind a held fetch on its connection wait for it", [True])
async def _(b: Broker) -> object:
    loop, connection = asyncio.get_running_loop(), await b.connection()
    began = loop.time()
    held = asyncio.create_task(b.ask(b.fetch_request(0, wait_ms=400), connection))
    await asyncio.sleep(0)
    await b.ask(MetadataRequest(()), connection)
    await held
    return [loop.time() - began >= 0.39]


@row("an offset beyond the log is out of range", [1, 0, 1])
async def _(b: Broker) -> object:
    await b.produce(b"a")
    return [(await b.fetch(offset)).error_code for offset in (2, 1, -1)]


@row("an unknown leader epoch, topic id and partition are refused", [75, 100, 3])
async def _(b: Broker) -> object:
    unknown = uuid.UUID(int=7)
    return [
        (await b.fetch(0, current_leader_epoch=9)).error_code,
        (await b.fetch(0, topic_id=unknown)).error_code,
        (await b.fetch(0, partition=9)).error_code,
    ]


@row("a fetch session starts in full, and then contains only news", [True, [0, 1], [], [0], True])
async def _(b: Broker) -> object:
    both = tuple(FetchPartition(number, 0, 1 << 20, topic_id=b.topic_id) for number in (0, 1))
    first = await b.ask(b.fetch_request(0, session=(0, 0), partitions=both))
    second = await b.ask(b.fetch_request(0, session=(first.session_id, 1), partitions=()))
    await b.produce(b"a")
    third = await b.ask(b.fetch_request(0, session=(first.session_id, 2), partitions=()))
    listed = [[one.partition for one in answer.partitions] for answer in (first, second, third)]
    return [first.session_id > 0, *listed, first.session_id == second.session_id == third.session_id]


@row("a forgotten partition leaves the session", [[]])
async def _(b: Broker) -> object:
    both = tuple(FetchPartition(number, 0, 1 << 20, topic_id=b.topic_id) for number in (0, 1))
    first = await b.ask(b.fetch_request(0, session=(0, 0), partitions=both))
    await b.produce(b"a")
    gone = (ForgottenPartition(0, topic_id=b.topic_id),)
    second = await b.ask(b.fetch_request(0, session=(first.session_id, 1), partitions=(), forgotten=gone))
    return [[one.partition for one in second.partitions]]


@row("an unknown session and a wrong epoch are refused", [70, 71])
async def _(b: Broker) -> object:
    first = await b.ask(b.fetch_request(0, session=(0, 0)))
    unknown = await b.ask(b.fetch_request(0, session=(987_654, 1), partitions=()))
    wrong = await b.ask(b.fetch_request(0, session=(first.session_id, 5), partitions=()))
    return [unknown.error_code, wrong.error_code]


# ---- offsets and metadata ----------------------------------------------------------------------------------------


@row("offsets are listed by end, start and time", [(0, 3), (0, 0), (0, 1), (0, -1), (3, -1)])
async def _(b: Broker) -> object:
    await b.produce(b"a", b"b", b"c")
    found = []
    for partition, timestamp in ((0, -1), (0, -2), (0, 1_790_000_000_500), (0, 1_795_000_000_000), (9, -1)):
        asked = ListOffsetsRequest((ListOffsetsPartition(b.topic, partition, timestamp),))
        one = (await b.ask(asked)).partitions[0]
        found.append((one.error_code, one.offset))
    return found


@row(
    "the end of a leader epoch is known, that of a later epoch is not",
    [(0, 0, 2), (0, -1, -1), (75, -1, -1), (3, -1, -1)],
)
async def _(b: Broker) -> object:
    await b.produce(b"a", b"b")
    found = []
    for partition, epoch, current in ((0, 0, -1), (0, 9, -1), (0, 0, 9), (9, 0, -1)):
        asked = OffsetForLeaderEpochPartition(b.topic, partition, epoch, current_leader_epoch=current)
        one = (await b.ask(OffsetForLeaderEpochRequest((asked,)))).partitions[0]
        found.append((one.error_code, one.leader_epoch, one.end_offset))
    return found


@row("a missing topic and an unknown topic id have errors", [(0, 2), (3, 0), (100, 0)])
async def _(b: Broker) -> object:
    asked = (
        MetadataTopic(name=b.topic),
        MetadataTopic(name="missing"),
        MetadataTopic(name=None, topic_id=uuid.UUID(int=7)),
    )
    found = [(await b.ask(MetadataRequest((one,)))).topics[0] for one in asked]
    return [(one.error_code, len(one.partitions)) for one in found]


# ---- groups ------------------------------------------------------------------------------------------------------


@row("a new member gets an id, and joins with it as the leader", [79, True, 0, 1, True, ["range"], 1])
async def _(b: Broker) -> object:
    first = await b.ask(b.join_request(""))
    second = await b.ask(b.join_request(first.member_id))
    is_leader = second.leader == second.member_id == first.member_id
    return [
        first.error_code,
        bool(first.member_id),
        second.error_code,
        second.generation_id,
        is_leader,
        [second.protocol_name],
        len(second.members),
    ]


@row("an unknown member cannot join, sync or beat", [25, 25, 25])
async def _(b: Broker) -> object:
    join = (await b.ask(b.join_request("unknown"))).error_code
    sync = (await b.ask(b.sync_request(1, "unknown"))).error_code
    return [join, sync, await b.beat(1, "unknown")]


@row("the leader's assignment is answered, also again", [0, True, True])
async def _(b: Broker) -> object:
    member_id = await b.member()
    generation = (await b.ask(b.join_request(member_id))).generation_id
    first = await b.ask(b.sync_request(generation, member_id, (member_id,)))
    second = await b.ask(b.sync_request(generation, member_id))
    expected = b"for " + member_id.encode()
    return [first.error_code, first.assignment == expected, second.assignment == expected]


@row("a heartbeat has an error in another generation", [0, 22, 22])
async def _(b: Broker) -> object:
    member_id, generation = await b.joined()
    return [await b.beat(one, member_id) for one in (generation, generation + 1, generation - 1)]


@row("the leader that joins again begins a generation", [1])
async def _(b: Broker) -> object:
    member_id, generation = await b.joined()
    return [(await b.ask(b.join_request(member_id))).generation_id - generation]


@row("a second member begins a rebalance, which the first sees", [27, 27, 2, 2, [1, 2], True])
async def _(b: Broker) -> object:
    first, generation = await b.joined()
    other = await b.connection()
    second = await b.member(other)
    joining = asyncio.create_task(b.ask(b.join_request(second), other))
    beat = await b.beat_until_error(generation, first)
    sync = (await b.ask(b.sync_request(generation, first))).error_code
    again = await b.ask(b.join_request(first))
    joined = await joining
    counts = sorted(len(one.members) or 1 for one in (again, joined))
    return [beat, sync, again.generation_id, joined.generation_id, counts, again.leader == joined.leader]


@row("a follower's sync waits for the leader's", [0, True])
async def _(b: Broker) -> object:
    first, generation = await b.joined()
    other = await b.connection()
    second = await b.member(other)
    joining = asyncio.create_task(b.ask(b.join_request(second), other))
    await b.beat_until_error(generation, first)
    again, joined = await b.ask(b.join_request(first)), await joining
    leader, follower = (first, second) if again.leader == first else (second, first)
    of_leader, of_follower = (None, other) if leader == first else (other, None)
    held = asyncio.create_task(b.ask(b.sync_request(joined.generation_id, follower), of_follower))
    await b.ask(b.sync_request(joined.generation_id, leader, (leader, follower)), of_leader)
    answer = await held
    return [answer.error_code, answer.assignment == b"for " + follower.encode()]


@row("a member with other protocols is refused", [23])
async def _(b: Broker) -> object:
    await b.joined()
    other = await b.connection()
    return [(await b.ask(b.join_request("", protocol="sticky"), other)).error_code]


@row("a member that has left is unknown", [0, 25, 25])
async def _(b: Broker) -> object:
    member_id, generation = await b.joined()
    left = await b.ask(LeaveGroupRequest(b.group, member_id))
    again = await b.ask(LeaveGroupRequest(b.group, member_id))
    error = again.error_code or again.members[0].error_code
    return [left.error_code, error, await b.beat(generation, member_id)]


@row("a static member that is restarted keeps the generation, and its old id is fenced", [0, True, 82, 0])
async def _(b: Broker) -> object:
    member_id, generation = await b.joined("one")
    other = await b.connection()
    again = await b.ask(b.join_request("", instance_id="one"), other)
    old = await b.beat(generation, member_id, "one")
    new = await b.beat(again.generation_id, again.member_id, "one")
    return [again.error_code, again.generation_id == generation and again.member_id != member_id, old, new]


@row("a static leader that is restarted gets the members, and is to assign nothing", [True, True, 1])
async def _(b: Broker) -> object:
    await b.joined("one")
    again = await b.ask(b.join_request("", instance_id="one"), await b.connection())
    return [again.leader == again.member_id, again.skip_assignment, len(again.members)]


# ---- committed offsets -------------------------------------------------------------------------------------------


@row("a group without members takes commits of anybody", [(-1, ""), 0, (7, "text")])
async def _(b: Broker) -> object:
    return [await b.committed(), await b.commit(7, metadata="text"), await b.committed()]


@row("a group with members takes commits of its members only", [0, 22, 25, 25, (5, "")])
async def _(b: Broker) -> object:
    member_id, generation = await b.joined()
    errors = [
        await b.commit(5, generation, member_id),
        await b.commit(6, generation + 1, member_id),
        await b.commit(7, generation, "unknown"),
        await b.commit(8),
    ]
    return [*errors, await b.committed()]


@row("a member may commit while the group waits for joins", [27, 0])
async def _(b: Broker) -> object:
    first, generation = await b.joined()
    other = await b.connection()
    joining = asyncio.create_task(b.ask(b.join_request(await b.member(other)), other))
    beat = await b.beat_until_error(generation, first)
    error = await b.commit(5, generation, first)
    await b.ask(b.join_request(first))
    await joining
    return [beat, error]


@row("no member may commit while the group waits for the assignment", [27])
async def _(b: Broker) -> object:
    member_id = await b.member()
    generation = (await b.ask(b.join_request(member_id))).generation_id
    return [await b.commit(5, generation, member_id)]


@row("metadata of more than 4,096 bytes is refused", [0, 12])
async def _(b: Broker) -> object:
    return [await b.commit(1, metadata="x" * 4_096), await b.commit(2, metadata="x" * 4_097)]


@row("all committed offsets of a group are listed without names of partitions", [[(0, 3)]])
async def _(b: Broker) -> object:
    await b.commit(3)
    answer = await b.ask(OffsetFetchRequest(b.group, None))
    return [[(one.partition, one.offset) for one in answer.partitions]]


# ---- consumer protocol (KIP-848) ---------------------------------------------------------------------------------


async def _beat(
    b: Broker,
    member_id: str,
    epoch: int,
    owned: tuple[int, ...] | None = None,
    connection: Connection | None = None,
    *,
    is_first: bool = False,
) -> Any:
    listed = None if owned is None else ((TopicIdPartitions(b.topic_id, owned),) if owned else ())
    topics = (b.topic,) if is_first else None
    request = ConsumerGroupHeartbeatRequest(
        b.group, member_id, epoch, None, None, 20_000, topics, topic_partitions=listed
    )
    return await b.ask(request, connection)


def _numbers(answer: Any) -> list[int] | None:
    if answer.assignment is None:
        return None
    return sorted(number for one in answer.assignment for number in one.partitions)


async def _consumer_joined(b: Broker, member_id: str) -> int:
    """Join as the only member, own both partitions, and return the member epoch."""
    answer = await _beat(b, member_id, 0, (), is_first=True)
    while _numbers(answer) != [0, 1]:
        await asyncio.sleep(0.05)
        answer = await _beat(b, member_id, answer.member_epoch, ())
    epoch: int = (await _beat(b, member_id, answer.member_epoch, (0, 1))).member_epoch
    return epoch


@row("a member joins with epoch 0, and gets all partitions", [0, True, 5_000, [0, 1], "one"])
async def _(b: Broker) -> object:
    answer = await _beat(b, "one", 0, (), is_first=True)
    return [
        answer.error_code,
        answer.member_epoch > 0,
        answer.heartbeat_interval_ms,
        _numbers(answer),
        answer.member_id,
    ]


@row("a heartbeat has the assignment if it is complete, or if the assignment has changed", [None, None, [0, 1]])
async def _(b: Broker) -> object:
    epoch = await _consumer_joined(b, "one")
    beats = [await _beat(b, "one", epoch), await _beat(b, "one", epoch, (0, 1))]
    return [_numbers(one) for one in [*beats, await _beat(b, "one", epoch, (0, 1), is_first=True)]]


@row("another member epoch and an unknown member are fenced", [110, 110, 25])
async def _(b: Broker) -> object:
    epoch = await _consumer_joined(b, "one")
    beats = [("one", epoch + 1), ("one", epoch + 7), ("two", epoch)]
    return [(await _beat(b, *one)).error_code for one in beats]


async def _beat_until_assigned(
    b: Broker, member_id: str, epoch: int, owned: tuple[int, ...], connection: Connection | None = None
) -> Any:
    """Repeat a heartbeat until it has an assignment; the coordinator may compute a target only once a second."""
    while True:
        answer = await _beat(b, member_id, epoch, owned, connection)
        if answer.error_code or _numbers(answer) is not None:
            return answer
        epoch = answer.member_epoch
        await asyncio.sleep(0.05)


@row("a second member waits until the first has given up a partition", [[], 1, True, 1, True])
async def _(b: Broker) -> object:
    epoch, other = await _consumer_joined(b, "one"), await b.connection()
    second = await _beat(b, "two", 0, (), other, is_first=True)
    first = await _beat_until_assigned(b, "one", epoch, (0, 1))
    left = _numbers(first) or []
    await _beat(b, "one", first.member_epoch, tuple(left))
    got = await _beat_until_assigned(b, "two", second.member_epoch, (), other)
    given = _numbers(got) or []
    return [_numbers(second), len(left), first.member_epoch == epoch, len(given), sorted([*left, *given]) == [0, 1]]


@row("the partitions of a member that leaves go to the others", [0, -1, [0, 1]])
async def _(b: Broker) -> object:
    await _consumer_joined(b, "one")
    other = await b.connection()
    second = await _beat(b, "two", 0, (), other, is_first=True)
    left = await _beat(b, "one", -1)
    got = await _beat_until_assigned(b, "two", second.member_epoch, (), other)
    return [left.error_code, left.member_epoch, _numbers(got)]


@row("commits need the member epoch", [0, 113, 25, (5, "")])
async def _(b: Broker) -> object:
    epoch = await _consumer_joined(b, "one")
    errors = [await b.commit(5, epoch, "one"), await b.commit(6, epoch - 1, "one"), await b.commit(7, epoch, "unknown")]
    return [*errors, await b.committed()]


@row("offsets are not answered to a member of another epoch", [113, 25, 0])
async def _(b: Broker) -> object:
    epoch = await _consumer_joined(b, "one")
    asked = (OffsetFetchPartition(b.topic, 0, b.topic_id),)
    return [
        (await b.ask(OffsetFetchRequest(b.group, asked, member_id=member, member_epoch=at))).error_code
        for member, at in (("one", epoch - 1), ("unknown", epoch), ("one", epoch))
    ]
