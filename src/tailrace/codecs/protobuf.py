"""Protobuf payloads, each of which comes after the header and message indexes.

The message indexes select a message type of the schema. A payload is decoded only as this message type; if the registry
returns the schema only as .proto source, as the generated class of the annotation.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from tailrace.codecs.annotations import described, split_none
from tailrace.codecs.protocols import Decode
from tailrace.codecs.wire_format import (
    HEADER_SIZE,
    LocalSchema,
    PayloadReader,
    PayloadWriter,
    Schema,
    converter,
)

__all__ = ["ProtobufFormat", "decode_compiled"]

_MAX_INDEXES = 64
_WELL_KNOWN = ("google/protobuf/", "google/type/", "confluent/")
"""Prefixes of .proto files that installed packages contain; these files are not registered as imported schemas."""


class ProtobufFormat:
    """Protobuf, with Google's library; for types other than generated classes, protobuf's JSON mapping is used."""

    kind = "PROTOBUF"
    is_by_class = True

    def check(self, annotation: object) -> None:
        if not _generated_classes(annotation):
            converter(annotation, strict=False)

    def reader(self, schema: Schema, annotation: object) -> PayloadReader:
        classes = _generated_classes(annotation)
        file = _file_descriptor(schema)
        if file is None and len(classes) == 1:
            return PayloadReader(_decoder_of_class(classes[0]))
        if file is None:
            raise ValueError(f"schema {schema.id} exists only as .proto source - annotate with one generated class")
        by_name = {one.DESCRIPTOR.full_name: one.FromString for one in classes}
        convert = None if classes else converter(annotation, strict=False)
        is_json = split_none(annotation)[0] in {dict, list, object, Any}
        parsers: dict[tuple[int, ...], Callable[[bytes], object]] = {}

        def read(data: bytes) -> object:
            indexes, start = _read_indexes(data)
            parse = parsers.get(indexes)
            if parse is None:
                found = _message_at(file, indexes)
                parse = (
                    _decoder_to_type(found, convert, is_json=is_json)
                    if convert is not None
                    else by_name.get(found.full_name)
                )
                if parse is None:
                    raise ValueError(f"the message is a {found.full_name}")
                parsers[indexes] = parse
            return parse(data[start:])

        return PayloadReader(read, is_slow=not classes)

    def writer(self, schema: Schema, value: object) -> PayloadWriter:
        message: Descriptor = _check_message(value).DESCRIPTOR
        file = _file_descriptor(schema)
        if file is not None:
            # The message indexes in the registry's schema may differ from those in the schema of the class.
            message = file.pool.FindMessageTypeByName(message.full_name)
        prefix = _encode_indexes(_indexes_of(message))
        return PayloadWriter(lambda value: prefix + _check_message(value).SerializeToString())

    def local_schemas(self, text: str | None, value: object) -> Mapping[str, LocalSchema]:  # noqa: ARG002 - in the class
        found: dict[str, LocalSchema] = {}

        def add(file: FileDescriptor, name: str) -> None:
            imported = [one for one in file.dependencies if not one.name.startswith(_WELL_KNOWN)]
            for one in imported:
                add(one, one.name)
            text = base64.b64encode(file.serialized_pb).decode()
            found[name] = LocalSchema(text, [one.name for one in imported])

        add(_check_message(value).DESCRIPTOR.file, "")
        return found

    def record_name(self, text: str | None, value: object) -> str:  # noqa: ARG002
        return str(_check_message(value).DESCRIPTOR.full_name)


def decode_compiled(name: str, text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Decode the file descriptor of a compiled schema, which is in base64; return None if ``text`` is .proto source.

    ``name`` replaces the file's name if it is not empty.
    """
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    file.name = name or file.name
    return file


# ---- schemas -------------------------------------------------------------------------------------------------------


def _file_descriptor(schema: Schema) -> FileDescriptor | None:
    """Return the descriptor of a schema; None if the schema, or a schema that it imports, is .proto source."""
    texts = {**schema.references, f"schema-{schema.id}.proto": schema.text}
    files = [decode_compiled(name, text) for name, text in texts.items()]
    pool = DescriptorPool()
    added: set[str] = set()
    for file in files:
        if file is None:
            return None
        for name in file.dependency:
            _add_well_known(pool, name, added)
        pool.Add(file)
    return pool.FindFileByName(f"schema-{schema.id}.proto")


def _add_well_known(pool: DescriptorPool, name: str, added: set[str]) -> None:
    if name in added or not name.startswith(_WELL_KNOWN):
        return
    added.add(name)
    package = "confluent_kafka.schema_registry." if name.startswith("confluent/") else ""
    module = importlib.import_module(package + name.removesuffix(".proto").replace("/", ".") + "_pb2")
    for needed in module.DESCRIPTOR.dependencies:
        _add_well_known(pool, needed.name, added)
    pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def _message_at(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor:
    """Return a message type by its indexes: in the file, then among the messages nested in that message, and so on."""
    among: Sequence[Descriptor] = list(file.message_types_by_name.values())
    found: Descriptor | None = None
    for index in indexes:
        if found is not None and len(among) <= index < len(found.nested_types):
            among = found.nested_types  # Confluent's client for Python counts the types of map fields, too.
        if not 0 <= index < len(among):
            raise ValueError(f"the schema has no message at the message indexes {list(indexes)}")
        found = among[index]
        among = _declared_in(found)
    assert found is not None
    return found


def _declared_in(message: Descriptor) -> list[Descriptor]:
    """Return the message types that are declared in a message; Java does not count those generated for map fields."""
    return [one for one in message.nested_types if not one.GetOptions().map_entry]


def _indexes_of(message: Descriptor) -> list[int]:
    """Return the indexes of a message type, see ``_message_at``."""
    indexes: list[int] = []
    inner: Descriptor | None = message
    while inner is not None:
        outer: Descriptor | None = inner.containing_type
        among = list(inner.file.message_types_by_name.values()) if outer is None else _declared_in(outer)
        indexes.insert(0, among.index(inner))
        inner = outer
    return indexes


# ---- message indexes -----------------------------------------------------------------------------------------------


def _read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message indexes that follow the header, and the start of the message."""
    count, at = _varint(data, HEADER_SIZE)
    if count == 0:
        return (0,), at  # short form of the most common indexes
    if not 0 < count <= _MAX_INDEXES:
        raise ValueError(f"the number of message indexes is {count}, not 1 to {_MAX_INDEXES}")
    indexes: list[int] = []
    for _ in range(count):
        index, at = _varint(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, a zigzag varint, and the end of the number."""
    value = shift = 0
    while shift < 64:
        if at >= len(data):
            raise ValueError("the bytes end within the message indexes")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("a message index is longer than ten bytes")


def _encode_indexes(indexes: Sequence[int]) -> bytes:
    if list(indexes) == [0]:
        return b"\x00"
    out = bytearray()
    for number in (len(indexes), *indexes):
        rest = number << 1
        while rest > 0x7F:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
    return bytes(out)


# ---- values --------------------------------------------------------------------------------------------------------


def _generated_classes(annotation: object) -> list[Any]:
    """Return the generated class of an annotation, or those of a union; empty if it contains none."""
    bare, _ = split_none(annotation)
    members = typing.get_args(bare) if typing.get_origin(bare) in {Union, types.UnionType} else (bare,)
    found = [one for one in members if isinstance(one, type) and issubclass(one, Message)]
    if found and len(found) < len(members):
        raise TypeError("a union must not contain both generated protobuf classes and other types")
    return found


def _decoder_of_class(kind: Any) -> Decode:  # noqa: ANN401
    return lambda data: kind.FromString(data[_read_indexes(data)[1] :])


def _decoder_to_type(message: Descriptor, convert: Callable[[object], object], *, is_json: bool) -> Decode:
    """Return a decoder of payloads; ``is_json`` selects the JSON mapping without the types of Python."""
    parse = message_factory.GetMessageClass(message).FromString

    def read(payload: bytes) -> object:
        found = parse(payload)
        plain: dict[str, object] = json_format.MessageToDict(
            found,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=message.file.pool,
        )
        if is_json:
            return convert(plain)
        try:
            return convert(_with_python_types(found, plain, keeps_text=False))
        except (TypeError, ValueError):
            # The type may contain str for a Duration or a 64-bit integer, as in the JSON mapping.
            return convert(_with_python_types(found, plain, keeps_text=True))

    return read


def _with_python_types(message: Any, plain: dict[str, Any], *, keeps_text: bool) -> dict[str, Any]:  # noqa: ANN401
    """Return the JSON mapping of a message with bytes, and without ``keeps_text`` integers and timedeltas, not text."""
    typed = dict(plain)
    for field in message.DESCRIPTOR.fields:
        if field.name not in plain:
            continue
        value, mapped = getattr(message, field.name), plain[field.name]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            item = field.message_type.fields_by_name["value"]
            typed[field.name] = {
                name: _typed(item, one, mapped[_json_key(name)], keeps_text=keeps_text) for name, one in value.items()
            }
            if not all(isinstance(name, str) for name in value):
                typed[field.name] = {_json_key(name): one for name, one in typed[field.name].items()}
        elif isinstance(mapped, list) and _is_repeated(field):
            typed[field.name] = [
                _typed(field, one, text, keeps_text=keeps_text) for one, text in zip(value, mapped, strict=True)
            ]
        else:
            typed[field.name] = _typed(field, value, mapped, keeps_text=keeps_text)
    return typed


def _typed(field: Any, value: Any, mapped: Any, *, keeps_text: bool) -> Any:  # noqa: ANN401
    """Return a single value of a field; ``mapped`` is its JSON mapping."""
    kind = field.message_type
    name = "" if kind is None else kind.full_name.removeprefix("google.protobuf.")
    typed = mapped
    if name == "BytesValue" or field.type == field.TYPE_BYTES:
        typed = value.value if name else value
    elif name in {"Int64Value", "UInt64Value", "Duration"}:
        if not keeps_text:
            typed = value.ToTimedelta() if name == "Duration" else value.value
    elif kind is None:
        is_integer = isinstance(mapped, str) and isinstance(value, int) and field.enum_type is None
        typed = value if is_integer and not keeps_text else mapped
    elif isinstance(mapped, dict) and not kind.full_name.startswith("google.protobuf."):
        typed = _with_python_types(value, mapped, keeps_text=keeps_text)
    return typed


def _is_repeated(field: Any) -> bool:  # noqa: ANN401
    """Return True for a repeated field; protobuf 7 has no ``label`` any more."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _json_key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _check_message(value: object) -> Any:  # noqa: ANN401
    if not isinstance(value, Message):
        raise TypeError(
            f"{described(type(value))} is not a protobuf message - publish an instance of a generated class"
        )
    return value
