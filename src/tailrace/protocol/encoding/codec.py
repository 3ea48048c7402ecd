"""Generation of encoders and decoders from layouts.

When a version of a message is first used, a function is generated as source text for each structure, as ``dataclasses``
does for ``__init__``. Adjacent numbers are packed and unpacked together. From the first flexible version of a message
on, lengths are varints, and tagged fields follow each structure (KIP-482). Unknown tagged fields are skipped, because
newer brokers may send them.

Values have the type ``Any`` in this module; outside, they have the types that the messages declare.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any, NoReturn

from msgspec import NODEFAULT

from tailrace.errors import MalformedMessageError, UnsupportedVersionError
from tailrace.protocol.encoding.frame_reader import FrameReader, write_uvarint
from tailrace.protocol.encoding.layout import (
    Array,
    ByTopic,
    OneElementArray,
    OneFieldStructure,
    Shape,
    Slot,
    Structure,
    layout,
)
from tailrace.protocol.encoding.primitives import Decode, Encode, Number, length_reader, write_length

__all__ = ["decoder", "decoder_of", "encoder", "encoder_of"]


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


# ---- arrays ----------------------------------------------------------------------------------------------------


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


# ---- topics and their partitions -------------------------------------------------------------------------------


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


# ---- structures ------------------------------------------------------------------------------------------------

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


# ---- tagged fields ---------------------------------------------------------------------------------------------


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
