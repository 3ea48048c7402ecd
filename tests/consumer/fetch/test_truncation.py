"""A log that was truncated when its leader was lost is detected by the next fetch."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tailrace import LogTruncatedError
from tailrace.observe.events import LogTruncated
from tailrace.protocol.records import EpochEndOffset, FetchRequest
from tests.support.event_recorder import EventRecorder
from tests.support.proxied_broker import numbers


def cut_at(offset: int):
    """Return a function that edits one response into that of a log truncated to ``offset``."""
    done = []

    def edit(answer):
        if done or not answer.partitions:
            return answer
        done.append(True)
        diverged = [replace(one, diverging_epoch=EpochEndOffset(0, offset), records=None) for one in answer.partitions]
        return replace(answer, partitions=tuple(diverged))

    return edit


async def test_a_truncated_log_is_read_from_where_it_diverges(witness_of, group):
    """If a fetch response has a diverging epoch, reading continues where the logs diverge, and an event is emitted."""
    topic, events = witness_of.topic_with(10), EventRecorder()
    options = {"group_id": group, "client_id": group, "hooks": [events], "fetch_max_wait_ms": 100}

    async with witness_of.consumer(topic, **options) as consumer:
        first = [await consumer.getone() for _ in range(10)]
        with witness_of.proxy.edit_answer(FetchRequest, cut_at(6), times=None):
            witness_of.produce(topic, [b"more"])
            again = [await consumer.getone(timeout_ms=30_000) for _ in range(4)]
            event = await events.wait_for(LogTruncated)
        asked = [frame.message.partitions for frame in witness_of.proxy.requests(FetchRequest, client_id=group)]

    epochs = [one.last_fetched_epoch for partitions in asked for one in partitions]
    assert (numbers(first), numbers(again)) == (list(range(10)), [6, 7, 8, 9])
    assert (event.before, event.after, event.lost) == (10, 6, 4)
    assert max(epochs) >= 0


async def test_records_in_flight_at_a_truncation_are_delivered_again(witness_of, group):
    """Acknowledgments of records delivered before a truncation are ignored, and these records are delivered again."""
    topic, events = witness_of.topic_with(10), EventRecorder()
    options = {"group_id": group, "client_id": group, "ack": "manual", "hooks": [events], "fetch_max_wait_ms": 100}

    async with witness_of.consumer(topic, **options) as consumer:
        first = [await consumer.getone() for _ in range(5)]
        for record in first[:2]:
            consumer.ack(record)
        with witness_of.proxy.edit_answer(FetchRequest, cut_at(4), times=None):
            witness_of.produce(topic, [b"more"])
            event = await events.wait_for(LogTruncated)
            again = [await consumer.getone(timeout_ms=30_000) for _ in range(9)]
        are_new = [consumer.ack(record) for record in (*first, *again[:1])]

    assert numbers(again) == list(range(2, 11))
    assert (event.before, event.after, event.lost) == (5, 2, 1)
    assert are_new == [False] * 5 + [True]
    assert await witness_of.committed(group, topic, 1) == {0: 3}


async def test_a_truncation_raises_with_policy_none(witness_of, group):
    """With auto_offset_reset="none", a truncation raises LogTruncatedError at each poll until a seek."""
    topic = witness_of.topic_with(10)
    await witness_of.commit(group, topic, 0, "")
    options = {"group_id": group, "auto_offset_reset": "none", "fetch_max_wait_ms": 100}

    async with witness_of.consumer(topic, **options) as consumer:
        for _ in range(10):
            await consumer.getone()
        with witness_of.proxy.edit_answer(FetchRequest, cut_at(6), times=None):
            witness_of.produce(topic, [b"more"])
            for _ in range(2):
                with pytest.raises(LogTruncatedError) as caught:
                    await consumer.getone(timeout_ms=30_000)
        partition = next(iter(consumer.assignment()))
        await consumer.seek(partition, caught.value.end_offset)
        record = await consumer.getone(timeout_ms=30_000)

    assert (caught.value.offset, caught.value.end_offset, record.offset) == (10, 6, 6)
