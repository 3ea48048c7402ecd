"""Sinks that write a batch once, even if the batch is handled twice.

``overwritten_folders`` overwrites the folder of the batch. ``delta_table`` writes the batch in a transaction with the
number of the batch, which Delta skips if the same writer has committed this number before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.spark.batches import Sink
from tailrace.spark.offsets.checkpoint import BatchNumber

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["delta_table", "overwritten_folders"]


def overwritten_folders(place: str, file_format: str = "parquet") -> Sink:
    """Return a sink that writes each batch to its own folder, ``batch_id=NUMBER``, and overwrites an earlier attempt.

    Args:
        place: path of the folder that contains the folders of all batches; Spark can read it as one table.
        file_format: format of the files, as in ``DataFrameWriter.format``.
    """

    def write(rows: DataFrame, batch_number: int) -> None:
        rows.write.mode("overwrite").format(file_format).save(f"{place.rstrip('/')}/batch_id={batch_number}")

    return write


def delta_table(place: str, writer: str) -> Sink:
    """Return a sink that appends each batch once to a Delta table.

    Args:
        place: path of the table.
        writer: name of this writer, which no other pipeline that writes to the table may have.
    """

    def write(rows: DataFrame, batch_number: int) -> None:
        # Another checkpoint may use the same number for other offsets, so the name includes the checkpoint's id.
        app_id = f"{writer} {batch_number.checkpoint}".rstrip() if isinstance(batch_number, BatchNumber) else writer
        delta = rows.write.format("delta").mode("append")
        delta.option("txnAppId", app_id).option("txnVersion", batch_number).save(place)

    return write
