"""One-line messages for errors of Spark, without the stack traces of Java and of Python workers."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["line_of"]

_TRACE = "Traceback (most recent call last):"


def line_of(error: BaseException) -> str | None:
    """Return the message of an error of Spark or py4j as one line; None for other errors."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    py4j: Any = import_module("py4j.protocol")  # untyped
    if not isinstance(error, PySparkException | py4j.Py4JError):
        return None
    # py4j prepends a line to Java's message.
    text = str(error).partition("\n: ")[2] if isinstance(error, py4j.Py4JJavaError) else str(error)
    lines = [line.rstrip() for line in text.partition("\n\tat ")[0].splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if _TRACE not in text:
        return lines[0]
    # The last unindented line of a Python traceback is the error.
    unindented = [line for line in lines if not line[0].isspace()]
    prefix = lines[0].partition(_TRACE)[0].rstrip(" :")
    return f"{prefix}: {unindented[-1]}" if unindented[-1] != lines[0] else prefix
