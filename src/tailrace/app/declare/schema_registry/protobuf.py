"""Protobuf payloads: after the header come message indexes, which select a message type of the schema.

A payload is decoded only as the message type that its schema and indexes name.
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

from tailrace.app.codec_protocols import Decode
from tailrace.app.declare.annotations import described, split_none
from tailrace.app.declare.schema_registry.formats import HEADER, Encode, Own, converter
from tailrace.app.declare.schema_registry.schema import Schema

__all__ = ["ProtobufFormat", "compiled"]

_MOST_INDEXES = 64
_WELL_KNOWN = ("google/protobuf/", "google/type/", "confluent/")


class ProtobufFormat:
    """Protobuf, by Google's library; types other than generated classes are decoded through the JSON mapping."""

    kind = "PROTOBUF"
    is_by_class = True

    def check(self, annotation: object) -> None:
        """Raise TypeError if the format cannot decode to a type."""
        if not _classes(annotation):
            converter(annotation, strict=False)

    def reader(self, schema: Schema, annotation: object) -> Decode:
        """Return a decoder of whole values, header included, written with this schema."""
        classes = _classes(annotation)
        file = _file(schema)
        if file is None and len(classes) == 1:
            return _as_the_only(classes[0])
        if file is None:
            raise ValueError(f"the registry has schema {schema.id} as text only - take one generated class")
        by_name = {one.DESCRIPTOR.full_name: one.FromString for one in classes}
        convert = None if classes else converter(annotation, strict=False)
        parsers: dict[tuple[int, ...], Callable[[bytes], object]] = {}

        def read(data: bytes) -> object:
            indexes, start = _indexes(data)
            parse = parsers.get(indexes)
            if parse is None:
                found = _message(file, indexes)
                parse = _plainly(found, convert) if convert is not None else by_name.get(found.full_name)
                if parse is None:
                    raise ValueError(f"it is a {found.full_name}")
                parsers[indexes] = parse
            return parse(data[start:])

        return read

    def writer(self, schema: Schema, value: object) -> Encode:
        """Return an encoder for this schema and values of the same class as ``value``."""
        message: Descriptor = _message_of(value).DESCRIPTOR
        file = _file(schema)
        if file is not None:
            # Indexes in the registry's schema may differ from those in the class's.
            message = file.pool.FindMessageTypeByName(message.full_name)
        prefix = _packed(_path(message))
        return lambda value: prefix + _message_of(value).SerializeToString()

    def own(self, text: str | None, value: object) -> Mapping[str, Own]:  # noqa: ARG002 - the generated class contains the schema
        """Return the schema of a value, and those that it imports."""
        found: dict[str, Own] = {}

        def follow(file: FileDescriptor, name: str) -> None:
            needs = [one for one in file.dependencies if not one.name.startswith(_WELL_KNOWN)]
            for one in needs:
                follow(one, one.name)
            found[name] = Own(base64.b64encode(file.serialized_pb).decode(), [one.name for one in needs])

        follow(_message_of(value).DESCRIPTOR.file, "")
        return found

    def record_name(self, text: str | None, value: object) -> str:  # noqa: ARG002
        """Return the name of a value's message type."""
        return str(_message_of(value).DESCRIPTOR.full_name)


def compiled(name: str, text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Decode a base64 schema into its file descriptor; return None if ``text`` is .proto source."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    file.name = name or file.name
    return file


# ---- schemas -------------------------------------------------------------------------------------------------------


def _file(schema: Schema) -> FileDescriptor | None:
    """Return the descriptor of a schema and its imports; None if one of them is not compiled."""
    texts = {**schema.references, f"schema-{schema.id}.proto": schema.text}
    files = [compiled(name, text) for name, text in texts.items()]
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


def _message(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor:
    """Return the message type at a path: index in the file, index within that message, and so on."""
    among: Sequence[Descriptor] = list(file.message_types_by_name.values())
    found: Descriptor | None = None
    for index in indexes:
        if not 0 <= index < len(among):
            raise ValueError(f"its message indexes {list(indexes)} lead nowhere in its schema")
        found = among[index]
        among = found.nested_types
    assert found is not None
    return found


def _path(message: Descriptor) -> list[int]:
    path: list[int] = []
    within: Descriptor | None = message
    while within is not None:
        outer: Descriptor | None = within.containing_type
        among = list(within.file.message_types_by_name.values()) if outer is None else list(outer.nested_types)
        path.insert(0, among.index(within))
        within = outer
    return path


# ---- message indexes -----------------------------------------------------------------------------------------------


def _indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message indexes after the header, and the start of the message."""
    count, at = _varint(data, HEADER)
    if count == 0:
        return (0,), at  # short form of the most common path
    if not 0 < count <= _MOST_INDEXES:
        raise ValueError(f"it has {count} message indexes")
    indexes: list[int] = []
    for _ in range(count):
        index, at = _varint(data, at)
        indexes.append(index)
    return tuple(indexes), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 64:
        if at >= len(data):
            raise ValueError("it ends within its message indexes")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("a message index is longer than any number")


def _packed(path: Sequence[int]) -> bytes:
    if list(path) == [0]:
        return b"\x00"
    out = bytearray()
    for number in (len(path), *path):
        rest = number << 1
        while rest > 0x7F:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
    return bytes(out)


# ---- values --------------------------------------------------------------------------------------------------------


def _classes(annotation: object) -> list[Any]:
    """Return the generated classes of an annotation; empty for other types."""
    bare, _ = split_none(annotation)
    members = typing.get_args(bare) if typing.get_origin(bare) in {Union, types.UnionType} else (bare,)
    found = [one for one in members if isinstance(one, type) and issubclass(one, Message)]
    if found and len(found) < len(members):
        raise TypeError("generated classes and other types do not go together")
    return found


def _as_the_only(kind: Any) -> Decode:  # noqa: ANN401
    return lambda data: kind.FromString(data[_indexes(data)[1] :])


def _plainly(message: Descriptor, convert: Callable[[object], object]) -> Callable[[bytes], object]:
    parse = message_factory.GetMessageClass(message).FromString

    def read(payload: bytes) -> object:
        plain: Mapping[str, object] = json_format.MessageToDict(
            parse(payload), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        return convert(plain)

    return read


def _message_of(value: object) -> Any:  # noqa: ANN401
    if not isinstance(value, Message):
        raise TypeError(f"{described(type(value))} is no message - publish one of a class that protoc generated")
    return value
