"""Start and end offsets of a run on Spark, from the group's commits, the logs and the options."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

from tailrace.admin.offsets import GroupOffset
from tailrace.config import ConsumerConfig
from tailrace.core.offset_map import OffsetMap
from tailrace.errors import ConfigurationError
from tailrace.observe.events import OffsetMapFound, OffsetMapIgnored, OffsetReset
from tailrace.observe.hooks import Observer
from tailrace.records import TopicPartition
from tailrace.spark.offsets.ranges import Offsets, partition_start
from tailrace.spark.offsets.store import ClusterState, LogBounds, PartitionCommit, SparkOffsetStore, remaining

__all__ = ["Moment", "Since", "StartOffsets", "Until", "ends_at", "start_offsets_after", "start_offsets_of"]

Moment: TypeAlias = dt.datetime | int | Mapping[TopicPartition, int]
"""A time (datetime or milliseconds since 1970), or an offset for each partition."""
Since: TypeAlias = Literal["earliest"] | Moment | None
"""Where partitions without a committed offset start; None: as ``auto_offset_reset`` says."""
Until: TypeAlias = Literal["now"] | Moment
"""Where a run ends; "now" is the present end of each log."""


@dataclass(frozen=True)
class StartOffsets:
    """Offsets at which a run starts, and the state of group and logs from which they follow.

    Attributes:
        at: start offset of each partition.
        done: offset maps: the records after the start offset that are finished already.
        found: committed offsets of the group, with their metadata, before the run.
        lost: number of offsets that were never read, because the brokers had deleted them (retention).
        logs: first and end offset of each log.
    """

    at: Offsets
    done: Mapping[TopicPartition, OffsetMap]
    found: Mapping[TopicPartition, GroupOffset]
    lost: int
    logs: Mapping[TopicPartition, LogBounds]

    def commits(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionCommit]:
        """Return commits of ``offsets``; each contains the part of the offset map after its offset."""
        return {one: PartitionCommit(offset, remaining(self.done.get(one), offset)) for one, offset in offsets.items()}

    @property
    def uncommitted(self) -> Offsets:
        """Start offsets of partitions for which the group has committed another offset, or none."""
        return {
            one: offset for one, offset in self.at.items() if one not in self.found or self.found[one].offset != offset
        }


def start_offsets_of(  # noqa: PLR0913 - inputs of the decision
    store: SparkOffsetStore,
    seen: ClusterState,
    config: ConsumerConfig,
    observer: Observer,
    *,
    since: Since = None,
    overrides: Mapping[TopicPartition, int] | None = None,
) -> StartOffsets:
    """Return the start offset of each partition: as committed, else by ``since``, else by ``auto_offset_reset``.

    Args:
        store: looks up offsets by time.
        seen: committed offsets and logs, read just before.
        config: configuration with ``auto_offset_reset``.
        observer: receiver of events about offset maps and resets.
        since: where partitions without a committed offset start.
        overrides: offsets that take the place of committed offsets.

    Raises:
        OffsetOutOfRangeError: a committed offset is not in the log, and ``auto_offset_reset="none"``.
        ConfigurationError: ``since`` names an unknown partition.
    """
    logs, found = seen.logs, seen.found
    offsets = {**{one: at.offset for one, at in found.items()}, **(overrides or {})}
    topics = {one.topic for one in offsets}
    wanted = _resolved(store, since, logs.keys(), logs, "since")
    policy = _by_policy(store, config.begins_at, logs)
    at: Offsets = {}
    done: dict[TopicPartition, OffsetMap] = {}
    maps, problems = _maps_of(seen)
    lost = 0
    for one in logs:
        known, problem = maps.get(one), problems.get(one)
        # As a member of the group does: with "latest", a partition added to a known topic is read from its beginning.
        is_added = config.begins_at == "latest" and one.topic in topics and one not in offsets
        start = partition_start(
            one,
            committed=offsets.get(one),
            done=None if known is None else remaining(known, offsets[one]),
            since=wanted.get(one),
            policy=logs[one].begin if is_added else policy.get(one),
            begin=logs[one].begin,
            end=logs[one].end,
        )
        at[one] = start.offset
        lost += start.lost or 0
        if start.done is not None:
            done[one] = start.done
            offset = found[one]
            observer.emit(OffsetMapFound(one, start.offset, offset.finished_beyond, offset.decoded_metadata.writer))
        elif problem:
            observer.emit(OffsetMapIgnored(one, start.offset, problem))
        if start.before is not None:
            observer.emit(OffsetReset(one, start.before, start.offset, str(config.begins_at), start.lost))
    return StartOffsets(at, done, found, lost, logs)


def _maps_of(seen: ClusterState) -> tuple[dict[TopicPartition, OffsetMap], dict[TopicPartition, str]]:
    """Return the valid offset maps of the group's commits, and for each invalid map the reason why it is ignored."""
    maps: dict[TopicPartition, OffsetMap] = {}
    problems: dict[TopicPartition, str] = {}
    for one in seen.logs.keys() & seen.found.keys():
        decoded = seen.found[one].decoded_metadata
        known, problem = decoded.offset_map, decoded.problem
        if known is not None:
            problem = known.contradiction(seen.topics.get(one.topic, ""), seen.logs[one].end)
            if not problem and one in seen.epoch_ends:
                problem = known.epoch_contradiction(seen.epoch_ends[one])
        if problem:
            problems[one] = problem
        elif known is not None:
            maps[one] = known
    return maps, problems


def start_offsets_after(
    store: SparkOffsetStore,
    start_offsets: StartOffsets,
    at: Mapping[TopicPartition, int],
    config: ConsumerConfig,
    observer: Observer,
) -> StartOffsets | None:
    """Return start offsets from which a run can continue; None if each log still contains its offset in ``at``.

    If retention has deleted records that the run had not read yet, partitions continue as ``auto_offset_reset`` says.

    Args:
        store: looks up the logs as they are now.
        start_offsets: start of the run.
        at: next offset to read of each partition.
        config: configuration with ``auto_offset_reset``.
        observer: receiver of events about resets.

    Raises:
        OffsetOutOfRangeError: a log does not contain the run's offset, and ``auto_offset_reset="none"``.
    """
    logs = store.logs(start_offsets.logs.keys())
    if all(logs[one].begin <= offset <= logs[one].end for one, offset in at.items()):
        return None
    seen = ClusterState("", {}, logs, start_offsets.found, store.epoch_ends(start_offsets.found))
    found = start_offsets_of(store, seen, config, observer, overrides=at)
    return replace(found, lost=start_offsets.lost + found.lost)


def ends_at(store: SparkOffsetStore, start_offsets: StartOffsets, until: Until) -> Offsets:
    """Return the offset at which a run ends in each partition.

    It is never before the partition's start offset or after the end of its log. A partition that ``until`` does not
    name is not read: it ends at its start offset.

    Raises:
        ConfigurationError: ``until`` names an unknown partition.
    """
    if until == "now":
        wanted = {one: log.end for one, log in start_offsets.logs.items()}
    else:
        wanted = _resolved(store, until, list(start_offsets.at), start_offsets.logs, "until")
    return {
        one: max(offset, min(wanted.get(one, offset), start_offsets.logs[one].end))
        for one, offset in start_offsets.at.items()
    }


def _by_policy(store: SparkOffsetStore, policy: object, logs: Mapping[TopicPartition, LogBounds]) -> Offsets:
    """Return the start offset of each log by ``auto_offset_reset``; no offsets for ``"none"``."""
    match policy:
        case "none":
            return {}
        case "earliest":
            return {one: log.begin for one, log in logs.items()}
        case "latest":
            return {one: log.end for one, log in logs.items()}
        case dt.timedelta():
            return _since(store, dt.datetime.now(dt.UTC) - policy, logs)
        case _:
            return _since(store, cast("dt.datetime | int", policy), logs)


def _since(store: SparkOffsetStore, moment: dt.datetime | int, logs: Mapping[TopicPartition, LogBounds]) -> Offsets:
    """Return the offset of each log's first record at or after a time; if there is none, the end of the log."""
    time_ms = int(moment.timestamp() * 1000) if isinstance(moment, dt.datetime) else moment
    found = store.at(dict.fromkeys(logs, time_ms))
    return {one: logs[one].end if offset < 0 else offset for one, offset in found.items()}


def _resolved(
    store: SparkOffsetStore,
    moment: Since | Until,
    partitions: Collection[TopicPartition],
    logs: Mapping[TopicPartition, LogBounds],
    name: str,
) -> Offsets:
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
            return _since(store, moment, logs)
        case _:
            raise ConfigurationError(
                f"{name} must be a datetime with a time zone, milliseconds since 1970, or offsets by partition, not"
                f" {moment!r}"
            )


def _is_partition_offset(partition: object, offset: object) -> bool:
    return isinstance(partition, tuple) and len(partition) == 2 and isinstance(offset, int)
