"""Declared fields of messages: what a declaration says of a field besides its Python type.

A message is declared once for all versions, its fields in the order of the wire, each with the versions that have it,
as in Kafka's own definitions. Type checkers and dataclasses read the types and defaults, ``layout`` the rest.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, dataclass
from typing import Any

__all__ = ["NEVER", "OneElement", "Wire", "by_topic", "field", "wire_of"]

NEVER = 1 << 15
"""A version that no message reaches."""


@dataclass(frozen=True, slots=True)
class OneElement:
    """Array, from version ``since`` on, of exactly one element: the fields that stand in it.

    The messages of tailrace ask for one group, key or member at a time, and are flat.
    """

    name: str
    since: int
    bare: bool = False
    """True if the element is no structure but the only field itself."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A field on the wire, over all versions; ``field`` and ``by_topic`` have the meanings."""

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
        name: Kafka's name, in snake case, where it differs.
        since: the first version that has the field.
        until: the last version that has the field.
        nullable_from: the first version in which a field of type ``… | None`` may be null.
        tag: number of a tagged field (KIP-482).
        ignorable: a version without the field drops its value; otherwise a value other than the default is refused.
        per_topic: of an entry in an array declared with ``by_topic``: the field stands once per
            topic, in front of the entries.
        wrapping: name of the only field of a structure, in whose place the message has the value of that field.
        inside: array of one element in which the field stands from some version on.
        behind: from that version on, the field stands behind that other attribute.
        bare: Kafka's name of an array until that version, in which an element is nothing but its only field.
        default: as in ``dataclasses.field``, and so are the others.
        kw_only: in the constructor, where the field stands before others that have no default.
        repr: False for secrets and for what is too long.
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
    """Declare an array that the wire nests by topic, and of which messages have a flat tuple of entries.

    Args:
        name: Kafka's name of the array of topics.
        partitions: Kafka's name of the array in each topic.
        since: the first version that has the field.
        ignorable: a version without the field drops its value.
        inside: array of one element in which the field stands from some version on.
        bare: an entry has nothing but its partition, and the array in each topic is one of numbers.
        entries_of: version of the entry's own declaration to write, where that is of another request.
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
    """Return the declaration of a dataclass's field; one without ``field`` stands in all versions, under its name."""
    wire: Wire = declared.metadata.get(Wire, _UNDER_ITS_NAME)
    return wire
