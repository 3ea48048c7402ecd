"""Data source ``tailrace`` for Spark, which finds the sources of modules whose names begin with ``pyspark_``.

``spark.read.format("tailrace")`` and ``spark.readStream.format("tailrace")`` need no import in the program. The module
is outside of the package ``tailrace``, and imports it only when the source is used, because Spark imports the module in
every session that looks for a data source in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Records of Kafka, or the results of a handler; for ``dataSource.register`` where Spark does not find it."""

    @classmethod
    def name(cls) -> str:
        """Return ``"tailrace"``, the name of the format."""
        return "tailrace"

    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source, or those of the handler's results.

        Raises:
            ConfigurationError: an option is invalid.
        """
        from tailrace.spark.source import SparkSource  # noqa: PLC0415 - see above

        return SparkSource.of_options(self.options).schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        Raises:
            ConfigurationError: an option is invalid, or the program has set another schema.
        """
        from tailrace.spark.source import BatchReader, SparkSource  # noqa: PLC0415 - see above

        return BatchReader(SparkSource.of_options(self.options, schema, is_batch=True))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream.

        Raises:
            ConfigurationError: an option is invalid, or the program has set another schema.
        """
        from tailrace.spark.source import SparkSource, StreamReader  # noqa: PLC0415 - see above

        return StreamReader(SparkSource.of_options(self.options, schema))
