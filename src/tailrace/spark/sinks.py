"""Sinks that write a batch once, however often it is handled.

Rule of this file: only what is true. A folder of the batch's own is overwritten as a whole, and Delta passes over a
version that it has seen from the same writer; all other sinks write what is handled again once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.spark.batches import Sink
from tailrace.spark.offsets.checkpoint import BatchNumber

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["delta_table", "overwritten_folders"]


def overwritten_folders(place: str, file_format: str = "parquet") -> Sink:
    """Files in a folder ``batch_id=...`` of each batch, which Spark reads as one table with that column."""

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.write.mode("overwrite").format(file_format).save(f"{place.rstrip('/')}/batch_id={batch_id}")

    return write


def delta_table(place: str, writer: str) -> Sink:
    """Rows appended to a Delta table; a batch that it has is not appended again.

    Args:
        place: of the table.
        writer: a name that no other pipeline writes to this table with.
    """

    def write(rows: DataFrame, batch_id: int) -> None:
        # A new checkpoint may give the number of a batch that was written to one that goes further.
        of = f"{writer} {batch_id.checkpoint}".rstrip() if isinstance(batch_id, BatchNumber) else writer
        once = rows.write.format("delta").mode("append").option("txnAppId", of).option("txnVersion", batch_id)
        once.save(place)

    return write
