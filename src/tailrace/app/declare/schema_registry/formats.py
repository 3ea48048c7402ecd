"""Confluent's wire format (header and payload), and readers and writers of payloads in Avro and JSON.

Readers and writers are created once for each schema and type. This module does not use the network.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import re
import time
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from tailrace.app.codec_protocols import Decode
from tailrace.app.declare.annotations import described, split_none
from tailrace.app.declare.codecs import JsonCodec, check_pydantic_type, check_type, dump_pydantic, needs_pydantic
from tailrace.app.declare.schema_registry.avro_limits import for_fastavro, payload_check
from tailrace.app.declare.schema_registry.schema import Schema

__all__ = [
    "HEADER_SIZE",
    "LARGE_VALUE",
    "AvroFormat",
    "Format",
    "JsonFormat",
    "LocalSchema",
    "PayloadReader",
    "PayloadWriter",
    "check_schema",
    "converter",
    "header_of",
    "id_of",
    "is_framed",
]

HEADER_SIZE = 5
"""Size in bytes of the header: a zero byte and the schema id in four bytes."""

LARGE_VALUE = 16 << 10
"""Size in bytes above which a value is decoded in a thread if this takes Python code for each part of the value."""
_MAX_SECONDS, _MAX_SECONDS_OF_LARGE = 0.5, 10.0
"""Maximum processor time of the validation of a small and of a large value."""
_MAX_SCHEMA_CHARS = 2 << 20
"""Maximum size of a schema, with all schemas that it references."""
_AVRO_TYPES = (
    bytes,
    bytearray,
    dt.datetime,
    dt.date,
    dt.time,
    decimal.Decimal,
    uuid.UUID,
)
"""Types that are passed to fastavro unchanged; other types are converted to numbers, strings, lists and dicts."""


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


# ---- Avro ----------------------------------------------------------------------------------------------------------


class AvroFormat:
    """Avro, with fastavro; the fields of a schema and of a Python type are matched by name."""

    kind = "AVRO"
    is_by_class = False

    def __init__(self) -> None:
        import fastavro  # noqa: PLC0415 - an extra

        self._avro = fastavro

    def check(self, annotation: object) -> None:
        """Raise TypeError if the format cannot decode to a type."""
        converter(annotation)

    def reader(self, schema: Schema, annotation: object) -> PayloadReader:
        """Return a reader of values that were written with this schema."""
        parsed, read_avro, convert = self._parsed(schema), self._avro.schemaless_reader, converter(annotation)
        check_payload = payload_check(parsed)

        def read(data: bytes) -> object:
            if check_payload is not None:
                check_payload(data, HEADER_SIZE)
            stream = io.BytesIO(data)
            stream.seek(HEADER_SIZE)
            return convert(read_avro(stream, parsed, None))

        return PayloadReader(read, is_slow=check_payload is not None)

    def writer(self, schema: Schema, value: object) -> PayloadWriter:  # noqa: ARG002 - any value
        """Return a writer of payloads with this schema."""
        try:
            parsed = self._parsed(schema, keeps_defaults=True)
        except self._avro.schema.SchemaParseException:
            parsed = self._parsed(schema)  # The schema may have an invalid default, which Java ignores.
        write_avro = self._avro.schemaless_writer

        def write(value: object) -> bytes:
            stream = io.BytesIO()
            # strict_allow_default: otherwise, fields that the schema does not have would be dropped silently.
            write_avro(stream, parsed, _convert_to_builtins(value), strict_allow_default=True)
            return stream.getvalue()

        return PayloadWriter(write)

    def local_schemas(self, text: str | None, value: object) -> Mapping[str, LocalSchema]:  # noqa: ARG002
        """Return the schema in ``text``, with the name ""."""
        return {"": LocalSchema(_required(text))}

    def record_name(self, text: str | None, value: object) -> str:  # noqa: ARG002
        """Return the name of the schema in ``text``."""
        schema = json.loads(_required(text))
        name = schema.get("name") if isinstance(schema, dict) else None
        if not name:
            raise ValueError("the schema has no name")
        space = schema.get("namespace")
        return f"{space}.{name}" if space and "." not in name else name

    def _parsed(self, schema: Schema, *, keeps_defaults: bool = False) -> Any:  # noqa: ANN401 - fastavro's
        def load(text: str) -> Any:  # noqa: ANN401
            return for_fastavro(json.loads(text), keeps_defaults=keeps_defaults)

        if not schema.references:
            return self._avro.parse_schema(load(schema.text))
        from fastavro.repository import AbstractSchemaRepository  # noqa: PLC0415 - an extra
        from fastavro.schema import load_schema  # noqa: PLC0415

        texts = {"": schema.text, **schema.references}

        class References(AbstractSchemaRepository):
            def load(self, name: str) -> Any:  # noqa: ANN401
                return load(texts[name])

        return load_schema("", repo=References())


def _convert_to_builtins(value: object) -> object:
    if hasattr(type(value), "__pydantic_serializer__"):
        value = dump_pydantic(value)
    return msgspec.to_builtins(value, builtin_types=_AVRO_TYPES, enc_hook=_to_builtins)


def _to_builtins(value: Any) -> object:  # noqa: ANN401
    """Convert a pydantic model to a dict; msgspec calls this function for values that it does not support."""
    try:
        return dump_pydantic(value)
    except TypeError as error:
        raise TypeError(f"{described(type(value))} cannot be encoded as Avro") from error


# ---- JSON ----------------------------------------------------------------------------------------------------------


class JsonFormat:
    """JSON with a JSON Schema, with msgspec and jsonschema.

    Args:
        validate: True to validate values when they are read, too; values are always validated when they are written.
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

    def reader(self, schema: Schema, annotation: object) -> PayloadReader:
        """Return a reader of values that were written with this schema."""
        decode = _json_decoder(annotation)
        if not self._validates:
            return PayloadReader(lambda data: decode(data[HEADER_SIZE:]))
        validate = self._validator(schema)

        def read(data: bytes) -> object:
            payload = data[HEADER_SIZE:]
            validate(payload)
            return decode(payload)

        return PayloadReader(read, is_slow=True)

    def writer(self, schema: Schema, value: object) -> PayloadWriter:  # noqa: ARG002
        """Return a writer of payloads with this schema."""

        def write(value: object) -> bytes:
            # A str is encoded as a JSON string, unlike in JsonCodec.
            return msgspec.json.encode(value) if isinstance(value, str) else JsonCodec().encode(value)

        return PayloadWriter(write, self._validator(schema))

    def local_schemas(self, text: str | None, value: object) -> Mapping[str, LocalSchema]:  # noqa: ARG002
        """Return the schema in ``text``, with the name ""."""
        return {"": LocalSchema(_required(text))}

    def record_name(self, text: str | None, value: object) -> str:  # noqa: ARG002
        """Return the name of the schema in ``text``."""
        schema = json.loads(_required(text))
        title = schema.get("title") if isinstance(schema, dict) else None
        if not isinstance(title, str):
            raise ValueError("the schema has no title")  # noqa: TRY004 - the schema is invalid, not an argument
        return title

    def _validator(self, schema: Schema) -> Callable[[bytes], None]:
        root = json.loads(schema.text)
        of_resource = self._referencing.Resource.from_contents
        draft = self._referencing.jsonschema.DRAFT7
        # Registry() gets no retrieval function, so that references are never fetched by URL.
        known = self._referencing.Registry().with_resources(
            [(name, of_resource(json.loads(text), draft)) for name, text in schema.references.items()]
        )
        kind = self._validators.validator_for(root, default=self._validators.Draft7Validator)
        kind.check_schema(root)
        find = _limited_validator(kind)(root, registry=known).iter_errors

        def validate(payload: bytes) -> None:
            limit = _TimeLimit(_MAX_SECONDS if len(payload) <= LARGE_VALUE else _MAX_SECONDS_OF_LARGE)
            token = _TIME_LIMIT.set(limit)
            try:
                for error in find(msgspec.json.decode(payload)):
                    where = ".".join(map(str, error.absolute_path))
                    raise ValueError(f"{where}: {error.message}" if where else error.message)
            except RecursionError:
                raise ValueError("the value is nested too deeply") from None
            finally:
                _TIME_LIMIT.reset(token)

        return validate


class _TimeLimit:
    """Limit of the processor time of a validation, which does not depend on how busy the machine is."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end = seconds, time.thread_time() + seconds

    def remaining(self) -> float:
        """Return the remaining time in seconds.

        Raises:
            ValueError: no time is left.
        """
        if (remaining := self._end - time.thread_time()) > 0:
            return remaining
        raise ValueError(f"its validation takes longer than {self._seconds:g} s - simplify the value or the schema")


_TIME_LIMIT: ContextVar[_TimeLimit] = ContextVar("time limit of a validation")
_LIMITED_VALIDATORS: dict[Any, Any] = {}


def _limited_validator(kind: Any) -> Any:  # noqa: ANN401 - jsonschema's
    """Return a class that validates like a class of jsonschema, but in limited time.

    The time is checked before each keyword, and in each search for a pattern.
    """
    import attrs  # noqa: PLC0415 - installed with jsonschema
    import jsonschema.validators  # noqa: PLC0415 - an extra

    if kind in _LIMITED_VALIDATORS.values():
        return kind
    if kind in _LIMITED_VALIDATORS:
        return _LIMITED_VALIDATORS[kind]
    copies: dict[Any, Any] = {}
    keywords = {name: _limited_copy(check, copies) for name, check in kind.VALIDATORS.items()}
    keywords["uniqueItems"] = _check_unique_items
    limited = jsonschema.validators.extend(kind, {name: _in_time(check) for name, check in keywords.items()})
    evolve, fields = limited.evolve, [one for one in attrs.fields(limited) if one.init]

    def evolve_limited(self: Any, **changes: Any) -> Any:  # noqa: ANN401
        # A subschema may name another dialect, for which jsonschema would create an unlimited validator.
        evolved = evolve(self, **changes)
        other = _limited_validator(type(evolved))
        return evolved if other is type(evolved) else other(**{one.alias: getattr(evolved, one.name) for one in fields})

    limited.evolve = evolve_limited
    _LIMITED_VALIDATORS[kind] = limited
    return limited


_Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""Check of a keyword: called with the validator, the keyword's value, the instance and the schema; yields errors."""


def _in_time(check: _Keyword) -> _Keyword:
    def check_in_time(validator: Any, value: Any, instance: Any, schema: Any) -> Any:  # noqa: ANN401
        _TIME_LIMIT.get().remaining()
        return check(validator, value, instance, schema)

    return check_in_time


def _check_unique_items(validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[Any]:  # noqa: ANN401
    """Check ``uniqueItems`` in linear time, by the canonical JSON of the items; jsonschema takes quadratic time."""
    if not value or not validator.is_type(instance, "array"):
        return
    seen: set[bytes] = set()
    for item in instance:
        # A set of tuples would take quadratic time for items with equal hashes, which can be constructed.
        text = msgspec.json.encode(_canonical(item), order="sorted")
        if text in seen:
            yield _validation_error(f"{instance!r} has non-unique elements")
            return
        seen.add(text)


def _canonical(value: object) -> object:
    """Return a JSON value in which equal numbers are equal texts, such as 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value)) if abs(value) >= 2**63 else int(value)
    if isinstance(value, list):
        return [_canonical(one) for one in value]
    if isinstance(value, dict):
        return {name: _canonical(one) for name, one in value.items()}
    return value


def _limited_copy(function: Any, copies: dict[Any, Any]) -> Any:  # noqa: ANN401
    """Return a copy of a function of jsonschema that searches with ``_LimitedSearch``, as do the functions it calls.

    ``copies`` contains the copies of functions.
    """
    if function in copies:
        return copies[function]
    names = dict(function.__globals__)
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copies[function] = copy
    for name, value in names.items():
        if value is re:
            names[name] = _LimitedSearch
        elif isinstance(value, types.FunctionType) and value.__module__.startswith("jsonschema."):
            names[name] = _limited_copy(value, copies)
    return copy


class _LimitedSearch:
    """Replacement of the module ``re``, which cannot end a search that takes exponential time."""

    @staticmethod
    def search(pattern: str, text: str) -> object:
        import regex  # noqa: PLC0415 - an extra

        try:
            return regex.search(pattern, text, timeout=_TIME_LIMIT.get().remaining())
        except TimeoutError:
            raise ValueError(f"the search for the pattern {pattern!r} takes too long - simplify the pattern") from None


def _validation_error(message: str) -> Any:  # noqa: ANN401
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - an extra

    return ValidationError(message)


def _json_decoder(annotation: object) -> Decode:
    bare, _ = split_none(annotation)
    return msgspec.json.Decoder(str).decode if bare is str else JsonCodec().decoder(annotation)


# ---- types ---------------------------------------------------------------------------------------------------------


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


def _required(text: str | None) -> str:
    if text is None:
        raise ValueError("schemas= contains none")
    return text
