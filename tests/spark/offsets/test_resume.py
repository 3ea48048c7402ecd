"""Decisions where a stream or a backfill resumes, without brokers and Spark: examples and a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace import OffsetOutOfRangeError, TopicPartition
from tailrace.admin.offsets import GroupOffset
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap, encode_metadata
from tailrace.observe.events import OffsetMapFound, OffsetMapIgnored, OffsetReset
from tailrace.observe.hooks import Observer
from tailrace.spark.offsets.checkpoint import PipelineState, PlannedBatch, key_of
from tailrace.spark.offsets.query_log import SparkLogs
from tailrace.spark.offsets.start_offsets import (
    Resumption,
    StartOffsets,
    backfill_metadata,
    decide_resumption,
    interrupted_batch,
    next_number,
    start_metadata,
    start_offsets_after,
    start_offsets_of,
    stream_metadata,
)
from tailrace.spark.offsets.store import ClusterState, LogBounds, PartitionCommit, SparkOffsetStore

A, B = (TopicPartition("t", number) for number in range(2))
Q = "0b4cf2ad-16c5-4d52-a3f2-3e5b6c7d8e9f"
BEGUN = start_metadata("abc")

START = {A: 5, B: 0}
ENDS = [{A: 10, B: 4}, {A: 20, B: 4}, {A: 30, B: 8}]
"""Offsets of three batches; the generation is numbered from 7."""


def state(**changes: Any) -> PipelineState:
    made = PipelineState("g", "h", cluster_id="c", first_batch_id=7, next_batch_id=7)
    made.begin_generation({"t": "id"}, START, BEGUN)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def written(batches: int = 3, begun: int | None = None, ends: list[dict[TopicPartition, int]] = ENDS) -> SparkLogs:
    return SparkLogs(
        Q,
        batches - 1 if batches else None,
        begun if begun is not None else batches - 1 if batches else None,
        lambda number: ends[number] if 0 <= number < len(ends) else None,
    )


def and_new(now: ClusterState, partition: TopicPartition, begin: int) -> ClusterState:
    """Return the state with a partition that was not read before."""
    return replace(
        now, topic_ids={partition.topic: "new", **now.topic_ids}, logs={**now.logs, partition: LogBounds(begin, 100)}
    )


def seen(
    stands: dict[TopicPartition, int], text: str = "", *, begin: int = 0, end: int = 100, topic_id: str = "id"
) -> ClusterState:
    found = {one: GroupOffset(one, offset, None, text) for one, offset in stands.items()}
    return ClusterState("c", {"t": topic_id}, {one: LogBounds(begin, end) for one in (A, B)}, found)


LAST = ENDS[-1]


@pytest.mark.parametrize(
    ("what", "now"),
    [
        (written(), seen(LAST, stream_metadata(Q, 9))),
        (written(), seen(LAST)),
        (written(), seen(ENDS[1], stream_metadata(Q, 8))),
        (written(), seen(ENDS[0], stream_metadata(Q, 7))),
        (written(), seen(START, BEGUN)),
        (written(), seen({})),
        (written(), seen({A: 30})),
        (written(), seen({A: 20}, stream_metadata(Q, 8))),
        (written(), seen(ENDS[0], stream_metadata(Q, 7), begin=8)),
        (written(begun=3, ends=[*ENDS, {A: 100, B: 8}]), seen(LAST)),
    ],
    ids=[
        "committed",
        "committed without metadata",
        "one batch behind",
        "two batches behind",
        "nothing committed yet",
        "expired",
        "expired in part",
        "behind, and expired in part",
        "behind deleted records that are handled",
        "with an unfinished batch",
    ],
)
def test_a_checkpoint_continues_after_its_last_batch(what, now):
    """If the group's offsets are the end of a batch of the checkpoint, or missing, its last batch is not repeated."""
    assert decide_resumption(state(), what, now) == Resumption(True, LAST, 2)


@pytest.mark.parametrize(
    ("made", "what", "now"),
    [
        (PipelineState("g", "h"), written(0), seen(LAST)),
        (state(), written(), seen({A: 31, B: 8}, stream_metadata(Q, 9))),
        (state(), written(), seen({A: 20, B: 8}, stream_metadata(Q, 9))),
        (state(), written(), seen(ENDS[1], stream_metadata("another", 8))),
        (state(), written(), seen(ENDS[1], backfill_metadata(8))),
        (state(), written(), seen(ENDS[1])),
        (state(), written(), seen(START)),
        (state(), written(), seen(START, start_metadata("another"))),
        (state(), written(), seen({A: 0, B: 0})),
        (state(), written(), seen(LAST, end=29)),
        (state(), written(), seen(LAST, begin=9)),
        (state(), written(0), seen(START, BEGUN, begin=50)),
        (state(), written(begun=3, ends=[*ENDS, {A: 101, B: 8}]), seen(LAST)),
        (state(), written(begun=3, ends=[*ENDS, {A: 40, B: 8}]), seen({A: 40, B: 8}, stream_metadata(Q, 10))),
        (state(), written(ends=[]), seen(LAST)),
        (state(next_batch_id=11), written(), seen(LAST)),
        (state(), written(ends=[*ENDS[:2], {A: 30}]), seen(LAST)),
        (state(), written(ends=[*ENDS[:2], {**LAST, TopicPartition("gone", 0): 3}]), seen(LAST)),
    ],
    ids=[
        "no generation",
        "offsets moved forward",
        "offsets moved back",
        "metadata of another query",
        "metadata of a backfill",
        "set to the end of a batch",
        "set to its start",
        "set to its start by another generation",
        "set to the first record",
        "the log was truncated",
        "its next records were deleted",
        "the records at its start were deleted",
        "the unfinished batch was truncated",
        "the checkpoint is older than the group",
        "no batch in Spark's log",
        "a batch of a backfill has started",
        "a partition that is not in the checkpoint",
        "a topic was deleted",
    ],
)
def test_changed_offsets_start_a_new_generation(made, what, now):
    """If the group's offsets, the logs or the topics do not match the checkpoint, a new generation starts."""
    assert decide_resumption(made, what, now) == Resumption(False)


def test_expired_offsets_come_from_the_checkpoint():
    """A partition without a committed offset starts at that of the checkpoint, even if other offsets were changed."""
    assert decide_resumption(state(), written(), seen({A: 3})) == Resumption(False, {B: 8})
    assert decide_resumption(state(next_batch_id=11), written(), seen({})) == Resumption(False, LAST)


NEW = TopicPartition("t", 2)


@pytest.mark.parametrize(
    ("partition", "begin", "continues"),
    [(NEW, 0, True), (NEW, 40, False), (TopicPartition("u", 0), 0, False), (TopicPartition("u", 0), 40, False)],
    ids=[
        "added to a topic",
        "added to a topic, with deleted records",
        "of a new topic",
        "of a new topic, with deleted records",
    ],
)
def test_new_partitions_continue_or_start_a_generation(partition, begin, continues):
    """An added partition that starts at offset 0 continues the generation, any other one starts a new one."""
    for stands in (seen(LAST, stream_metadata(Q, 9)), seen(ENDS[0], stream_metadata(Q, 7)), seen({})):
        goes = decide_resumption(state(), written(), and_new(stands, partition, begin))

        assert goes == (Resumption(True, LAST, 2) if continues else Resumption(False, LAST))
    assert decide_resumption(state(), written(), and_new(seen({A: 3, B: 8}), partition, begin)) == Resumption(False)


@pytest.mark.parametrize("topic_id", ["another", ""])
def test_a_recreated_topic_is_not_taken_from_the_checkpoint(topic_id):
    """Offsets of the checkpoint for a topic with another id, or without one, are ignored."""
    assert decide_resumption(state(), written(), seen({}, topic_id=topic_id)) == Resumption(False)


def test_a_generation_without_batches_continues_at_its_start():
    """A generation without batches continues if the group's offsets are unchanged or missing."""
    assert decide_resumption(state(), written(0), seen(START, BEGUN)) == Resumption(True, START)
    assert decide_resumption(state(), written(0), seen({})) == Resumption(True, START)
    assert decide_resumption(state(), written(0), seen({A: 5, B: 1}, BEGUN)) == Resumption(False)


# ---- interrupted batches ---------------------------------------------------------------------------------------

NEXT = {A: 40, B: 9}
BACKFILLED = state(
    next_batch_id=12,
    planned=PlannedBatch(11, {key_of(one): n for one, n in LAST.items()}, {key_of(one): n for one, n in NEXT.items()}),
)
ADDED = TopicPartition("t", 2)


def interrupted(
    made: PipelineState, what: SparkLogs, starts: dict[TopicPartition, int], **now: Any
) -> tuple[int, dict[TopicPartition, int]] | None:
    cluster_state = seen(starts, **now)
    logs = {**cluster_state.logs, ADDED: LogBounds(0, 100)}
    return interrupted_batch(made, what, replace(cluster_state, logs=logs), starts)


@pytest.mark.parametrize(
    ("made", "what", "number"),
    [
        (state(), written(begun=3, ends=[*ENDS, NEXT]), 10),
        (BACKFILLED, written(), 11),
        (BACKFILLED, written(begun=3, ends=[*ENDS, {A: 31, B: 9}]), 11),
    ],
    ids=["of a query", "of a backfill", "of a backfill after a query"],
)
def test_a_batch_that_was_not_finished_is_repeated(made, what, number):
    """The last planned batch keeps its number and offsets, and partitions that were added start as they are."""
    assert interrupted(made, what, LAST) == (number, NEXT)
    assert interrupted(made, what, {**LAST, ADDED: 7}) == (number, {**NEXT, ADDED: 7})


def test_the_first_batch_of_a_query_is_repeated():
    """The first batch of a generation starts at the generation's start."""
    assert interrupted(state(), written(0, begun=0), START) == (7, ENDS[0])
    assert interrupted(state(), written(begun=3, ends=[*ENDS, {**NEXT, ADDED: 5}]), {**LAST, ADDED: 0}) == (
        10,
        {**NEXT, ADDED: 5},
    )


@pytest.mark.parametrize(
    ("starts", "now"),
    [
        (NEXT, {}),
        ({A: 31, B: 8}, {}),
        ({A: 0, B: 0}, {}),
        (LAST, {"end": 39}),
        (LAST, {"topic_id": "another"}),
    ],
    ids=["committed", "moved by a member", "reset", "the log was truncated", "the topic was recreated"],
)
def test_a_batch_of_other_records_is_not_repeated(starts, now):
    """A planned batch is forgotten if it was committed, or if group, log or topic have changed."""
    for made, what in [(state(), written(begun=3, ends=[*ENDS, NEXT])), (BACKFILLED, written())]:
        assert interrupted(made, what, starts, **now) is None
    assert interrupted(state(), written(), LAST) is None
    assert interrupted_batch(PipelineState("g", "h"), None, seen(LAST), LAST) is None


# ---- model -----------------------------------------------------------------------------------------------------


@dataclass
class Life:
    """Model of a stream of one partition and its group."""

    state: PipelineState = field(default_factory=lambda: PipelineState("g", "h"))
    batches: list[int] = field(default_factory=list)
    """Ends in the commit log of the generation."""
    group: tuple[int, str] | None = None
    due: int = 0
    """Offset at which the next batch must begin: records before it are handled, or skipped by the user."""
    query: int = 0

    def start(self) -> None:
        found = {} if self.group is None else {A: GroupOffset(A, self.group[0], None, self.group[1])}
        what = SparkLogs(
            f"q{self.query}",
            len(self.batches) - 1 if self.batches else None,
            len(self.batches) - 1 if self.batches else None,
            lambda number: {A: self.batches[number]},
        )
        goes = decide_resumption(self.state, what, ClusterState("c", {"t": "id"}, {A: LogBounds(0, 10_000)}, found))
        at = goes.offsets.get(A, 0 if self.group is None else self.group[0])

        assert at == self.due
        if not goes.continues:
            last = self.state.first_batch_id + len(self.batches)
            self.state.next_batch_id = next_number([self.state.next_batch_id, last], [])
            self.state.begin_generation({"t": "id"}, {A: at}, start_metadata(f"{self.query}"))
            self.batches, self.query = [], self.query + 1
        self.tell()

    def tell(self) -> None:
        if self.state.generation:
            text = stream_metadata(f"q{self.query}", self.state.first_batch_id + len(self.batches) - 1)
            self.group = (self.due, text if self.batches else self.state.start_text)

    def handle(self, count: int) -> None:
        if self.state.generation:
            self.due += count
            self.batches.append(self.due)

    def live(self, count: int) -> None:
        """Handle records from the committed offset on in the app."""
        at = 0 if self.group is None else self.group[0]
        self.group, self.due = (at + count, ""), at + count

    def set_to(self, offset: int) -> None:
        self.group, self.due = (offset, ""), offset

    def forget(self) -> None:
        """Let the committed offsets expire on the broker."""
        if self.state.generation and self.group is not None and self.group[1]:
            self.group = None


STEPS = st.one_of(
    st.tuples(st.just("handle"), st.integers(0, 30)),
    st.tuples(st.just("live"), st.integers(1, 30)),
    st.tuples(st.just("set_to"), st.integers(0, 60)),
    st.tuples(st.sampled_from(["tell", "start", "forget"])),
)


@given(st.lists(STEPS, max_size=40))
@example([("start",), ("handle", 9), ("tell",), ("set_to", 0), ("start",)])
@example([("start",), ("handle", 9), ("handle", 9), ("handle", 9), ("start",)])
@example([("set_to", 5), ("start",), ("handle", 9), ("set_to", 5), ("start",)])
def test_each_start_resumes_at_the_right_offset(steps):
    """Each start resumes at the right offset after drivers that died, live members, resets and expired offsets."""
    life = Life()
    is_running = False
    for name, *arguments in steps:
        if name in {"handle", "tell"} and not is_running:
            continue
        getattr(life, name)(*arguments)
        is_running = name == "start" or (is_running and name in {"handle", "tell"})
    life.start()


# ---- start offsets ---------------------------------------------------------------------------------------------


class EventRecorder:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    def resets(self) -> list[tuple[TopicPartition, int | None, int, int | None]]:
        return [(one.partition, one.before, one.after, one.lost) for one in self.events if isinstance(one, OffsetReset)]


NO_STORE = cast("SparkOffsetStore", None)
"""Nothing is asked where nothing is to be found by time."""


def placed(now: ClusterState, policy: str = "earliest", **more: Any) -> tuple[StartOffsets, EventRecorder]:
    recorder = EventRecorder()
    config = resolve({"bootstrap_servers": "b:1", "group_id": "g", "auto_offset_reset": policy})
    return start_offsets_of(NO_STORE, now, config, Observer((recorder,)), **more), recorder


def test_a_new_group_loses_nothing():
    """Without committed offsets, auto_offset_reset applies and no record counts as lost."""
    places, recorder = placed(seen({}, begin=30))
    late, _ = placed(seen({}, begin=30), "latest")

    assert (places.offsets, places.lost, recorder.resets()) == ({A: 30, B: 30}, 0, [])
    assert (late.offsets, late.lost) == ({A: 100, B: 100}, 0)


@pytest.mark.parametrize("stands", [None, {A: 40}])
def test_an_added_partition_is_read_from_its_beginning(stands):
    """With "latest", an added partition starts at its beginning, and a new topic at its end."""
    other = TopicPartition("u", 0)
    places, recorder = placed(
        and_new(seen({A: 40} if stands is None else {}, begin=30), other, 7), "latest", overrides=stands
    )

    assert (places.offsets, places.lost, recorder.resets()) == ({A: 40, B: 30, other: 100}, 0, [])


def test_lost_offsets_are_counted_and_reported():
    """Offsets between a committed offset and the beginning of the log are counted in an event."""
    places, recorder = placed(seen({A: 4, B: 40}, begin=30))

    assert (places.offsets, places.lost) == ({A: 30, B: 40}, 26)
    assert recorder.resets() == [(A, 4, 30, 26)]
    with pytest.raises(OffsetOutOfRangeError):
        placed(seen({A: 4, B: 40}, begin=30), "none")


def test_offsets_of_the_checkpoint_override_commits():
    """Partitions that start at the checkpoint ignore auto_offset_reset, and the rest of their offset map applies."""
    done = OffsetMap(10, 40, (10, 20, 35))
    text = encode_metadata(done, "", 4_096).text
    now = ClusterState(
        "c", {"t": "id"}, {A: LogBounds(0, 100), B: LogBounds(0, 100)}, {A: GroupOffset(A, 10, None, text)}
    )

    places, recorder = placed(now, "none", overrides={A: 30, B: 8})

    assert (places.offsets, places.lost) == ({A: 30, B: 8}, 0)
    assert places.offset_maps == {A: OffsetMap(30, 40, (35,))}
    assert [type(one) for one in recorder.events] == [OffsetMapFound]
    assert places.commits({A: 36})[A] == PartitionCommit(36, OffsetMap(36, 40))


@pytest.mark.parametrize("wrong", [OffsetMap(10, 1 << 62, (10,)), OffsetMap(10, 40, (10,), topic_id=UUID(int=7))])
def test_an_offset_map_of_another_log_is_ignored(wrong):
    """An offset map beyond the end of the log, or of a recreated topic, is ignored with an event."""
    text = encode_metadata(wrong, "", 4_096).text
    now = ClusterState("c", {"t": str(UUID(int=8))}, {A: LogBounds(0, 100)}, {A: GroupOffset(A, 10, None, text)})

    places, recorder = placed(now)

    assert (places.offsets, places.offset_maps, places.commits({A: 20})[A]) == ({A: 10}, {}, PartitionCommit(20))
    assert [type(one) for one in recorder.events] == [OffsetMapIgnored]


@pytest.mark.parametrize(("end", "is_kept"), [(100, True), (40, True), (39, False), (-1, False), (None, True)])
def test_an_offset_map_of_a_truncated_epoch_is_ignored(end, is_kept):
    """An offset map whose leader epoch ends before its records is ignored."""
    text = encode_metadata(OffsetMap(10, 40, (10,), leader_epoch=3), "", 4_096).text
    ends = {} if end is None else {A: end}
    now = ClusterState("c", {"t": ""}, {A: LogBounds(0, 100)}, {A: GroupOffset(A, 10, None, text)}, ends)

    places, recorder = placed(now)

    assert (places.offsets, A in places.offset_maps) == ({A: 10}, is_kept)
    assert [type(one) for one in recorder.events] == [OffsetMapFound if is_kept else OffsetMapIgnored]


def test_offsets_deleted_during_a_run_are_reset_by_policy():
    """If the log lacks the next offsets during a run, auto_offset_reset applies and the lost offsets are counted."""
    before, recorder = placed(seen({A: 4, B: 40}, begin=10))
    config = resolve({"bootstrap_servers": "b:1", "group_id": "g"})

    class FakeStore:
        begin = 10

        def logs(self, partitions: Any) -> dict[TopicPartition, LogBounds]:
            return {one: LogBounds(self.begin, 100) for one in partitions}

        def epoch_ends(self, _found: Any) -> dict[TopicPartition, int]:
            return {}

    store = cast("SparkOffsetStore", FakeStore())
    at = {A: 20, B: 60}
    same = start_offsets_after(store, before, at, config, Observer((recorder,)))
    FakeStore.begin = 50
    after = start_offsets_after(store, before, at, config, Observer((recorder,)))

    assert before.lost == 6
    assert same is None
    assert after is not None
    assert (after.offsets, after.lost) == ({A: 50, B: 60}, 36)
    assert recorder.resets()[1:] == [(A, 20, 50, 30)]
    with pytest.raises(OffsetOutOfRangeError):
        start_offsets_after(
            store,
            before,
            at,
            resolve({"bootstrap_servers": "b:1", "group_id": "g", "auto_offset_reset": "none"}),
            Observer(()),
        )
