"""What a handler returns when the value alone does not say enough.

Rule of this file: a plain value; who publishes it encodes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Message"]


@dataclass(frozen=True, slots=True)
class Message:
    """One record to publish, returned by a handler alone or in a list.

    Attributes:
        value: what the codec encodes, lists too; None is a tombstone.
        key: bytes, or text as UTF-8, unless keys are the codec's; without ``partition`` it decides the partition.
        headers: names and values; text is UTF-8. Those of the trace are added, unless one is begun here.
        partition: where it goes, whatever its key.
        topic: where it goes; needed where the handler has no ``publish=``.
    """

    value: object
    key: object = None
    headers: Sequence[tuple[str, bytes | str | None]] = ()
    partition: int | None = None
    topic: str | None = None
