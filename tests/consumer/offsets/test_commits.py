"""Commits of finished records: at intervals, on request, at a revocation and at the end."""

from __future__ import annotations

import asyncio
import sys
import textwrap

import pytest
from msgspec.structs import replace

from tailrace import CommitFailedError, ConsumerStateError, OffsetAndMetadata, TopicPartition
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import CommitFailed, OffsetsCommitted
from tailrace.protocol.groups import HeartbeatRequest, OffsetCommitRequest
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder
from tests.support.expulsion import expel


async def test_commits_follow_the_interval(new_topic, new_consumer, witness, group):
    """Finished records are committed at the interval, and nothing is sent without progress."""
    topic, events = new_topic(), EventRecorder()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    options = {"auto_commit_interval_ms": 200, "hooks": [events]}
    async with new_consumer(topic, group_id=group, **options) as consumer:
        for _ in range(6):
            await consumer.getone()
        await events.wait_for(OffsetsCommitted, where=lambda event: 5 in event.offsets.values())
        assert await witness.committed(group, topic, 1) == {0: 5}
        count = len(events.of(OffsetsCommitted))
        await asyncio.sleep(0.7)
        assert count == len(events.of(OffsetsCommitted))


async def test_commit_includes_the_record_in_flight(new_topic, new_consumer, witness, group):
    """commit() without arguments includes the record in flight."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    async with new_consumer(topic, group_id=group, enable_auto_commit=False) as consumer:
        for _ in range(6):
            await consumer.getone()
        await consumer.commit()
        assert await witness.committed(group, topic, 1) == {0: 6}


async def test_chosen_offsets_are_committed_with_their_metadata(new_topic, new_consumer, group, witness):
    """commit() with a mapping stores these offsets and metadata, and committed() returns them."""
    topic = new_topic(2)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async with new_consumer(topic, group_id=group, enable_auto_commit=False) as consumer:
        await until(lambda: bool(consumer.assignment()))
        await consumer.commit({one: OffsetAndMetadata(17, "a note")})
        assert {one: OffsetAndMetadata(17, "a note", None)} == await consumer.committed([one, other])

    assert await witness.committed(group, topic, 2) == {0: 17}


async def test_an_automatic_commit_does_not_undo_a_chosen_offset(new_topic, new_consumer, witness, group):
    """Automatic commits do not undo an offset committed by the user, but do commit a seek backward."""
    topic, events = new_topic(2), EventRecorder()
    witness.fill(topic, 2, 10)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async with new_consumer(topic, group_id=group, auto_commit_interval_ms=100, hooks=[events]) as consumer:
        await consumer.getmany(max_records=20, min_records=20)
        await consumer.commit({one: 10, other: 10})
        await consumer.seek(other, 3)
        await events.wait_for(OffsetsCommitted, where=lambda event: event.offsets == {other: 3})

    assert await witness.committed(group, topic, 2) == {0: 10, 1: 3}


async def test_without_auto_commit_nothing_is_committed(new_topic, new_consumer, witness, group):
    """With enable_auto_commit=False, nothing is committed at intervals or at stop()."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    options = {"enable_auto_commit": False, "auto_commit_interval_ms": 50}
    async with new_consumer(topic, group_id=group, **options) as consumer:
        for _ in range(6):
            await consumer.getone()
        await asyncio.sleep(0.3)

    assert await witness.committed(group, topic, 1) == {}


async def test_records_written_while_a_new_group_is_down_are_read(new_topic, new_consumer, witness, group):
    """With auto_offset_reset="latest", the start offset is committed, so that records written later are read."""
    topic, options = new_topic(), {"group_id": group, "auto_offset_reset": "latest"}
    witness.produce(topic, [b"before"])
    async with new_consumer(topic, **options) as consumer:
        await until(lambda: bool(consumer.assignment()))
        assert await consumer.position(TopicPartition(topic, 0)) == 1
    witness.produce(topic, [b"while it was down"])

    async with new_consumer(topic, **options) as consumer:
        assert (await consumer.getone(timeout_ms=30_000)).value == b"while it was down"


async def test_commit_without_a_group_raises(new_topic, new_consumer):
    """Without a group_id, commit() and committed() raise ConsumerStateError."""
    async with new_consumer(new_topic()) as consumer:
        with pytest.raises(ConsumerStateError, match="group_id"):
            await consumer.commit()
        with pytest.raises(ConsumerStateError, match="group_id"):
            await consumer.committed([])


async def test_a_commit_of_a_removed_member_raises(new_topic, new_consumer, witness, group):
    """commit() of a removed member raises CommitFailedError and commits nothing."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    async with new_consumer(topic, group_id=group, enable_auto_commit=False, heartbeat_interval_ms=30_000) as consumer:
        await consumer.getone()
        member_id = consumer._started.membership.identity.member_id
        await expel(witness.bootstrap_servers, group, member_id)
        with pytest.raises(CommitFailedError, match="max_poll_interval_ms"):
            await consumer.commit()

    assert await witness.committed(group, topic, 1) == {}


PROGRAM = """
    import asyncio, sys, tailrace

    async def main():
        async with tailrace.Consumer({topic!r}, bootstrap_servers={servers!r}, group_id={group!r}) as consumer:
            for _ in range(7):
                record = await consumer.getone()
                print(record.offset, flush=True)
            await consumer.commit()
            {end}

    tailrace.run(main())
"""


async def run_program(kafka_server, topic, group, end="pass"):
    text = PROGRAM.format(topic=topic, servers=kafka_server.bootstrap_servers, group=group, end=end)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", textwrap.dedent(text), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 40)
    return process.returncode, [int(line) for line in out.split()]


async def test_a_new_process_begins_at_the_committed_offset(new_topic, kafka_server, witness, group):
    """A new process starts at the committed offset, whether the former one ended or was killed."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(30)))

    first = await run_program(kafka_server, topic, group)
    killed = await run_program(kafka_server, topic, group, "import os; os.kill(os.getpid(), 9)")
    options_of_third = await witness.committed(group, topic, 1) == {0: 14}

    assert (0, list(range(7))) == first
    assert (-9, list(range(7, 14))) == killed
    assert options_of_third


async def test_sigterm_commits_leaves_and_exits_with_0(new_topic, kafka_server, witness, group):
    """On SIGTERM, tailrace.run() commits finished records, leaves the group and exits with 0."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(30)))

    end = "await consumer.getone(); import os, signal; os.kill(os.getpid(), signal.SIGTERM); await asyncio.sleep(30)"
    code, handled = await run_program(kafka_server, topic, group, end)

    assert (0, list(range(7))) == (code, handled)
    assert await witness.committed(group, topic, 1) == {0: 7}
    assert await witness.members(group) == {}


# ---- failed automatic commits ----------------------------------------------------------------------------------------


async def test_a_commit_of_a_removed_member_is_not_retried(quick, group):
    """An automatic commit of a removed member fails, and the event announces no retry."""
    topic, events = quick.topic_with(10), EventRecorder()
    options = {"group_protocol": "classic", "auto_commit_interval_ms": 200, "hooks": [events]}

    async with quick.consumer(topic, group_id=group, **options) as consumer:
        with quick.proxy.hold_request(HeartbeatRequest) as held:
            await held.wait_applied()
            (member_id,) = await quick.members(group)
            await expel(quick.direct, group, member_id)
            for _ in range(3):
                await consumer.getone()
            failed = await events.wait_for(CommitFailed, where=lambda one: "UNKNOWN_MEMBER_ID" in one.error)

    assert failed.will_retry is False


@pytest.mark.parametrize(
    ("protocol", "code"),
    [
        ("classic", ErrorCode.UNKNOWN_MEMBER_ID),
        ("classic", ErrorCode.ILLEGAL_GENERATION),
        ("classic", ErrorCode.FENCED_INSTANCE_ID),
        ("consumer", ErrorCode.FENCED_MEMBER_EPOCH),
        ("consumer", ErrorCode.STALE_MEMBER_EPOCH),
    ],
)
async def test_a_commit_of_a_lost_membership_is_not_retried(quick, group, protocol, code):
    """The event of a commit that fails with the membership announces no retry."""
    topic, events = quick.topic_with(10), EventRecorder()
    options = {"auto_commit_interval_ms": 200, "request_timeout_ms": 1_000, "hooks": [events], "group_id": group}

    async with quick.consumer(topic, group_protocol=protocol, group_instance_id=group, **options) as consumer:
        # Outside: the start position is committed, too, and its refusal could end the consumer before its first record.
        await consumer.getone()
        with quick.proxy.edit_answer(OffsetCommitRequest, each_refused(code), times=None):
            reading = asyncio.create_task(consumer.getone())
            failed = await events.wait_for(CommitFailed, where=lambda one: code.name in one.error)
        reading.cancel()
        # Code 82 ends the consumer, so that the reader may have its error already.
        await asyncio.gather(reading, return_exceptions=True)

    assert failed.will_retry is False


async def test_a_commit_at_a_loading_coordinator_is_retried(quick, group):
    """A commit that fails while the coordinator loads is repeated at the next interval."""
    topic, events = quick.topic_with(10), EventRecorder()
    options = {"auto_commit_interval_ms": 200, "request_timeout_ms": 1_000, "hooks": [events]}

    async with quick.consumer(topic, group_id=group, **options) as consumer:
        loading = each_refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        with quick.proxy.edit_answer(OffsetCommitRequest, loading, times=None):
            for _ in range(3):
                await consumer.getone()
            failed = await events.wait_for(CommitFailed)
        await events.wait_for(OffsetsCommitted)
        assert await quick.committed(group, topic, 1) == {0: 2}

    assert failed.will_retry is True


def each_refused(code):
    """Return a function that edits a commit's response into a refusal of every partition."""
    return lambda answer: replace(answer, partitions=tuple(replace(one, error_code=code) for one in answer.partitions))
