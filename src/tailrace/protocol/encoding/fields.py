"""Declaration of message fields.

A message is declared once for all versions. As in Kafka's message definitions, the fields are in wire order, and each
field is declared with the versions that contain it. An array is *bare* if its elements are plain values on the wire,
such as partition numbers, but structures with one field in the message.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import NODEFAULT

__all__ = ["NEVER", "DeclaredField", "OneElement", "Wire", "by_topic", "field"]

NEVER = 1 << 15
"""Number above the versions of all messages."""


class OneElement(NamedTuple):
    """Array with exactly one element, on the wire from version ``since`` on.

    The message has the fields of the element instead of the array. An example is the array of groups in OffsetFetch,
    because tailrace sends requests for one group only.
    """

    name: str
    since: int
    bare: bool = False
    """True if the element is a plain value."""


class Wire(NamedTuple):
    """Wire format of a field in all versions; see the arguments of ``field`` and ``by_topic``."""

    name: str = ""
    since: int = 0
    until: int = NEVER
    nullable_from: int = 0
    tag: int | None = None
    ignorable: bool = False
    per_topic: bool = False
    only_field: str = ""
    inside: OneElement | None = None
    after: tuple[int, str] | None = None
    bare_until: tuple[str, int] | None = None
    partitions: str = ""
    entry_versions: tuple[tuple[int, int], ...] = ()

    def entry_version(self, version: int) -> int:
        """Return the version of the entries in ``version`` of the message."""
        return max((one for one in self.entry_versions if one[0] <= version), default=(version, version))[1]


class DeclaredField(NamedTuple):
    """Declaration of a field by ``field``, ``by_topic`` or a plain default."""

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
    only_field: str = "",
    inside: OneElement | None = None,
    after: tuple[int, str] | None = None,
    bare_until: tuple[str, int] | None = None,
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
        ignorable: True to drop the field's value in versions without the field; False to raise an error in these
            versions if the value is not the default.
        per_topic: True for a field of the entries of ``by_topic`` that is written once per topic, before the entries.
        only_field: Kafka's name of the field in a structure with one field; the message has the value of this field
            instead of the structure.
        inside: array of one element that contains the field in newer versions.
        after: a version, and the attribute after which the field is written from this version on.
        bare_until: Kafka's name of the array in versions in which it is bare, and the last of these versions.
        default: value of the field if a call of the constructor, or a response, does not contain it.
        kw_only: True for a field with a default that is declared before fields without a default; it is one of the last
            parameters of the constructor.
        repr: False to leave the field out of the repr, because it is secret or long.
    """
    wire = Wire(name, since, until, nullable_from, tag, ignorable, per_topic, only_field, inside, after, bare_until)
    return DeclaredField(wire, default, kw_only, repr)


def by_topic(  # noqa: PLR0913 - one row of a declaration
    name: str = "topics",
    partitions: str = "partitions",
    *,
    since: int = 0,
    ignorable: bool = False,
    inside: OneElement | None = None,
    bare: bool = False,
    entry_versions: tuple[tuple[int, int], ...] = (),
    default: Any = NODEFAULT,
) -> Any:
    """Declare an array that is nested by topic on the wire and a flat tuple of entries in the message.

    Args:
        name: Kafka's name of the array of topics.
        partitions: Kafka's name of the array in each topic.
        since: first version with the field.
        ignorable: True to drop the entries in versions without the field.
        inside: array of one element that contains the field in newer versions.
        bare: True if the array in each topic contains partition numbers instead of structures.
        entry_versions: versions of the message, and from each on the version of the entries, if their class was
            declared for another request.
        default: value of the field if a call of the constructor, or a response, does not contain it.
    """
    wire = Wire(
        name,
        since,
        ignorable=ignorable,
        inside=inside,
        bare_until=(partitions, NEVER) if bare else None,
        partitions=partitions,
        entry_versions=entry_versions,
    )
    return DeclaredField(wire, default)
