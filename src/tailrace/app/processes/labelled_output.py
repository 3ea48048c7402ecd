"""Output of a worker in whole lines, each prefixed with the worker's name.

The worker writes its output itself. If the output went through the parent and the parent were killed, every ``print``
of a handler would fail.
"""

from __future__ import annotations

import io
import os
import sys

__all__ = ["LabelledLines", "label_output"]

_MAX_LINE_BYTES = 1 << 16
"""Number of buffered bytes above which an incomplete line is written as a line."""


class LabelledLines(io.RawIOBase):
    """Writes whole lines to ``descriptor``, each prefixed with ``label``."""

    def __init__(self, descriptor: int, label: str) -> None:
        self._descriptor, self._label = descriptor, label.encode()
        self._rest = bytearray()

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
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        self._rest = bytearray(rest)
        self._put(lines)
        return len(data)

    def close(self) -> None:
        """Write the buffered bytes that did not end in a newline as a last line."""
        if not self.closed and self._rest:
            self._put([bytes(self._rest)])
            self._rest.clear()
        super().close()

    def _put(self, lines: list[bytes]) -> None:
        # One call for all lines, so that the output of other workers is not mixed in.
        out = memoryview(b"".join(b"%b%b\n" % (self._label, line) for line in lines))
        while out:
            out = out[os.write(self._descriptor, out) :]


def label_output(label: str) -> None:
    """Prefix all output of this process with ``label``: prints, logs and tracebacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            continue  # Some service managers close the stream.
        labelled = LabelledLines(stream.fileno(), label)
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(labelled), encoding=stream.encoding, errors=stream.errors, line_buffering=True
            ),
        )
