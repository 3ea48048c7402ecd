"""Conversion of Arrow batches of Spark's Kafka source to records, and of handlers' results to rows of a DataFrame.

The driver derives the Spark type of the rows from the return annotation of the handlers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import accumulate, chain, groupby, islice, repeat
from operator import attrgetter, lt, methodcaller
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, Union

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
    from pyspark.sql.types import ArrayType, DataType, StructField, StructType

__all__ = [
    "RESERVED",
    "arrays_of",
    "arrow_type_of",
    "columns_for",
    "columns_of",
    "expression_type",
    "metrics_row",
    "records_of",
    "result_type",
    "rows_of",
    "slices_of",
    "with_status",
]

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


# ---- records of any DataFrame ----------------------------------------------------------------------------------------


def records_of(
    rows: Any,  # noqa: ANN401 - Arrow
    topic: str | None,
    first_offset: int,
) -> tuple[list[Record], bool]:
    """Return the records that the rows of a DataFrame contain, in order.

    Columns have the names and types of Spark's Kafka source; key and value may also be text. Only ``value`` must exist.
    A record without key, headers or timestamp has none, and its timestamp is -1, as in Kafka. The default partition is
    0, and rows without offsets are numbered.

    Args:
        rows: StructArray with a row for each record.
        topic: topic of the records if there is no column ``topic``; None to require the column.
        first_offset: offset of the first record if there is no column ``offset``.

    Returns:
        The records, and True if all are of one partition, and each has a higher offset than the one before.

    Raises:
        ConfigurationError: a column is missing, has another type, or contains null.
    """
    columns = {one.name.lower(): column for one, column in zip(rows.type, rows.flatten(), strict=True)}
    if topic is None and "topic" not in columns:
        raise ConfigurationError(
            "the handler reads several topics or a pattern, and the DataFrame has no column 'topic'"
            " - add it, such as df.withColumn('topic', lit('orders'))"
        )
    values = {name: _values_of(name, column) for name, column in columns.items() if name in _COLUMN_NAMES}
    offsets = values.get("offset", range(first_offset, first_offset + len(rows)))
    fields = (
        values.get("topic", repeat(topic)),
        values.get("partition", repeat(0)),
        offsets,
        values.get("key", repeat(None)),
        values["value"],
        values.get("timestamp", repeat(-1)),
        values.get("headers", repeat(())),
        repeat(None),
    )
    has_one_partition = all(len(columns[name].unique()) == 1 for name in ("topic", "partition") if name in columns)
    are_in_order = isinstance(offsets, range) or all(map(lt, offsets, islice(offsets, 1, None)))
    return list(map(Record, *fields)), has_one_partition and are_in_order


_COLUMN_NAMES = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")
"""Names of the columns of Spark's Kafka source that a record contains."""


def _values_of(name: str, column: Any) -> Sequence[Any]:  # noqa: ANN401 - pyarrow is untyped
    pa: Any = import_module("pyarrow")  # an extra
    kind, types_of = column.type, pa.types
    is_text = types_of.is_string(kind) or types_of.is_large_string(kind)
    is_integer = types_of.is_integer(kind)
    if name in _POSITION and column.null_count:
        raise ConfigurationError(f"the column {name!r} contains null - filter these rows, or drop the column")
    if name in {"key", "value"} and (is_text or types_of.is_binary(kind) or types_of.is_large_binary(kind)):
        column = column if types_of.is_binary(kind) else column.cast(pa.binary())
    elif name == "timestamp" and types_of.is_timestamp(kind):
        column = column.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64()).fill_null(-1)
    elif name == "headers" and types_of.is_list(kind) and types_of.is_struct(kind.value_type):
        if column.null_count == len(column):
            return [()] * len(column)
        return [tuple(tuple(one.values()) for one in headers or ()) for headers in column.to_pylist()]
    elif not (is_text if name == "topic" else is_integer and name in _POSITION):
        raise ConfigurationError(
            f"the column {name!r} has the Arrow type {kind}, which is not its type in Spark's Kafka source"
            " - cast the column, or drop it"
        )
    values: list[Any] = column.to_pylist()
    return values


# ---- rows ------------------------------------------------------------------------------------------------------------

_Converter: TypeAlias = Callable[[Any], Any]
"""Function that converts a value to one that Arrow accepts."""

_POSITION = ("topic", "partition", "offset")
"""Columns with topic, partition and offset of the record whose result the row contains."""
RESERVED = frozenset({*_POSITION, METRICS_COLUMN})
"""Names of the columns that rows for a sink have in addition to those of the result."""
_VALUE = "value"
"""Name of the column for a result without fields."""

_CONVERSION_ERRORS = (AttributeError, OverflowError, TypeError, ValueError)
"""Errors that a conversion raises in this module or in pyarrow; pyarrow's error classes are subclasses."""


def result_type(handlers: Sequence[Handler], reserved: Collection[str] = ()) -> DataType:
    """Return the Spark type of the handlers' results; it is a struct type if the results have fields.

    A field is nullable if its annotation includes None, or if it may be missing from a ``TypedDict``.

    Args:
        handlers: handlers whose results become rows.
        reserved: names in lower case that a field must not have.

    Raises:
        ConfigurationError: the return annotation is missing, has no Spark type, or differs between handlers.
    """
    kinds = [_returned_type(one) for one in handlers]
    if any(one is not kinds[0] and one != kinds[0] for one in kinds):
        raise ConfigurationError(
            f"all rows need the same type, and {' and '.join(one.name for one in handlers)} return different ones"
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
    if fields == {}:
        raise ConfigurationError(
            f"{where} returns {described(kind)}, which has no fields and thus no columns - return a type with fields"
        )
    if taken := [name for name in fields or () if name.lower() in reserved]:
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

    The columns of the result are nullable, because the row with the metrics has no result.

    Args:
        row_type: Spark type of the results; None without a sink: the metrics are then the only column.

    """
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType  # noqa: PLC0415 - an extra

    metrics = StructField(METRICS_COLUMN, StringType())
    if row_type is None:
        return StructType([metrics])
    result = [StructField(one.name, one.dataType) for one in _fields_of(row_type)]
    position = [StructField("topic", StringType()), StructField("partition", IntegerType())]
    return StructType([*result, *position, StructField("offset", LongType()), metrics])


def _fields_of(row_type: DataType) -> list[StructField]:
    """Return a field for each column of a result, which is the column ``value`` if the result has no fields."""
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - an extra

    if isinstance(row_type, StructType):
        return row_type.fields
    return [StructField(_VALUE, row_type, nullable=False)]


def _result_columns(
    records: Sequence[Record], results: Sequence[object], row_type: DataType
) -> tuple[list[Any], Sequence[int]]:
    """Return Arrow columns with a row for each result, or for each item of a list; there is no row for None.

    Args:
        records: handled records.
        results: result of the handler for each record.
        row_type: Spark type from ``result_type``.

    Returns:
        A column for each field of the result, and the number of rows of each record.

    Raises:
        HandlerFailedError: a result does not match the annotation.
    """
    convert, kinds, values = _columns_converter(row_type), set(map(type, results)), results
    counts: Sequence[int] = [1] * len(results)
    if any(kind is tuple or issubclass(kind, list) for kind in kinds):
        items = [[one for one in results_in(result) if one is not None] for result in results]
        values, counts = list(chain.from_iterable(items)), list(map(len, items))
    elif types.NoneType in kinds:
        values = [one for one in results if one is not None]
        counts = [int(one is not None) for one in results]
    try:
        columns = convert(values)
    except _CONVERSION_ERRORS:
        rest = iter(values)
        for record, count in zip(records, counts, strict=True):
            try:
                convert(list(islice(rest, count)))
            except _CONVERSION_ERRORS as error:
                raise HandlerFailedError(
                    f"{record.topic_partition} offset {record.offset}: the handler's result does not match its"
                    f" annotation: {error} - fix the annotation or the result"
                ) from error
        raise
    return columns, counts


def rows_of(handled: Sequence[Record], results: Sequence[object], row_type: DataType) -> Any:  # noqa: ANN401 - untyped
    """Return an Arrow batch with the columns ``columns_of(row_type)`` of the results of records.

    Raises:
        HandlerFailedError: a result does not match the annotation.
    """
    pa: Any = import_module("pyarrow")  # an extra
    columns, counts = _result_columns(handled, results, row_type)
    records = [record for record, count in zip(handled, counts, strict=True) for _ in range(count)]
    position = [[getattr(record, name) for record in records] for name in _POSITION]
    schema = arrow_type_of(columns_of(row_type))
    others = zip([*position, [None] * len(records)], list(schema)[len(columns) :], strict=True)
    arrays = [*columns, *(pa.array(values, one.type) for values, one in others)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(schema))


def metrics_row(text: str, row_type: DataType | None) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Return an Arrow batch with the columns ``columns_of(row_type)``, whose only row has the metrics of a task."""
    pa: Any = import_module("pyarrow")  # an extra
    return pa.RecordBatch.from_pylist([{METRICS_COLUMN: text}], pa.schema(arrow_type_of(columns_of(row_type))))


def arrays_of(records: Sequence[Record], results: Sequence[object], row_type: DataType) -> Any:  # noqa: ANN401 - untyped
    """Return an Arrow array that contains a list of structs for the result of each record, which is empty for None.

    Raises:
        HandlerFailedError: a result does not match the annotation.
    """
    pa: Any = import_module("pyarrow")  # an extra
    columns, counts = _result_columns(records, results, row_type)
    kind = arrow_type_of(expression_type(row_type))
    structs = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(list(accumulate(counts, initial=0)), pa.int32()), structs, type=kind)


def with_status(results: Any, status: Sequence[str], row_type: DataType) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Return an Arrow array that contains, for each record, a list of one struct with its status and its results."""
    pa: Any = import_module("pyarrow")  # an extra
    kind = arrow_type_of(expression_type(row_type, has_status=True))
    structs = pa.StructArray.from_arrays([pa.array(status, pa.string()), results], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(range(len(status) + 1), pa.int32()), structs, type=kind)


def expression_type(row_type: DataType, *, has_status: bool = False) -> ArrayType:
    """Return the Spark type of the array of a record's results, or of the array from ``with_status``."""
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType  # noqa: PLC0415 - an extra

    results = ArrayType(StructType(_fields_of(row_type)), containsNull=False)
    if not has_status:
        return results
    fields = [StructField("status", StringType(), nullable=False), StructField("results", results, nullable=False)]
    return ArrayType(StructType(fields), containsNull=False)


@lru_cache(8)
def arrow_type_of(kind: DataType) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Return the Arrow type of a Spark type; times without a zone are in UTC."""
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 - an extra

    # Versions of Spark without this argument always use UTC.
    has_timezone = "timezone" in inspect.signature(to_arrow_type).parameters
    return to_arrow_type(kind, timezone="UTC") if has_timezone else to_arrow_type(kind)


# ---- values ----------------------------------------------------------------------------------------------------


@lru_cache(8)
def _columns_converter(row_type: DataType) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that converts results to Arrow columns."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - an extra

    has_fields, fields = isinstance(row_type, StructType), _fields_of(row_type)
    names, to_column = [one.name for one in fields], [_column_converter(one) for one in fields]

    def convert(results: Sequence[Any]) -> list[Any]:
        if not has_fields:
            return [to_column[0](results)]
        getters = _getters(set(map(type, results)), names)
        if len(getters) == 1:
            (gets,) = getters.values()
            return [one(list(map(get, results))) for one, get in zip(to_column, gets, strict=True)]
        return [one([getters[type(row)][index](row) for row in results]) for index, one in enumerate(to_column)]

    return convert


def _column_converter(field: StructField) -> Callable[[Sequence[Any]], Any]:
    """Return a function that converts the values of a column to an Arrow array."""
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - an extra

    pa: Any = import_module("pyarrow")  # an extra
    kind, convert = arrow_type_of(field.dataType), _converter(field.dataType, nullable=field.nullable)
    is_scalar = not isinstance(field.dataType, ArrayType | MapType | StructType)

    def to_array(values: Sequence[Any]) -> Any:  # noqa: ANN401 - pyarrow is untyped
        if is_scalar:
            with contextlib.suppress(*_CONVERSION_ERRORS):
                array = pa.array(values, kind)
                if field.nullable or not array.null_count:
                    return array
        # Enums need a conversion; of other values, it raises the error.
        return pa.array(list(map(convert, values)), kind)

    return to_array


def _getters(kinds: Iterable[type], names: Sequence[str]) -> dict[type, list[Callable[[Any], Any]]]:
    """Return, for each type of results, functions that return the value of each column."""
    found: dict[type, list[Callable[[Any], Any]]] = {}
    for kind in kinds:
        if issubclass(kind, Mapping):
            found[kind] = [methodcaller("get", name) for name in names]
        elif (attributes := _attributes(kind)) is not None:
            found[kind] = [attrgetter(attributes.get(name, name)) for name in names]
        else:
            raise TypeError(f"its type is {kind.__name__}")
    return found


def _converter(kind: DataType, *, nullable: bool) -> _Converter:
    """Return a function that converts values of a Spark type to values that Arrow accepts."""
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - an extra

    convert: _Converter = _plain
    if isinstance(kind, StructType):
        convert = _struct_converter(kind)
    elif isinstance(kind, ArrayType):
        convert = _array_converter(_converter(kind.elementType, nullable=kind.containsNull))
    elif isinstance(kind, MapType):
        convert_value = _converter(kind.valueType, nullable=kind.valueContainsNull)
        convert = _map_converter(_converter(kind.keyType, nullable=False), convert_value)
    return (lambda value: None if value is None else convert(value)) if nullable else convert


def _plain(value: object) -> object:
    value = value.value if isinstance(value, enum.Enum) else value
    if value is None:
        raise TypeError("a value is None")
    return value


def _struct_converter(kind: StructType) -> _Converter:
    names = [one.name for one in kind.fields]
    converters = [_converter(one.dataType, nullable=one.nullable) for one in kind.fields]

    def convert(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any result of a handler
        getters = _getters([type(value)], names)[type(value)]
        fields = zip(names, converters, getters, strict=True)
        return {name: convert_field(get(value)) for name, convert_field, get in fields}

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
            f"{where} is a batch handler, and each row needs the record from which it results"
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
                f"{where} returns {described(kind)} with several types, and all rows need the same type"
                " - return a list of one type"
            )
        kind, _ = split_none(first)
    if kind is None or kind is type(None) or kind is Any:
        raise ConfigurationError(
            f"{where} has no return annotation, which defines the columns - add one, such as `-> Fare`"
        )
    if kind is Message or typing.get_origin(kind) in {Union, types.UnionType}:
        raise ConfigurationError(
            f"{where} returns {described(kind)}, which has no columns - return a struct or a single type"
        )
    return kind


def _fields(kind: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a type
    """Return the type of each field by column name; None for a type without fields."""
    if is_typeddict(kind):
        # Annotations that are strings hide NotRequired from __optional_keys__.
        marked = typing.get_type_hints(kind, include_extras=True)
        optional = {
            *kind.__optional_keys__,
            *(name for name in marked if typing.get_origin(marked[name]) is NotRequired),
        }
        return {name: one | None if name in optional else one for name, one in typing.get_type_hints(kind).items()}
    if not isinstance(kind, type):
        return None
    if issubclass(kind, msgspec.Struct):
        return {one.encode_name: one.type for one in msgspec.structs.fields(kind)}
    if (models := getattr(kind, "model_fields", None)) is not None:
        return {name: one.annotation for name, one in models.items()}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {one.name: hints[one.name] for one in dataclasses.fields(kind)}
    return None


def _struct_type(fields: Mapping[str, Any], where: str) -> StructType:
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - an extra

    return StructType(
        [StructField(name, _spark_type(of, f"{where}{name}"), _includes_none(of)) for name, of in fields.items()]
    )


def _includes_none(annotation: Any) -> bool:  # noqa: ANN401 - a type
    """Return True if values of the type may be None, also as a member of a ``Literal`` or an enum."""
    kind, is_optional = split_none(annotation)
    while typing.get_origin(kind) is typing.Annotated:
        kind, is_optional = split_none(typing.get_args(kind)[0])
    if is_optional or (typing.get_origin(kind) is Literal and None in typing.get_args(kind)):
        return True
    return isinstance(kind, type) and issubclass(kind, enum.Enum) and any(one.value is None for one in kind)


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
        items = [one for one in arguments if one is not Ellipsis]
        return spark.ArrayType(_common_type(items, where), any(map(_includes_none, items)))
    if origin in {dict, Mapping} and len(arguments) == 2:
        key, value = (_spark_type(one, where) for one in arguments)
        return spark.MapType(key, value, _includes_none(arguments[1]))
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
            f"{where} is {described(kind)}, which has no Spark type - use another type, such as str"
        )
    return found
