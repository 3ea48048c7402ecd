"""Confluent's wire format (header and payload), and the formats of payloads.

Readers and writers of payloads are created once for each schema and type. This module does not use the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from tailrace.codecs.annotations import split_none
from tailrace.codecs.json_codec import check_pydantic_type, check_type, needs_pydantic
from tailrace.codecs.protocols import Decode

__all__ = [
    "HEADER_SIZE",
    "LARGE_VALUE",
    "Format",
    "LocalSchema",
    "PayloadReader",
    "PayloadWriter",
    "Schema",
    "check_schema",
    "converter",
    "header_of",
    "id_of",
    "is_framed",
    "required_text",
]

HEADER_SIZE = 5
"""Size in bytes of the header: a zero byte and the schema id in four bytes."""

LARGE_VALUE = 16 << 10
"""Size in bytes above which a value is decoded in a thread if this takes Python code for each part of the value."""
_MAX_SCHEMA_CHARS = 2 << 20
"""Maximum size of a schema, with all schemas that it references."""


@dataclass(frozen=True, slots=True)
class Schema:
    """Schema from a registry.

    Attributes:
        kind: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        references: texts of all schemas that this schema references, directly and indirectly, by name. Each text comes
            after those that it references.
        read_rules: names of the enabled rules that apply to reading.
        write_rules: names of the enabled rules that apply to writing.
    """

    id: int
    kind: str
    text: str
    references: Mapping[str, str] = field(default_factory=dict)
    read_rules: Sequence[str] = ()
    write_rules: Sequence[str] = ()


class LocalSchema(NamedTuple):
    """Schema from an option or a class, not from the registry."""

    text: str
    imports: Sequence[str] = ()
    """Names of the schemas that this schema imports directly."""


class PayloadReader(NamedTuple):
    """Reader of values with one schema, for one type.

    Attributes:
        decode: decodes a whole value, header included.
        is_slow: True if ``decode`` runs Python code for each part of a value, so that large values need a thread.
    """

    decode: Decode
    is_slow: bool = False

    def __call__(self, data: bytes) -> object:
        """Decode a value."""
        return self.decode(data)


class PayloadWriter(NamedTuple):
    """Writer of payloads with one schema.

    Attributes:
        encode: encodes a value as a payload, without the header.
        check: raises an error if a payload does not match the schema; None if ``encode`` raises all errors.
    """

    encode: Callable[[Any], bytes]
    check: Callable[[bytes], None] | None = None

    def __call__(self, value: object) -> bytes:
        """Encode and check a value."""
        payload = self.encode(value)
        if self.check is not None:
            self.check(payload)
        return payload


class Format(Protocol):
    """Reader and writer of payloads for one type of schema.

    A method may raise any error of the library that it uses.

    Attributes:
        kind: type of the schemas in the registry's API: ``AVRO``, ``JSON`` or ``PROTOBUF``.
        is_by_class: True if the class of a value contains its schema.
    """

    kind: str
    is_by_class: bool

    def check(self, annotation: object) -> None:
        """Raise TypeError if the format cannot decode to a type."""

    def reader(self, schema: Schema, annotation: object) -> PayloadReader:
        """Return a reader of values that were written with this schema."""

    def writer(self, schema: Schema, value: object) -> PayloadWriter:
        """Return a writer of payloads with this schema, for values of the same class as ``value``."""

    def local_schemas(self, text: str | None, value: object) -> Mapping[str, LocalSchema]:
        """Return the schema in ``text``, or of the class of ``value``, and all schemas that it imports, by name.

        Each schema comes after those that it imports. The schema itself comes last and has the name "".
        """

    def record_name(self, text: str | None, value: object) -> str:
        """Return the name of the schema in ``text``, or of the class of ``value``."""


def header_of(schema_id: int) -> bytes:
    """Return the header of values written with a schema."""
    return b"\x00" + schema_id.to_bytes(4, "big")


def is_framed(data: bytes) -> bool:
    """Return True if ``data`` begins with a header: a zero byte, and a signed 32-bit integer that is not negative."""
    return len(data) >= HEADER_SIZE and data[0] == 0 and data[1] < 0x80


def id_of(data: bytes) -> int:
    """Return the schema id of a value.

    Raises:
        ValueError: the value is not in the wire format of a schema registry.
    """
    if not is_framed(data):
        raise ValueError("the bytes are not in the wire format (zero byte, schema id in four bytes)")
    return int.from_bytes(data[1:HEADER_SIZE], "big")


def check_schema(schema: Schema, form: Format, rules: Sequence[str]) -> None:
    """Check that a format can use a schema.

    Raises:
        TypeError: the schema has another type, is too large, or has rules, which are not supported.
    """
    size = len(schema.text) + sum(map(len, schema.references.values()))
    if size > _MAX_SCHEMA_CHARS:
        raise TypeError(
            f"schema {schema.id} and the schemas that it references have {size:,} characters, more than"
            f" {_MAX_SCHEMA_CHARS:,} - split the schema"
        )
    if schema.kind != form.kind:
        raise TypeError(
            f"schema {schema.id} is {schema.kind} - use a codec with format={schema.kind.lower()!r} for this topic"
        )
    if rules:
        raise TypeError(f"schema {schema.id} has rules, which are not supported: {', '.join(rules)}")


def converter(annotation: Any, *, strict: bool = True) -> Callable[[object], object]:  # noqa: ANN401
    """Return a function that converts numbers, strings, times, bytes, lists and dicts to the type ``annotation``.

    With ``strict=False``, the function also converts strings to numbers.

    Raises:
        TypeError: neither msgspec nor pydantic supports the type.
    """
    bare, _ = split_none(annotation)
    if bare is object or bare is Any:
        return lambda plain: plain
    if bare is dict or bare is list:
        return _check_instance(bare)
    if needs_pydantic(annotation):
        from pydantic import TypeAdapter  # noqa: PLC0415 - optional; the type implies that it is installed

        check_pydantic_type(annotation)
        return TypeAdapter(annotation).validate_python
    check_type(annotation)
    msgspec.json.Decoder(annotation)  # Raises for an unsupported type; convert() would raise only for the first value.
    return lambda plain: msgspec.convert(plain, annotation, strict=strict)


def _check_instance(kind: type) -> Callable[[object], object]:
    def check(plain: object) -> object:
        if isinstance(plain, kind):
            return plain
        raise TypeError(f"Expected `{kind.__name__}`, got `{type(plain).__name__}`")

    return check


def required_text(text: str | None) -> str:
    if text is None:
        raise ValueError("schemas= contains none")
    return text
