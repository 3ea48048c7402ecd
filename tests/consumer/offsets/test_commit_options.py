"""Options of commits."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tailrace import App, BrokerError, CommitFailedError, ConfigurationError, OffsetAndMetadata, TopicPartition
from tailrace.observe.events import (
    CommitCallbackFailed,
    CommitFailed,
    CommitMetadataDropped,
    OffsetReset,
    OffsetsCommitted,
)
from tailrace.protocol.groups import LeaveGroupRequest, OffsetCommitRequest, OffsetFetchRequest
from tailrace.protocol.metadata import FindCoordinatorRequest
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

NEVER = {"auto_commit_interval_ms": None}


def refusing(code):
    """Return a function that edits a commit's response into a refusal."""
    return lambda answer: replace(answer, partitions=tuple(replace(one, error_code=code) for one in answer.partitions))


def refused_fetch(code):
    """Return a function that edits the response to an OffsetFetch into a refusal."""
    return lambda answer: replace(answer, partitions=(), error_code=code)


def commits(kafka, client):
    """Return the committed offsets of partition 0 in the order of their requests."""
    frames = kafka.proxy.requests(OffsetCommitRequest, client_id=client)
    return [next(one.offset for one in frame.message.partitions if not one.partition) for frame in frames]


async def read(consumer, count):
    for _ in range(count):
        await consumer.getone()


# ---- automatic and explicit commits -------------------------------------------------------------------------------


async def test_auto_commit_every_records_commits_by_number(kafka, group):
    """With auto_commit_every_records=100, one commit is sent when 100 records are finished."""
    topic, events = kafka.topic_with(300), EventRecorder()
    options = {"auto_commit_every_records": 100, "client_id": group, "hooks": [events], **NEVER}

    async with kafka.consumer(topic, group_id=group, **options) as consumer:
        await read(consumer, 100)
        await asyncio.sleep(0.2)
        before = commits(kafka, group)
        await read(consumer, 1)
        await events.wait_for(OffsetsCommitted)

        assert before == []
        assert commits(kafka, group) == [100]
        assert await kafka.committed(group, topic, 1) == {0: 100}


async def test_commits_by_number_and_by_interval_restart_each_other(kafka, group):
    """An automatic commit restarts both the interval and the count of records."""
    topic, events = kafka.topic_with(400), EventRecorder()
    options = {
        "auto_commit_every_records": 100,
        "auto_commit_interval_ms": 6_000,
        "client_id": group,
        "hooks": [events],
    }

    async with kafka.consumer(topic, group_id=group, **options) as consumer:
        await read(consumer, 1)
        await asyncio.sleep(0.6)  # of the first interval
        await read(consumer, 100)
        await events.wait_for(OffsetsCommitted, where=lambda event: 100 in event.offsets.values())
        await read(consumer, 51)
        await events.wait_for(OffsetsCommitted, where=lambda event: 151 in event.offsets.values())
        await read(consumer, 99)
        await asyncio.sleep(0.1)
        by_number, by_time = (frame.at for frame in kafka.proxy.requests(OffsetCommitRequest, client_id=group))

        assert commits(kafka, group) == [100, 151]
        assert by_time - by_number >= 5.6


async def test_an_explicit_commit_restarts_the_count(kafka, group):
    """commit() restarts the count of records of auto_commit_every_records."""
    topic = kafka.topic_with(300)

    options = {"auto_commit_every_records": 100, "client_id": group, **NEVER}
    async with kafka.consumer(topic, group_id=group, **options) as consumer:
        await read(consumer, 99)
        await consumer.commit()
        await read(consumer, 100)
        await asyncio.sleep(0.2)

        assert commits(kafka, group) == [99]


@pytest.mark.parametrize("ack", ["auto", "manual"])
async def test_batches_and_acknowledged_records_are_counted(kafka, group, ack):
    """auto_commit_every_records counts a batch at the next poll, or records at their acknowledgment."""
    topic, events = kafka.topic_with(30), EventRecorder()

    options = {"auto_commit_every_records": 10, "ack": ack, "hooks": [events], **NEVER}
    async with kafka.consumer(topic, group_id=group, **options) as consumer:
        batch: list = []
        while len(batch) < 10:
            batch += await consumer.getmany(max_records=10 - len(batch))
        if ack == "manual":
            for record in reversed(batch):
                consumer.ack(record)
        else:
            await consumer.getone()
        await events.wait_for(OffsetsCommitted)

        assert await kafka.committed(group, topic, 1) == {0: 10}


async def test_without_number_and_interval_only_stop_commits(kafka, group):
    """Without an interval and a number of records, finished records are committed only at stop()."""
    topic = kafka.topic_with(10)

    async with kafka.consumer(topic, group_id=group, client_id=group, **NEVER) as consumer:
        await read(consumer, 6)
        await asyncio.sleep(0.2)
        before = commits(kafka, group)

    assert before == []
    assert await kafka.committed(group, topic, 1) == {0: 5}


async def test_a_rebalance_commits_finished_records(kafka, group):
    """A revocation commits finished records even without an interval, and the next owner repeats none."""
    topic = kafka.topic_with(10, partitions=2)

    async with kafka.consumer(topic, group_id=group, heartbeat_interval_ms=200, **NEVER) as one:
        got = [await one.getone() for _ in range(20)]
        one.ack(got[-1])
        reading = asyncio.create_task(one.getone(timeout_ms=20_000))
        async with kafka.consumer(topic, group_id=group, heartbeat_interval_ms=200, **NEVER) as other:
            await until(lambda: len(one.assignment()) == len(other.assignment()) == 1)
            (moved,) = other.assignment()
            committed = await kafka.committed(group, topic, 2)
            for partition in (0, 1):
                kafka.produce(topic, [b"new"], partition=partition)
            got += [await reading, await other.getone(timeout_ms=20_000)]

    assert committed[moved.partition] == 10
    assert sorted((record.partition, record.offset) for record in got) == [(p, n) for p in (0, 1) for n in range(11)]


async def test_stop_without_commit_leaves_the_offset(kafka, group):
    """stop(commit=False) leaves the group and does not change the committed offset."""
    topic = kafka.topic_with(10)

    consumer = kafka.consumer(topic, group_id=group, client_id=group, **NEVER)
    await consumer.start()
    await read(consumer, 3)
    await consumer.commit()
    await read(consumer, 4)
    await consumer.stop(commit=False)

    assert await kafka.committed(group, topic, 1) == {0: 3}
    assert await kafka.members(group) == {}
    assert len(kafka.proxy.requests(LeaveGroupRequest, client_id=group)) == 1


async def test_stop_leaves_the_group_if_its_commit_fails(kafka, group):
    """If the last commit is refused, stop() emits an event and leaves the group."""
    topic, events = kafka.topic_with(10), EventRecorder()

    with kafka.proxy.edit_answer(OffsetCommitRequest, refusing(30), times=None):
        async with kafka.consumer(topic, group_id=group, hooks=[events], **NEVER) as consumer:
            await read(consumer, 4)

    assert events.of(CommitFailed)
    assert await kafka.members(group) == {}


# ---- committed offsets --------------------------------------------------------------------------------------------


async def test_commit_of_a_partition_leaves_the_others(kafka, group):
    """commit(partition) commits only this partition, and wrong arguments raise."""
    topic = kafka.topic_with(5, partitions=2)

    async with kafka.consumer(topic, group_id=group, **NEVER) as consumer:
        records: list = []
        while len(records) < 10:
            records += await consumer.getmany()
        await consumer.commit(TopicPartition(topic, 1))
        committed = await kafka.committed(group, topic, 2)
        with pytest.raises(ConfigurationError, match=r"TopicPartition\('orders', 0\), not 'orders'"):
            await consumer.commit("orders")
        with pytest.raises(ConfigurationError, match="a partition must be a TopicPartition"):
            await consumer.commit({"orders": 5})
        with pytest.raises(ConfigurationError, match="an offset must be a non-negative integer, not '5'"):
            await consumer.commit({TopicPartition(topic, 0): "5"})

    assert committed == {1: 5}


async def test_commit_of_a_partition_includes_its_record_in_flight(kafka, group):
    """commit(partition) includes the record in flight if it is of that partition."""
    topic = kafka.topic(2)
    kafka.produce(topic, [b"%d" % n for n in range(5)], partition=0)

    async with kafka.consumer(topic, group_id=group, **NEVER) as consumer:
        await read(consumer, 3)
        await consumer.commit(TopicPartition(topic, 1))
        assert (await kafka.committed(group, topic, 2)).get(0) is None
        await consumer.commit(TopicPartition(topic, 0))
        assert (await kafka.committed(group, topic, 2))[0] == 3


async def test_a_commit_without_progress_sends_no_request(kafka, group):
    """After a partial refusal, only the refused offset is sent again, and commit() without progress sends nothing."""
    topic = kafka.topic_with(5, partitions=2)

    def refuse_one(answer):
        return replace(
            answer, partitions=tuple(replace(o, error_code=14 if o.partition else 0) for o in answer.partitions)
        )

    async with kafka.consumer(topic, group_id=group, client_id=group, **NEVER) as consumer:
        await read(consumer, 10)
        with kafka.proxy.edit_answer(OffsetCommitRequest, refuse_one):
            await consumer.commit()
        await consumer.commit()
        frames = kafka.proxy.requests(OffsetCommitRequest, client_id=group)

    assert [sorted(one.partition for one in frame.message.partitions) for frame in frames] == [[0, 1], [1]]
    assert all(frame.version >= 2 for frame in frames)
    assert {frame.message.generation_id for frame in frames} != {-1}


async def test_metadata_that_is_too_large_is_refused_or_blanked(kafka, group):
    """Metadata above the broker's limit raises, or is left out with on_metadata_too_large="blank"."""
    topic, events = kafka.topic_with(10), EventRecorder()
    partition, text = TopicPartition(topic, 0), "x" * 5_000

    async with kafka.consumer(topic, group_id=group, **NEVER) as consumer:
        await read(consumer, 1)
        with pytest.raises(BrokerError, match="OFFSET_METADATA_TOO_LARGE"):
            await consumer.commit({partition: OffsetAndMetadata(3, text)})
        await consumer.stop(commit=False)
    options = {"on_metadata_too_large": "blank", "hooks": [events], **NEVER}
    async with kafka.consumer(topic, group_id=group, **options) as consumer:
        await read(consumer, 1)
        await consumer.commit({partition: OffsetAndMetadata(4, text)})
        await consumer.stop(commit=False)

    assert await kafka.committed(group, topic, 1) == {0: 4}
    assert await kafka.metadata(group, topic) == ""
    assert [(one.offset, one.text_bytes) for one in events.of(CommitMetadataDropped)] == [(4, 5_000)]


async def test_metadata_of_many_partitions_is_blanked_at_once(kafka, group):
    """Metadata of several partitions that is too large is left out in one further attempt."""
    topic, events = kafka.topic_with(1, 4), EventRecorder()
    places = [TopicPartition(topic, number) for number in range(4)]

    options = {"on_metadata_too_large": "blank", "offset_commit_max_retries": 1, "hooks": [events], **NEVER}
    async with kafka.consumer(topic, group_id=group, **options) as consumer:
        await read(consumer, 4)
        await consumer.commit({place: OffsetAndMetadata(1, "x" * 5_000) for place in places})

    assert await kafka.committed(group, topic, 4) == dict.fromkeys(range(4), 1)
    assert {one.partition for one in events.of(CommitMetadataDropped)} == set(places)


# ---- refused commits ----------------------------------------------------------------------------------------------


async def test_offset_commit_max_retries_limits_attempts(kafka, group):
    """With offset_commit_max_retries=5, the poll after six refused attempts raises CommitFailedError."""
    topic, events = kafka.topic_with(10), EventRecorder()
    options = {"offset_commit_max_retries": 5, "auto_commit_interval_ms": 50, "retry_backoff_ms": 10}

    with kafka.proxy.edit_answer(OffsetCommitRequest, refusing(14), times=None) as refused:
        async with kafka.consumer(topic, group_id=group, client_id=group, hooks=[events], **options) as consumer:
            # The start offset is committed, too, so that the error may come before a record.
            reading = asyncio.create_task(read(consumer, 11))
            await events.wait_for(CommitFailed)
            count = refused.count
            with pytest.raises(CommitFailedError, match="after 6 attempts"):
                await reading

    assert count == 6


async def test_a_commit_of_a_new_topic_is_retried(kafka, group):
    """A commit is retried if the coordinator does not know the new topic yet."""
    topic, other = kafka.topic_with(1), kafka.topic()

    async with kafka.consumer(topic, group_id=group, **NEVER) as consumer:
        await read(consumer, 1)
        with kafka.proxy.edit_answer(OffsetCommitRequest, refusing(3)):
            await consumer.commit({TopicPartition(other, 0): 7})

    assert await kafka.committed(group, other, 1) == {0: 7}


async def test_retries_of_commits_and_offset_fetches_are_retry_backoff_ms_apart(kafka, group):
    """Retries of commits, and of requests for committed offsets, are retry_backoff_ms apart."""
    topic = kafka.topic_with(10)
    options = {"retry_backoff_ms": 300, "client_id": group, **NEVER}

    with (
        kafka.proxy.edit_answer(OffsetCommitRequest, refusing(14)),
        kafka.proxy.edit_answer(OffsetFetchRequest, refused_fetch(14), times=2),
    ):
        async with kafka.consumer(topic, group_id=group, **options) as consumer:
            await read(consumer, 2)
            await consumer.commit()
    fetched = [frame.at for frame in kafka.proxy.requests(OffsetFetchRequest, client_id=group)]
    committed = [frame.at for frame in kafka.proxy.requests(OffsetCommitRequest, client_id=group)]

    assert (len(fetched), len(committed)) == (3, 2)
    assert fetched[1] - fetched[0] >= 0.23
    assert committed[1] - committed[0] >= 0.23
    assert await kafka.committed(group, topic, 1) == {0: 2}


async def test_a_refused_offset_fetch_ends_reading(kafka, group):
    """A permanent error of the request for committed offsets is raised by the next poll."""
    topic = kafka.topic_with(10)

    with kafka.proxy.edit_answer(OffsetFetchRequest, refused_fetch(30), times=None):
        async with kafka.consumer(topic, group_id=group) as consumer:
            with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
                await consumer.getone()


async def test_an_offset_fetch_with_mixed_results_is_completed(kafka, group):
    """If committed offsets are returned for some partitions, those that were refused are requested again."""
    topic, events = kafka.topic_with(10, partitions=3), EventRecorder()
    for partition, offset in ((0, 4), (1, 6)):
        await kafka.commit(group, topic, offset, "", partition=partition)

    def mixed(answer):
        return replace(
            answer, partitions=tuple(replace(o, error_code=88 if o.partition == 1 else 0) for o in answer.partitions)
        )

    with kafka.proxy.edit_answer(OffsetFetchRequest, mixed):
        async with kafka.consumer(topic, group_id=group, hooks=[events], **NEVER) as consumer:
            await until(lambda: len(consumer.assignment()) == 3)
            places = {one.partition: await consumer.position(one) for one in consumer.assignment()}

    assert places == {0: 4, 1: 6, 2: 0}
    assert not events.of(OffsetReset)


@pytest.mark.parametrize(("code", "is_soon"), [(14, True), (16, True), (30, False)])
async def test_a_refused_commit_is_repeated(kafka, group, code, is_soon):
    """An automatic commit is repeated soon after a transient error, and at the next interval after a permanent one."""
    topic, events = kafka.topic_with(10), EventRecorder()
    options = {
        "auto_commit_every_records": 3,  # which makes the first one
        "auto_commit_interval_ms": 40_000 if is_soon else 3_000,
        "client_id": group,
        "hooks": [events],
    }

    with kafka.proxy.edit_answer(OffsetCommitRequest, refusing(code)):
        async with kafka.consumer(topic, group_id=group, **options) as consumer:
            await read(consumer, 4)
            await events.wait_for(OffsetsCommitted)
            first, second = (one.at for one in kafka.proxy.requests(OffsetCommitRequest, client_id=group))
            looked_up = [one.at for one in kafka.proxy.requests(FindCoordinatorRequest, client_id=group)]

    assert is_soon or second - first >= 2.7
    assert any(first < at < second for at in looked_up) is (code == 16)


# ---- callbacks ----------------------------------------------------------------------------------------------------


async def test_offset_commit_callback_is_called_after_each_commit(kafka, group):
    """offset_commit_callback is called with offsets and error after explicit and automatic commits."""
    topic, calls = kafka.topic_with(10), []
    partition = TopicPartition(topic, 0)

    async def note(offsets, error):
        calls.append((offsets, error))

    async with kafka.consumer(topic, group_id=group, offset_commit_callback=note, **NEVER) as consumer:
        await read(consumer, 2)
        await consumer.commit({partition: OffsetAndMetadata(2, "a note")})
        with kafka.proxy.edit_answer(OffsetCommitRequest, refusing(30)), pytest.raises(BrokerError):
            await consumer.commit({partition: 3})
        await read(consumer, 4)

    assert calls[0] == ({partition: OffsetAndMetadata(2, "a note")}, None)
    assert calls[1][0] == {partition: OffsetAndMetadata(3)}
    assert isinstance(calls[1][1], BrokerError)
    assert calls[2][0][partition].offset == 5


async def test_an_error_of_the_commit_callback_is_an_event(kafka, group):
    """An error of offset_commit_callback is emitted as an event, and the commit succeeds."""
    topic, events = kafka.topic_with(10), EventRecorder()

    def note(_offsets, _error):
        raise KeyError("oops")

    options = {"offset_commit_callback": note, "hooks": [events], **NEVER}
    async with kafka.consumer(topic, group_id=group, **options) as consumer:
        await read(consumer, 2)
        await consumer.commit()
        assert await kafka.committed(group, topic, 1) == {0: 2}

    assert "oops" in events.of(CommitCallbackFailed)[0].error


async def test_concurrent_commits_arrive_in_order(kafka, group):
    """Concurrent calls of commit() send their requests in order."""
    topic = kafka.topic_with(10)
    partition = TopicPartition(topic, 0)

    async with kafka.consumer(topic, group_id=group, client_id=group, **NEVER) as consumer:
        await read(consumer, 1)
        with kafka.proxy.delay_answer(OffsetCommitRequest, 0.2, times=1):
            first = asyncio.create_task(consumer.commit({partition: 3}))
            second = asyncio.create_task(consumer.commit({partition: 4}))
            await asyncio.gather(first, second)
        sent = commits(kafka, group)
        await consumer.stop(commit=False)

    assert sent == [3, 4]
    assert await kafka.committed(group, topic, 1) == {0: 4}


# ---- fetched offsets ----------------------------------------------------------------------------------------------


async def test_committed_offsets_are_fetched_once(kafka, group):
    """A member requests committed offsets once after its join, and committed([]) sends no request."""
    topic = kafka.topic_with(10)
    await kafka.commit(group, topic, 4, "")

    async with kafka.consumer(topic, group_id=group, client_id=group, **NEVER) as consumer:
        first = await consumer.getone()
        await read(consumer, 3)
        asked = kafka.proxy.requests(OffsetFetchRequest, client_id=group)
        nothing = await consumer.committed([])
        still = kafka.proxy.requests(OffsetFetchRequest, client_id=group)

    assert (first.offset, nothing) == (4, {})
    assert len(asked) == len(still) == 1
    assert kafka.proxy.requests(FindCoordinatorRequest, client_id=group)


async def test_every_poll_commits_the_records_before_it(kafka, group):
    """With auto_commit_every_records=1, each poll commits the earlier records."""
    topic, events = kafka.topic_with(10), EventRecorder()
    options = {"auto_commit_every_records": 1, "hooks": [events], **NEVER}

    async with kafka.consumer(topic, group_id=group, **options) as consumer:
        await consumer.getone()
        await asyncio.sleep(0.1)
        first = await kafka.committed(group, topic, 1)
        await consumer.getone()
        await events.wait_for(OffsetsCommitted)
        second = await kafka.committed(group, topic, 1)
        await consumer.getone()
        await consumer.commit()
        third = await kafka.committed(group, topic, 1)

    assert (first, second, third) == ({}, {0: 1}, {0: 3})


async def test_records_of_handlers_and_streams_are_counted(kafka, group):
    """auto_commit_every_records counts finished records of handlers and of streams."""
    topic, events, handled = kafka.topic_with(25), EventRecorder(), []
    options = {"auto_commit_every_records": 10, "hooks": [events], **NEVER}
    app = App(bootstrap_servers=kafka.bootstrap_servers, group_id=group, **options)

    @app.handler(topic, order_by="none")
    async def handle(value: bytes) -> None:
        handled.append(value)

    async with app:
        first = await events.wait_for(OffsetsCommitted)
        await until(lambda: len(handled) == 25)
    streamed = EventRecorder()
    options = {**options, "hooks": [streamed]}
    async with kafka.consumer(topic, group_id=f"{group}-2", **options) as consumer:
        async for _, stream in consumer.streams():
            for _ in range(12):
                await anext(stream)
            second = await streamed.wait_for(OffsetsCommitted)
            break

    assert min(first.offsets.values()) >= 10
    assert 10 <= min(second.offsets.values()) <= 12
