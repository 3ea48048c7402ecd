"""A batch that cannot be read stops only its partition, until it can be read or the group is moved past it."""

from __future__ import annotations

import asyncio
import random
import re
import shlex
from collections import defaultdict
from functools import partial

import pytest

from tailrace import App, CorruptRecordError, Record, RecordTooLargeError, Retry, TopicPartition
from tailrace.app.health.checks import Check
from tailrace.observe.events import (
    AppFailed,
    CorruptBatchSkipped,
    OffsetsCommitted,
    PartitionBlocked,
    PartitionsAssigned,
    PartitionUnblocked,
    RecordDelayed,
)
from tests.support.commands import tailrace
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

BOMB = bytes(900_000)
"""Value that a batch compresses to less than a kilobyte."""
LARGE = random.Random(7).randbytes(5_000)
"""Value that cannot be compressed."""
WAYS = {
    "at least once": (BOMB, False, {}),
    "batches": (BOMB, True, {}),
    "exactly once": (BOMB, False, {"delivery": "exactly_once"}),
    "consumer protocol": (BOMB, False, {"group_protocol": "consumer"}),
    "too large": (LARGE, False, {"max_batch_bytes": 4_096}),
}
"""Value of the record whose batch cannot be read, True for a batch handler, and options of the app."""


@pytest.fixture
def new_app(kafka_server, group, recorder):
    def make(**options):
        given = {"group_id": group, "hooks": [recorder], "auto_commit_interval_ms": 100, **options}
        given.setdefault("max_decompressed_batch_bytes", 100_000)
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **given)

    return make


def with_bomb(new_topic, witness, bomb: bytes = BOMB) -> str:
    """Create a topic whose partition 0 has a batch that cannot be read between two others, at offset 1."""
    topic = new_topic(2)
    for value in (b"before", bomb, b"after"):
        witness.produce(topic, [value], partition=0, compression="zstd")
    witness.produce(topic, [b"%d" % n for n in range(10)], partition=1)
    return topic


def handling(app: App, *topics: str, is_batch: bool = False) -> dict[int, list[bytes]]:
    """Declare a handler, and return the values that it is called with, by partition."""
    handled = defaultdict(list)
    if is_batch:

        @app.batch_handler(*topics, max_records=5, max_wait_ms=10)
        async def handle_batch(records: list[Record]) -> None:
            for record in records:
                handled[record.partition].append(record.value)
    else:

        @app.handler(*topics)
        async def handle(record: Record) -> None:
            handled[record.partition].append(record.value)

    return handled


def check_of(app: App) -> Check:
    return next(one for one in app.health().checks if one.name == "records")


def blocked_partitions(app: App) -> list[tuple[str, int]]:
    return [(one.topic, one.partition) for c in app.statistics().consumers for one in c.partitions if one.is_blocked]


async def committed_to(recorder, offsets: dict[TopicPartition, int]) -> None:
    """Wait until the group has committed these offsets, in any number of commits."""
    await until(
        lambda: (
            offsets.items()
            <= {key: to for one in recorder.of(OffsetsCommitted) for key, to in one.offsets.items()}.items()
        )
    )


# ---- pause ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
async def test_only_the_partition_waits_until_the_group_is_moved_past_the_batch(  # noqa: PLR0917
    new_app, new_topic, witness, recorder, group, way
):
    """By default the partition waits, others are read on, and the command in the event moves the group on."""
    bomb, is_batch, options = WAYS[way]
    topic = with_bomb(new_topic, witness, bomb)
    first, moved = new_app(**options), new_app(**options)
    handled, then = handling(first, topic, is_batch=is_batch), handling(moved, topic, is_batch=is_batch)

    async with first, asyncio.timeout(60):
        blocked = await recorder.wait_for(PartitionBlocked)
        witness.produce(topic, [b"later"], partition=1)
        await until(lambda: b"later" in handled[1])
        await committed_to(recorder, {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): len(handled[1])})
        health, check, statistics = first.health(), check_of(first), blocked_partitions(first)
    command = re.search(r"`(tailrace .*)`", blocked.advice)[1]
    reset = await asyncio.to_thread(
        partial(tailrace, *shlex.split(command)[1:], TAILRACE_BOOTSTRAP_SERVERS=witness.bootstrap_servers)
    )
    async with moved, asyncio.timeout(60):
        await until(lambda: then[0])
        is_ok_after = check_of(moved).status == "ok"

    assert (blocked.group_id, blocked.partition, blocked.offset, blocked.next_offset) == (group, (topic, 0), 1, 2)
    assert (handled[0], then[0]) == ([b"before"], [b"after"])
    assert (health.status, health.is_live, health.is_ready) == ("degraded", True, True)
    assert f"{topic}[0] waits at offset 1" in check.detail
    assert command in check.detail
    assert statistics == [(topic, 0)]
    assert reset.returncode == 0, reset.stderr
    assert is_ok_after
    assert not recorder.of(AppFailed)


async def test_a_batch_that_can_be_read_again_is_handled(new_app, new_topic, witness, recorder, monkeypatch):
    """The batch is fetched again at intervals; when it can be read, its records are handled in order, each once."""
    topic, app = with_bomb(new_topic, witness), new_app()
    handled = handling(app, topic)

    async with app, asyncio.timeout(60):
        await recorder.wait_for(PartitionBlocked)
        await until(lambda: len(handled[1]) == 10)
        # Stands for a partition that was restored: what decides is the outcome of another attempt.
        monkeypatch.setattr("tailrace.consumer.delivery.buffered_batch._decompress_within", decompress_all)
        unblocked = await recorder.wait_for(PartitionUnblocked)
        await until(lambda: len(handled[0]) == 3)
        health = app.health()

    assert handled[0] == [b"before", BOMB, b"after"]
    assert (unblocked.partition, unblocked.offset, health.status) == ((topic, 0), 1, "ok")
    assert len(recorder.of(PartitionBlocked)) == 1


def decompress_all(batch, _limit):
    return batch.decompress(1 << 30)


async def test_another_member_that_takes_over_the_partition_waits_at_the_same_batch(
    new_app, new_topic, witness, recorder
):
    """When a blocked partition is revoked, this member is healthy again, and the next owner waits at the batch."""
    topic, other_events = with_bomb(new_topic, witness), EventRecorder()
    apps = [new_app(), new_app(hooks=[other_events])]
    handled = [handling(app, topic) for app in apps]

    async with asyncio.timeout(60):
        await apps[0].start()
        await recorder.wait_for(PartitionBlocked)
        await until(lambda: len(handled[0][1]) == 10)
        async with apps[1]:
            await other_events.wait_for(PartitionsAssigned, where=lambda event: event.added)
            await apps[0].stop()
            taken_over = await other_events.wait_for(PartitionBlocked)
            status = check_of(apps[1]).status

    assert (taken_over.partition, taken_over.offset, status) == ((topic, 0), 1, "degraded")
    assert handled[0][0] + handled[1][0] == [b"before"]


async def test_a_corrupt_batch_in_a_retry_topic_stops_only_that_partition(new_app, new_topic, witness, recorder, group):
    """A batch in a retry topic that cannot be read delays only the records behind it."""
    topic, app, attempts = new_topic(), new_app(), []
    retry_topic = f"{topic}.{group}.retry.200ms"

    @app.handler(topic, retry=Retry(attempts=1, topic_delays_ms=[200]))
    async def handle(record: Record) -> None:
        attempts.append(record.value)
        if record.value == b"bad":
            raise ValueError("negative total")

    async with app, asyncio.timeout(60):
        witness.produce(retry_topic, [BOMB], compression="zstd")
        blocked = await recorder.wait_for(PartitionBlocked)
        witness.produce(topic, [b"bad", b"good"])
        await recorder.wait_for(RecordDelayed)
        await until(lambda: b"good" in attempts)

    assert (blocked.partition, blocked.offset) == ((retry_topic, 0), 0)
    assert attempts == [b"bad", b"good"]


# ---- skip and stop -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["at least once", "exactly once"])
async def test_skip_continues_after_the_batch_and_commits_past_it(new_app, new_topic, witness, recorder, way):
    """With "skip", an error event names the skipped offsets, later records are handled, and lag reaches zero."""
    topic, app = with_bomb(new_topic, witness), new_app(on_corrupt_batch="skip", **WAYS[way][2])
    witness.produce(topic, [BOMB], partition=0, compression="zstd")
    handled = handling(app, topic)

    async with app, asyncio.timeout(60):
        await until(lambda: len(handled[0]) == 2 and len(handled[1]) == 10)
        await committed_to(recorder, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 10})
        status, skipped = app.health().status, [one.skipped_batches for one in app.statistics().consumers]

    events = [(one.partition, one.offset, one.next_offset) for one in recorder.of(CorruptBatchSkipped)]
    assert handled[0] == [b"before", b"after"]
    assert events == [((topic, 0), 1, 2), ((topic, 0), 3, 4)]
    assert (status, skipped) == ("ok", [2])


@pytest.mark.parametrize(("way", "error"), [("at least once", CorruptRecordError), ("too large", RecordTooLargeError)])
async def test_stop_ends_the_app_with_the_error(new_app, new_topic, witness, way, error):
    """With "stop", ``run()`` raises the error, which has the offset after the batch."""
    bomb, _, options = WAYS[way]
    topic, app = with_bomb(new_topic, witness, bomb), new_app(on_corrupt_batch="stop", **options)
    handling(app, topic)

    async with asyncio.timeout(60):
        with pytest.raises(error) as raised:
            await app.run()

    assert (raised.value.partition, raised.value.offset, raised.value.next_offset) == ((topic, 0), 1, 2)
