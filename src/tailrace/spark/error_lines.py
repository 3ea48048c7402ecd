"""What Spark itself raises, as one line: its errors bring whole stacks of Java's and of its workers' along."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["line_of"]

_TRACE = "Traceback (most recent call last):"


def line_of(error: BaseException) -> str | None:
    """What it says, in one line; None where it is no error of Spark's, nor of the way to its Java."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    py4j: Any = import_module("py4j.protocol")  # untyped
    if not isinstance(error, PySparkException | py4j.Py4JError):
        return None
    # py4j has a line of its own before Java's.
    text = str(error).partition("\n: ")[2] if isinstance(error, py4j.Py4JJavaError) else str(error)
    lines = [line.rstrip() for line in text.partition("\n\tat ")[0].splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if _TRACE not in text:
        return lines[0]
    # Of a trace of Python's the last line says what it was.
    said = [line for line in lines if not line[0].isspace()]
    first = lines[0].partition(_TRACE)[0].rstrip(" :")
    return f"{first}: {said[-1]}" if said[-1] != lines[0] else first
