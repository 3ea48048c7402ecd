"""``Message``, a result of a handler with a key, headers, a partition or a topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Message"]


@dataclass(frozen=True, slots=True)
class Message:
    """Record to publish; a handler returns one ``Message`` or a list of them.

    Attributes:
        value: any object that the codec can encode, also a list; None publishes a tombstone.
        key: bytes, or any object, which is encoded in the form that a parameter marked with ``Key`` reads, or by the
            codec if it encodes keys. The key selects the partition unless ``partition`` is set.
        headers: names and values; a str value is encoded as UTF-8. The trace of the handled record is added, unless
            these headers contain a trace.
        partition: number of the partition; None to select the partition by the key.
        topic: topic to publish to; None for the topic in the handler's ``publish=``. Required if the handler has no
            ``publish=``.
    """

    value: object
    key: object = None
    headers: Sequence[tuple[str, bytes | str | None]] = ()
    partition: int | None = None
    topic: str | None = None
