"""Declaration of message fields.

A message is declared once for all versions. Its fields are in wire order, each with the versions that have it, as in
Kafka's message definitions.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, dataclass
from typing import Any

__all__ = ["NEVER", "OneElement", "Wire", "by_topic", "field", "wire_of"]

NEVER = 1 << 15
"""Version above those of all messages."""


@dataclass(frozen=True, slots=True)
class OneElement:
    """Array with exactly one element, from version ``since`` on, whose fields are flat in the message.

    It is used for requests about one group, key or member.
    """

    name: str
    since: int
    bare: bool = False
    """True if the element is a plain value instead of a structure."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Wire format of a field in all versions; see ``field`` and ``by_topic``."""

    name: str = ""
    since: int = 0
    until: int = NEVER
    nullable_from: int = 0
    tag: int | None = None
    ignorable: bool = False
    per_topic: bool = False
    wrapping: str = ""
    inside: OneElement | None = None
    behind: tuple[int, str] | None = None
    bare: tuple[str, int] | None = None
    partitions: str = ""
    entries_of: int | None = None


_UNDER_ITS_NAME = Wire()


def field(  # noqa: PLR0913 - one row of a declaration
    name: str = "",
    *,
    since: int = 0,
    until: int = NEVER,
    nullable_from: int = 0,
    tag: int | None = None,
    ignorable: bool = False,
    per_topic: bool = False,
    wrapping: str = "",
    inside: OneElement | None = None,
    behind: tuple[int, str] | None = None,
    bare: tuple[str, int] | None = None,
    default: Any = MISSING,
    kw_only: bool = False,
    repr: bool = True,  # noqa: A002 - as dataclasses.field has it
) -> Any:
    """Declare a field of a message.

    Args:
        name: Kafka's name in snake case, if it differs.
        since: first version with the field.
        until: last version with the field.
        nullable_from: first version in which a field of type ``… | None`` may be null.
        tag: tag of a tagged field (KIP-482).
        ignorable: True if versions without the field drop its value; else they raise unless it is the default.
        per_topic: True for a field of an entry of ``by_topic`` that is written once per topic, before the entries.
        wrapping: name of the only field of a structure; the message has its value instead of the structure.
        inside: array of one element that contains the field in newer versions.
        behind: version, and the attribute that the field follows from that version on.
        bare: Kafka's name of the array, and the last version in which its elements are plain values.
        default: as in ``dataclasses.field``, like the following arguments.
        kw_only: True for a field with a default before fields without one.
        repr: False for secrets and long values.
    """
    wire = Wire(name, since, until, nullable_from, tag, ignorable, per_topic, wrapping, inside, behind, bare)
    return dataclasses.field(default=default, kw_only=kw_only, repr=repr, metadata={Wire: wire})


def by_topic(  # noqa: PLR0913 - one row of a declaration
    name: str = "topics",
    partitions: str = "partitions",
    *,
    since: int = 0,
    ignorable: bool = False,
    inside: OneElement | None = None,
    bare: bool = False,
    entries_of: int | None = None,
    default: Any = MISSING,
) -> Any:
    """Declare an array that is nested by topic on the wire and a flat tuple of entries in the message.

    Args:
        name: Kafka's name of the array of topics.
        partitions: Kafka's name of the array in each topic.
        since: first version with the field.
        ignorable: True if versions without the field drop its value.
        inside: array of one element that contains the field in newer versions.
        bare: True if the array in each topic contains partition numbers instead of structures.
        entries_of: version of the entry's declaration to use, if it is declared for another request.
        default: as in ``dataclasses.field``.
    """
    wire = Wire(
        name,
        since,
        ignorable=ignorable,
        inside=inside,
        bare=(partitions, NEVER) if bare else None,
        partitions=partitions,
        entries_of=entries_of,
    )
    return dataclasses.field(default=default, metadata={Wire: wire})


def wire_of(declared: dataclasses.Field[Any]) -> Wire:
    """Return the wire format of a dataclass field; without ``field``, it is in all versions under its own name."""
    wire: Wire = declared.metadata.get(Wire, _UNDER_ITS_NAME)
    return wire
