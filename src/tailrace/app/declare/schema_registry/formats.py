"""Wire format of schema registries, and payloads in Avro and JSON, by fastavro, jsonschema and msgspec.

Readers and writers are created once for a schema and a type. Nothing here uses the network.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from tailrace.app.codec_protocols import Decode
from tailrace.app.declare.annotations import described, split_none
from tailrace.app.declare.codecs import JsonCodec, check_type, needs_pydantic
from tailrace.app.declare.schema_registry.avro_limits import depth_check
from tailrace.app.declare.schema_registry.schema import Schema

__all__ = [
    "HEADER",
    "AvroFormat",
    "Encode",
    "Format",
    "JsonFormat",
    "Own",
    "check_schema",
    "converter",
    "header_of",
    "id_of",
    "is_framed",
]

Encode: TypeAlias = Callable[[Any], bytes]
"""Encodes a value as a payload, without the header."""

HEADER = 5
"""Size of the header: a zero byte and the schema id in four bytes."""

_KEPT = (
    bytes,
    bytearray,
    dt.datetime,
    dt.date,
    dt.time,
    decimal.Decimal,
    uuid.UUID,
)
"""Types that Avro supports; values of other types become numbers, strings, lists and dicts."""


class Own(NamedTuple):
    """Local schema, from an option or a class; ``needs`` are the names of the schemas that it imports."""

    text: str
    needs: Sequence[str] = ()


class Format(Protocol):
    """Reader and writer of payloads of one kind of schema.

    All methods may raise any error of the underlying library.

    Attributes:
        kind: schema type in the registry's API.
        is_by_class: True if the class of a value contains its schema.
    """

    kind: str
    is_by_class: bool

    def check(self, annotation: object) -> None:
        """Raise TypeError if the format cannot decode to a type."""

    def reader(self, schema: Schema, annotation: object) -> Decode:
        """Return a decoder of whole values, header included, written with this schema."""

    def writer(self, schema: Schema, value: object) -> Encode:
        """Return an encoder for this schema and values of the same kind as ``value``."""

    def own(self, text: str | None, value: object) -> Mapping[str, Own]:
        """Return a value's schema, from ``text`` or its class, under "", after its imports, under their names."""

    def record_name(self, text: str | None, value: object) -> str:
        """Return the name of a value's schema, from ``text`` or its class."""


def header_of(schema_id: int) -> bytes:
    """Return the header of values written with a schema."""
    return b"\x00" + schema_id.to_bytes(4, "big")


def is_framed(data: bytes) -> bool:
    """Return True if data begins with a header; an id is a positive 32-bit integer."""
    return len(data) >= HEADER and data[0] == 0 and data[1] < 0x80


def id_of(data: bytes) -> int:
    """Return the schema id of a value.

    Raises:
        ValueError: the value is not in the wire format of a schema registry.
    """
    if not is_framed(data):
        raise ValueError(
            "it is not in a schema registry's wire format, which begins with a zero and the id of a schema"
        )
    return int.from_bytes(data[1:HEADER], "big")


def check_schema(schema: Schema, form: Format, rules: Sequence[str]) -> None:
    """Check that a format can use a schema.

    Raises:
        TypeError: the schema is of another kind, or has rules, which are not supported.
    """
    if schema.kind != form.kind:
        raise TypeError(
            f"schema {schema.id} is {schema.kind} - give this topic a codec of format={schema.kind.lower()!r}"
        )
    if rules:
        raise TypeError(f"schema {schema.id} has rules, and none are run here: {', '.join(rules)}")


# ---- Avro ----------------------------------------------------------------------------------------------------------


class AvroFormat:
    """Avro, by fastavro; fields of a schema and of a type are matched by name."""

    kind = "AVRO"
    is_by_class = False

    def __init__(self) -> None:
        import fastavro  # noqa: PLC0415 - an extra

        self._avro = fastavro

    def check(self, annotation: object) -> None:
        """Raise TypeError if the format cannot decode to a type."""
        converter(annotation)

    def reader(self, schema: Schema, annotation: object) -> Decode:
        """Return a decoder of whole values, header included, written with this schema."""
        parsed, read_avro, convert = self._parsed(schema), self._avro.schemaless_reader, converter(annotation)
        check_depth = depth_check(parsed)

        def read(data: bytes) -> object:
            if check_depth is not None:
                check_depth(data, HEADER)
            stream = io.BytesIO(data)
            stream.seek(HEADER)
            return convert(read_avro(stream, parsed, None))

        return read

    def writer(self, schema: Schema, value: object) -> Encode:  # noqa: ARG002 - any value
        """Return an encoder for this schema and values of the same kind as ``value``."""
        parsed, write_avro = self._parsed(schema), self._avro.schemaless_writer

        def write(value: object) -> bytes:
            stream = io.BytesIO()
            # strict: fields that the schema does not have would be dropped silently.
            write_avro(stream, parsed, _plain(value), strict_allow_default=True)
            return stream.getvalue()

        return write

    def own(self, text: str | None, value: object) -> Mapping[str, Own]:  # noqa: ARG002
        """Return the schema of a value, and those that it imports."""
        return {"": Own(_given(text))}

    def record_name(self, text: str | None, value: object) -> str:  # noqa: ARG002
        """Return the name of a value's schema."""
        schema = json.loads(_given(text))
        name = schema.get("name") if isinstance(schema, dict) else None
        if not name:
            raise ValueError("the schema has no name")
        space = schema.get("namespace")
        return f"{space}.{name}" if space and "." not in name else name

    def _parsed(self, schema: Schema) -> Any:  # noqa: ANN401 - fastavro's
        root = json.loads(schema.text)
        if not schema.references:
            return self._avro.parse_schema(root)
        from fastavro.repository import AbstractSchemaRepository  # noqa: PLC0415 - an extra
        from fastavro.schema import load_schema  # noqa: PLC0415

        texts = {"": schema.text, **schema.references}

        class Referred(AbstractSchemaRepository):
            def load(self, name: str) -> Any:  # noqa: ANN401
                return json.loads(texts[name])

        return load_schema("", repo=Referred())


def _plain(value: object) -> object:
    return msgspec.to_builtins(value, builtin_types=_KEPT, enc_hook=_part)


def _part(value: Any) -> object:  # noqa: ANN401
    if hasattr(value, "model_dump"):
        return value.model_dump()
    raise TypeError(f"there is no Avro for {described(type(value))}")


# ---- JSON ----------------------------------------------------------------------------------------------------------


class JsonFormat:
    """JSON under a JSON Schema, by msgspec and jsonschema.

    Args:
        validate: validate values when reading, too; they are always validated when writing.
    """

    kind = "JSON"
    is_by_class = False

    def __init__(self, *, validate: bool) -> None:
        import jsonschema  # noqa: PLC0415 - an extra
        import referencing  # noqa: PLC0415
        import referencing.jsonschema  # noqa: PLC0415

        self._validators, self._referencing = jsonschema.validators, referencing
        self._validates = validate

    def check(self, annotation: object) -> None:
        """Raise TypeError if the format cannot decode to a type."""
        _json_decoder(annotation)

    def reader(self, schema: Schema, annotation: object) -> Decode:
        """Return a decoder of whole values, header included, written with this schema."""
        decode = _json_decoder(annotation)
        if not self._validates:
            return lambda data: decode(data[HEADER:])
        validate = self._validator(schema)

        def read(data: bytes) -> object:
            payload = data[HEADER:]
            validate(payload)
            return decode(payload)

        return read

    def writer(self, schema: Schema, value: object) -> Encode:  # noqa: ARG002
        """Return an encoder for this schema and values of the same kind as ``value``."""
        validate = self._validator(schema)

        def write(value: object) -> bytes:
            # Here a str is a JSON string, unlike in JsonCodec.
            payload = msgspec.json.encode(value) if isinstance(value, str) else JsonCodec().encode(value)
            validate(payload)
            return payload

        return write

    def own(self, text: str | None, value: object) -> Mapping[str, Own]:  # noqa: ARG002
        """Return the schema of a value, and those that it imports."""
        return {"": Own(_given(text))}

    def record_name(self, text: str | None, value: object) -> str:  # noqa: ARG002
        """Return the name of a value's schema."""
        schema = json.loads(_given(text))
        title = schema.get("title") if isinstance(schema, dict) else None
        if not isinstance(title, str):
            raise ValueError("the schema has no title")  # noqa: TRY004 - the schema is invalid, not an argument
        return title

    def _validator(self, schema: Schema) -> Callable[[bytes], None]:
        root = json.loads(schema.text)
        of_resource = self._referencing.Resource.from_contents
        draft = self._referencing.jsonschema.DRAFT7
        # Without retrieval: references resolve within the registry only, never by URL.
        known = self._referencing.Registry().with_resources(
            [(name, of_resource(json.loads(text), draft)) for name, text in schema.references.items()]
        )
        kind = self._validators.validator_for(root, default=self._validators.Draft7Validator)
        kind.check_schema(root)
        find = kind(root, registry=known).iter_errors

        def validate(payload: bytes) -> None:
            for error in find(msgspec.json.decode(payload)):
                where = ".".join(map(str, error.absolute_path))
                raise ValueError(f"{where}: {error.message}" if where else error.message)

        return validate


def _json_decoder(annotation: object) -> Decode:
    bare, _ = split_none(annotation)
    return msgspec.json.Decoder(str).decode if bare is str else JsonCodec().decoder(annotation)


# ---- both ----------------------------------------------------------------------------------------------------------


def converter(annotation: Any, *, strict: bool = True) -> Callable[[object], object]:  # noqa: ANN401
    """Return a function that converts numbers, strings, times, bytes, lists and dicts to a type.

    Args:
        annotation: the type.
        strict: do not convert strings to numbers.

    Raises:
        TypeError: neither msgspec nor pydantic supports the type.
    """
    bare, _ = split_none(annotation)
    if bare is object or bare is Any:
        return lambda plain: plain
    if bare is dict or bare is list:
        return _exactly(bare)
    if needs_pydantic(annotation):
        from pydantic import TypeAdapter  # noqa: PLC0415 - optional; the type implies that it is installed

        return TypeAdapter(annotation).validate_python
    check_type(annotation)
    msgspec.json.Decoder(annotation)  # raises now what ``convert`` would raise with the first value
    return lambda plain: msgspec.convert(plain, annotation, strict=strict)


def _exactly(kind: type) -> Callable[[object], object]:
    def same(plain: object) -> object:
        if isinstance(plain, kind):
            return plain
        raise TypeError(f"Expected `{kind.__name__}`, got `{type(plain).__name__}`")

    return same


def _given(text: str | None) -> str:
    if text is None:
        raise ValueError("no schema is given for it")
    return text
