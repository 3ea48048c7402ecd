"""Declaration of message fields.

A message is declared once for all versions. As in Kafka's message definitions, the fields are in wire order, and each
field is declared with the versions that contain it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import NODEFAULT

__all__ = ["NEVER", "DeclaredField", "OneElement", "Wire", "by_topic", "field"]

NEVER = 1 << 15
"""Number above the versions of all messages."""


class OneElement(NamedTuple):
    """Array with exactly one element, present from version ``since`` on.

    The message has the fields of the element instead of the array. Requests about one group, key or member use this.
    """

    name: str
    since: int
    bare: bool = False
    """True if the element is a plain value instead of a structure."""


class Wire(NamedTuple):
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


class DeclaredField(NamedTuple):
    """Field of a message, as ``field``, ``by_topic`` or a plain default declare it."""

    wire: Wire = Wire()
    default: Any = NODEFAULT
    kw_only: bool = False
    repr: bool = True


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
    default: Any = NODEFAULT,
    kw_only: bool = False,
    repr: bool = True,  # noqa: A002 - as in dataclasses.field
) -> Any:
    """Declare a field of a message.

    Args:
        name: Kafka's name in snake case, if it differs from the name of the attribute.
        since: first version with the field.
        until: last version with the field.
        nullable_from: first version in which a field of type ``… | None`` may be null.
        tag: tag of a tagged field (KIP-482).
        ignorable: True if versions without the field drop its value; False if encoding raises for a value other than
            the default.
        per_topic: True for a field of the entries of ``by_topic`` that is written once per topic, before the entries.
        wrapping: name of the only field of a structure; the message has the field's value instead of the structure.
        inside: array of one element that contains the field in newer versions.
        behind: a version, and the attribute that the field follows on the wire from that version on.
        bare: Kafka's name of the array in older versions, and the last version in which the elements are plain values.
        default: value of the field if the constructor or the version of a response does not give one.
        kw_only: True for a field with a default before fields without one; the constructor takes it last or by name.
        repr: False for secrets and long values.
    """
    wire = Wire(name, since, until, nullable_from, tag, ignorable, per_topic, wrapping, inside, behind, bare)
    return DeclaredField(wire, default, kw_only, repr)


def by_topic(  # noqa: PLR0913 - one row of a declaration
    name: str = "topics",
    partitions: str = "partitions",
    *,
    since: int = 0,
    ignorable: bool = False,
    inside: OneElement | None = None,
    bare: bool = False,
    entries_of: int | None = None,
    default: Any = NODEFAULT,
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
        default: value of the field if the constructor or the version of a response does not give one.
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
    return DeclaredField(wire, default)
