"""Avro and JSON under a schema: payloads as values and back, by fastavro, jsonschema and msgspec.

Rule of this file: what can be known of a schema or a type is worked out once for it; nothing here asks anybody.
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
from tailrace.app.declare.codecs import JsonCodec, check, is_of_pydantic
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
"""A value as a payload, which stands behind the header."""

HEADER = 5
"""A zero, and four bytes of the schema's id."""

_KEPT = (
    bytes,
    bytearray,
    dt.datetime,
    dt.date,
    dt.time,
    decimal.Decimal,
    uuid.UUID,
)
"""What Avro has a type for; everything else becomes numbers, texts, lists and dicts."""


class Own(NamedTuple):
    """A schema that is here, and not only in the registry; ``needs`` has the names of those that it imports."""

    text: str
    needs: Sequence[str] = ()


class Format(Protocol):
    """Reads and writes what stands behind the header, under one kind of schema.

    All of it raises whatever its library does over what it does not take.

    Attributes:
        kind: as registries call it.
        is_by_class: whether the class of a value has its schema.
    """

    kind: str
    is_by_class: bool

    def check(self, annotation: object) -> None:
        """Refuse, by TypeError, a type that is never read."""

    def reader(self, schema: Schema, annotation: object) -> Decode:
        """Decodes whole values, header included, that were written with this schema."""

    def writer(self, schema: Schema, value: object) -> Encode:
        """Encodes values such as this one by this schema."""

    def own(self, text: str | None, value: object) -> Mapping[str, Own]:
        """The schema for such a value, of that text, under "", behind those that it imports under their names."""

    def record_name(self, text: str | None, value: object) -> str:
        """What such a value is called by its schema, of that text."""


def header_of(schema_id: int) -> bytes:
    """What values begin with that were written with this schema."""
    return b"\x00" + schema_id.to_bytes(4, "big")


def is_framed(data: bytes) -> bool:
    """Whether it begins as a registry's values do; an id is a positive number of 32 bits."""
    return len(data) >= HEADER and data[0] == 0 and data[1] < 0x80


def id_of(data: bytes) -> int:
    """The id of the schema that a value was written with.

    Raises:
        ValueError: it is not in the wire format of a schema registry.
    """
    if not is_framed(data):
        raise ValueError(
            "it is not in a schema registry's wire format, which begins with a zero and the id of a schema"
        )
    return int.from_bytes(data[1:HEADER], "big")


def check_schema(schema: Schema, form: Format, rules: Sequence[str]) -> None:
    """Refuse a schema of another kind, or one that asks for more than a schema does.

    Raises:
        TypeError: saying what to do.
    """
    if schema.kind != form.kind:
        raise TypeError(
            f"schema {schema.id} is {schema.kind} - give this topic a codec of format={schema.kind.lower()!r}"
        )
    if rules:
        raise TypeError(f"schema {schema.id} has rules, and none are run here: {', '.join(rules)}")


# ---- Avro ----------------------------------------------------------------------------------------------------------


class AvroFormat:
    """Avro, by fastavro: what was written with one schema and is read as a type is told apart by its fields' names."""

    kind = "AVRO"
    is_by_class = False

    def __init__(self) -> None:
        import fastavro  # noqa: PLC0415 - an extra

        self._avro = fastavro

    def check(self, annotation: object) -> None:
        """Refuse, by TypeError, a type that is never read."""
        converter(annotation)

    def reader(self, schema: Schema, annotation: object) -> Decode:
        """Decodes whole values, header included, that were written with this schema."""
        parsed, read_avro, convert = self._parsed(schema), self._avro.schemaless_reader, converter(annotation)
        check_depth = depth_check(parsed)

        def read(data: bytes) -> object:
            if check_depth is not None:
                check_depth(data, HEADER)
            stream = io.BytesIO(data)
            stream.seek(HEADER)
            return convert(read_avro(stream, parsed, None))

        return read

    def writer(self, schema: Schema, value: object) -> Encode:  # noqa: ARG002 - of any value
        """Encodes values such as this one by this schema."""
        parsed, write_avro = self._parsed(schema), self._avro.schemaless_writer

        def write(value: object) -> bytes:
            stream = io.BytesIO()
            # What the schema has no field for would be lost without a word.
            write_avro(stream, parsed, _plain(value), strict_allow_default=True)
            return stream.getvalue()

        return write

    def own(self, text: str | None, value: object) -> Mapping[str, Own]:  # noqa: ARG002
        """The schema for such a value, and those that it imports."""
        return {"": Own(_given(text))}

    def record_name(self, text: str | None, value: object) -> str:  # noqa: ARG002
        """What such a value is called by its schema."""
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
        validate: whether what is read is held against its schema; what is written always is.
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
        """Refuse, by TypeError, a type that is never read."""
        _json_decoder(annotation)

    def reader(self, schema: Schema, annotation: object) -> Decode:
        """Decodes whole values, header included, that were written with this schema."""
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
        """Encodes values such as this one by this schema."""
        validate = self._validator(schema)

        def write(value: object) -> bytes:
            # Within the format a text is JSON's, too.
            payload = msgspec.json.encode(value) if isinstance(value, str) else JsonCodec().encode(value)
            validate(payload)
            return payload

        return write

    def own(self, text: str | None, value: object) -> Mapping[str, Own]:  # noqa: ARG002
        """The schema for such a value, and those that it imports."""
        return {"": Own(_given(text))}

    def record_name(self, text: str | None, value: object) -> str:  # noqa: ARG002
        """What such a value is called by its schema."""
        schema = json.loads(_given(text))
        title = schema.get("title") if isinstance(schema, dict) else None
        if not isinstance(title, str):
            raise ValueError("the schema has no title")  # noqa: TRY004 - it is no type of ours
        return title

    def _validator(self, schema: Schema) -> Callable[[bytes], None]:
        root = json.loads(schema.text)
        of_resource = self._referencing.Resource.from_contents
        draft = self._referencing.jsonschema.DRAFT7
        # It fetches nothing: what a schema refers to is in the registry, or is not there.
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
    """What makes a type of numbers, texts, times, bytes, lists and dicts.

    Args:
        annotation: the type.
        strict: whether texts stay texts; if not, they may be numbers, too.

    Raises:
        TypeError: neither msgspec nor pydantic takes this type.
    """
    bare, _ = split_none(annotation)
    if bare is object or bare is Any:
        return lambda plain: plain
    if bare is dict or bare is list:
        return _exactly(bare)
    if is_of_pydantic(annotation):
        from pydantic import TypeAdapter  # noqa: PLC0415 - optional: whoever has such a type has it

        return TypeAdapter(annotation).validate_python
    check(annotation)
    msgspec.json.Decoder(annotation)  # it refuses what ``convert`` would with the first value
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
