"""Idempotent sinks: a batch that is handled again is not written twice.

A folder per batch is overwritten as a whole, and Delta skips a transaction version that it has from the same writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.spark.batches import Sink
from tailrace.spark.offsets.checkpoint import BatchNumber

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["delta_table", "overwritten_folders"]


def overwritten_folders(place: str, file_format: str = "parquet") -> Sink:
    """Return a sink that overwrites a folder ``batch_id=...`` for each batch; Spark reads them as one table."""

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.write.mode("overwrite").format(file_format).save(f"{place.rstrip('/')}/batch_id={batch_id}")

    return write


def delta_table(place: str, writer: str) -> Sink:
    """Return a sink that appends each batch once to a Delta table.

    Args:
        place: path of the table.
        writer: name of this writer, unique among the pipelines that write to the table.
    """

    def write(rows: DataFrame, batch_id: int) -> None:
        # A new checkpoint may reuse the number of a written batch for other offsets, so its id is part of the key.
        app_id = f"{writer} {batch_id.checkpoint}".rstrip() if isinstance(batch_id, BatchNumber) else writer
        rows.write.format("delta").mode("append").option("txnAppId", app_id).option("txnVersion", batch_id).save(place)

    return write
