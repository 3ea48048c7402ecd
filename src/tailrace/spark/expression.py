"""Expression whose rows are the results of a handler, for DataFrames of records.

The expression is an iterator Arrow UDF of all columns, whose value is an array of structs, and ``inline``. It is built
without a request to Spark, which resolves ``*`` to the columns of the DataFrame later. It is nondeterministic: Spark
would otherwise be free to copy or move it, and call the handler several times for a record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrace.app.app import App
from tailrace.config import ConsumerConfig, resolve
from tailrace.errors import ConfigurationError
from tailrace.spark.handler_selection import SelectedHandlers
from tailrace.spark.pipeline import HandlerOrName, load_handler
from tailrace.spark.worker.rows import expression_type, result_type
from tailrace.spark.worker.shipment import Shipment, pack
from tailrace.spark.worker.task_runner import expression_function

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ["PackedHandler", "pack_handler", "results"]


@dataclass(frozen=True)
class PackedHandler:
    """Handler whose results become rows.

    Attributes:
        config: options of the app.
        selected: the handler, and the handlers that share its topics.
        shipment: the app, serialized for workers.
        row_type: Spark type of the results.
    """

    config: ConsumerConfig
    selected: SelectedHandlers
    shipment: Shipment
    row_type: DataType

    @property
    def topic(self) -> str | None:
        """Topic of the handler; None if the handler reads several topics or a pattern."""
        return self.selected.topics[0] if len(self.selected.topics) == 1 and not self.selected.patterns else None


def pack_handler(app: App | str, handler: HandlerOrName) -> PackedHandler:
    """Check and serialize an app for ``run_expression``; see ``results``."""
    app, import_path, selected = load_handler(app, handler)
    config = resolve(app.options)
    row_type = result_type(selected.named)
    pairs = zip(selected.indices, selected.handlers, strict=True)
    shipment = replace(
        pack(app, import_path, selected, config, has_sink=True),
        is_expression=True,
        omitted_indices=tuple(index for index, one in pairs if one not in selected.named),
    )
    return PackedHandler(config, selected, shipment, row_type)


def results(app: App | str, handler: HandlerOrName, *, with_status: bool = False) -> Column:
    """Return an expression with the results of a handler for the records of a DataFrame, for ``select``.

    A record gives a row for each result, with a column for each field of the handler's return type; a result without
    fields is in the column ``value``. A column is not nullable if its annotation excludes None. A record gives no row
    if the handler returns None or an empty list, or if the record is skipped, dead-lettered or sent to a retry topic.

    The DataFrame has the columns of Spark's Kafka source, of which only ``value`` is required. The records of a
    partition are handled in order of their offsets if the rows of the partition are in one task and in that order, as
    in Spark's Kafka source. Each record is handled at least once: Spark runs a task again if it fails, or if its rows
    are needed again and were not persisted. No offsets are committed.

    Args:
        app: app, or its import path, such as ``"shop:billing"``.
        handler: decorated function of the handler, or its name. If other handlers of its group read the same topic,
            the handler receives only the records that their ``when`` leave to it, and the others are not called.
        with_status: return one row for each record, with the columns ``status`` and ``results``, a list of the rows
            described above. The status is ``skipped``, ``dead_lettered``, ``delayed`` if the record was sent to a retry
            topic, and otherwise ``handled``.

    Raises:
        ConfigurationError: the handler is unknown, handles batches, or has no return annotation with a type that Spark
            has; the app cannot be sent to workers, or has ``delivery="exactly_once"``; or pyspark is too old.
    """
    sql: Any = import_module("pyspark.sql.functions")  # an extra
    if not hasattr(sql, "arrow_udf"):
        raise ConfigurationError(
            "results() needs pyspark 4.1 or newer, which has Arrow UDFs - upgrade pyspark, or use SparkPipeline"
        )
    packed = pack_handler(app, handler)
    row_type = packed.row_type
    function = expression_function(packed.shipment, row_type, packed.topic, has_status=with_status)
    udf = sql.arrow_udf(function, expression_type(row_type, has_status=with_status)).asNondeterministic()
    # The first argument makes Spark's analysis fail without a column "value".
    array = udf(sql.col("value").isNull(), sql.struct("*"))
    # nullif() has no effect on the value, but makes Spark evaluate the UDF in a projection of its own, below the
    # generator. Within the generator, Spark 4.2 mixes up the remaining columns if a column of the DataFrame is constant
    # ("INTERNAL_ERROR_ATTRIBUTE_NOT_FOUND"). It does not take maps, which have no order.
    expression: Column = sql.inline(array if "map<" in row_type.simpleString() else sql.nullif(array, sql.lit(None)))
    return expression
