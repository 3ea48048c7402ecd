"""Layout of a message in one version, and generation of its encoder and decoder.

When a version of a message is first used, its wire layout is derived from the declaration, and a function is generated
as source text for each structure, as ``dataclasses`` does for ``__init__``. Adjacent numbers are packed and unpacked
together. From the first flexible version of a message on, lengths are varints, and tagged fields follow each structure
(KIP-482). Unknown tagged fields are skipped, because newer brokers may send them.

Values have the type ``Any`` in this module; outside, they have the types that the messages declare.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from msgspec import NODEFAULT
from msgspec.structs import replace

from tailrace.errors import MalformedMessageError, UnsupportedVersionError
from tailrace.protocol.encoding.fields import DeclaredField, OneElement, Wire
from tailrace.protocol.encoding.primitives import (
    BOOL,
    BYTES,
    STRING,
    UUIDS,
    Decode,
    Encode,
    FrameReader,
    Number,
    Primitive,
    Sized,
    length_reader,
    write_length,
    write_uvarint,
)
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
    "decoder",
    "decoder_of",
    "encoder",
    "encoder_of",
    "layout",
]

# ---- layout ----------------------------------------------------------------------------------------------------------


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


# ---- encoders and decoders -------------------------------------------------------------------------------------------


@cache
def encoder_of(message: type, version: int, *, flexible: bool) -> Encode:
    """Return the function that appends a message of the class ``message`` in ``version`` to a buffer."""
    return encoder(layout(message, version), flexible=flexible)


@cache
def decoder_of(message: type, version: int, *, flexible: bool) -> Decode:
    """Return the function that reads a message of the class ``message`` in ``version``."""
    return decoder(layout(message, version), flexible=flexible)


def encoder(shape: Shape, *, flexible: bool, nullable: bool = False) -> Encode:
    """Return the function that appends a value of ``shape`` to a buffer."""
    match shape:
        case Array(Number() as number):
            return _numbers_encoder(number, flexible=flexible, nullable=nullable)
        case Array(item):
            return _array_encoder(encoder(item, flexible=flexible), flexible=flexible, nullable=nullable)
        case ByTopic():
            return _topics_encoder(shape, flexible=flexible, nullable=nullable)
        case Structure() | OneFieldStructure():
            encode = _structure_encoder(shape, flexible=flexible)
            return _nullable_encoder(encode) if nullable else encode
        case OneElementArray(element):
            return _one_element_encoder(element, flexible=flexible)
        case _:
            return shape.encoder(flexible=flexible, nullable=nullable)


def decoder(shape: Shape, *, flexible: bool, nullable: bool = False) -> Decode:
    """Return the function that reads a value of ``shape``."""
    match shape:
        case Array(Number(code=code)):
            return _numbers_decoder(code, flexible=flexible, nullable=nullable)
        case Array(item):
            return _array_decoder(decoder(item, flexible=flexible), flexible=flexible, nullable=nullable)
        case ByTopic():
            return _topics_decoder(shape, flexible=flexible, nullable=nullable)
        case Structure() | OneFieldStructure():
            decode = _structure_decoder(shape, flexible=flexible)
            return _nullable_decoder(decode) if nullable else decode
        case OneElementArray(element):
            return _one_element_decoder(element, flexible=flexible)
        case _:
            return shape.decoder(flexible=flexible, nullable=nullable)


# ---- arrays ----------------------------------------------------------------------------------------------------------


def _array_encoder(encode_item: Encode, *, flexible: bool, nullable: bool) -> Encode:
    def encode(out: bytearray, value: Any) -> None:
        if value is None and not nullable:
            raise MalformedMessageError("the protocol requires an array, not None")
        write_length(out, None if value is None else len(value), flexible=flexible)
        for item in value or ():
            encode_item(out, item)

    return encode


def _numbers_encoder(number: Number, *, flexible: bool, nullable: bool) -> Encode:
    def encode(out: bytearray, value: Any) -> None:
        if value is None and not nullable:
            raise MalformedMessageError("the protocol requires an array, not None")
        write_length(out, None if value is None else len(value), flexible=flexible)
        numbers: Sequence[Any] = () if value is None else value
        try:
            out += struct.pack(f">{len(numbers)}{number.code}", *numbers)
        except struct.error:
            _raise_misfit([number] * len(numbers), numbers)

    return encode


def _array_decoder(decode_item: Decode, *, flexible: bool, nullable: bool) -> Decode:
    read_count = _count_reader(flexible=flexible, nullable=nullable)

    def decode(reader: FrameReader) -> Any:
        count = read_count(reader)
        return None if count is None else tuple([decode_item(reader) for _ in range(count)])

    return decode


def _numbers_decoder(code: str, *, flexible: bool, nullable: bool) -> Decode:
    read_count = _count_reader(flexible=flexible, nullable=nullable)

    def decode(reader: FrameReader) -> Any:
        count = read_count(reader)
        return None if count is None else reader.unpack(_numbers_struct(count, code))

    return decode


@lru_cache(64)
def _numbers_struct(count: int, code: str) -> struct.Struct:
    return struct.Struct(f">{count}{code}")


def _count_reader(*, flexible: bool, nullable: bool) -> Callable[[FrameReader], int | None]:
    """Return the function that reads the length of an array; the function returns None for a null array."""
    read_length = length_reader(flexible=flexible)

    def read_count(reader: FrameReader) -> int | None:
        length = read_length(reader)
        if length < 0:
            if length == -1 and nullable:
                return None
            raise MalformedMessageError(f"an array claims {length} elements")
        return reader.checked_count(length)

    return read_count


def _one_element_encoder(element: Structure, *, flexible: bool) -> Encode:
    encode_element = _structure_encoder(element, flexible=flexible)

    def encode(out: bytearray, message: Any) -> None:
        write_length(out, 1, flexible=flexible)
        encode_element(out, message)

    return encode


def _one_element_decoder(element: Structure, *, flexible: bool) -> Decode:
    read_length = length_reader(flexible=flexible)
    decode_values = _structure_decoder(element, flexible=flexible, returns_values=True)

    def decode(reader: FrameReader) -> Any:
        length = read_length(reader)
        if length != 1:
            raise MalformedMessageError(f"{length} elements in an array that must have one")
        return decode_values(reader)

    return decode


# ---- topics and their partitions -------------------------------------------------------------------------------------


def _topics_encoder(shape: ByTopic, *, flexible: bool, nullable: bool) -> Encode:
    key_of = attrgetter(*(slot.attribute for slot in shape.keys))
    keys = [(attrgetter(slot.attribute), encoder(slot.shape, flexible=flexible)) for slot in shape.keys]
    encode_entries = encoder(Array(shape.entry), flexible=flexible)

    def encode(out: bytearray, value: Any) -> None:
        if value is None and not nullable:
            raise MalformedMessageError("the protocol requires an array of topics, not None")
        topics: dict[Any, list[Any]] = {}
        for entry in value or ():
            topics.setdefault(key_of(entry), []).append(entry)
        write_length(out, None if value is None else len(topics), flexible=flexible)
        for entries in topics.values():
            for get, encode_key in keys:
                encode_key(out, get(entries[0]))
            encode_entries(out, entries)
            if flexible:
                out.append(0)

    return encode


def _topics_decoder(shape: ByTopic, *, flexible: bool, nullable: bool) -> Decode:
    read_topic_count = _count_reader(flexible=flexible, nullable=nullable)
    read_entry_count = _count_reader(flexible=flexible, nullable=False)
    keys = [decoder(slot.shape, flexible=flexible) for slot in shape.keys]
    decode_entry = _structure_decoder(shape.entry, flexible=flexible, arguments=[slot.attribute for slot in shape.keys])

    def decode(reader: FrameReader) -> Any:
        count = read_topic_count(reader)
        if count is None:
            return None
        entries: list[Any] = []
        for _ in range(count):
            topic = [decode_key(reader) for decode_key in keys]
            entries += [decode_entry(reader, *topic) for _ in range(read_entry_count(reader) or 0)]
            if flexible:
                reader.skip_tagged_fields()
        return tuple(entries)

    return decode


# ---- structures ------------------------------------------------------------------------------------------------------

_NULL, _PRESENT = 0xFF, 0x01
"""Values of the byte before a nullable structure, in all versions (KIP-893)."""


def _nullable_encoder(encode: Encode) -> Encode:
    def encode_or_null(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(_NULL)
            return
        out.append(_PRESENT)
        encode(out, value)

    return encode_or_null


def _nullable_decoder(decode: Decode) -> Decode:
    def decode_or_null(reader: FrameReader) -> Any:
        first = reader.view(1)[0]
        if first == _NULL:
            return None
        if first != _PRESENT:
            raise MalformedMessageError(f"the byte before a nullable structure must be 0x01 or 0xff, not 0x{first:02x}")
        return decode(reader)

    return decode_or_null


def _structure_encoder(shape: Structure | OneFieldStructure, *, flexible: bool) -> Encode:
    structure, get = (shape, "message.") if isinstance(shape, Structure) else (_structure_of(shape.slot), "")
    lines: list[str] = []
    names: dict[str, Any] = {"error": struct.error, "raise_misfit": _raise_misfit}
    if structure.unsupported_fields:
        names["check"] = _unsupported_fields_check(structure)
        lines.append("check(message)")
    for number, run in enumerate(_runs(structure.untagged_fields)):
        values = ", ".join(f"{get}{slot.attribute}" if get and slot.attribute else "message" for slot in run)
        if types := _numbers_in(run):
            names[f"pack{number}"] = _joint_struct(types).pack
            names[f"types{number}"] = types
            lines += [
                f"try: out += pack{number}({values})",
                f"except error: raise_misfit(types{number}, ({values},))",
            ]
        else:
            names[f"write{number}"] = encoder(run[0].shape, flexible=flexible, nullable=run[0].nullable)
            lines.append(f"write{number}(out, {values})")
    if flexible and not structure.bare:
        names["write_tags"] = _tags_encoder(structure.tagged_fields)
        lines.append("write_tags(out, message)" if structure.tagged_fields else "out.append(0)")
    function: Encode = _function("encode(out, message)", lines, names, structure)
    return function


def _structure_decoder(
    shape: Structure | OneFieldStructure,
    *,
    flexible: bool,
    arguments: Sequence[str] = (),
    returns_values: bool = False,
) -> Decode:
    """Return the function that reads a structure.

    Args:
        shape: structure to read.
        flexible: True for a flexible version.
        arguments: fields that are not read, but passed to the returned function after the reader.
        returns_values: True if the returned function is to return the values of the fields instead of a message.
    """
    structure, creates = (
        (shape, not returns_values) if isinstance(shape, Structure) else (_structure_of(shape.slot), False)
    )
    lines: list[str] = []
    names: dict[str, Any] = {}
    known = list(arguments)
    for number, run in enumerate(_runs(structure.untagged_fields)):
        attributes = [one for slot in run for one in _attributes(slot)]
        known += attributes
        values = ", ".join(attributes)
        if types := _numbers_in(run):
            names[f"layout{number}"] = _joint_struct(types)
            lines.append(f"{values}, = reader.unpack(layout{number})")
        else:
            names[f"read{number}"] = decoder(run[0].shape, flexible=flexible, nullable=run[0].nullable)
            lines.append(f"{values} = read{number}(reader)")
    if flexible and not structure.bare:
        tagged = [slot.attribute for slot in structure.tagged_fields]
        names["read_tags"] = _tags_decoder(structure.tagged_fields) if tagged else FrameReader.skip_tagged_fields
        lines.append(f"{''.join(f'{one}, ' for one in tagged)}= read_tags(reader)" if tagged else "read_tags(reader)")
        known += tagged
    lines.append(_creation_line(structure.message, known, names) if creates else f"return {', '.join(known)}")
    function: Decode = _function(f"decode({', '.join(['reader', *arguments])})", lines, names, structure)
    return function


def _creation_line(message: Any, known: Sequence[str], names: dict[str, Any]) -> str:
    """Return the line that creates a message from the local variables ``known`` and from defaults.

    The class and the defaults are added to ``names``.
    """
    names["kind"] = message
    for name, declared in message.declared.items():
        if name not in known:
            names[name] = declared.default
            if declared.default is NODEFAULT:
                raise TypeError(f"{message.__name__}.{name} needs a default, because some versions do not contain it")
    return f"return kind({', '.join(message.__struct_fields__)})"


def _structure_of(slot: Slot) -> Structure:
    return Structure(object, 0, (slot,))


def _runs(slots: Sequence[Slot]) -> Iterator[list[Slot]]:
    """Yield the fields in lists: adjacent numbers in one list, every other field in its own list."""
    for are_numbers, run in groupby(slots, lambda slot: isinstance(slot.shape, Number)):
        if are_numbers:
            yield list(run)
        else:
            yield from ([slot] for slot in run)


def _numbers_in(run: Sequence[Slot]) -> list[Number]:
    return [slot.shape for slot in run if isinstance(slot.shape, Number)]


def _joint_struct(types: Sequence[Number]) -> struct.Struct:
    return struct.Struct(">" + "".join(one.code for one in types))


def _attributes(slot: Slot) -> list[str]:
    return (
        [one.attribute for one in slot.shape.element.slots]
        if isinstance(slot.shape, OneElementArray)
        else [slot.attribute]
    )


def _function(head: str, lines: Sequence[str], names: dict[str, Any], structure: Structure) -> Any:
    source = f"def {head}:\n    " + "\n    ".join(lines or ["pass"])
    code = compile(source, f"<{structure.message.__name__} v{structure.version}>", "exec")
    exec(code, names)  # noqa: S102 - generated from the declarations alone
    return names[head.partition("(")[0]]


def _raise_misfit(types: Sequence[Number], values: Sequence[Any]) -> NoReturn:
    """Raise MalformedMessageError for the first value that does not fit its type."""
    for one, value in zip(types, values, strict=True):
        one.encoder(flexible=False, nullable=False)(bytearray(), value)
    raise AssertionError(f"all of {values!r} fit their types")


def _unsupported_fields_check(structure: Structure) -> Callable[[Any], None]:
    """Return a function that raises UnsupportedVersionError if a field is set that the version does not contain."""

    def check(message: Any) -> None:
        for one in structure.unsupported_fields:
            if (value := getattr(message, one.attribute)) != one.default:
                raise UnsupportedVersionError(
                    f"version {structure.version} of this request has no field for {one.name}={value!r}; "
                    f"it needs version {one.since} - upgrade the broker, or leave the option at its default"
                )

    return check


# ---- tagged fields ---------------------------------------------------------------------------------------------------


def _tags_encoder(slots: Sequence[Slot]) -> Encode:
    tagged = [
        (slot.tag, attrgetter(slot.attribute), encoder(slot.shape, flexible=True, nullable=slot.nullable), slot.default)
        for slot in slots
    ]

    def encode(out: bytearray, message: Any) -> None:
        present = [(tag, encode, value) for tag, get, encode, default in tagged if (value := get(message)) != default]
        out.append(len(present))
        for tag, encode_value, value in present:
            body = bytearray()
            encode_value(body, value)
            write_uvarint(out, tag or 0)
            write_uvarint(out, len(body))
            out += body

    return encode


def _tags_decoder(slots: Sequence[Slot]) -> Decode:
    """Return the function that reads the tagged fields and returns the values of ``slots``, with defaults."""
    tagged = {
        slot.tag: (index, decoder(slot.shape, flexible=True, nullable=slot.nullable))
        for index, slot in enumerate(slots)
    }
    defaults = [slot.default for slot in slots]

    def decode(reader: FrameReader) -> list[Any]:
        count = reader.checked_count(reader.uvarint())
        if not count:
            return defaults
        values = defaults.copy()
        for _ in range(count):
            tag, body = reader.uvarint(), FrameReader(reader.view(reader.uvarint()))
            if tag in tagged:
                index, decode_value = tagged[tag]
                values[index] = decode_value(body)
        return values

    return decode
