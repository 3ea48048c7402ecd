"""Avro payloads, with limits that are checked before fastavro's C decoder reads a payload.

The C decoder recurses for each level of nesting, and creates all values that take no bytes. A few bytes from a
malicious producer could overflow the stack, exhaust the memory of the process, or block the event loop for minutes.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import math
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, NamedTuple

import msgspec

from tailrace.codecs.annotations import described
from tailrace.codecs.json_codec import dump_pydantic
from tailrace.codecs.wire_format import (
    HEADER_SIZE,
    LocalSchema,
    PayloadReader,
    PayloadWriter,
    Schema,
    converter,
    required_text,
)

__all__ = ["AvroFormat", "for_fastavro", "payload_check"]

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


class AvroFormat:
    """Avro, with fastavro; the fields of a schema and of a Python type are matched by name."""

    kind = "AVRO"
    is_by_class = False

    def __init__(self) -> None:
        import fastavro  # noqa: PLC0415 - an extra

        self._avro = fastavro

    def check(self, annotation: object) -> None:
        converter(annotation)

    def reader(self, schema: Schema, annotation: object) -> PayloadReader:
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
        return {"": LocalSchema(required_text(text))}

    def record_name(self, text: str | None, value: object) -> str:  # noqa: ARG002
        schema = json.loads(required_text(text))
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


# ---- limits ----------------------------------------------------------------------------------------------------------

_MAX_NESTED_RECORDS = 200
"""Maximum nesting of records in a payload of a recursive schema."""
_MAX_LEVELS = 500
"""Maximum nesting of records, arrays, maps and unions; fastavro's decoder crashes at some 10,000 levels."""
_MAX_EMPTY_VALUES = 10_000
"""Maximum number of values without bytes, such as nulls and empty records, in one value outside of arrays and maps."""
_MAX_EMPTY_ITEMS = 1_000_000
"""Maximum number of values without bytes in all items of the arrays and maps of a payload."""
_MIN_SIZES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
"""Minimum size of each primitive type, in bytes."""
_FREE_EMPTY_VALUES = 4
"""Number of values without bytes for each byte of a payload that need no limit."""
_MAX_VARINT_BYTES = 10
_DECIMAL = "tailrace-decimal"
"""Logical type that replaces ``decimal`` in parsed schemas, so that fastavro calls this module for decimals."""
_MIN_DECIMAL_BYTES, _MAX_DECIMAL_BYTES = 64, 4096
"""Bounds of the limit for the size of a decimal; the conversion of an integer takes quadratic time."""
_MAX_DECIMAL_DIGITS = 9_000
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def payload_check(schema: Any) -> Callable[[bytes, int], None] | None:  # noqa: ANN401 - fastavro's parsed schema
    """Return a function that checks a payload before it is decoded; None if no payload of the schema is malicious.

    The function is called with the data and the index at which the payload begins. It raises ValueError if the payload
    is nested too deeply, is incomplete, or contains too many values that take no bytes.

    Raises:
        TypeError: the schema is nested too deeply, or has too many values that take no bytes.
    """
    try:
        checker = _PayloadChecker(schema)
    except RecursionError:
        raise _too_deep() from None
    return checker.check if checker.is_recursive or checker.empty_per_byte > _FREE_EMPTY_VALUES else None


def for_fastavro(schema: Any, *, keeps_defaults: bool = False) -> Any:  # noqa: ANN401 - decoded JSON
    """Return a schema that fastavro uses as Java does.

    Decimals are converted exactly, and in limited time. Without ``keeps_defaults``, defaults are left out, because
    fastavro refuses schemas with invalid ones, and a schema with which values were written needs none.

    Raises:
        TypeError: the schema is nested too deeply.
    """
    _register_decimals()
    try:
        return _for_fastavro(schema, keeps_defaults=keeps_defaults)
    except RecursionError:
        raise _too_deep() from None


def _for_fastavro(schema: Any, *, keeps_defaults: bool) -> Any:  # noqa: ANN401
    if isinstance(schema, list):
        return [_for_fastavro(one, keeps_defaults=keeps_defaults) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if keeps_defaults or name != "default"}
    for name in kept.keys() & {"type", "items", "values", "fields"}:
        kept[name] = _for_fastavro(kept[name], keeps_defaults=keeps_defaults)
    if kept.get("logicalType") == "decimal":
        kept["logicalType"] = _DECIMAL
        if not _is_decimal(kept):
            del kept["logicalType"]  # as the specification demands of invalid logical types
    return kept


# ---- decimals ------------------------------------------------------------------------------------------------------


def _is_decimal(schema: dict[str, Any]) -> bool:
    """Return True if the precision and scale of a decimal are valid."""
    precision, scale, size = schema.get("precision"), schema.get("scale", 0), schema.get("size", math.inf)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return False
    return 0 < precision <= math.log10(2) * (8 * size - 1) and 0 <= scale <= precision


def _read_decimal(data: bytes, schema: dict[str, Any], *_: object) -> Decimal:
    """Return a decimal with all its digits, even if there are more than ``precision``, as Java does."""
    limit = min(max(_decimal_size(schema["precision"]), _MIN_DECIMAL_BYTES), _MAX_DECIMAL_BYTES)
    if len(data) > limit and data[0] in {0, 255}:
        sign = data[:1]
        data = sign + data.lstrip(sign)  # A fixed type may be larger than its decimals.
    if len(data) > limit:
        raise ValueError(f"a decimal of precision {schema['precision']} has {len(data)} bytes, more than {limit}")
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-schema.get("scale", 0), _EXACT)


def _write_decimal(value: object, schema: dict[str, Any], *_: object) -> object:
    """Return the bytes of a Decimal; return any other value unchanged.

    Raises:
        ValueError: the type has no value that is equal to the Decimal.
    """
    if not isinstance(value, Decimal):
        return value
    precision, scale = schema["precision"], schema.get("scale", 0)
    # Before the conversion to an integer, which takes quadratic time.
    fits = value.is_finite() and (not value or value.adjusted() + 1 + scale <= precision)
    unscaled = value.scaleb(scale, _EXACT) if fits and value else Decimal(0)
    if not fits or unscaled != unscaled.to_integral_value(context=_EXACT):
        raise ValueError(f"{value:.20} is not a decimal of precision {precision} and scale {scale}")
    if unscaled.adjusted() >= _MAX_DECIMAL_DIGITS:
        raise ValueError(f"the decimal has {unscaled.adjusted() + 1} digits, more than {_MAX_DECIMAL_DIGITS}")
    number = int(unscaled)
    return number.to_bytes(schema.get("size") or (number.bit_length() + 8) // 8, "big", signed=True)


def _decimal_size(precision: int) -> int:
    """Return the size in bytes of the largest decimal with ``precision`` digits."""
    return math.ceil(precision * math.log2(10) / 8) + 1


def _register_decimals() -> None:
    import fastavro.read  # noqa: PLC0415 - an extra
    import fastavro.write  # noqa: PLC0415

    readers: dict[str, Any] = fastavro.read.LOGICAL_READERS
    writers: dict[str, Any] = fastavro.write.LOGICAL_WRITERS
    for kind in ("bytes", "fixed"):
        readers[f"{kind}-{_DECIMAL}"], writers[f"{kind}-{_DECIMAL}"] = _read_decimal, _write_decimal


# ---- payloads ------------------------------------------------------------------------------------------------------


class _Measures(NamedTuple):
    """Properties of the values of a type.

    Attributes:
        levels: maximum nesting of records, arrays, maps and unions, without the repetition of recursive types.
        min_size: minimum size in bytes.
        empty: number of values without bytes that are in each value, outside of unions, arrays and maps.
    """

    levels: int
    min_size: int
    empty: int


class _PayloadChecker:
    """Checks a schema and its payloads; ``at`` is always an index in the data.

    Attributes:
        is_recursive: True if a type of the schema can contain itself.
        empty_per_byte: maximum number of values without bytes for each byte of the items of arrays, maps and unions.

    Raises:
        TypeError: the schema exceeds a limit.
    """

    def __init__(self, schema: Any) -> None:  # noqa: ANN401
        self._schema = schema
        self._named_types: dict[str, Any] = {}
        self._measured: dict[str, _Measures] = {}
        """Measures of named types."""
        self.is_recursive = False
        for part in self._parts(schema):
            if isinstance(part, dict) and "name" in part:
                self._named_types[part["name"]] = part
        root = self._measure(schema, ())
        if root.levels > _MAX_LEVELS:
            raise _too_deep()
        if root.empty > _MAX_EMPTY_VALUES:
            raise _too_empty()
        self.empty_per_byte = 0.0
        for part in self._parts(schema):
            self._add_items(part)

    def check(self, data: bytes, at: int) -> None:
        """Raise ValueError if the payload that begins at ``at`` exceeds a limit or is incomplete."""
        is_amplified = self.empty_per_byte > _FREE_EMPTY_VALUES
        if is_amplified and (len(data) - at) * self.empty_per_byte > _MAX_EMPTY_ITEMS:
            raise ValueError(f"the payload may contain more than {_MAX_EMPTY_ITEMS:,} values that take no bytes")
        if not self.is_recursive:
            return
        try:
            self._skip(self._schema, data, at, 0)
        except RecursionError:
            raise ValueError("the payload is nested too deeply") from None

    # ---- the schema --------------------------------------------------------------------------------------------

    def _parts(self, schema: Any) -> Iterator[Any]:  # noqa: ANN401
        """Yield a schema and all schemas that are written inside it."""
        pending = [schema]
        while pending:
            part = pending.pop()
            yield part
            pending += _children(part)

    def _measure(self, schema: Any, within: tuple[str, ...]) -> _Measures:  # noqa: ANN401
        """Return the measures of a type; ``within`` are the names of the records that contain it."""
        if isinstance(schema, str) and schema in _MIN_SIZES:
            return _Measures(0, _MIN_SIZES[schema], int(schema == "null"))
        found = self._named_types[schema] if isinstance(schema, str) else schema
        name = found.get("name") if isinstance(found, dict) else None
        if name is None:
            return self._measure_new(found, within)
        if name in self._measured:
            return self._measured[name]
        if name in within:
            # No payload can contain a record that always contains itself, so any positive size is correct.
            self.is_recursive = True
            return _Measures(0, 1, 0)
        self._measured[name] = self._measure_new(found, (*within, name))
        return self._measured[name]

    def _measure_new(self, schema: Any, within: tuple[str, ...]) -> _Measures:  # noqa: ANN401
        kind = "union" if isinstance(schema, list) else schema["type"]
        if kind == "enum":
            return _Measures(0, 1, 0)
        if kind == "fixed":
            return _Measures(0, schema["size"], int(not schema["size"]))
        inner = [self._measure(one, within) for one in _children(schema)]
        levels = 1 + max((one.levels for one in inner), default=0)
        if kind in {"union", "array", "map"}:
            return _Measures(levels, 1, 0)
        if kind in {"record", "error"}:
            min_size = sum(one.min_size for one in inner)
            return _Measures(levels, min_size, sum(one.empty for one in inner) + int(not min_size))
        return self._measure(kind, within)

    def _add_items(self, schema: Any) -> None:  # noqa: ANN401
        """Take the items of an array or map, or the branches of a union, into account for ``empty_per_byte``."""
        kind = "union" if isinstance(schema, list) else schema["type"] if isinstance(schema, dict) else None
        if kind not in {"union", "array", "map"}:
            return
        for one in _children(schema):
            item = self._measure(one, ())
            if kind == "array" and not item.min_size:
                raise TypeError("the schema has an array whose items take no bytes, so that its length is unlimited")
            if item.empty > _MAX_EMPTY_VALUES:
                raise _too_empty()
            if one != "null":
                size = item.min_size + (kind != "array")
                self.empty_per_byte = max(self.empty_per_byte, item.empty / size)

    # ---- the payload -------------------------------------------------------------------------------------------

    def _skip(self, schema: Any, data: bytes, at: int, depth: int) -> int:  # noqa: ANN401
        """Return the end of the value that begins at ``at``; ``depth`` is the number of records that contain it.

        Python's limit of recursion, which is at some 400 levels, limits the nesting of arrays, maps and unions.
        """
        if isinstance(schema, list):
            branch, at = _long(data, at)
            if not 0 <= branch < len(schema):
                raise ValueError(f"the payload names branch {branch} of a union with {len(schema)} branches")
            return self._skip(schema[branch], data, at, depth)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in _MIN_SIZES:
            at = _skip_primitive(kind, data, at)
        elif isinstance(schema, str):
            at = self._skip(self._named_types[schema], data, at, depth)
        elif kind in {"record", "error"}:
            at = self._skip_fields(schema, data, at, depth + 1)
        elif kind in {"array", "map"}:
            at = self._skip_blocks(schema, data, at, depth)
        elif kind in {"enum", "fixed"}:
            at = _long(data, at)[1] if kind == "enum" else at + schema["size"]
        else:
            at = self._skip(kind, data, at, depth)
        if at > len(data):
            raise ValueError("the payload is incomplete")
        return at

    def _skip_fields(self, schema: Any, data: bytes, at: int, depth: int) -> int:  # noqa: ANN401
        if depth > _MAX_NESTED_RECORDS:
            raise ValueError(f"records are nested deeper than {_MAX_NESTED_RECORDS} levels")
        for one in schema["fields"]:
            at = self._skip(one["type"], data, at, depth)
        return at

    def _skip_blocks(self, schema: Any, data: bytes, at: int, depth: int) -> int:  # noqa: ANN401
        is_map = schema["type"] == "map"
        while True:
            count, at = _long(data, at)
            if not count:
                return at
            if count < 0:
                # After a negative count comes the size of the block in bytes, which fastavro ignores, too.
                at = _long(data, at)[1]
            for _ in range(abs(count)):
                if is_map:
                    at = self._skip("string", data, at, depth)
                at = self._skip(schema["values" if is_map else "items"], data, at, depth)


def _children(schema: Any) -> list[Any]:  # noqa: ANN401
    """Return the schemas that are written directly inside a schema."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    kind = schema["type"]
    inner = [one["type"] for one in schema.get("fields", ())]
    inner += [schema[name] for name in ("items", "values") if name in schema]
    return inner if isinstance(kind, str) else [kind]


def _skip_primitive(kind: str, data: bytes, at: int) -> int:
    if kind in {"bytes", "string"}:
        size, at = _long(data, at)
        return at + max(0, size)
    return _long(data, at)[1] if kind in {"int", "long"} else at + _MIN_SIZES[kind]


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, a zigzag varint, and the end of the number."""
    value = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise ValueError("the payload ends within a number, or the number is too long")


def _too_deep() -> TypeError:
    return TypeError(f"the schema is nested deeper than {_MAX_LEVELS} levels")


def _too_empty() -> TypeError:
    return TypeError(f"the schema has more than {_MAX_EMPTY_VALUES:,} values that take no bytes in one value")
