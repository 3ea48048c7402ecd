"""Record frames of other implementations: librdkafka's requests, and the broker's answers in every version.

Run the script from the repository's root for a new API, version or client, and review the changes:

    python tests/support/protocol/record_frames.py

The script starts a broker behind a FaultProxy. librdkafka leads groups of both protocols, publishes in transactions
and acts as an admin client; then each version of each API is sent by tailrace. ``frames.json`` beside this file gets
one frame of each shape (null, empty and present fields) per API, direction and version, in hexadecimal, without its
length. A run takes half a minute.
"""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from msgspec import Struct
from msgspec.structs import replace

from tailrace.batches.batch_writer import BatchWriter
from tailrace.protocol.admin import (
    ConfigAlteration,
    ConfigsToAlter,
    ConfigsToDescribe,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from tailrace.protocol.groups import (
    CommitOffset,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberAssignment,
    MemberSubscription,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetToDelete,
    OwnedPartitions,
    SyncGroupAssignment,
    SyncGroupRequest,
    TopicIdPartitions,
    encode_assignment,
    encode_subscription,
)
from tailrace.protocol.message import NO_TOPIC_ID, Api
from tailrace.protocol.metadata import FindCoordinatorRequest, MetadataRequest, MetadataTopic
from tailrace.protocol.records import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    RecordsToProduce,
)
from tailrace.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    PartitionToAdd,
    TxnOffsetCommitRequest,
)
from tailrace.testing import FaultProxy, KafkaServer
from tailrace.testing.faults import ProxiedFrame

FILE = Path(__file__).with_name("frames.json")

RECORDED: dict[int, Api[Any]] = {
    request.api.key: request.api
    for request in (
        ListOffsetsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        FindCoordinatorRequest,
        JoinGroupRequest,
        HeartbeatRequest,
        LeaveGroupRequest,
        SyncGroupRequest,
        DescribeGroupsRequest,
        ListGroupsRequest,
        OffsetForLeaderEpochRequest,
        DescribeConfigsRequest,
        DeleteGroupsRequest,
        IncrementalAlterConfigsRequest,
        OffsetDeleteRequest,
        ConsumerGroupHeartbeatRequest,
        ConsumerGroupDescribeRequest,
        ProduceRequest,
        InitProducerIdRequest,
        AddPartitionsToTxnRequest,
        AddOffsetsToTxnRequest,
        TxnOffsetCommitRequest,
        EndTxnRequest,
    )
}

NEWEST = "4.4.0"
"""Release whose broker supports all versions that tailrace does."""
OURS = "tailrace"
TOPIC, OUT = "orders", "invoices"
PARTITIONS = 3
WITHIN_S = 30


# ---- librdkafka ------------------------------------------------------------------------------------------------


def until(what: str, is_so: Callable[[], object]) -> None:
    """Poll repeatedly, which drives librdkafka consumers."""
    end = time.monotonic() + WITHIN_S
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {WITHIN_S} s: {what}")


class Members:
    """Consumers of a group, polled one after the other."""

    def __init__(self, address: str, **options: object) -> None:
        self._common = {
            "bootstrap.servers": address,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **{name.replace("_", "."): value for name, value in options.items()},
        }
        self._consumers: list[Consumer] = []

    def join(self, topics: list[str], **options: object) -> None:
        """Add a member, and wait until all members and partitions are assigned."""
        own = {name.replace("_", "."): value for name, value in options.items()}
        self._consumers.append(Consumer({**self._common, **own}))
        self._consumers[-1].subscribe(topics)
        until("a stable group", self._is_stable)

    def _is_stable(self) -> bool:
        for one in self._consumers:
            one.poll(0.1)
        shares = [one.assignment() for one in self._consumers]
        return all(shares) and sum(map(len, shares)) == PARTITIONS

    def commit(self) -> None:
        """Commit the offsets of all members."""
        for one in self._consumers:
            one.commit(
                offsets=[TopicPartition(p.topic, p.partition, 0, "m") for p in one.assignment()], asynchronous=False
            )
            one.committed([*one.assignment(), TopicPartition("elsewhere", 0)], timeout=WITHIN_S)

    def publish(self, address: str) -> None:
        """Publish a transaction with each compression and the first member's offsets, and abort one."""
        first = self._consumers[0]
        for compression in ("none", "gzip", "lz4"):
            producer = Producer(
                {"bootstrap.servers": address, "transactional.id": f"x-{compression}", "compression.type": compression}
            )
            producer.init_transactions(WITHIN_S)
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                for partition in range(PARTITIONS):
                    producer.produce(OUT, b"value" * 50, b"key", partition, headers=[("header", b"1"), ("null", None)])
                done = [TopicPartition(p.topic, p.partition, 0, "m") for p in first.assignment()]
                producer.send_offsets_to_transaction(done, first.consumer_group_metadata(), WITHIN_S)
                end(WITHIN_S)

    def leave(self) -> None:
        """Stop the members one after another."""
        for one in self._consumers:
            one.close()


def librdkafka_speaks(address: str) -> None:
    """Run groups of both protocols, transactions of their members, and requests of tools."""
    members = [
        Members(address, group_id="cooperative", partition_assignment_strategy="cooperative-sticky"),
        Members(address, group_id="eager", partition_assignment_strategy="range,roundrobin", client_rack="r1"),
        Members(address, group_id="reconciled", group_protocol="consumer", client_rack="r1"),
    ]
    for one in members:
        one.join([TOPIC], group_instance_id="first")
        one.join([TOPIC])
        one.commit()
        one.publish(address)
    by_pattern = Members(address, group_id="by-pattern", group_protocol="consumer", group_remote_assignor="range")
    by_pattern.join(["^ord.*"])

    admin = AdminClient({"bootstrap.servers": address})
    admin.list_consumer_groups().result(WITHIN_S)
    admin.list_consumer_groups(
        states={ConsumerGroupState.STABLE}, types={ConsumerGroupType.CONSUMER, ConsumerGroupType.CLASSIC}
    ).result(WITHIN_S)
    names = ["cooperative", "eager", "reconciled", "by-pattern", "missing"]
    for found in admin.describe_consumer_groups(names).values():
        found.exception(WITHIN_S)
    for asked in (
        ConsumerGroupTopicPartitions("eager"),
        ConsumerGroupTopicPartitions("eager", [TopicPartition(TOPIC, 0)]),
    ):
        for found in admin.list_consumer_group_offsets([asked]).values():
            found.result(WITHIN_S)

    for one in [*members, by_pattern]:
        one.leave()
    moved = ConsumerGroupTopicPartitions("eager", [TopicPartition(TOPIC, 0, 1)])
    for found in admin.alter_consumer_group_offsets([moved]).values():
        found.result(WITHIN_S)
    for found in admin.delete_consumer_groups(["eager", "missing"]).values():
        found.exception(WITHIN_S)
    topic = ConfigResource(
        ResourceType.TOPIC,
        TOPIC,
        incremental_configs=[ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)],
    )
    for found in (*admin.incremental_alter_configs([topic]).values(), *admin.describe_configs([topic]).values()):
        found.result(WITHIN_S)


# ---- every version ---------------------------------------------------------------------------------------------


class Line:
    """Connection over which requests of all versions are sent."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._socket = socket.create_connection(("127.0.0.1", proxy.port), WITHIN_S)
        self._stream = self._socket.makefile("rb")
        self.lap = 0
        self.topic_id = NO_TOPIC_ID
        """The id of ``TOPIC``, once a version was spoken that has ids."""

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def ask(self, request: Any, *, at_least: int = 0) -> Any:
        """Send a request in the version of this round or in its last one, unless this is too old."""
        api = request.api
        version = api.versions[min(self.lap, len(api.versions) - 1)]
        if version < at_least:
            return None
        self._socket.sendall(api.encode_request(request, version, correlation_id=1, client_id=OURS))
        data = self._stream.read(int.from_bytes(self._stream.read(4), "big"))
        return api.decode_response(memoryview(data), version)


def classic_group(line: Line) -> None:
    """Run a group from joining to its end, with a static member in later rounds."""
    name = f"classic-{line.lap}"
    instance = "first" if line.lap >= 5 else None
    line.ask(FindCoordinatorRequest(name))
    subscription = encode_subscription(MemberSubscription((TOPIC,)))
    join = JoinGroupRequest(
        name, 10_000, 10_000, "", "consumer", (JoinGroupProtocol("range", subscription),), group_instance_id=instance
    )
    joined = line.ask(join)
    if joined.generation_id < 0:
        joined = line.ask(replace(join, member_id=joined.member_id))
    me, generation = joined.member_id, joined.generation_id
    whole = encode_assignment(MemberAssignment((OwnedPartitions(TOPIC, tuple(range(PARTITIONS))),)))
    line.ask(SyncGroupRequest(name, generation, me, instance, "consumer", "range", (SyncGroupAssignment(me, whole),)))
    line.ask(HeartbeatRequest(name, generation, me, instance))
    line.ask(HeartbeatRequest(name, generation + 1, me, instance))
    commit = OffsetCommitRequest(
        name,
        (CommitOffset(TOPIC, 0, 5, 0, "m", line.topic_id),),
        generation_id=generation,
        member_id=me,
        group_instance_id=instance,
    )
    line.ask(commit)
    stale = (CommitOffset(TOPIC, 1, 5, topic_id=line.topic_id),)
    line.ask(replace(commit, partitions=stale, generation_id=generation + 1))
    line.ask(OffsetFetchRequest(name, tuple(OffsetFetchPartition(TOPIC, p, line.topic_id) for p in range(2))))
    line.ask(OffsetFetchRequest(name, None))
    line.ask(DescribeGroupsRequest((name, "missing")))
    line.ask(ListGroupsRequest())
    line.ask(OffsetDeleteRequest(name, (OffsetToDelete(TOPIC, 0),)))
    line.ask(DeleteGroupsRequest((name,)))
    line.ask(LeaveGroupRequest(name, "nobody"))
    line.ask(LeaveGroupRequest(name, me, instance))
    line.ask(OffsetDeleteRequest(name, (OffsetToDelete(TOPIC, 0),)))
    line.ask(DeleteGroupsRequest((name, "missing")))


def reconciled_group(line: Line) -> None:
    """Run a member of the consumer protocol: join, assignment, confirmation, fencing and leaving."""
    name = f"reconciled-{line.lap}"
    me = str(uuid.UUID(int=line.lap + 1))
    join = ConsumerGroupHeartbeatRequest(
        name, me, 0, rebalance_timeout_ms=10_000, subscribed_topic_names=(TOPIC,), topic_partitions=()
    )
    answer = line.ask(join)
    me = answer.member_id
    owned: tuple[TopicIdPartitions, ...] = ()

    def beat() -> bool:
        nonlocal answer, owned
        answer = line.ask(ConsumerGroupHeartbeatRequest(name, me, answer.member_epoch, topic_partitions=owned))
        owned = answer.assignment or owned
        return bool(owned)

    owned = answer.assignment or ()
    until("an assignment", lambda: owned or beat())
    line.ask(ConsumerGroupHeartbeatRequest(name, me, answer.member_epoch, topic_partitions=owned))
    line.ask(ConsumerGroupHeartbeatRequest(name, me, answer.member_epoch))
    line.ask(ConsumerGroupHeartbeatRequest(name, me, answer.member_epoch + 9))
    line.ask(ConsumerGroupDescribeRequest((name, "missing")))
    done = (CommitOffset(TOPIC, 0, 5, topic_id=line.topic_id),)
    commit = OffsetCommitRequest(name, done, generation_id=answer.member_epoch, member_id=me)
    line.ask(commit, at_least=9)
    line.ask(replace(commit, generation_id=commit.generation_id + 9), at_least=9)
    fetch = OffsetFetchRequest(name, None, member_id=me, member_epoch=answer.member_epoch)
    line.ask(fetch, at_least=9)
    line.ask(replace(fetch, member_epoch=fetch.member_epoch + 9), at_least=9)
    line.ask(ConsumerGroupHeartbeatRequest(name, me, -1))
    line.ask(ListGroupsRequest(types_filter=("consumer",)), at_least=5)


def transaction(line: Line) -> None:
    """Run a committed transaction with a batch and an offset, and refused requests."""
    name = f"transactional-{line.lap}"
    given: Any = None

    def is_given() -> bool:
        nonlocal given
        given = line.ask(InitProducerIdRequest(name, 10_000))
        return given.error_code == 0

    def is_added(topic: str, *partitions: int) -> bool:
        wanted = tuple(PartitionToAdd(topic, one) for one in partitions)
        return not any(one.error_code for one in line.ask(AddPartitionsToTxnRequest(name, *who, wanted)).partitions)

    until("a producer id", is_given)
    who = given.producer_id, given.producer_epoch
    line.ask(InitProducerIdRequest(name, 10_000, given.producer_id, given.producer_epoch + 9), at_least=3)
    line.ask(InitProducerIdRequest(name, 100_000_000))
    is_added("missing", 0)
    until("partitions in a transaction", lambda: is_added(OUT, 0, 1))
    for sequence in (0, 7):
        writer = BatchWriter(1_000)
        writer.append(b"key", b"value", (("header", None),), 1_000)
        line.ask(ProduceRequest(name, -1, 10_000, (RecordsToProduce(OUT, 0, writer.encode(*who, sequence)),)))
    line.ask(AddOffsetsToTxnRequest(name, *who, name))
    done = (CommitOffset(TOPIC, 0, 5, 0, "m", line.topic_id),)
    line.ask(TxnOffsetCommitRequest(name, name, *who, done))
    line.ask(TxnOffsetCommitRequest(name, name, *who, done, generation_id=9, member_id="nobody"))
    line.ask(EndTxnRequest(name, *who, committed=True))
    line.ask(EndTxnRequest(name, given.producer_id, given.producer_epoch + 9, committed=True))
    line.ask(AddOffsetsToTxnRequest(name, given.producer_id, given.producer_epoch + 9, name))


def log_and_tools(line: Line) -> None:
    """Send requests for topics by name and id, offsets, and configurations."""
    found = line.ask(MetadataRequest((MetadataTopic(TOPIC), MetadataTopic("missing"))))
    line.topic_id = found.topics[0].topic_id
    line.ask(
        MetadataRequest(tuple(MetadataTopic(None, topic_id=one) for one in (line.topic_id, uuid.UUID(int=9)))),
        at_least=12,
    )
    line.ask(ListOffsetsRequest((ListOffsetsPartition(TOPIC, 0, -1), ListOffsetsPartition(TOPIC, 99, -1))))
    line.ask(
        OffsetForLeaderEpochRequest(
            (
                OffsetForLeaderEpochPartition(TOPIC, 0, 0, current_leader_epoch=0),
                OffsetForLeaderEpochPartition(TOPIC, 1, 0, current_leader_epoch=99),
            )
        )
    )
    a_group = (32, f"classic-{line.lap}")
    intervals = ConfigAlteration("consumer.heartbeat.interval.ms", 0, "6000"), ConfigAlteration("no.such", 0, "1")
    for alteration in intervals:
        line.ask(IncrementalAlterConfigsRequest((ConfigsToAlter(*a_group, (alteration,)),)))
    keys = ("consumer.heartbeat.interval.ms", "consumer.session.timeout.ms")
    line.ask(
        DescribeConfigsRequest(
            (
                ConfigsToDescribe(*a_group, keys),
                ConfigsToDescribe(2, TOPIC, ("retention.ms", "min.insync.replicas")),
                ConfigsToDescribe(2, "missing"),
            )
        )
    )


def we_speak(proxy: FaultProxy) -> None:
    """Repeat rounds until the API with the most versions has sent its last version."""
    line = Line(proxy)
    for lap in range(max(len(api.versions) for api in RECORDED.values())):
        line.lap = lap
        log_and_tools(line)
        classic_group(line)
        reconciled_group(line)
        transaction(line)
    line.close()


# ---- selection of frames ---------------------------------------------------------------------------------------


def shape(value: object) -> object:
    """Return which values of a message are null, empty or zero."""
    if isinstance(value, Struct):
        return type(value).__name__, *(shape(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, tuple):
        return frozenset(map(shape, value))
    return None if value is None else bool(value)


def kept(frames: Iterable[ProxiedFrame]) -> list[dict[str, Any]]:
    """Return one frame of each shape, in the order of the APIs, as rows of the file."""
    found: dict[object, dict[str, Any]] = {}
    for frame in frames:
        is_ours = frame.client_id == OURS and frame.direction == "request"
        api = RECORDED.get(frame.api_key)
        if api is None or frame.version not in api.versions or is_ours:
            continue
        row = {"key": frame.api_key, "version": frame.version, "direction": frame.direction, "hex": frame.data.hex()}
        found.setdefault((*list(row.values())[:3], shape(frame.message)), row)
    return sorted(found.values(), key=lambda row: (row["key"], row["direction"] == "answer", row["version"]))


def main() -> None:
    """Record all frames."""
    with KafkaServer(proxied=True, version=NEWEST) as server:
        for topic in (TOPIC, OUT):
            server.create_topic(topic, PARTITIONS)
        librdkafka_speaks(server.bootstrap_servers)
        we_speak(server.proxy)
        lines = ",\n".join(json.dumps(row) for row in kept(server.proxy.frames))
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
