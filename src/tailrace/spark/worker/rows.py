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
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union

import msgspec
from typing_extensions import is_typeddict

from tailrace.app.declare.annotations import described, split_none
from tailrace.app.handlers import Handler
from tailrace.app.publish.encoding import results_in
from tailrace.app.publish.message import Message
from tailrace.errors import ConfigurationError, HandlerFailedError
from tailrace.records import Record, TopicPartition
from tailrace.spark.worker.task_metrics import COLUMN

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["arrow_of", "columns_of", "result_type", "rows_of"]

_Read: TypeAlias = Callable[[Any], Any]
"""Makes of a value what Arrow takes."""

_PLACE = ("topic", "partition", "offset")
"""The columns that say which record a row came from."""
_VALUE = "value"
"""The one column of a result that has no fields."""

_UNFIT = (AttributeError, OverflowError, TypeError, ValueError)
"""What is raised here, and by pyarrow, whose own errors are of these kinds."""


def result_type(handlers: Sequence[Handler]) -> DataType:
    """What handlers return, as Spark has it: a struct where it has fields.

    Raises:
        ConfigurationError: the annotation is missing, says nothing of the columns, or is another for each handler.
    """
    kinds = [_returned(one) for one in handlers]
    if any(one is not kinds[0] and one != kinds[0] for one in kinds):
        raise ConfigurationError(
            f"sink= writes one kind of rows, and {' and '.join(one.name for one in handlers)} return different ones"
        )
    where, kind = f"handler {handlers[0].name}", kinds[0]
    try:
        fields = _fields(kind)
        made = _type(kind, f"{where}: {_VALUE}") if fields is None else _struct(fields, f"{where}: ")
    except NameError as error:
        raise ConfigurationError(f"{where} returns {described(kind)}, which cannot be resolved: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(
            f"{where} returns {described(kind)}, which contains itself, and Spark has no such column"
        ) from error
    if taken := [name for name in fields or () if name.lower() in {*_PLACE, COLUMN}]:
        raise ConfigurationError(
            f"{where} returns {described(kind)} with a field {taken[0]!r}, and sink= adds a column of that name"
            " that says which record a row came from - call the field something else"
        )
    seen: dict[str, str] = {}
    for name in fields or ():
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise ConfigurationError(f"{where}: {other!r} and {name!r} are one column to Spark - rename one of them")
    return made


def columns_of(kind: DataType | None) -> StructType:
    """The columns of a task's rows: of a result, of where it came from, of the tally.

    Args:
        kind: of results; None where nobody wants them.
    """
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType  # noqa: PLC0415 - an extra

    tally = StructField(COLUMN, StringType())
    if kind is None:
        return StructType([tally])
    own = kind.fields if isinstance(kind, StructType) else [StructField(_VALUE, kind)]
    place = [StructField("topic", StringType()), StructField("partition", IntegerType())]
    return StructType([*own, *place, StructField("offset", LongType()), tally])


def rows_of(results: Iterable[tuple[Record, object]], kind: DataType) -> list[dict[str, Any]]:
    """One row for each result, several for a list of them, none for None.

    Args:
        results: what was returned, and for which record.
        kind: of each, as ``result_type`` gives it.

    Raises:
        HandlerFailedError: a result is not what the annotation says.
    """
    read, rows = _row_reader(kind), []
    for record, result in results:
        for one in results_in(result):
            if one is None:
                continue
            try:
                row = read(one)
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


# ---- values ----------------------------------------------------------------------------------------------------


def _row_reader(kind: DataType) -> _Read:
    """What makes a row of a result: its fields, or all of it as the one column."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - an extra

    if isinstance(kind, StructType):
        return _struct_reader(kind)
    read = _reader(kind)
    return lambda result: {_VALUE: read(result)}


def _reader(kind: DataType) -> _Read:
    """What makes of a value what Arrow takes for this type; the type says what it is, and not how it looks."""
    from pyspark.sql.types import ArrayType, MapType, StructType  # noqa: PLC0415 - an extra

    if isinstance(kind, StructType):
        read: _Read = _struct_reader(kind)
    elif isinstance(kind, ArrayType):
        read = _array_reader(_reader(kind.elementType))
    elif isinstance(kind, MapType):
        read = _map_reader(_reader(kind.keyType), _reader(kind.valueType))
    else:
        return _plain
    return lambda value: None if value is None else read(value)


def _plain(value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else value


def _struct_reader(kind: StructType) -> _Read:
    fields = [(one.name, _reader(one.dataType)) for one in kind.fields]

    def read(value: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a handler returns
        if isinstance(value, Mapping):
            return {name: of(value.get(name)) for name, of in fields}
        attributes = _attributes(type(value))
        if attributes is None:
            raise TypeError(f"it is {type(value).__name__}")
        return {name: of(getattr(value, attributes.get(name, name))) for name, of in fields}

    return read


def _array_reader(of: _Read) -> _Read:
    def read(value: object) -> list[Any]:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise TypeError(f"{value!r:.80} is no list")
        return [of(one) for one in value]

    return read


def _map_reader(key: _Read, of: _Read) -> _Read:
    def read(value: object) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise TypeError(f"{value!r:.80} is no mapping")
        return [(key(name), of(one)) for name, one in value.items()]

    return read


def _attributes(kind: type) -> Mapping[str, str] | None:
    """What fields are called where columns are called otherwise; None where there are no fields."""
    if issubclass(kind, msgspec.Struct):
        return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))
    return {} if hasattr(kind, "model_fields") or dataclasses.is_dataclass(kind) else None


# ---- types -----------------------------------------------------------------------------------------------------


def _returned(handler: Handler) -> Any:  # noqa: ANN401 - a type
    where = f"handler {handler.name}"
    if handler.batch is not None:
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
        first, *others = typing.get_args(kind)
        if any(one not in {first, Ellipsis} for one in others):
            raise ConfigurationError(
                f"{where} returns {described(kind)}, which is of several kinds, and rows are of one"
            )
        kind, _ = split_none(first)
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


def _struct(fields: Mapping[str, Any], where: str) -> StructType:
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415 - an extra

    return StructType([StructField(name, _type(of, f"{where}{name}")) for name, of in fields.items()])


def _of_all(kinds: Iterable[Any], where: str) -> DataType:
    """What several types are alike."""
    found = [_type(one, where) for one in kinds]
    if not found or any(one != found[0] for one in found):
        raise ConfigurationError(f"{where} is of {'several kinds' if found else 'no kind'}, and a column is of one")
    return found[0]


def _type(annotation: Any, where: str) -> DataType:  # noqa: ANN401, PLR0911 - a type, and one way out for each kind
    from pyspark.sql import types as spark  # noqa: PLC0415 - an extra

    kind, _ = split_none(annotation)
    if (fields := _fields(kind)) is not None:
        return _struct(fields, f"{where}.")
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type(arguments[0], where)
    if origin is Literal:
        return _of_all((type(one) for one in arguments if one is not None), where)
    if origin in {list, tuple, set, frozenset, Sequence} and arguments:
        return spark.ArrayType(_of_all((one for one in arguments if one is not Ellipsis), where))
    if origin in {dict, Mapping} and len(arguments) == 2:
        return spark.MapType(_type(arguments[0], where), _type(arguments[1], where))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _of_all((type(one.value) for one in kind), where)
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
