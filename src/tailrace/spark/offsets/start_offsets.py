"""Where reading on Spark begins and ends, in each partition: asked of the group and of the logs."""

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
from tailrace.spark.offsets.ranges import Offsets, beginning
from tailrace.spark.offsets.store import ClusterState, LogBounds, PartitionCommit, SparkOffsetStore, remaining

__all__ = ["Moment", "Since", "StartOffsets", "Until", "ends_at", "start_offsets_after", "start_offsets_of"]

Moment: TypeAlias = dt.datetime | int | Mapping[TopicPartition, int]
"""A time, also as milliseconds since the epoch, or an offset of each partition."""
Since: TypeAlias = Literal["earliest"] | Moment | None
Until: TypeAlias = Literal["now"] | Moment


@dataclass(frozen=True)
class StartOffsets:
    """Where to begin.

    Attributes:
        at: the next offset of each partition.
        done: what is finished behind them.
        found: what the group had committed, with the text beside it.
        lost: how many offsets retention had removed before anybody read them.
        logs: from where to where the logs went.
    """

    at: Offsets
    done: Mapping[TopicPartition, OffsetMap]
    found: Mapping[TopicPartition, GroupOffset]
    lost: int
    logs: Mapping[TopicPartition, LogBounds]

    def commits(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionCommit]:
        """What to commit when everything below ``offsets`` is done."""
        return {one: PartitionCommit(offset, remaining(self.done.get(one), offset)) for one, offset in offsets.items()}

    @property
    def unsaid(self) -> Offsets:
        """Partitions that begin elsewhere than the group says, and where."""
        return {
            one: offset for one, offset in self.at.items() if one not in self.found or self.found[one].offset != offset
        }


def start_offsets_of(  # noqa: PLR0913 - all that it depends on
    store: SparkOffsetStore,
    seen: ClusterState,
    config: ConsumerConfig,
    observer: Observer,
    *,
    since: Since = None,
    stands: Mapping[TopicPartition, int] | None = None,
) -> StartOffsets:
    """Where the group stands, or where it begins when it stands nowhere.

    Args:
        store: asked where logs begin by time.
        seen: what there is.
        config: says where to begin else.
        observer: told what was found, and what is lost.
        since: where to begin in partitions of which the group has nothing.
        stands: where it stands all the same, whatever it has committed.

    Raises:
        OffsetOutOfRangeError: that is not in the log, and ``auto_offset_reset="none"``.
        ConfigurationError: ``since`` names what is not there.
    """
    logs, found = seen.logs, seen.found
    offsets = {**{one: at.offset for one, at in found.items()}, **(stands or {})}
    topics = {one.topic for one in offsets}
    wanted = _moment(store, since, logs.keys(), logs, "since")
    policy = _by_policy(store, config.begins_at, logs)
    at: Offsets = {}
    done: dict[TopicPartition, OffsetMap] = {}
    maps, problems = _maps_of(seen)
    lost = 0
    for one in logs:
        known, problem = maps.get(one), problems.get(one)
        # As a member of the group has it: what was added to a topic since is read whole.
        is_added = config.begins_at == "latest" and one.topic in topics and one not in offsets
        begun = beginning(
            one,
            committed=offsets.get(one),
            done=None if known is None else remaining(known, offsets[one]),
            since=wanted.get(one),
            otherwise=logs[one].begin if is_added else policy.get(one),
            begin=logs[one].begin,
            end=logs[one].end,
        )
        at[one] = begun.offset
        lost += begun.lost or 0
        if begun.done is not None:
            done[one] = begun.done
            observer.emit(OffsetMapFound(one, begun.offset, found[one].finished_beyond, found[one].said.writer))
        elif problem:
            observer.emit(OffsetMapIgnored(one, begun.offset, problem))
        if begun.before is not None:
            observer.emit(OffsetReset(one, begun.before, begun.offset, str(config.begins_at), begun.lost))
    return StartOffsets(at, done, found, lost, logs)


def _maps_of(seen: ClusterState) -> tuple[dict[TopicPartition, OffsetMap], dict[TopicPartition, str]]:
    """Return the offset maps beside the group's commits, and why others are ignored."""
    maps: dict[TopicPartition, OffsetMap] = {}
    problems: dict[TopicPartition, str] = {}
    for one in seen.logs.keys() & seen.found.keys():
        decoded = seen.found[one].said
        known, problem = decoded.offset_map, decoded.problem
        if known is not None:
            problem = known.contradiction(seen.topics.get(one.topic, ""), seen.logs[one].end)
            if not problem and one in seen.epoch_ends:
                problem = known.contradiction_of_epoch(seen.epoch_ends[one])
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
    """Where to go on when retention has overtaken what was read from ``start_offsets`` to ``at``; None when it has not.

    Raises:
        OffsetOutOfRangeError: ``auto_offset_reset="none"``.
    """
    logs = store.logs(start_offsets.logs.keys())
    if all(logs[one].begin <= offset <= logs[one].end for one, offset in at.items()):
        return None
    seen = ClusterState("", {}, logs, start_offsets.found, store.epoch_ends(start_offsets.found))
    found = start_offsets_of(store, seen, config, observer, stands=at)
    return replace(found, lost=start_offsets.lost + found.lost)


def ends_at(store: SparkOffsetStore, start_offsets: StartOffsets, until: Until) -> Offsets:
    """Where to end in each partition, never before its beginning; partitions that are not named are left as they are.

    Raises:
        ConfigurationError: ``until`` names what is not there.
    """
    if until == "now":
        wanted = {one: log.end for one, log in start_offsets.logs.items()}
    else:
        wanted = _moment(store, until, list(start_offsets.at), start_offsets.logs, "until")
    return {
        one: max(offset, min(wanted.get(one, offset), start_offsets.logs[one].end))
        for one, offset in start_offsets.at.items()
    }


def _by_policy(store: SparkOffsetStore, policy: object, logs: Mapping[TopicPartition, LogBounds]) -> Offsets:
    """Where ``auto_offset_reset`` begins; nowhere where it says ``"none"``."""
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
    """The first records that are not older; the end where there is none."""
    time_ms = int(moment.timestamp() * 1000) if isinstance(moment, dt.datetime) else moment
    found = store.at(dict.fromkeys(logs, time_ms))
    return {one: logs[one].end if offset < 0 else offset for one, offset in found.items()}


def _moment(
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
        case Mapping() if all(map(_is_a_place, moment, moment.values())):
            offsets = {TopicPartition(*one): offset for one, offset in moment.items()}
            if unknown := sorted(offsets.keys() - set(partitions)):
                raise ConfigurationError(f"{name}= names {unknown[0]}, and the handler reads no such partition")
            return offsets
        case dt.datetime(tzinfo=dt.tzinfo()) | int() if not isinstance(moment, bool):
            return _since(store, moment, logs)
        case _:
            raise ConfigurationError(
                f"{name}={moment!r} will not do: give a datetime with a time zone, milliseconds since 1970, or offsets"
                " by partition"
            )


def _is_a_place(partition: object, offset: object) -> bool:
    return isinstance(partition, tuple) and len(partition) == 2 and isinstance(offset, int)
