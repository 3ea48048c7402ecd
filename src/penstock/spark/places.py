"""Where reading on Spark begins and ends, in each partition: asked of the group and of the logs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from penstock.admin.offsets import GroupOffset
from penstock.config import ConsumerConfig
from penstock.core.offset_map import OffsetMap
from penstock.errors import ConfigurationError
from penstock.observe.events import OffsetMapFound, OffsetMapIgnored, OffsetReset
from penstock.observe.hooks import Observer
from penstock.records import TopicPartition
from penstock.spark.group_desk import Commit, GroupDesk, Log, remaining
from penstock.spark.ranges import Offsets, beginning

__all__ = ["Moment", "Places", "Since", "Until", "ends_at", "places_of"]

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


def places_of(
    desk: GroupDesk,
    partitions: Collection[TopicPartition],
    config: ConsumerConfig,
    observer: Observer,
    since: Since = None,
) -> Places:
    """Where the group stands, or where it begins when it stands nowhere.

    Raises:
        OffsetOutOfRangeError: that is not in the log, and ``auto_offset_reset="none"``.
        ConfigurationError: ``since`` names what is not there.
    """
    logs, found = desk.logs(partitions), desk.committed()
    wanted = _moment(desk, since, partitions, logs, "since")
    policy = _by_policy(desk, config.offset_reset, logs)
    at: Offsets = {}
    done: dict[TopicPartition, OffsetMap] = {}
    lost = 0
    for one in partitions:
        committed = found.get(one)
        said = committed.said if committed is not None else None
        begun = beginning(
            one,
            committed=None if committed is None else committed.offset,
            done=None if said is None else said.offset_map,
            since=wanted.get(one),
            otherwise=policy.get(one),
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
        if begun.is_by_policy:
            observer.tell(OffsetReset(one, begun.before, begun.offset, str(config.offset_reset), begun.lost))
    return Places(at, done, {one: found[one] for one in partitions if one in found}, lost, logs)


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
        case Mapping():
            offsets = {TopicPartition(*one): offset for one, offset in moment.items()}
            if unknown := sorted(offsets.keys() - set(partitions)):
                raise ConfigurationError(f"{name}= names {unknown[0]}, and the handler reads no such partition")
            return offsets
        case dt.datetime(tzinfo=dt.tzinfo()) | int() if not isinstance(moment, bool):
            return _since(desk, moment, logs)
        case _:
            raise ConfigurationError(
                f"{name}={moment!r} will not do: give a datetime with a time zone, milliseconds since 1970, or offsets"
            )
