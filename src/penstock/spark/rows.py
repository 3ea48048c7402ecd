"""What handlers return, as rows of a DataFrame: the type from the return annotation, the values from each result.

Rule of this file: the type is read once, in the driver, and what has none in Spark is refused there.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Union

import msgspec
from typing_extensions import is_typeddict

from penstock.app.handlers import Handler
from penstock.app.messages import Message
from penstock.app.signatures.annotations import described, split_none
from penstock.errors import ConfigurationError, HandlerFailedError
from penstock.records import Record, TopicPartition
from penstock.spark.tallies import COLUMN

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["PLACE", "arrow_of", "row_type", "rows_of"]

PLACE = ("topic", "partition", "offset")
"""The columns that say which record a row came from."""
_VALUE = "value"
"""The one column of a result that has no fields."""

_UNFIT = (OverflowError, TypeError, ValueError)
"""What pyarrow, whose own errors are of these kinds, and msgspec raise."""

_PYTHONS_OWN = (bytes, bytearray, dt.datetime, dt.date, dt.time, dt.timedelta, decimal.Decimal)


def row_type(handlers: Sequence[Handler]) -> StructType:
    """The columns of what handlers return, and of where it came from.

    Raises:
        ConfigurationError: the annotation is missing, says nothing of the columns, or is another for each handler.
    """
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType  # noqa: PLC0415 - an extra

    kinds = [_returned(one) for one in handlers]
    if any(one is not kinds[0] and one != kinds[0] for one in kinds):
        raise ConfigurationError(
            f"sink= writes one kind of rows, and {' and '.join(one.name for one in handlers)} return different ones"
        )
    where, kind = f"handler {handlers[0].name}", kinds[0]
    fields = _fields(kind)
    columns = {_VALUE: kind} if fields is None else fields
    if taken := [name for name in (*PLACE, COLUMN) if name in columns]:
        raise ConfigurationError(
            f"{where} returns {described(kind)} with a field {taken[0]!r}, and sink= adds a column of that name"
            " that says which record a row came from - call the field something else"
        )
    made = [StructField(name, _type(of, f"{where}: {name}")) for name, of in columns.items()]
    place = [StructField("topic", StringType()), StructField("partition", IntegerType())]
    return StructType([*made, *place, StructField("offset", LongType()), StructField(COLUMN, StringType())])


def rows_of(results: Iterable[tuple[Record, object]], names: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each result, several for a list of them.

    Args:
        results: what was returned, and for which record.
        names: of the columns that results have.

    Raises:
        HandlerFailedError: a result is not what the annotation says.
    """
    rows = []
    for record, result in results:
        for one in result if isinstance(result, list | tuple) else (result,):
            try:
                row = _row(one, names)
            except _UNFIT as error:
                raise _refusal(TopicPartition(record.topic, record.partition), record.offset, error) from error
            row["topic"], row["partition"], row["offset"] = record.topic, record.partition, record.offset
            rows.append(row)
    return rows


def arrow_of(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """The rows as one batch of Arrow's.

    Raises:
        HandlerFailedError: a value has no room in its column, as it is not what the annotation says.
    """
    pa: Any = import_module("pyarrow")  # an extra
    try:
        return pa.RecordBatch.from_pylist(rows, schema=schema)
    except _UNFIT:
        for row in rows:
            try:
                pa.RecordBatch.from_pylist([row], schema=schema)
            except _UNFIT as error:
                raise _refusal(TopicPartition(row["topic"], row["partition"]), row["offset"], error) from error
        raise


def _refusal(partition: TopicPartition, offset: int, error: Exception) -> HandlerFailedError:
    return HandlerFailedError(
        f"{partition} offset {offset}: what the handler returned is not what its annotation says: {error}"
    )


def _row(result: object, names: Sequence[str]) -> dict[str, Any]:
    plain = _plain(result)
    if list(names) == [_VALUE] and not (isinstance(plain, dict) and plain.keys() == {_VALUE}):
        return {_VALUE: plain}
    if not isinstance(plain, dict):
        raise TypeError(f"it is {type(result).__name__}")
    return {name: plain.get(name) for name in names}


def _plain(value: object) -> Any:  # noqa: ANN401 - whatever a handler returns
    dump: Callable[..., Any] | None = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="python")
    return msgspec.to_builtins(value, builtin_types=_PYTHONS_OWN)


# ---- types -----------------------------------------------------------------------------------------------------


def _returned(handler: Handler) -> Any:  # noqa: ANN401 - a type
    where = f"handler {handler.name}"
    if handler.batches is not None:
        raise ConfigurationError(
            f"{where} is one of batches, and sink= wants to know which record a row came from"
            " - write from the handler, or make it one of single records"
        )
    function = handler.function if hasattr(handler.function, "__annotations__") else type(handler.function).__call__
    try:
        hints = typing.get_type_hints(function, include_extras=False)
    except (NameError, TypeError) as error:
        raise ConfigurationError(f"{where}: its annotations cannot be resolved: {error}") from error
    kind, _ = split_none(hints.get("return"))
    if typing.get_origin(kind) in {list, tuple, Sequence}:
        kind, _ = split_none(typing.get_args(kind)[0])
    if kind is None or kind is type(None) or kind is Any:
        raise ConfigurationError(
            f"{where} says nothing of what it returns, and sink= makes columns of that - annotate it, such as `-> Fare`"
        )
    if kind is Message or typing.get_origin(kind) in {Union, types.UnionType}:
        raise ConfigurationError(f"{where} returns {described(kind)}, of which sink= can make no columns")
    return kind


def _fields(kind: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a type
    """The fields of a type that has some."""
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


def _type(annotation: Any, where: str) -> DataType:  # noqa: ANN401, PLR0911 - a type, and one way out for each kind
    from pyspark.sql import types as spark  # noqa: PLC0415 - an extra

    kind, _ = split_none(annotation)
    if (fields := _fields(kind)) is not None:
        return spark.StructType([spark.StructField(name, _type(of, f"{where}.{name}")) for name, of in fields.items()])
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type(arguments[0], where)
    if origin is Literal:
        return _type(type(arguments[0]), where)
    if origin in {list, tuple, set, frozenset, Sequence} and arguments:
        return spark.ArrayType(_type(arguments[0], where))
    if origin in {dict, Mapping} and len(arguments) == 2:
        return spark.MapType(_type(arguments[0], where), _type(arguments[1], where))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _type(type(next(iter(kind)).value), where)
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
        raise ConfigurationError(f"{where} is {described(kind)}, for which Spark has no type that sink= knows")
    return found
