"""Targets of a seek: the same target for each partition, or a number of records spread over all partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from tailrace.core.positions.start_point import StartFrom, StartPoint, shares_of
from tailrace.errors import ConfigurationError
from tailrace.records import TopicPartition

__all__ = ["SeekFrom", "seek_targets"]

SeekFrom: TypeAlias = Literal["offset", "earliest", "current", "latest"]
"""Meaning of a seek's ``offset``: an absolute offset ("offset"), or a number of records after the first record
("earliest"), the position ("current") or the end of the log ("latest"). A negative number counts backward.
"""


def seek_targets(
    positions: Mapping[TopicPartition, int], offset: object, whence: str, *, spread: bool
) -> dict[TopicPartition, int | StartPoint]:
    """Return the target of each partition.

    Args:
        positions: position of each partition.
        offset: offset or number of records; its meaning depends on ``whence``.
        whence: see ``SeekFrom``.
        spread: True if ``offset`` is a number of records of all partitions together, of which each has an equal share.

    Raises:
        ConfigurationError: an argument is invalid, or the arguments contradict each other.
    """
    if whence not in get_args(SeekFrom):
        raise ConfigurationError(f"whence={whence!r} is unknown; it must be one of {', '.join(get_args(SeekFrom))}")
    if not isinstance(offset, int) or isinstance(offset, bool) or not -(1 << 63) < offset < 1 << 63:
        raise ConfigurationError(f"offset={offset!r} is invalid; it must be an integer")
    if whence == "offset" and offset < 0:
        raise ConfigurationError(
            f"offset={offset!r} is invalid; it must be 0 or more - with whence='latest' or 'current' it may be negative"
        )
    if spread and whence not in {"earliest", "latest"}:
        raise ConfigurationError(f"spread=True needs whence='earliest' or 'latest', not {whence!r}")
    partitions: Sequence[TopicPartition] = sorted(positions)
    shares = shares_of(offset, len(partitions)) if spread and partitions else [offset] * len(partitions)
    return {one: _target(positions[one], share, whence) for one, share in zip(partitions, shares, strict=True)}


def _target(position: int, share: int, whence: str) -> int | StartPoint:
    match whence:
        case "offset":
            return share
        case "current":
            return StartPoint(StartFrom.OFFSET, max(0, position + share))
        case _:
            return StartPoint(StartFrom(whence), shift=share)
