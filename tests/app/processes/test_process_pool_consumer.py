"""ProcessPoolConsumer on the real broker: topics read by several processes, as one stream."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict

import psutil
import pytest
from confluent_kafka import Producer

from tailrace import (
    BrokerConnectionError,
    CommitFailedError,
    ConfigurationError,
    Consumer,
    ConsumerStateError,
    ConsumerTimeoutError,
    ProcessPoolConsumer,
    TopicPartition,
    UnknownTopicError,
)
from tailrace.observe.events import TopicRecreated, WorkerExited, WorkerStarted
from tailrace.producer.publisher import OutgoingRecord
from tailrace.testing import FaultProxy
from tests.support.committed_records import CommittedRecords
from tests.support.consumer_group import until

LAYOUTS = ["group", "assigned"]


@pytest.fixture
def new_pool(kafka_server, group, recorder):
    def make(*topics: str, **options: object) -> ProcessPoolConsumer:
        given = {
            "bootstrap_servers": kafka_server.bootstrap_servers,
            "group_id": group,
            "heartbeat_interval_ms": 200,
            "hooks": [recorder],
        }
        return ProcessPoolConsumer(*topics, **{**given, **options})

    return make


@pytest.fixture
def new_consumer(kafka_server):
    def make(*topics: str, **options: object) -> Consumer:
        return Consumer(*topics, bootstrap_servers=kafka_server.bootstrap_servers, **options)

    return make


def fill(witness, topic: str, partitions: int, each: int, word: bytes = b"x") -> None:
    for partition in range(partitions):
        witness.produce(topic, [b"%b %d" % (word, number) for number in range(each)], partition=partition)


def in_order(records) -> dict[int, list[int]]:
    """Return the offsets of each partition in the order of delivery."""
    found = defaultdict(list)
    for record in records:
        found[record.partition].append(record.offset)
    return dict(found)


async def taken(pool: ProcessPoolConsumer, count: int) -> list:
    """Return the next ``count`` records, polled one by one."""
    records = []
    async with asyncio.timeout(60):
        async for record in pool:
            records.append(record)
            if len(records) == count:
                return records
    raise AssertionError(f"the loop ended after {len(records)} of {count}")


async def settled(witness, group: str, members: int, partitions: int) -> dict[str, frozenset[TopicPartition]]:
    """Wait until ``members`` members of the group share all partitions, and return the assignments."""
    async with asyncio.timeout(30):
        while True:
            found = await witness.members(group)
            if len(found) == members and all(found.values()) and sum(map(len, found.values())) == partitions:
                return found
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_several_processes_deliver_each_record_once_and_in_order(new_pool, new_topic, group, witness, layout):
    """Each record is delivered once and unchanged, each partition in order; all are committed at the end."""
    topic = new_topic(6)
    fill(witness, topic, 6, 500)

    async with new_pool(topic, workers=3, layout=layout) as pool:
        pids = pool.pids
        records = await taken(pool, 3_000)
        nothing = await pool.getone(timeout_ms=200)

    assert len(set(pids)) == 3
    assert os.getpid() not in pids
    assert in_order(records) == {partition: list(range(500)) for partition in range(6)}
    assert all(record.value == b"x %d" % record.offset for record in records)
    assert nothing is None
    assert await witness.committed(group, topic, 6) == dict.fromkeys(range(6), 500)
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_processes_share_the_partitions_and_leave_the_group(new_pool, new_topic, group, witness):
    """Three processes are assigned two of six partitions each; after stop() the group has no members."""
    topic = new_topic(6)

    async with new_pool(topic, workers=3, layout="group"):
        members = await settled(witness, group, 3, 6)
    after = await witness.members(group)

    assert sorted(map(len, members.values())) == [2, 2, 2]
    assert after == {}


async def test_no_process_is_without_a_partition(new_pool, new_topic):
    """A pool starts no more processes than it has partitions; partitions_per_worker takes precedence over workers."""
    async with new_pool(new_topic(3), layout="assigned", workers=9, partitions_per_worker=2) as pool:
        assert len(pool.pids) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_only_delivered_records_are_committed(new_pool, new_topic, group, witness, layout):
    """commit() commits records that were delivered to the caller, and not those that were only fetched."""
    topic = new_topic(1)
    fill(witness, topic, 1, 5_000)

    async with new_pool(topic, workers=1, layout=layout) as pool:
        await taken(pool, 10)
        await pool.commit()
        committed = await witness.committed(group, topic, 1)
        await taken(pool, 5)
        # The fifth is in flight, and stop() does not commit it.
    after = await witness.committed(group, topic, 1)
    async with new_pool(topic, workers=1, layout=layout) as pool:
        (again,) = await taken(pool, 1)

    assert committed == {0: 10}
    assert after == {0: 14}
    assert again.offset == 14


async def test_offsets_of_a_deleted_topic_are_not_committed_to_the_new_one(  # noqa: PLR0917 - fixtures
    kafka_server, new_pool, new_consumer, new_topic, group, witness, recorder
):
    """Records finished after their topic was recreated are not committed, and no record of the new topic is skipped."""
    topic = new_topic(1)
    fill(witness, topic, 1, 100, b"old")

    async with new_pool(topic, workers=1, layout="assigned", auto_commit_interval_ms=200) as pool:
        await taken(pool, 10)
        await pool.commit()
        await asyncio.to_thread(kafka_server.delete_topic, topic)
        await asyncio.to_thread(kafka_server.create_topic, topic, 1)
        await taken(pool, 40)
        recreated = await recorder.wait_for(TopicRecreated)
        found = await witness.committed(group, topic, 1)
        fill(witness, topic, 1, 100, b"new")
        async with asyncio.timeout(60):
            while (first := await pool.getone()).value.startswith(b"old"):
                pass

    assert (recreated.partition, recreated.offset > 10, found) == (TopicPartition(topic, 0), True, {})
    assert (first.offset, first.value) == (0, b"new 0")
    async with new_consumer(topic, group_id=group) as second:
        record = await second.getone(timeout_ms=30_000)
    assert (record.offset, record.value) == (0, b"new 0")


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_finished_records_are_committed_automatically(new_pool, new_topic, group, witness, layout):
    """Finished records are committed soon, without a call of commit()."""
    topic = new_topic(1)
    fill(witness, topic, 1, 100)

    async with new_pool(topic, workers=1, layout=layout, auto_commit_interval_ms=200) as pool:
        await taken(pool, 8)
        async with asyncio.timeout(20):
            while True:
                if (found := await witness.committed(group, topic, 1)) == {0: 7}:
                    break
                await asyncio.sleep(0.05)

    assert found == {0: 7}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_queued_records_are_limited(new_pool, new_topic, witness, layout):
    """At most max_queued_records wait for a caller that requests none."""
    topic = new_topic(4)
    fill(witness, topic, 4, 2_000)

    async with new_pool(topic, workers=2, layout=layout, max_queued_records=400) as pool:
        await taken(pool, 1)
        await until(lambda: pool.queued_records >= 200)
        highest, ends_at = 0, time.monotonic() + 1
        while time.monotonic() < ends_at:
            highest = max(highest, pool.queued_records)
            await asyncio.sleep(0.02)
        rest = await taken(pool, 7_999)

    assert highest <= 400
    assert len(rest) == 7_999


async def test_getmany_returns_queued_records(new_pool, new_topic, group, witness):
    """getmany() returns queued records at once and in order; the next request finishes the previous batch."""
    topic = new_topic(2)
    fill(witness, topic, 2, 50)

    async with new_pool(topic, workers=2, layout="group") as pool:
        batches = []
        async with asyncio.timeout(30):
            while sum(map(len, batches)) < 100:
                batches.append(await pool.getmany(max_records=30))
        empty = await pool.getmany(timeout_ms=50)

    assert all(1 <= len(batch) <= 30 for batch in batches)
    assert in_order([record for batch in batches for record in batch]) == {0: list(range(50)), 1: list(range(50))}
    assert empty == []
    assert await witness.committed(group, topic, 2) == {0: 50, 1: 50}


async def test_a_killed_member_is_restarted_and_no_record_is_lost(new_pool, new_topic, group, witness, recorder):
    """After SIGKILL a process is restarted with its partitions, and only a record in flight may be delivered twice."""
    topic = new_topic(4)
    fill(witness, topic, 4, 300)

    async with new_pool(topic, workers=2, layout="group", max_queued_records=200) as pool:
        before = await settled(witness, group, 2, 4)
        records = await taken(pool, 500)
        (victim,) = {one.pid for one in recorder.of(WorkerStarted) if one.worker == 1}
        os.kill(victim, signal.SIGKILL)
        await recorder.wait_for(WorkerExited)
        async with asyncio.timeout(30):
            while len({(one.partition, one.offset) for one in records}) < 1_200:
                records += await pool.getmany(timeout_ms=1000)
        await pool.commit()
        after = await settled(witness, group, 2, 4)

    assert recorder.of(WorkerExited)[0].exit_code == -signal.SIGKILL
    assert len(records) <= 1_201
    assert set(after.values()) == set(before.values())
    assert len(after.keys() & before.keys()) == 1
    assert await witness.committed(group, topic, 4) == dict.fromkeys(range(4), 300)


async def test_a_killed_reader_continues_at_its_position(new_pool, new_topic, group, witness, recorder):
    """With assigned partitions, a reader that is killed and restarted loses no record and delivers none twice."""
    topic = new_topic(4)
    fill(witness, topic, 4, 300)

    async with new_pool(topic, workers=2, layout="assigned", max_queued_records=100) as pool:
        records = await taken(pool, 600)
        os.kill(pool.pids[0], signal.SIGKILL)
        records += await taken(pool, 600)
        await recorder.wait_for(WorkerStarted, 3)
        extra = await pool.getone(timeout_ms=300)

    assert in_order(records) == {partition: list(range(300)) for partition in range(4)}
    assert extra is None
    assert await witness.committed(group, topic, 4) == dict.fromkeys(range(4), 300)


async def test_a_rebalance_delivers_each_record_once(new_pool, new_consumer, new_topic, group, witness):
    """If another member joins during reading, each record is delivered once, by the pool or the other member."""
    topic = new_topic(4)
    fill(witness, topic, 4, 1_000)
    async with new_pool(topic, workers=1, layout="group", max_queued_records=300) as pool:
        records = await taken(pool, 500)
        async with new_consumer(topic, group_id=group, heartbeat_interval_ms=200) as other:
            theirs = []

            async def read_theirs() -> None:
                while len(records) + len(theirs) < 4_000:
                    theirs.extend(await other.getmany(timeout_ms=100))

            async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
                tasks.create_task(read_theirs())
                while not theirs:
                    # Slowly, so that records are in flight and queued at the rebalance, and
                    # plenty is left however long that takes.
                    records += await pool.getmany(max_records=5)
                    await asyncio.sleep(0.05)
                while len(records) + len(theirs) < 4_000:
                    records += await pool.getmany(timeout_ms=100)

    both = [(one.partition, one.offset) for one in [*records, *theirs]]
    assert len(theirs) > 50
    assert len(set(both)) == len(both) == 4_000
    assert all(offsets == sorted(offsets) for offsets in in_order(records).values())


async def test_partitions_that_are_added_are_read_once(new_pool, new_topic, group, witness, kafka_server):
    """Each added partition is read by one reader from its beginning, also after all readers were killed."""
    topic = new_topic(2)
    fill(witness, topic, 2, 5)

    async with new_pool(topic, workers=2, layout="assigned", metadata_max_age_ms=200) as pool:
        records = await taken(pool, 10)
        await asyncio.to_thread(kafka_server.add_partitions, topic, 4)
        fill(witness, topic, 4, 5, b"y")
        records += await taken(pool, 20)
        for pid in pool.pids:
            os.kill(pid, signal.SIGKILL)
        fill(witness, topic, 4, 5, b"z")
        records += await taken(pool, 20)
        extra = await pool.getone(timeout_ms=300)

    assert in_order(records) == {0: list(range(15)), 1: list(range(15)), 2: list(range(10)), 3: list(range(10))}
    assert extra is None
    assert await witness.committed(group, topic, 4) == {0: 15, 1: 15, 2: 10, 3: 10}


ORPHANS = """
import asyncio
from tailrace import ProcessPoolConsumer

async def main():
    options = dict(bootstrap_servers={servers!r}, group_id={group!r}, layout="group")
    async with ProcessPoolConsumer({topic!r}, workers=2, **options) as pool:
        print(*pool.pids, flush=True)
        async for record in pool:
            pass

asyncio.run(main())
"""


def test_no_reader_outlives_its_parent(new_topic, group, witness):
    """SIGKILL of the parent process ends all readers within seconds."""
    source = ORPHANS.format(servers=witness.bootstrap_servers, group=group, topic=new_topic(2))
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as parent:
        readers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    _, alive = psutil.wait_procs(readers, timeout=20)

    assert len(readers) == 2
    assert alive == []


async def test_a_reader_that_keeps_dying_fails_the_consumer(new_pool, new_topic, recorder):
    """After several deaths of a reader in a row, the caller gets an error instead of waiting forever."""
    async with new_pool(new_topic(1), workers=1, layout="assigned") as pool:
        for deaths in range(1, 6):
            await recorder.wait_for(WorkerStarted, deaths)
            os.kill(recorder.of(WorkerStarted)[-1].pid, signal.SIGKILL)
        with pytest.raises(Exception, match="5 times in a row"):
            await asyncio.wait_for(pool.getone(), 30)
        status = pool.health().status

    assert status == "failed"


@pytest.mark.slow
async def test_a_reader_that_starts_during_an_outage_is_restarted(new_pool, new_topic, witness, recorder):
    """A reader that cannot start during an outage is restarted, and continues at its position afterwards."""
    topic, (host, port) = new_topic(1), witness.bootstrap_servers.split(":")
    fill(witness, topic, 1, 5)

    with FaultProxy(host, int(port)) as proxy:
        async with new_pool(
            topic, workers=1, layout="assigned", bootstrap_servers=proxy.address, start_timeout_ms=3_000
        ) as pool:
            records = await taken(pool, 5)
            proxy.refuse()
            os.kill(pool.pids[0], signal.SIGKILL)
            refused = await recorder.wait_for(WorkerExited, 2)
            proxy.restore()
            fill(witness, topic, 1, 15)
            records += await taken(pool, 15)

    assert "no broker" in refused.error.lower()
    assert in_order(records) == {0: list(range(20))}


async def test_a_pool_without_a_group_starts_by_auto_offset_reset(new_pool, new_topic, witness):
    """Without a group, reading starts at auto_offset_reset, and commit() raises."""
    topic = new_topic(2)
    fill(witness, topic, 2, 20)

    async with new_pool(topic, workers=2, group_id=None, auto_offset_reset="earliest") as pool:
        records = await taken(pool, 40)
        with pytest.raises(ConsumerStateError, match="needs a group_id"):
            await pool.commit()

    assert in_order(records) == {0: list(range(20)), 1: list(range(20))}


async def test_records_are_the_same_as_in_a_consumer(new_pool, new_topic, witness):
    """Headers, keys, null values and tombstones are the same as in a Consumer."""
    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": witness.bootstrap_servers})
    producer.produce(topic, None, key=b"gone", timestamp=1_700_000_000_123)
    producer.produce(topic, b"", key=None, headers=[("a", b"1"), ("a", None)])
    assert producer.flush(20) == 0

    async with new_pool(topic, workers=1, layout="assigned") as pool:
        first, second = await taken(pool, 2)

    assert (first.key, first.value, first.timestamp, tuple(first.headers)) == (b"gone", None, 1_700_000_000_123, ())
    assert (second.key, second.value, tuple(second.headers)) == (None, b"", (("a", b"1"), ("a", None)))
    assert second.topic_partition == TopicPartition(topic, 0)


async def test_assigned_partitions_cannot_commit_for_a_group_with_members(new_pool, new_topic, group, witness):
    """commit() raises if partitions are assigned by the caller and the group has members."""
    topic = new_topic(1)
    fill(witness, topic, 1, 5)

    async with new_pool(topic, workers=1, layout="group"):
        await settled(witness, group, 1, 1)
        async with new_pool(topic, workers=1, layout="assigned", enable_auto_commit=False) as stranger:
            await taken(stranger, 5)
            with pytest.raises(CommitFailedError, match="the group has members"):
                await stranger.commit()


async def test_an_unknown_topic_fails_the_start(new_pool):
    """start() raises the error of Consumer for an unknown topic, and leaves no process."""
    pool = new_pool("there-is-no-such-topic", workers=2)

    with pytest.raises(UnknownTopicError):
        await pool.start()

    assert pool.pids == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be a positive integer, not 0"),
        ({"partitions_per_worker": 0}, "partitions_per_worker must be a positive integer, not 0"),
        ({"layout": "both"}, "layout must be 'group' or 'assigned', not 'both'"),
        ({"layout": "group", "group_id": None}, "needs a group_id"),
        ({"post_rebalance_callback": lambda *_: None}, "post_rebalance_callback"),
        ({"ack": "manual"}, "ack='manual'"),
        ({"value_deserializer": str}, "value_deserializer cannot be used with several processes"),
        ({"hosts": "x"}, "bootstrap_servers"),
    ],
)
def test_invalid_arguments_are_refused(new_pool, options, message):
    with pytest.raises(ConfigurationError, match=message):
        new_pool("orders", **options)


async def test_a_group_instance_id_without_worker_is_refused(new_pool, new_topic):
    """A group_instance_id without {worker} is refused, since the processes would fence each other."""
    with pytest.raises(ConfigurationError, match=r"add \{worker\} to it"):
        await new_pool(new_topic(2), workers=2, layout="group", group_instance_id="a").start()


async def test_a_stopped_consumer_raises(new_pool, new_topic):
    """stop() ends a loop, after which calls raise, as they do before the start."""
    pool = new_pool(new_topic(1), workers=1, layout="assigned")
    with pytest.raises(ConsumerStateError, match="not started"):
        await pool.getone()

    async with pool:
        reading = asyncio.create_task(anext(aiter(pool), None))
        await asyncio.sleep(0)
        await pool.stop()
        ended = await reading

    assert ended is None
    with pytest.raises(ConsumerStateError, match="was stopped"):
        await pool.getmany()


async def test_a_commit_while_a_reader_starts_waits_for_it(new_pool, new_topic, group, witness, recorder):
    """commit() waits for a process that starts, and then commits the records that were finished before."""
    topic = new_topic(1)
    fill(witness, topic, 1, 5)

    async with new_pool(topic, workers=1, layout="group", auto_commit_interval_ms=60_000) as pool:
        await taken(pool, 5)
        os.kill(pool.pids[0], signal.SIGKILL)
        await recorder.wait_for(WorkerStarted, 2)
        async with asyncio.timeout(20):
            await pool.commit()
        committed = await witness.committed(group, topic, 1)

    assert committed == {0: 4}  # the last one was in flight, and is delivered again
    assert len(recorder.of(WorkerExited)) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_pool_is_ready_while_its_readers_are(new_pool, new_topic, layout):
    """A pool is starting until its reader is ready, and stopping after stop()."""
    pool = new_pool(new_topic(1), workers=1, layout=layout)
    early = pool.health()
    async with pool:
        reading = pool.health()
    ended = pool.health()

    assert (early.status, reading.status, ended.status) == ("starting", "ok", "stopping")


async def test_a_pool_is_not_ready_before_it_has_readers():
    """While start() waits for the cluster, the status is "starting"."""
    seen = []

    def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(pool.health().status)
        writer.close()

    async with await asyncio.start_server(look, "127.0.0.1") as no_broker:
        address = "{}:{}".format(*no_broker.sockets[0].getsockname())
        pool = ProcessPoolConsumer("orders", bootstrap_servers=address, group_id="g", start_timeout_ms=1_500)
        with pytest.raises(BrokerConnectionError):
            await pool.start()

    # The last connection may be accepted after start() has failed.
    assert seen[0] == "starting"
    assert set(seen) <= {"starting", "failed"}
    assert pool.health().status == "failed"


async def test_control_records_at_the_end_are_committed(kafka_server, new_pool, new_topic, group, witness):
    """Transaction markers after the last record are committed with it, so that the lag is zero."""
    topic, ledger = new_topic(2), CommittedRecords(kafka_server)
    async with ledger.producer() as producer:
        for partition in (0, 1):
            await producer.begin()
            for number in range(5):
                await producer.send(OutgoingRecord(topic, b"%d" % number, partition=partition))
            await producer.commit()

    async with new_pool(topic, workers=1, layout="group", isolation_level="read_committed") as pool:
        await taken(pool, 10)
        async with asyncio.timeout(20):
            while await witness.committed(group, topic, 2) != {0: 6, 1: 6}:
                await pool.commit()

    assert await witness.committed(group, topic, 2) == {0: 6, 1: 6}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_recreated_topic_commits_only_its_own_records(  # noqa: PLR0917 - fixtures
    kafka_server, new_pool, new_topic, group, witness, layout
):
    """The offsets of a recreated topic are committed when its own records are finished."""
    topic = new_topic(1)
    fill(witness, topic, 1, 10)

    async with new_pool(topic, workers=1, layout=layout, metadata_max_age_ms=300) as pool:
        await taken(pool, 10)
        assert await pool.getone(timeout_ms=200) is None
        kafka_server.delete_topic(topic)
        kafka_server.create_topic(topic, 1)
        fill(witness, topic, 1, 5, b"new")
        records = await taken(pool, 2)

    assert [record.value for record in records] == [b"new 0", b"new 1"]
    assert await witness.committed(group, topic, 1) == {0: 1}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_loop_ends_with_stop(new_pool, new_topic, group, witness, layout):
    """After stop() a loop delivers no queued record, and the record in flight is not finished."""
    topic, records = new_topic(1), []
    fill(witness, topic, 1, 200)

    async with new_pool(topic, workers=1, layout=layout) as pool:
        async for record in pool:
            records.append(record)
            if len(records) == 50:
                await pool.stop()

    assert in_order(records) == {0: list(range(50))}
    assert await witness.committed(group, topic, 1) == {0: 49}


async def test_finished_offsets_survive_two_deaths_in_a_row(new_pool, new_topic, group, witness, recorder):
    """Finished records are not delivered again if a restarted process dies before it has read any."""
    topic = new_topic(1)
    fill(witness, topic, 1, 10)

    async with new_pool(topic, workers=1, layout="group", auto_commit_interval_ms=60_000) as pool:
        records = await taken(pool, 5)
        os.kill(pool.pids[0], signal.SIGKILL)
        os.kill((await recorder.wait_for(WorkerStarted, 2)).pid, signal.SIGKILL)
        await recorder.wait_for(WorkerExited, 2)
        records += await taken(pool, 6)

    assert in_order(records) == {0: [0, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9]}


async def test_commit_raises_while_a_reader_is_not_running(new_pool, new_topic, group, witness, recorder):
    """commit() raises while a dead reader is not restarted, as its finished records cannot be committed before."""
    topic = new_topic(1)
    fill(witness, topic, 1, 5)

    async with new_pool(topic, workers=1, layout="group", auto_commit_interval_ms=60_000) as pool:
        await taken(pool, 5)
        os.kill(pool.pids[0], signal.SIGKILL)
        await recorder.wait_for(WorkerExited)
        with pytest.raises(CommitFailedError, match="reader 0 is not running"):
            await pool.commit()
        await recorder.wait_for(WorkerStarted, 2)
        await pool.commit()
        committed = await witness.committed(group, topic, 1)

    assert committed == {0: 4}


async def test_a_reader_resets_its_offsets_once(new_pool, new_topic, group, witness, recorder):
    """`reset_offset_on_start` applies to the first start only: a restarted process continues, and skips no record."""
    topic = new_topic(1)
    fill(witness, topic, 1, 5)
    anew = {"reset_offset_on_start": True, "auto_offset_reset": "latest"}

    async with new_pool(topic, workers=1, layout="group", **anew) as pool:
        async with asyncio.timeout(20):
            while await witness.committed(group, topic, 1) != {0: 5}:  # noqa: ASYNC110 - a committed offset sets no event
                await asyncio.sleep(0.05)
        os.kill(pool.pids[0], signal.SIGKILL)
        await recorder.wait_for(WorkerExited)
        fill(witness, topic, 1, 3)
        records = await taken(pool, 3)

    assert in_order(records) == {0: [5, 6, 7]}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_reset_offset_on_start_resets_and_is_committed(new_pool, new_topic, group, witness, layout):
    """`reset_offset_on_start` resets the group's committed offsets, in both layouts."""
    topic = new_topic(1)
    fill(witness, topic, 1, 10)
    async with new_pool(topic, workers=1) as pool:
        await taken(pool, 10)

    async with new_pool(topic, workers=1, layout=layout, reset_offset_on_start=True) as pool:
        records = await taken(pool, 5)

    assert in_order(records) == {0: list(range(5))}
    assert await witness.committed(group, topic, 1) == {0: 4}


async def test_consumer_timeout_ms_ends_a_call(new_pool, new_topic):
    """`consumer_timeout_ms` applies to calls without a timeout; a loop then ends as set by `when_timed_out`."""
    async with new_pool(new_topic(1), workers=1, consumer_timeout_ms=100, when_timed_out="stop") as pool:
        for call in (pool.getone, pool.getmany):
            with pytest.raises(ConsumerTimeoutError, match="consumer_timeout_ms=100"):
                await call()
        found = [record async for record in pool]

    assert found == []


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_auto_commit_every_records_counts_finished_records(new_pool, new_topic, group, witness, layout):
    """`auto_commit_every_records` counts the caller's finished records, in both layouts."""
    topic = new_topic(1)
    fill(witness, topic, 1, 50)
    by_number = {"auto_commit_interval_ms": None, "auto_commit_every_records": 20}

    async with new_pool(topic, workers=1, layout=layout, **by_number) as pool:
        await taken(pool, 30)
        async with asyncio.timeout(20):
            while (committed := (await witness.committed(group, topic, 1)).get(0, 0)) < 20:  # noqa: ASYNC110 - a committed offset sets no event
                await asyncio.sleep(0.05)

    assert 20 <= committed <= 30


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_process_that_dies_while_its_topic_is_recreated_skips_no_record_of_the_new_topic(
    kafka_server, new_pool, new_topic, witness, layout
):
    """The next process begins at the first record of the new topic, not at the old position."""
    topic = new_topic(1)
    fill(witness, topic, 1, 100, b"old")

    async with new_pool(topic, workers=1, layout=layout, auto_offset_reset="earliest") as pool:
        await taken(pool, 50)
        # The process neither reads nor commits while the topic is recreated.
        os.kill(pool.pids[0], signal.SIGSTOP)
        await asyncio.to_thread(kafka_server.delete_topic, topic)
        await asyncio.to_thread(kafka_server.create_topic, topic, 1)
        fill(witness, topic, 1, 200, b"new")
        os.kill(pool.pids[0], signal.SIGKILL)
        async with asyncio.timeout(60):
            while (first := await pool.getone()).value.startswith(b"old"):
                pass

    assert (first.offset, first.value) == (0, b"new 0")
