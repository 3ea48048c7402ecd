"""Result of a handler with a key, headers, a partition or a topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Message"]


@dataclass(frozen=True, slots=True)
class Message:
    """Record to publish, returned by a handler alone or in a list.

    Attributes:
        value: any object that the codec encodes, a list included; None publishes a tombstone.
        key: bytes or str (as UTF-8), or any object if the codec encodes keys; selects the partition unless
            ``partition`` is given.
        headers: names and values; str is encoded as UTF-8. Headers of the record's trace are added, unless these
            headers contain a trace.
        partition: partition; None to choose it by the key.
        topic: topic; None for the handler's ``publish=``, required without one.
    """

    value: object
    key: object = None
    headers: Sequence[tuple[str, bytes | str | None]] = ()
    partition: int | None = None
    topic: str | None = None
