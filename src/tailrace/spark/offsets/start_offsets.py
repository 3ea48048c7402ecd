"""Where a run on Spark starts and ends, from the group's commits, the checkpoint, the logs and the options.

The committed offsets are authoritative: if another client has changed them, a new generation of the checkpoint starts
at these offsets. If the group has no committed offset of a partition in the checkpoint, the offset has expired on the
broker, and the offset of the checkpoint is used.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast

from tailrace.admin.offsets import GroupOffset
from tailrace.config import ConsumerConfig
from tailrace.core.offset_map import OffsetMap
from tailrace.errors import ConfigurationError
from tailrace.observe.events import OffsetMapFound, OffsetMapIgnored, OffsetReset
from tailrace.observe.hooks import Observer
from tailrace.records import TopicPartition
from tailrace.spark.offsets.checkpoint import PipelineState, partition_of
from tailrace.spark.offsets.query_log import SparkLogs
from tailrace.spark.offsets.ranges import Offsets, partition_start
from tailrace.spark.offsets.store import ClusterState, LogBounds, PartitionCommit, SparkOffsetStore, remaining_map

__all__ = [
    "Moment",
    "Resumption",
    "Since",
    "StartOffsets",
    "Until",
    "backfill_metadata",
    "decide_resumption",
    "ends_at",
    "interrupted_batch",
    "next_number",
    "start_metadata",
    "start_offsets_after",
    "start_offsets_of",
    "stream_metadata",
]


_METADATA = re.compile(r"spark (?:query=(?P<query>\S*)|backfill) batch=(?P<batch>\d+)")


# ---- commit metadata -------------------------------------------------------------------------------------------


def stream_metadata(query_id: str, batch_id: int) -> str:
    """Return the text in the metadata of the commit of a query's batch."""
    return f"spark query={query_id} batch={batch_id}"


def backfill_metadata(batch_id: int) -> str:
    """Return the text in the metadata of the commit of a backfill's batch."""
    return f"spark backfill batch={batch_id}"


def start_metadata(name: str = "") -> str:
    """Return the text in the metadata of the commit of start offsets; ``name`` distinguishes generations."""
    return f"spark begins {name}".rstrip()


def next_number(known: Iterable[int], texts: Iterable[str]) -> int:
    """Return the lowest batch number that is not below any of ``known`` and is above all numbers in ``texts``.

    ``texts`` are texts in the metadata of commits.
    """
    committed = (int(match["batch"]) + 1 for text in texts if (match := _METADATA.fullmatch(text)))
    return max([*known, *committed], default=0)


# ---- resumption ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resumption:
    """Decision whether and how Spark's checkpoint is used.

    Attributes:
        continues: True if the generation of the checkpoint continues; False if a new generation starts.
        offsets: offsets of the checkpoint that replace the group's committed offsets: all offsets if Spark made the
            group's last commit; otherwise only those of partitions whose committed offsets have expired.
        last_committed: last batch in the commit log; None if there is none, or if a new generation starts.
    """

    continues: bool
    offsets: Offsets = field(default_factory=dict)
    last_committed: int | None = None


def decide_resumption(state: PipelineState, spark_logs: SparkLogs, cluster_state: ClusterState) -> Resumption:
    """Decide whether the generation of Spark's checkpoint continues, and which of its offsets are used."""
    if not state.generation:
        return Resumption(False)
    start = {partition_of(name): offset for name, offset in state.start.items()}
    ends = start if spark_logs.last_committed is None else spark_logs.ends_of(spark_logs.last_committed)
    if ends is None:
        return Resumption(False)
    missing = ends.keys() - cluster_state.committed.keys()
    expired = {one: ends[one] for one in missing if _is_same_topic(one, state, cluster_state)}
    is_unchanged = (
        not state.has_backfilled
        and ends.keys() <= cluster_state.committed.keys() | expired.keys()
        and _are_in_logs(ends, spark_logs, cluster_state)
        and _were_committed_by_spark(start, ends, state, spark_logs, cluster_state.committed)
    )
    if not is_unchanged:
        return Resumption(False, expired)
    if not _can_read_new_partitions(ends, cluster_state):
        return Resumption(False, ends)
    return Resumption(True, ends, spark_logs.last_committed)


def interrupted_batch(
    state: PipelineState, spark_logs: SparkLogs | None, cluster_state: ClusterState, starts: Offsets
) -> tuple[int, Offsets] | None:
    """Return id and end offsets of the batch that was planned but not finished, if it starts at ``starts``.

    A sink may have written some or all of its rows, so the batch must be repeated with the same id and offsets before
    any other batch, whether a backfill or a query planned it. The result is None if there is no such batch, or if the
    logs or the start offsets have changed.

    Args:
        state: state of the checkpoint, which contains the batch that a backfill planned.
        spark_logs: logs of the generation, which contain the batch that a query planned; None if they are not readable.
        cluster_state: topics and logs.
        starts: offsets at which the next batch starts.
    """
    if state.planned is not None:
        batch_id = state.planned.batch_id
        begin, end = (
            {partition_of(key): n for key, n in one.items()} for one in (state.planned.start, state.planned.end)
        )
    elif spark_logs is not None and spark_logs.last_planned is not None:
        number, last = spark_logs.last_planned, spark_logs.last_committed
        if last is not None and number <= last:
            return None
        batch_id, end = state.first_batch_id + number, spark_logs.ends_of(number) or {}
        before = spark_logs.ends_of(last) if last is not None else None
        begin = before or {partition_of(key): offset for key, offset in state.start.items()}
    else:
        return None
    # Spark reads a partition that was added from offset 0.
    if end == {one: starts.get(one) for one in end} or any(starts.get(one) != begin.get(one, 0) for one in end):
        return None
    logs, topic_ids = cluster_state.logs, cluster_state.topic_ids
    if any(state.topics.get(one.topic, "") != topic_ids.get(one.topic, "") for one in end):
        return None
    return (batch_id, {**starts, **end}) if all(offset <= logs[one].end for one, offset in end.items()) else None


def _is_same_topic(partition: TopicPartition, state: PipelineState, cluster_state: ClusterState) -> bool:
    """Return True if the topic has the id in ``state``; False if the topic was recreated or an id is unknown."""
    topic_id = cluster_state.topic_ids.get(partition.topic)
    return bool(topic_id) and partition in cluster_state.logs and state.topics.get(partition.topic) == topic_id


def _are_in_logs(ends: Offsets, spark_logs: SparkLogs, cluster_state: ClusterState) -> bool:
    """Return True if the logs have the offsets that Spark reads next: ``ends``, and the end of a planned batch."""
    logs = cluster_state.logs
    if any(one not in logs or not logs[one].begin <= offset <= logs[one].end for one, offset in ends.items()):
        return False
    planned = {} if spark_logs.last_planned is None else spark_logs.ends_of(spark_logs.last_planned) or {}
    return all(one in logs and offset <= logs[one].end for one, offset in planned.items())


def _can_read_new_partitions(ends: Offsets, cluster_state: ClusterState) -> bool:
    """Return False if Spark would fail to read a new partition, or would read it from a wrong offset.

    Spark reads a partition that its checkpoint does not contain from offset 0, and fails if the log does not begin
    there. Offset 0 is correct for a partition added to a topic, but a new topic starts by ``auto_offset_reset``.
    """
    topics = {one.topic for one in ends}
    return all(one in ends or (one.topic in topics and log.begin == 0) for one, log in cluster_state.logs.items())


def _were_committed_by_spark(
    start: Offsets,
    ends: Offsets,
    state: PipelineState,
    spark_logs: SparkLogs,
    committed: Mapping[TopicPartition, GroupOffset],
) -> bool:
    """Return True if the committed offsets are the ends of the last batch, or of the batch in their metadata.

    The driver may have died before it committed the last batches to the group.
    """
    offsets = {one: commit.offset for one, commit in committed.items()}
    if all(ends.get(one) == offset for one, offset in offsets.items()):
        return True
    texts = {commit.decoded_metadata.user_text for commit in committed.values()} - {""}
    if len(texts) != 1:
        return False
    text = texts.pop()
    expected = start if text == state.start_text else _ends_of_named_batch(text, state, spark_logs)
    return expected is not None and all(expected.get(one) == offset for one, offset in offsets.items())


def _ends_of_named_batch(text: str, state: PipelineState, spark_logs: SparkLogs) -> Offsets | None:
    """Return the end offsets of the batch that a commit text names; None if this generation has no such batch."""
    match = _METADATA.fullmatch(text)
    if (
        match is None
        or not match["query"]
        or match["query"] != spark_logs.query_id
        or spark_logs.last_committed is None
    ):
        return None
    number = int(match["batch"]) - state.first_batch_id
    return spark_logs.ends_of(number) if 0 <= number <= spark_logs.last_committed else None


# ---- start and end offsets -------------------------------------------------------------------------------------------

Moment: TypeAlias = dt.datetime | int | Mapping[TopicPartition, int]
"""A time, as a datetime or in milliseconds since 1970, or a mapping of partitions to offsets."""
Since: TypeAlias = Literal["earliest"] | Moment | None
"""Start of partitions without a committed offset; None to use ``auto_offset_reset``."""
Until: TypeAlias = Literal["now"] | Moment
"""End of a run; ``"now"`` is the end of each log at the start of the run."""


@dataclass(frozen=True)
class StartOffsets:
    """Offsets at which a run starts, and the committed offsets and logs from which they are derived.

    Attributes:
        offsets: start offset of each partition.
        offset_maps: offset maps of records that were finished after the start offset.
        committed: committed offsets of the group before the run, with their metadata.
        lost: number of offsets that were deleted from the logs before they were read.
        logs: first offset and end offset of each log.
    """

    offsets: Offsets
    offset_maps: Mapping[TopicPartition, OffsetMap]
    committed: Mapping[TopicPartition, GroupOffset]
    lost: int
    logs: Mapping[TopicPartition, LogBounds]

    def commits(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionCommit]:
        """Return commits of ``offsets``; each contains the part of the offset map from its offset on."""
        return {
            one: PartitionCommit(offset, remaining_map(self.offset_maps.get(one), offset))
            for one, offset in offsets.items()
        }

    @property
    def uncommitted(self) -> Offsets:
        """Start offsets that the group has not committed."""
        return {
            one: offset
            for one, offset in self.offsets.items()
            if one not in self.committed or self.committed[one].offset != offset
        }


def start_offsets_of(  # noqa: PLR0913 - inputs of the decision
    store: SparkOffsetStore,
    cluster_state: ClusterState,
    config: ConsumerConfig,
    observer: Observer,
    *,
    since: Since = None,
    overrides: Mapping[TopicPartition, int] | None = None,
) -> StartOffsets:
    """Return the start offset of each partition.

    It is the committed offset if the log contains it, ``since`` if there is no committed offset, and otherwise the
    offset of ``auto_offset_reset``.

    Args:
        store: store that looks up offsets by time.
        cluster_state: committed offsets and logs, read just before.
        config: configuration with ``auto_offset_reset``.
        observer: receiver of events about offset maps and resets.
        since: start of partitions without a committed offset.
        overrides: offsets that replace committed offsets.

    Raises:
        OffsetOutOfRangeError: a committed offset is not in the log, and ``auto_offset_reset="none"``.
        ConfigurationError: ``since`` names an unknown partition.
    """
    logs, committed = cluster_state.logs, cluster_state.committed
    known_offsets = {**{one: commit.offset for one, commit in committed.items()}, **(overrides or {})}
    known_topics = {one.topic for one in known_offsets}
    since_offsets = _offsets_of(store, since, logs.keys(), logs, "since")
    reset_offsets = _reset_offsets(store, config.begins_at, logs)
    offsets: Offsets = {}
    offset_maps: dict[TopicPartition, OffsetMap] = {}
    valid_maps, problems = _maps_of(cluster_state)
    lost = 0
    for one in logs:
        offset_map, problem = valid_maps.get(one), problems.get(one)
        # With "latest", a partition that was added to a known topic is read from its beginning, as by a member.
        is_added = config.begins_at == "latest" and one.topic in known_topics and one not in known_offsets
        start = partition_start(
            one,
            committed=known_offsets.get(one),
            offset_map=None if offset_map is None else remaining_map(offset_map, known_offsets[one]),
            since=since_offsets.get(one),
            reset_offset=logs[one].begin if is_added else reset_offsets.get(one),
            begin=logs[one].begin,
            end=logs[one].end,
        )
        offsets[one] = start.offset
        lost += start.lost or 0
        if start.offset_map is not None:
            offset_maps[one] = start.offset_map
            commit = committed[one]
            observer.emit(OffsetMapFound(one, start.offset, commit.finished_beyond, commit.decoded_metadata.writer))
        elif problem:
            observer.emit(OffsetMapIgnored(one, start.offset, problem))
        if start.reset_from is not None:
            observer.emit(OffsetReset(one, start.reset_from, start.offset, str(config.begins_at), start.lost))
    return StartOffsets(offsets, offset_maps, committed, lost, logs)


def _maps_of(cluster_state: ClusterState) -> tuple[dict[TopicPartition, OffsetMap], dict[TopicPartition, str]]:
    """Return the valid offset maps of the group's commits, and for each other map the reason why it is ignored."""
    maps: dict[TopicPartition, OffsetMap] = {}
    problems: dict[TopicPartition, str] = {}
    for one in cluster_state.logs.keys() & cluster_state.committed.keys():
        decoded = cluster_state.committed[one].decoded_metadata
        offset_map, problem = decoded.offset_map, decoded.problem
        if offset_map is not None:
            topic_id = cluster_state.topic_ids.get(one.topic, "")
            problem = offset_map.contradiction(topic_id, cluster_state.logs[one].end)
            if not problem and one in cluster_state.epoch_ends:
                problem = offset_map.epoch_contradiction(cluster_state.epoch_ends[one])
        if problem:
            problems[one] = problem
        elif offset_map is not None:
            maps[one] = offset_map
    return maps, problems


def start_offsets_after(
    store: SparkOffsetStore,
    start_offsets: StartOffsets,
    next_offsets: Mapping[TopicPartition, int],
    config: ConsumerConfig,
    observer: Observer,
) -> StartOffsets | None:
    """Return new start offsets of a run if a log does not contain the next offset to read; None otherwise.

    The partitions of such logs continue at ``auto_offset_reset``.

    Args:
        store: store that looks up the current logs.
        start_offsets: start offsets of the run.
        next_offsets: next offset to read in each partition.
        config: configuration with ``auto_offset_reset``.
        observer: receiver of events about resets.

    Raises:
        OffsetOutOfRangeError: a log does not contain the next offset, and ``auto_offset_reset="none"``.
    """
    logs = store.logs(start_offsets.logs.keys())
    if all(logs[one].begin <= offset <= logs[one].end for one, offset in next_offsets.items()):
        return None
    committed = start_offsets.committed
    cluster_state = ClusterState("", {}, logs, committed, store.epoch_ends(committed))
    restart = start_offsets_of(store, cluster_state, config, observer, overrides=next_offsets)
    return replace(restart, lost=start_offsets.lost + restart.lost)


def ends_at(store: SparkOffsetStore, start_offsets: StartOffsets, until: Until) -> Offsets:
    """Return the offset at which a run ends in each partition.

    The end is never before the partition's start offset or after the end of its log. If ``until`` is a mapping that
    lacks a partition, the partition ends at its start offset, so it is not read.

    Raises:
        ConfigurationError: ``until`` names an unknown partition.
    """
    if until == "now":
        ends = {one: log.end for one, log in start_offsets.logs.items()}
    else:
        ends = _offsets_of(store, until, list(start_offsets.offsets), start_offsets.logs, "until")
    return {
        one: max(start, min(ends.get(one, start), start_offsets.logs[one].end))
        for one, start in start_offsets.offsets.items()
    }


def _reset_offsets(store: SparkOffsetStore, policy: object, logs: Mapping[TopicPartition, LogBounds]) -> Offsets:
    """Return the start offset of each log by the ``auto_offset_reset`` ``policy``; no offsets for ``"none"``."""
    match policy:
        case "none":
            return {}
        case "earliest":
            return {one: log.begin for one, log in logs.items()}
        case "latest":
            return {one: log.end for one, log in logs.items()}
        case dt.timedelta():
            return _offsets_at_time(store, dt.datetime.now(dt.UTC) - policy, logs)
        case _:
            return _offsets_at_time(store, cast("dt.datetime | int", policy), logs)


def _offsets_at_time(
    store: SparkOffsetStore, time: dt.datetime | int, logs: Mapping[TopicPartition, LogBounds]
) -> Offsets:
    """Return the offset of each log's first record at or after a time; if there is none, the end of the log."""
    time_ms = int(time.timestamp() * 1000) if isinstance(time, dt.datetime) else time
    found = store.offsets_at(dict.fromkeys(logs, time_ms))
    return {one: logs[one].end if offset < 0 else offset for one, offset in found.items()}


def _offsets_of(
    store: SparkOffsetStore,
    moment: Since | Until,
    partitions: Collection[TopicPartition],
    logs: Mapping[TopicPartition, LogBounds],
    name: str,
) -> Offsets:
    """Return the offset of each partition at ``moment``; errors call the argument ``name``."""
    match moment:
        case None:
            return {}
        case "earliest":
            return {one: logs[one].begin for one in partitions}
        case Mapping() if all(map(_is_partition_offset, moment, moment.values())):
            offsets = {TopicPartition(*one): offset for one, offset in moment.items()}
            if unknown := sorted(offsets.keys() - set(partitions)):
                raise ConfigurationError(
                    f"{name}= names {unknown[0]}, which the handler does not read - remove this partition"
                )
            return offsets
        case dt.datetime(tzinfo=dt.tzinfo()) | int() if not isinstance(moment, bool):
            return _offsets_at_time(store, moment, logs)
        case _:
            word = "earliest" if name == "since" else "now"
            raise ConfigurationError(
                f"{name} must be a datetime with a time zone, milliseconds since 1970, a mapping of TopicPartition to"
                f" offset, or {word!r}, not {moment!r}"
            )


def _is_partition_offset(partition: object, offset: object) -> bool:
    return isinstance(partition, tuple) and len(partition) == 2 and isinstance(offset, int)
