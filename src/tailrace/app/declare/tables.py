"""Batches of records as tables: ``pyarrow.RecordBatch``, ``polars.DataFrame`` and ``pandas.DataFrame``.

The module that declares a handler imports the package of the table, so that this module never imports polars or pandas.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tailrace.batches.columns import arrow_of
from tailrace.errors import ConfigurationError
from tailrace.records import Record

__all__ = ["TABLES", "table_reader"]

TABLES = "`pyarrow.RecordBatch`, `polars.DataFrame` or `pandas.DataFrame`"

_TableReader: TypeAlias = Callable[[Sequence[Record]], object]


def table_reader(annotation: object, where: str) -> _TableReader | None:
    """Return the function that converts records to a table of the type ``annotation``; None for other types.

    The table has the columns of ``Consumer.arrow_batches``, and a row for each record, in order.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    if not isinstance(annotation, type):
        return None
    convert = _converter(annotation)
    if convert is not None:
        try:
            convert(())  # Raises now if pyarrow is not installed, and imports modules before the first record.
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error
    return convert


def _converter(kind: type) -> _TableReader | None:
    if kind is _class_of("pyarrow", "RecordBatch"):
        return arrow_of
    if kind is _class_of("polars", "DataFrame"):
        from_arrow = sys.modules["polars"].from_arrow
        return lambda records: from_arrow(arrow_of(records))
    if kind is _class_of("pandas", "DataFrame"):
        return lambda records: arrow_of(records).to_pandas()
    return None


def _class_of(package: str, name: str) -> Any:  # noqa: ANN401 - a class of an untyped package
    """Return a class of a package; None if the package is not loaded."""
    return getattr(sys.modules.get(package), name, None)
