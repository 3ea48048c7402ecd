"""Conversion of Arrow batches of Spark's Kafka source to records, and of handlers' results to rows of a DataFrame.

The driver derives the Spark type of the rows from the return annotation of the handlers.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union

import msgspec
from typing_extensions import is_typeddict

from tailrace.app.handlers import Handler
from tailrace.app.publish.encoding import results_in
from tailrace.codecs.annotations import described, split_none
from tailrace.errors import ConfigurationError, HandlerFailedError
from tailrace.producer.encoding import Message
from tailrace.records import Record, TopicPartition
from tailrace.spark.worker.task_metrics import METRICS_COLUMN

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["arrow_of", "columns_for", "columns_of", "result_type", "rows_of", "slices_of"]

# ---- records ---------------------------------------------------------------------------------------------------------

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "key",
    "value",
    "unix_millis(timestamp) AS timestamp",
    "to_json(headers) AS headers",
)
"""Columns that Spark selects, in this order.

Headers are sent as JSON, because Spark converts lists of structs to Arrow so slowly that reading takes three times as
long, even if all lists are null.
"""


class _Header(msgspec.Struct):
    """Header in Spark's JSON, where bytes are in base64 and null values are omitted."""

    key: str
    value: bytes | None = None


_decode = msgspec.json.Decoder(list[_Header]).decode


def columns_for(topic: str | None) -> tuple[str, ...]:
    """Return the columns to select; the topic is left out if all records are of ``topic``."""
    return COLUMNS if topic is None else COLUMNS[1:]


def slices_of(
    batch: Any,  # noqa: ANN401 - Arrow
    topic: str | None,
    *,
    has_one_partition: bool,
) -> Iterator[tuple[TopicPartition, list[Record]]]:
    """Yield the records of an Arrow batch in order, with one list for consecutive records of the same partition.

    Args:
        batch: RecordBatch with the columns ``columns_for(topic)``.
        topic: topic of all records; None if the batch has a column with the topic.
        has_one_partition: True if all records are of one partition, because Spark did not repartition them.
    """
    if not batch.num_rows:
        return
    *_, partitions, offsets, keys, values, timestamps, headers = batch.columns
    all_headers = repeat(()) if headers.null_count == len(headers) else map(_headers, headers.to_pylist())
    fields = (*(one.to_pylist() for one in (offsets, keys, values, timestamps)), all_headers, repeat(None))
    if has_one_partition:
        partition = TopicPartition(batch.column(0)[0].as_py() if topic is None else topic, partitions[0].as_py())
        yield partition, list(map(Record, repeat(partition.topic), repeat(partition.partition), *fields))
        return
    topics = batch.column(0).to_pylist() if topic is None else repeat(topic)
    for (name, number), records in groupby(map(Record, topics, partitions.to_pylist(), *fields), key=_partition_of):
        yield TopicPartition(name, number), list(records)


def _partition_of(record: Record) -> tuple[str, int]:
    return record.topic, record.partition


def _headers(text: str | None) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((one.key, one.value) for one in _decode(text)) if text else ()


# ---- rows ------------------------------------------------------------------------------------------------------------

_Converter: TypeAlias = Callable[[Any], Any]
"""Function that converts a value to one that Arrow accepts."""

_POSITION = ("topic", "partition", "offset")
"""Columns with topic, partition and offset of the record whose result the row contains."""
_VALUE = "value"
"""Name of the column for a result without fields."""

_CONVERSION_ERRORS = (AttributeError, OverflowError, TypeError, ValueError)
"""Errors that a conversion raises in this module or in pyarrow; pyarrow's error classes are subclasses."""


def result_type(handlers: Sequence[Handler]) -> DataType:
    """Return the Spark type of the handlers' results; it is a struct type if the results have fields.

    Raises:
        ConfigurationError: the return annotation is missing, has no Spark type, or differs between handlers.
    """
    kinds = [_returned_type(one) for one in handlers]
    if any(one is not kinds[0] and one != kinds[0] for one in kinds):
        raise ConfigurationError(
            f"sink= needs one result type, and {' and '.join(one.name for one in handlers)} return different ones"
            " - annotate them with the same type"
        )
    where, kind = f"handler {handlers[0].name}", kinds[0]
    try:
        fields = _fields(kind)
        row_type = _spark_type(kind, f"{where}: {_VALUE}") if fields is None else _struct_type(fields, f"{where}: ")
    except NameError as error:
        raise ConfigurationError(f"{where} returns {described(kind)}, which cannot be resolved: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(
            f"{where} returns {described(kind)}, which contains itself, and Spark has no recursive types"
            " - return a type without recursion"
        ) from error
    if taken := [name for name in fields or () if name.lower() in {*_POSITION, METRICS_COLUMN}]:
        raise ConfigurationError(
            f"{where} returns {described(kind)} with a field {taken[0]!r}, and sink= adds a column of that name"
            " - rename the field"
        )
    seen: dict[str, str] = {}
    for name in fields or ():
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise ConfigurationError(
                f"{where} returns fields {other!r} and {name!r}, which Spark does not distinguish - rename one of them"
            )
    return row_type


def columns_of(row_type: DataType | None) -> StructType:
    """Return the columns of a task's rows: fields of the result, topic, partition and offset, and the metrics.

    Args:
        row_type: Spark type of the results; None without a sink: the metrics are then the only column.
    """
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType  # noqa: PLC0415 - an extra

    metrics = StructField(METRICS_COLUMN, StringType())
    if row_type is None:
        return StructType([metrics])
    result = row_type.fields if isinstance(row_type, StructType) else [StructField(_VALUE, row_type)]
    position = [StructField("topic", StringType()), StructField("partition", IntegerType())]
    return StructType([*result, *position, StructField("offset", LongType()), metrics])


def rows_of(results: Iterable[tuple[Record, object]], row_type: DataType) -> list[dict[str, Any]]:
    """Return a row for each result, or for each item if a result is a list; there is no row for None.

    Args:
        results: records, and the results of their handlers.
        row_type: Spark type from ``result_type``.

    Raises:
        HandlerFailedError: a result does not match the annotation.
    """
    convert, rows = _row_converter(row_type), []
    for record, result in results:
        for one in results_in(result):
            if one is None:
                continue
            try:
                row = convert(one)
            except _CONVERSION_ERRORS as error:
                raise _mismatch_error(TopicPartition(record.topic, record.partition), record.offset, error) from error
            row["topic"], row["partition"], row["offset"] = record.topic, record.partition, record.offset
            rows.append(row)
    return rows


def arrow_of(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Return the rows as an Arrow batch.

    Raises:
        HandlerFailedError: a value does not match the type of its column, which follows from the annotation.
    """
    pa: Any = import_module("pyarrow")  # an extra
    try:
        return pa.RecordBatch.from_pylist(rows, schema=schema)
    except _CONVERSION_ERRORS:
        for row in rows:
            try:
                pa.RecordBatch.from_pylist([row], schema=schema)
            except _CONVERSION_ERRORS as error:
                raise _mismatch_error(TopicPartition(row["topic"], row["partition"]), row["offset"], error) from error
        raise


def _mismatch_error(partition: TopicPartition, offset: int, error: Exception) -> HandlerFailedError:
    return HandlerFailedError(
        f"{partition} offset {offset}: the handler's result does not match its annotation: {error}"
        " - fix the annotation or the result"
    )


# ---- values ----------------------------------------------------------------------------------------------------


def _row_converter(kind: DataType) -> _Converter:
    """Return a function that converts a result to a row, which has one column if the result has no fields."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - an extra

    if isinstance(kind, StructType):
        return _struct_converter(kind)
    convert = _converter(kind)
    return lambda result: {_VALUE: convert(result)}


def _converter(kind: DataType) -> _Converter:
    """Return a function that converts values of a Spark type to values that Arrow accepts."""
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - an extra

    if isinstance(kind, StructType):
        convert: _Converter = _struct_converter(kind)
    elif isinstance(kind, ArrayType):
        convert = _array_converter(_converter(kind.elementType))
    elif isinstance(kind, MapType):
        convert = _map_converter(_converter(kind.keyType), _converter(kind.valueType))
    else:
        return _plain
    return lambda value: None if value is None else convert(value)


def _plain(value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else value


def _struct_converter(kind: StructType) -> _Converter:
    fields = [(one.name, _converter(one.dataType)) for one in kind.fields]

    def convert(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any result of a handler
        if isinstance(value, Mapping):
            return {name: convert_field(value.get(name)) for name, convert_field in fields}
        attributes = _attributes(type(value))
        if attributes is None:
            raise TypeError(f"its type is {type(value).__name__}")
        return {name: convert_field(getattr(value, attributes.get(name, name))) for name, convert_field in fields}

    return convert


def _array_converter(convert_item: _Converter) -> _Converter:
    def convert(value: object) -> list[Any]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise TypeError(f"{value!r:.80} is not a list")
        return [convert_item(one) for one in value]

    return convert


def _map_converter(convert_key: _Converter, convert_value: _Converter) -> _Converter:
    def convert(value: object) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r:.80} is not a mapping")
        return [(convert_key(name), convert_value(one)) for name, one in value.items()]

    return convert


def _attributes(kind: type) -> Mapping[str, str] | None:
    """Return the attribute of each column whose attribute has another name; None for a type without fields."""
    if issubclass(kind, msgspec.Struct):
        return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    return {} if hasattr(kind, "model_fields") or dataclasses.is_dataclass(kind) else None


# ---- Spark types -----------------------------------------------------------------------------------------------------


def _returned_type(handler: Handler) -> Any:  # noqa: ANN401 - a type
    where = f"handler {handler.name}"
    if handler.batch is not None:
        raise ConfigurationError(
            f"{where} is a batch handler, and sink= needs one record for each row"
            " - write from the handler, or declare it with @app.handler"
        )
    function = handler.function if hasattr(handler.function, "__annotations__") else type(handler.function).__call__
    try:
        hints = typing.get_type_hints(function, include_extras=False)
    except (NameError, TypeError) as error:
        raise ConfigurationError(f"{where}: its annotations cannot be resolved: {error}") from error
    kind, _ = split_none(hints.get("return"))
    if typing.get_origin(kind) in {list, tuple, Sequence}:
        first, *others = typing.get_args(kind)
        if any(one not in {first, Ellipsis} for one in others):
            raise ConfigurationError(
                f"{where} returns {described(kind)} with several types, and sink= needs rows of one type"
                " - return a list of one type"
            )
        kind, _ = split_none(first)
    if kind is None or kind is type(None) or kind is Any:
        raise ConfigurationError(
            f"{where} has no return annotation, from which sink= derives the columns - add one, such as `-> Fare`"
        )
    if kind is Message or typing.get_origin(kind) in {Union, types.UnionType}:
        raise ConfigurationError(
            f"{where} returns {described(kind)}, which has no columns for sink= - return a struct or a single type"
        )
    return kind


def _fields(kind: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a type
    """Return the type of each field by column name; None for a type without fields."""
    if not isinstance(kind, type):
        return None
    if issubclass(kind, msgspec.Struct):
        return {one.encode_name: one.type for one in msgspec.structs.fields(kind)}
    if (models := getattr(kind, "model_fields", None)) is not None:
        return {name: one.annotation for name, one in models.items()}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {one.name: hints[one.name] for one in dataclasses.fields(kind)}
    if is_typeddict(kind):
        return dict(typing.get_type_hints(kind))
    return None


def _struct_type(fields: Mapping[str, Any], where: str) -> StructType:
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - an extra

    return StructType([StructField(name, _spark_type(of, f"{where}{name}")) for name, of in fields.items()])


def _common_type(kinds: Iterable[Any], where: str) -> DataType:
    """Return the common Spark type of ``kinds``.

    Raises:
        ConfigurationError: ``kinds`` is empty, or its types have different Spark types.
    """
    found = [_spark_type(one, where) for one in kinds]
    if not found or any(one != found[0] for one in found):
        raise ConfigurationError(
            f"{where} has {'several types' if found else 'no type'}, but a column has exactly one"
            " - annotate the value with one type"
        )
    return found[0]


def _spark_type(annotation: Any, where: str) -> DataType:  # noqa: ANN401, PLR0911 - a type, and a return for each kind
    from pyspark.sql import types as spark  # noqa: PLC0415 - an extra

    kind, _ = split_none(annotation)
    if (fields := _fields(kind)) is not None:
        return _struct_type(fields, f"{where}.")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _spark_type(arguments[0], where)
    if origin is Literal:
        return _common_type((type(one) for one in arguments if one is not None), where)
    if origin in {list, tuple, set, frozenset, Sequence} and arguments:
        return spark.ArrayType(_common_type((one for one in arguments if one is not Ellipsis), where))
    if origin in {dict, Mapping} and len(arguments) == 2:
        return spark.MapType(_spark_type(arguments[0], where), _spark_type(arguments[1], where))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _common_type((type(one.value) for one in kind), where)
    scalars: dict[Any, DataType] = {
        bool: spark.BooleanType(),
        int: spark.LongType(),
        float: spark.DoubleType(),
        str: spark.StringType(),
        bytes: spark.BinaryType(),
        dt.datetime: spark.TimestampType(),
        dt.date: spark.DateType(),
        decimal.Decimal: spark.DecimalType(38, 18),
    }
    found = scalars.get(kind)
    if found is None:
        raise ConfigurationError(
            f"{where} is {described(kind)}, which sink= cannot convert to a Spark type - use another type, such as str"
        )
    return found
