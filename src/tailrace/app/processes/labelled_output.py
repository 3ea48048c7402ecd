"""Output of a worker in whole lines, each prefixed with the worker's name.

A worker adds the prefix itself. If the output went through the parent, each ``print`` of a handler would fail after the
parent was killed.
"""

from __future__ import annotations

import io
import os
import sys

__all__ = ["LabelledLines", "label_output"]

_MAX_LINE_BYTES = 1 << 16
"""Number of buffered bytes above which an incomplete line is written as a complete line."""


class LabelledLines(io.RawIOBase):
    """Stream that writes whole lines to the file descriptor ``descriptor``, each prefixed with ``label``."""

    def __init__(self, descriptor: int, label: str) -> None:
        self._descriptor, self._label = descriptor, label.encode()
        self._incomplete_line = bytearray()

    def fileno(self) -> int:
        """Return the file descriptor of the output."""
        return self._descriptor

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return True if the output is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Buffer ``data``, and write its complete lines."""
        self._incomplete_line += data
        *lines, rest = bytes(self._incomplete_line).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._incomplete_line = bytearray(rest)
        self._write_lines(lines)
        return len(data)

    def close(self) -> None:
        """Write the incomplete line, if there is one, and close the stream."""
        if not self.closed and self._incomplete_line:
            self._write_lines([bytes(self._incomplete_line)])
            self._incomplete_line.clear()
        super().close()

    def _write_lines(self, lines: list[bytes]) -> None:
        # All lines are written by one call, so that the output of other workers is not mixed in.
        out = memoryview(b"".join(b"%b%b\n" % (self._label, line) for line in lines))
        while out:
            out = out[os.write(self._descriptor, out) :]


def label_output(label: str) -> None:
    """Prefix all output of this process with ``label``: prints, logs and tracebacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            continue  # A service manager has closed the stream.
        labelled = LabelledLines(stream.fileno(), label)
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(labelled), encoding=stream.encoding, errors=stream.errors, line_buffering=True
            ),
        )
