"""Where reading on Spark begins and ends, in each partition: asked of the group and of the logs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, cast

from penstock.admin.offsets import GroupOffset
from penstock.config import ConsumerConfig
from penstock.core.offset_map import OffsetMap
from penstock.errors import ConfigurationError
from penstock.observe.events import OffsetMapFound, OffsetMapIgnored, OffsetReset
from penstock.observe.hooks import Observer
from penstock.records import TopicPartition
from penstock.spark.group_desk import Commit, GroupDesk, Log, Seen, remaining
from penstock.spark.ranges import Offsets, beginning

__all__ = ["Moment", "Places", "Since", "Until", "ends_at", "places_after", "places_of"]

Moment: TypeAlias = dt.datetime | int | Mapping[TopicPartition, int]
"""A time, also as milliseconds since the epoch, or an offset of each partition."""
Since: TypeAlias = Literal["earliest"] | Moment | None
Until: TypeAlias = Literal["now"] | Moment


@dataclass(frozen=True)
class Places:
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
    logs: Mapping[TopicPartition, Log]

    def commits(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Commit]:
        """What to commit when everything below ``offsets`` is done."""
        return {one: Commit(offset, remaining(self.done.get(one), offset)) for one, offset in offsets.items()}

    @property
    def unsaid(self) -> Offsets:
        """Partitions that begin elsewhere than the group says, and where."""
        return {
            one: offset for one, offset in self.at.items() if one not in self.found or self.found[one].offset != offset
        }


def places_of(  # noqa: PLR0913 - all that it depends on
    desk: GroupDesk,
    seen: Seen,
    config: ConsumerConfig,
    observer: Observer,
    *,
    since: Since = None,
    stands: Mapping[TopicPartition, int] | None = None,
) -> Places:
    """Where the group stands, or where it begins when it stands nowhere.

    Args:
        desk: asked where logs begin by time.
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
    wanted = _moment(desk, since, logs.keys(), logs, "since")
    policy = _by_policy(desk, config.begins_at, logs)
    at: Offsets = {}
    done: dict[TopicPartition, OffsetMap] = {}
    lost = 0
    for one in logs:
        committed = found.get(one)
        said = committed.said if committed is not None else None
        # As a member of the group has it: what was added to a topic since is read whole.
        is_added = config.begins_at == "latest" and one.topic in topics and one not in offsets
        begun = beginning(
            one,
            committed=offsets.get(one),
            done=None if said is None else remaining(said.offset_map, offsets[one]),
            since=wanted.get(one),
            otherwise=logs[one].begin if is_added else policy.get(one),
            begin=logs[one].begin,
            end=logs[one].end,
        )
        at[one] = begun.offset
        lost += begun.lost or 0
        if begun.done is not None:
            done[one] = begun.done
            beyond = 0 if committed is None else committed.finished_beyond
            observer.tell(OffsetMapFound(one, begun.offset, beyond, "" if said is None else said.writer))
        elif said is not None and said.problem:
            observer.tell(OffsetMapIgnored(one, begun.offset, said.problem))
        if begun.before is not None:
            observer.tell(OffsetReset(one, begun.before, begun.offset, str(config.begins_at), begun.lost))
    return Places(at, done, found, lost, logs)


def places_after(
    desk: GroupDesk, places: Places, at: Mapping[TopicPartition, int], config: ConsumerConfig, observer: Observer
) -> Places | None:
    """Where to go on when retention has overtaken what was read from ``places`` to ``at``; None when it has not.

    Raises:
        OffsetOutOfRangeError: ``auto_offset_reset="none"``.
    """
    logs = desk.logs(places.logs.keys())
    if all(logs[one].begin <= offset <= logs[one].end for one, offset in at.items()):
        return None
    found = places_of(desk, Seen("", {}, logs, places.found), config, observer, stands=at)
    return replace(found, lost=places.lost + found.lost)


def ends_at(desk: GroupDesk, places: Places, until: Until) -> Offsets:
    """Where to end in each partition, never before its beginning; partitions that are not named are left as they are.

    Raises:
        ConfigurationError: ``until`` names what is not there.
    """
    if until == "now":
        wanted = {one: log.end for one, log in places.logs.items()}
    else:
        wanted = _moment(desk, until, list(places.at), places.logs, "until")
    return {one: max(offset, min(wanted.get(one, offset), places.logs[one].end)) for one, offset in places.at.items()}


def _by_policy(desk: GroupDesk, policy: object, logs: Mapping[TopicPartition, Log]) -> Offsets:
    """Where ``auto_offset_reset`` begins; nowhere where it says ``"none"``."""
    match policy:
        case "none":
            return {}
        case "earliest":
            return {one: log.begin for one, log in logs.items()}
        case "latest":
            return {one: log.end for one, log in logs.items()}
        case dt.timedelta():
            return _since(desk, dt.datetime.now(dt.UTC) - policy, logs)
        case _:
            return _since(desk, cast("dt.datetime | int", policy), logs)


def _since(desk: GroupDesk, moment: dt.datetime | int, logs: Mapping[TopicPartition, Log]) -> Offsets:
    """The first records that are not older; the end where there is none."""
    time_ms = int(moment.timestamp() * 1000) if isinstance(moment, dt.datetime) else moment
    found = desk.at(dict.fromkeys(logs, time_ms))
    return {one: logs[one].end if offset < 0 else offset for one, offset in found.items()}


def _moment(
    desk: GroupDesk,
    moment: Since | Until,
    partitions: Collection[TopicPartition],
    logs: Mapping[TopicPartition, Log],
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
            return _since(desk, moment, logs)
        case _:
            raise ConfigurationError(
                f"{name}={moment!r} will not do: give a datetime with a time zone, milliseconds since 1970, or offsets"
                " by partition"
            )


def _is_a_place(partition: object, offset: object) -> bool:
    return isinstance(partition, tuple) and len(partition) == 2 and isinstance(offset, int)
