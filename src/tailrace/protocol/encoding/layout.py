"""Wire layout of a message in one version, derived from its declaration."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from msgspec import NODEFAULT
from msgspec.structs import replace

from tailrace.protocol.encoding.fields import DeclaredField, OneElement, Wire
from tailrace.protocol.encoding.primitives import BOOL, BYTES, STRING, UUIDS, Number, Primitive, Sized
from tailrace.values import Value

__all__ = [
    "Array",
    "ByTopic",
    "OneElementArray",
    "OneFieldStructure",
    "Shape",
    "Slot",
    "Structure",
    "UnsupportedField",
    "layout",
]


class Slot(Value):
    """Field in one version of a message."""

    name: str
    """Name in Kafka's message definitions, in snake case."""
    attribute: str
    """Name of the attribute of the message."""
    shape: Shape
    nullable: bool = False
    tag: int | None = None
    default: Any = None


class UnsupportedField(Value):
    """Field that is not ignorable and is missing from a version of the message."""

    name: str
    attribute: str
    default: Any
    since: int


class Structure(Value):
    """Fields in wire order; in flexible versions, the tagged fields follow the other fields."""

    message: type
    version: int
    slots: tuple[Slot, ...]
    unsupported_fields: tuple[UnsupportedField, ...] = ()
    bare: bool = False
    """True if the structure is encoded as the value of its only field."""

    @property
    def untagged_fields(self) -> tuple[Slot, ...]:
        """Fields without a tag."""
        return tuple(slot for slot in self.slots if slot.tag is None)

    @property
    def tagged_fields(self) -> tuple[Slot, ...]:
        """Tagged fields (KIP-482), in the order of their tags."""
        return tuple(sorted((slot for slot in self.slots if slot.tag is not None), key=lambda slot: slot.tag or 0))


class Array(Value):
    """Array of elements of the same shape; a tuple in messages."""

    item: Shape


class ByTopic(Value):
    """Array of topics, each with an array of entries; in messages, one tuple of entries that contain their topic."""

    keys: tuple[Slot, ...]
    """Fields of the entries that are written once per topic: the name or id of the topic."""
    name: str
    """Kafka's name of the array of entries."""
    entry: Structure


class OneFieldStructure(Value):
    """Structure with one field; messages have the value of this field instead of the structure."""

    slot: Slot


class OneElementArray(Value):
    """Array of exactly one structure; messages have the fields of the structure instead of the array."""

    element: Structure


Shape = Primitive | Structure | Array | ByTopic | OneFieldStructure | OneElementArray

_PRIMITIVES: dict[object, Primitive] = {bool: BOOL, str: STRING, bytes: BYTES, UUID: UUIDS}


@cache
def layout(message: type, version: int) -> Structure:
    """Return the wire layout of a message class in ``version``."""
    slots: list[Slot] = []
    unsupported: list[UnsupportedField] = []
    arrays: dict[str, OneElement] = {}
    moves: list[tuple[str, str]] = []
    for attribute, wire, hint, default in _declared_fields(message):
        if not wire.since <= version <= wire.until:
            if not wire.ignorable and default is not NODEFAULT:
                unsupported.append(UnsupportedField(wire.name or attribute, attribute, default, wire.since))
            continue
        slots.append(_slot(attribute, wire, hint, default, version))
        if wire.inside is not None and version >= wire.inside.since:
            arrays[attribute] = wire.inside
        if wire.after is not None and version >= wire.after[0]:
            moves.append((attribute, wire.after[1]))
    for attribute, other in moves:
        moved = slots.pop(_index_of(slots, attribute))
        slots.insert(_index_of(slots, other) + 1, moved)
    fields = tuple(_with_one_element_arrays(slots, arrays, message, version))
    return Structure(message, version, fields, tuple(unsupported))


@cache
def _declared_fields(message: type) -> tuple[tuple[str, Wire, Any, Any], ...]:
    hints = get_type_hints(message, include_extras=True)
    declared: dict[str, DeclaredField] = message.declared  # type: ignore[attr-defined]
    return tuple((name, one.wire, hints[name], one.default) for name, one in declared.items())


def _slot(attribute: str, wire: Wire, hint: Any, default: Any, version: int) -> Slot:
    hint, optional = _without_none(hint)
    name = wire.name or attribute
    shape = _shape(hint, version if wire.entry_version is None else wire.entry_version)
    match shape:
        case Array(Structure() as entry) if wire.partitions:
            shape = _nested_by_topic(entry, wire)
        case Array(Structure() as item) if wire.bare_until is not None and version <= wire.bare_until[1]:
            shape, name = Array(replace(item, bare=True)), wire.bare_until[0]
    if wire.only_field:
        shape = OneFieldStructure(Slot(wire.only_field, attribute, shape))
    return Slot(name, attribute, shape, optional and version >= wire.nullable_from, wire.tag, default)


def _nested_by_topic(entry: Structure, wire: Wire) -> ByTopic:
    per_topic = {attribute for attribute, inner, _, _ in _declared_fields(entry.message) if inner.per_topic}
    keys = tuple(slot for slot in entry.slots if slot.attribute in per_topic)
    own = tuple(slot for slot in entry.slots if slot.attribute not in per_topic)
    return ByTopic(keys, wire.partitions, replace(entry, slots=own, bare=wire.bare_until is not None))


def _shape(hint: Any, version: int) -> Shape:
    if get_origin(hint) is Annotated:
        return next(one for one in hint.__metadata__ if isinstance(one, Number | Sized))
    if get_origin(hint) is tuple:
        return Array(_shape(get_args(hint)[0], version))
    return _PRIMITIVES[hint] if hint in _PRIMITIVES else layout(hint, version)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return the type without None, and True if ``hint`` allows None."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    (other,) = (one for one in get_args(hint) if one is not NoneType)
    return other, True


def _index_of(slots: list[Slot], attribute: str) -> int:
    return next(index for index, slot in enumerate(slots) if slot.attribute == attribute)


def _with_one_element_arrays(
    slots: list[Slot], arrays: dict[str, OneElement], message: type, version: int
) -> Iterator[Slot]:
    """Yield the fields; fields inside an array of one element are replaced by the array, at the place of the first.

    Args:
        slots: fields in wire order.
        arrays: array of each field that is inside an array of one element, by attribute.
        message: message class.
        version: version of the message.
    """
    seen: set[OneElement] = set()
    for slot in slots:
        array = arrays.get(slot.attribute)
        if array is None:
            yield slot
        elif array not in seen:
            seen.add(array)
            fields = tuple(one for one in slots if arrays.get(one.attribute) == array)
            yield Slot(array.name, "", OneElementArray(Structure(message, version, fields, bare=array.bare)))
