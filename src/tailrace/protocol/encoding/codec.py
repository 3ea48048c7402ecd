"""Layout of a message in one version, and generation of its encoder and decoder.

When a version of a message is first used, its wire layout is derived from the declaration, and one function for the
whole message is generated as source text, as ``dataclasses`` does for ``__init__``. Adjacent numbers are packed and
unpacked together. From the first flexible version of a message on, lengths are varints, and tagged fields follow each
structure (KIP-482). Unknown tagged fields are skipped, because newer brokers may send them.

Values have the type ``Any`` in this module; outside, they have the types that the messages declare.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from itertools import groupby
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin
from uuid import UUID

from msgspec import NODEFAULT
from msgspec.structs import replace

from tailrace.context_managers import contextmanager
from tailrace.errors import MalformedMessageError, UnsupportedVersionError
from tailrace.protocol.encoding.fields import DeclaredField, OneElement, Wire
from tailrace.protocol.encoding.primitives import (
    BOOL,
    BYTES,
    NULL,
    PRESENT,
    STRING,
    UUIDS,
    Decode,
    Encode,
    Number,
    Primitive,
    Sized,
    Uuid,
    grouped,
    packed,
    raise_misfit,
    write_count,
    write_sized,
    write_tags,
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
        if wire.after is not None and version >= wire.after[0]:
            moves.append((attribute, wire.after[1]))
        if wire.inside is not None and version >= wire.inside.since:
            arrays[attribute] = wire.inside
    for attribute, other in moves:
        moved = slots.pop([one.attribute for one in slots].index(attribute))
        slots.insert([one.attribute for one in slots].index(other) + 1, moved)
    for array in dict.fromkeys(arrays.values()):
        # The array is at the place of its first field.
        inside = tuple(slot for slot in slots if arrays.get(slot.attribute) == array)
        element = Structure(message, version, inside, bare=array.bare)
        slots[slots.index(inside[0])] = Slot(array.name, "", OneElementArray(element))
        slots = [slot for slot in slots if arrays.get(slot.attribute) != array]
    return Structure(message, version, tuple(slots), tuple(unsupported))


@cache
def _declared_fields(message: type) -> tuple[tuple[str, Wire, Any, Any], ...]:
    """Return attribute, wire format, type and default of each field."""
    declared: dict[str, DeclaredField] = message.declared  # type: ignore[attr-defined]
    types = {
        attribute: _evaluated(note, one.__module__)
        for one in reversed(message.__mro__)
        for attribute, note in vars(one).get("__annotations__", {}).items()
        if attribute in declared
    }
    return tuple((attribute, one.wire, types[attribute], one.default) for attribute, one in declared.items())


@cache
def _evaluated(annotation: str, module: str) -> Any:
    # typing.get_type_hints compiles the same few annotations again and again, which takes longer than the rest.
    return eval(annotation, vars(import_module(module)))  # noqa: S307 - from the source of a message class


def _slot(attribute: str, wire: Wire, hint: Any, default: Any, version: int) -> Slot:
    is_optional = get_origin(hint) in {Union, UnionType}
    if is_optional:
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    name = wire.name or attribute
    shape = _shape(hint, wire.entry_version(version))
    match shape:
        case Array(Structure() as entry) if wire.partitions:
            per_topic = {one for one, inner, _, _ in _declared_fields(entry.message) if inner.per_topic}
            keys = tuple(slot for slot in entry.slots if slot.attribute in per_topic)
            own = tuple(slot for slot in entry.slots if slot.attribute not in per_topic)
            shape = ByTopic(keys, wire.partitions, replace(entry, slots=own, bare=wire.bare_until is not None))
        case Array(Structure() as item) if wire.bare_until is not None and version <= wire.bare_until[1]:
            shape, name = Array(replace(item, bare=True)), wire.bare_until[0]
    if wire.only_field:
        shape = OneFieldStructure(Slot(wire.only_field, attribute, shape))
    return Slot(name, attribute, shape, is_optional and version >= wire.nullable_from, wire.tag, default)


def _shape(hint: Any, version: int) -> Shape:
    if get_origin(hint) is Annotated:
        return next(one for one in hint.__metadata__ if isinstance(one, Number | Sized))
    if get_origin(hint) is tuple:
        return Array(_shape(get_args(hint)[0], version))
    return _PRIMITIVES[hint] if hint in _PRIMITIVES else layout(hint, version)


# ---- generation ------------------------------------------------------------------------------------------------------


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
    source = _EncoderSource(flexible=flexible)
    source.write("value", shape, nullable=nullable)
    function: Encode = source.function("encode(out, value)", shape)
    return function


def decoder(shape: Shape, *, flexible: bool, nullable: bool = False) -> Decode:
    """Return the function that reads a value of ``shape``."""
    source = _DecoderSource(flexible=flexible)
    source.read("value", shape, nullable=nullable)
    source.line("return value")
    function: Decode = source.function("decode(reader)", shape)
    return function


class _Source:
    """Source text of a function that encodes or decodes a message with all its structures."""

    def __init__(self, *, flexible: bool) -> None:
        self.flexible = flexible
        self.names: dict[str, Any] = {}
        """Objects to which the text refers, by name."""
        self._lines: list[str] = []
        self._indent = 1
        self._variables = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent the lines that are added in the context under ``head``."""
        self.line(f"{head}:")
        self._indent += 1
        yield
        self._indent -= 1

    def variable(self) -> str:
        """Return the name of a new variable."""
        self._variables += 1
        return f"v{self._variables}"

    def name(self, thing: Any) -> str:
        """Return a name by which the text refers to an object."""
        name = f"n{len(self.names)}"
        self.names[name] = thing
        return name

    def function(self, head: str, shape: Shape) -> Any:
        """Return the function with this head and the added lines."""
        title = f"{shape.message.__name__} v{shape.version}" if isinstance(shape, Structure) else type(shape).__name__
        code = compile("\n".join([f"def {head}:", *(self._lines or ["    pass"])]), f"<{title}>", "exec")
        exec(code, self.names)  # noqa: S102 - generated from the declarations alone
        return self.names[head.partition("(")[0]]


def _runs(slots: Sequence[Slot]) -> Iterator[list[Slot]]:
    """Yield the fields in lists: adjacent numbers in one list, every other field in its own list."""
    for are_numbers, run in groupby(slots, lambda slot: isinstance(slot.shape, Number)):
        if are_numbers:
            yield list(run)
        else:
            yield from ([slot] for slot in run)


def _struct_of(numbers: Sequence[Number]) -> struct.Struct:
    return struct.Struct(">" + "".join([one.code for one in numbers]))


# ---- decoders --------------------------------------------------------------------------------------------------------


class _DecoderSource(_Source):
    """Source text of a decoder."""

    reader = "reader"
    """Variable of the FrameReader."""

    def read(self, target: str, shape: Shape, *, nullable: bool = False) -> None:
        """Add lines that read a value and assign it to the variable ``target``."""
        match shape:
            case Number():
                self.line(f"{target}, = {self.reader}.unpack({self.name(_struct_of([shape]))})")
            case Uuid():
                self.line(f"{target} = {self.reader}.uuid()")
            case Sized() | Array() | ByTopic() if nullable:
                self.line(f"{target} = {self._length_of(shape)}")
                self.line(f"if {target} == -1: {target} = None")
                with self.block("else"):
                    self._read_elements(target, shape, target)
            case Sized() | Array() | ByTopic():
                self._read_elements(target, shape, self._length_of(shape))
            case Structure() | OneFieldStructure() if nullable:
                self.line(f"{target} = None")
                with self.block(f"if {self.reader}.is_present()"):
                    self.read(target, shape)
            case Structure():
                self._read_structure(target, shape, {})
            case OneFieldStructure(slot):
                self.read(target, slot.shape, nullable=slot.nullable)
                if self.flexible:
                    self.line(f"{self.reader}.skip_tagged_fields()")
            case OneElementArray():
                raise TypeError("an array of one element is read as part of a structure")

    def _length_of(self, shape: Shape) -> str:
        """Return the expression that reads a length, which is -1 for null."""
        if self.flexible:
            return f"{self.reader}.uvarint() - 1"
        return f"{self.reader}.{'int16' if isinstance(shape, Sized) and shape.short else 'int32'}()"

    def _read_elements(self, target: str, shape: Sized | Array | ByTopic, length: str) -> None:
        """Add lines that read as many bytes or elements as the expression ``length`` says."""
        if isinstance(shape, Sized):
            self.line(f"{target} = {shape.from_view.format(f'{self.reader}.view({length})')}")
            return
        count = f"{self.reader}.checked_count({length})"
        if isinstance(shape, Array) and isinstance(shape.item, Number):
            self.names["numbers"] = _numbers
            self.line(f"{target} = {self.reader}.unpack(numbers({count}, {shape.item.code!r}))")
            return
        items, item = self.variable(), self.variable()
        self.line(f"{items} = []")
        with self.block(f"for _ in range({count})"):
            if isinstance(shape, Array):
                self.read(item, shape.item)
                self.line(f"{items}.append({item})")
            else:
                topic = {slot.attribute: self.variable() for slot in shape.keys}
                for slot in shape.keys:
                    self.read(topic[slot.attribute], slot.shape)
                with self.block(f"for _ in range({self.reader}.checked_count({self._length_of(shape)}))"):
                    self._read_structure(item, shape.entry, topic)
                    self.line(f"{items}.append({item})")
                if self.flexible:
                    self.line(f"{self.reader}.skip_tagged_fields()")
        self.line(f"{target} = tuple({items})")

    def _read_structure(self, target: str, structure: Structure, known: Mapping[str, str]) -> None:
        """Add lines that create a message from the fields and from variables that are ``known`` by attribute."""
        variables = {**known, **self._read_fields(structure)}
        message: Any = structure.message
        for attribute, declared in message.declared.items():
            if attribute not in variables:
                variables[attribute] = self.name(declared.default)
                if declared.default is NODEFAULT:
                    raise TypeError(
                        f"{message.__name__}.{attribute} needs a default, because some versions do not contain it"
                    )
        arguments = ", ".join([variables[attribute] for attribute in message.__struct_fields__])
        self.line(f"{target} = {self.name(message)}({arguments})")

    def _read_fields(self, structure: Structure) -> dict[str, str]:
        """Add lines that read the fields of a structure; return their variables by attribute."""
        variables: dict[str, str] = {}
        for run in _runs(structure.untagged_fields):
            shape = run[0].shape
            if isinstance(shape, OneElementArray):
                self.names["check_single"] = _check_single
                self.line(f"check_single({self._length_of(shape)})")
                variables |= self._read_fields(shape.element)
                continue
            found = {slot.attribute: self.variable() for slot in run}
            if len(found) > 1:
                layout_name = self.name(_struct_of([slot.shape for slot in run if isinstance(slot.shape, Number)]))
                self.line(f"{', '.join(found.values())} = {self.reader}.unpack({layout_name})")
            else:
                self.read(found[run[0].attribute], shape, nullable=run[0].nullable)
            variables |= found
        if self.flexible and not structure.bare:
            variables |= self._read_tags(structure.tagged_fields)
        return variables

    def _read_tags(self, slots: Sequence[Slot]) -> dict[str, str]:
        if not slots:
            self.line(f"{self.reader}.skip_tagged_fields()")
            return {}
        variables = {slot.attribute: self.variable() for slot in slots}
        for slot in slots:
            self.line(f"{variables[slot.attribute]} = {self.name(slot.default)}")
        reader, tag, body = self.reader, self.variable(), self.variable()
        with self.block(f"for _ in range({reader}.checked_count({reader}.uvarint()))"):
            self.line(f"{tag}, {body} = {reader}.tagged_field()")
            self.reader = body
            for slot in slots:
                with self.block(f"if {tag} == {slot.tag}"):
                    self.read(variables[slot.attribute], slot.shape, nullable=slot.nullable)
            self.reader = reader
        return variables


@lru_cache(64)
def _numbers(count: int, code: str) -> struct.Struct:
    return struct.Struct(f">{count}{code}")


def _check_single(length: int) -> None:
    if length != 1:
        raise MalformedMessageError(f"{length} elements in an array that must have one")


# ---- encoders --------------------------------------------------------------------------------------------------------


class _EncoderSource(_Source):
    """Source text of an encoder."""

    out = "out"
    """Variable of the buffer."""

    def __init__(self, *, flexible: bool) -> None:
        super().__init__(flexible=flexible)
        self.names |= {
            "error": struct.error,
            "grouped": grouped,
            "packed": packed,
            "raise_misfit": raise_misfit,
            "raise_unsupported": _raise_unsupported,
            "write_count": write_count,
            "write_sized": write_sized,
            "write_tags": write_tags,
        }

    def write(self, value: str, shape: Shape, *, nullable: bool = False) -> None:
        """Add lines that append the value of the expression ``value``."""
        match shape:
            case Number():
                self.line(f"{self.out} += packed({value}, {self.name(shape)})")
            case Uuid():
                self.line(f"{self.out} += {value}.bytes")
            case Sized():
                self.line(f"write_sized({self.out}, {value}, {self.name(shape)}, {self.flexible}, {nullable})")
            case Array() | ByTopic():
                self._write_array(value, shape, nullable=nullable)
            case Structure() | OneFieldStructure() if nullable:
                self.line(f"if {value} is None: {self.out}.append({NULL})")
                with self.block("else"):
                    self.line(f"{self.out}.append({PRESENT})")
                    self.write(value, shape)
            case Structure():
                self._write_fields(value, shape)
            case OneFieldStructure(slot):
                self.write(value, slot.shape, nullable=slot.nullable)
                if self.flexible:
                    self.line(f"{self.out}.append(0)")
            case OneElementArray(element):
                self.line(f"write_count({self.out}, (None,), {self.flexible}, False)")
                self._write_fields(value, element)

    def _write_array(self, value: str, shape: Array | ByTopic, *, nullable: bool) -> None:
        items, item = self.variable(), self.variable()
        if isinstance(shape, Array):
            self.line(f"{items} = {value}")
            self.line(f"write_count({self.out}, {items}, {self.flexible}, {nullable})")
            if isinstance(shape.item, Number):
                self.line(
                    f"if {items} is not None: {self.out} += packed({items}, {self.name(shape.item)}, len({items}))"
                )
                return
            with self.block(f"for {item} in {items} or ()"):
                self.write(item, shape.item)
            return
        topics, key = self.variable(), self.name(attrgetter(*[slot.attribute for slot in shape.keys]))
        self.line(f"{topics} = grouped({value}, {key})")
        self.line(f"write_count({self.out}, {topics}, {self.flexible}, {nullable})")
        with self.block(f"for {items} in {topics} or ()"):
            for slot in shape.keys:
                self.write(f"{items}[0].{slot.attribute}", slot.shape)
            self.line(f"write_count({self.out}, {items}, {self.flexible}, False)")
            with self.block(f"for {item} in {items}"):
                self._write_fields(item, shape.entry)
            if self.flexible:
                self.line(f"{self.out}.append(0)")

    def _write_fields(self, message: str, structure: Structure) -> None:
        for one in structure.unsupported_fields:
            with self.block(f"if {message}.{one.attribute} != {self.name(one.default)}"):
                details = f"{self.name(one)}, {structure.version}, {message}.{one.attribute}"
                self.line(f"raise_unsupported({details})")
        for run in _runs(structure.untagged_fields):
            if isinstance(run[0].shape, Number):
                numbers = [slot.shape for slot in run if isinstance(slot.shape, Number)]
                values = ", ".join([f"{message}.{slot.attribute}" for slot in run])
                self.line(f"try: {self.out} += {self.name(_struct_of(numbers).pack)}({values})")
                self.line(f"except error: raise_misfit({self.name(numbers)}, ({values},))")
            else:
                (slot,) = run
                self.write(
                    f"{message}.{slot.attribute}" if slot.attribute else message, slot.shape, nullable=slot.nullable
                )
        if self.flexible and not structure.bare:
            self._write_tags(message, structure.tagged_fields)

    def _write_tags(self, message: str, slots: Sequence[Slot]) -> None:
        if not slots:
            self.line(f"{self.out}.append(0)")
            return
        out, tags, body = self.out, self.variable(), self.variable()
        self.line(f"{tags} = []")
        for slot in slots:
            value = f"{message}.{slot.attribute}"
            with self.block(f"if {value} != {self.name(slot.default)}"):
                self.line(f"{body} = bytearray()")
                self.out = body
                self.write(value, slot.shape, nullable=slot.nullable)
                self.out = out
                self.line(f"{tags}.append(({slot.tag}, {body}))")
        self.line(f"write_tags({out}, {tags})")


def _raise_unsupported(one: UnsupportedField, version: int, value: Any) -> NoReturn:
    raise UnsupportedVersionError(
        f"version {version} of this request has no field for {one.name}={value!r}; "
        f"it needs version {one.since} - upgrade the broker, or leave the option at its default"
    )
