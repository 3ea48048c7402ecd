"""Sinks that write a batch once, even if the batch is handled twice, and the check of a sink before the first batch.

``overwritten_folders`` overwrites the folder of the batch. ``delta_table`` and ``iceberg_table`` write the batch in a
transaction that contains its number, and skip a number that the same writer has committed before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrace.errors import ConfigurationError
from tailrace.spark.batches import Sink
from tailrace.spark.offsets.checkpoint import BatchNumber

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["check_sink", "delta_table", "iceberg_table", "overwritten_folders"]


@dataclass(frozen=True)
class _FormatSink:
    """Sink that writes with a data source of Spark, which may be missing from a session."""

    data_source: str
    write: Callable[[DataFrame, int], None]

    def __call__(self, rows: DataFrame, batch_number: int) -> None:
        self.write(rows, batch_number)


def check_sink(sink: Sink, spark: SparkSession) -> None:
    """Check that a sink is a function of two arguments, and that the session has the data source that it needs.

    Raises:
        ConfigurationError: the sink cannot be called, or the data source is missing.
    """
    try:
        inspect.signature(sink).bind(None, 0)
    except TypeError as error:
        raise ConfigurationError(
            f"sink={sink!r} is not a function of two arguments: {error}"
            " - pass overwritten_folders(...), delta_table(...), or a function of a DataFrame and a batch number"
        ) from error
    except ValueError:
        pass  # Some functions in C have no signature.
    if not isinstance(sink, _FormatSink):
        return
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    java_error: Any = import_module("py4j.protocol").Py4JError  # untyped
    try:
        # This reads nothing: without a path, all data sources of files and tables raise an error.
        spark.read.format(sink.data_source).load()
    except (PySparkException, java_error) as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise ConfigurationError(
                f"this Spark session has no data source {sink.data_source!r}, which the sink needs"
                " - add its package to spark.jars.packages, or correct the format"
            ) from error


def overwritten_folders(place: str, file_format: str = "parquet") -> Sink:
    """Return a sink that writes each batch to its own folder, ``batch_id=NUMBER``, and overwrites an earlier attempt.

    Args:
        place: path of the folder that contains the folders of all batches; Spark can read it as one table.
        file_format: format of the files, as in ``DataFrameWriter.format``.
    """

    def write(rows: DataFrame, batch_number: int) -> None:
        rows.write.mode("overwrite").format(file_format).save(f"{place.rstrip('/')}/batch_id={batch_number}")

    return _FormatSink(file_format, write)


def delta_table(place: str, writer: str) -> Sink:
    """Return a sink that appends each batch once to a Delta table.

    Args:
        place: path of the table, which contains a slash, or name of a table in the catalog, such as ``"sales.fares"``.
        writer: name of this writer, which no other pipeline that writes to the table may have. In ``foreachBatch`` of a
            query without a pipeline, change the name together with the checkpoint.
    """

    def write(rows: DataFrame, batch_number: int) -> None:
        delta = rows.write.format("delta").mode("append")
        delta = delta.option("txnAppId", _writer_id(writer, batch_number)).option("txnVersion", batch_number)
        if "/" in place:
            delta.save(place)
        else:
            delta.saveAsTable(place)

    return _FormatSink("delta", write)


def iceberg_table(table: str, writer: str) -> Sink:
    """Return a sink that appends each batch once to an Iceberg table, which it creates if the table does not exist.

    The number of the batch is a property of the table's snapshot. A repeated batch is recognized as long as this
    snapshot has not expired.

    Args:
        table: name of the table, with its catalog, such as ``"lake.sales.fares"``.
        writer: as in ``delta_table``.
    """

    def write(rows: DataFrame, batch_number: int) -> None:
        spark, name = rows.sparkSession, f"tailrace {_writer_id(writer, batch_number)}"
        if not spark.catalog.tableExists(table):
            rows.limit(0).writeTo(table).using("iceberg").create()
        numbers = [row.summary.get(name) for row in spark.table(f"{table}.snapshots").select("summary").collect()]
        if all(number is None or int(number) < batch_number for number in numbers):
            rows.writeTo(table).option(f"snapshot-property.{name}", batch_number).append()

    return _FormatSink("iceberg", write)


def _writer_id(writer: str, batch_number: int) -> str:
    """Return the writer's name with the id of the checkpoint, because another checkpoint may use the same number."""
    return f"{writer} {batch_number.checkpoint}".rstrip() if isinstance(batch_number, BatchNumber) else writer
