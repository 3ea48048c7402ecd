"""What a worker writes, a line at a time and with its name in front, so that several on one terminal are told apart.

Rule of this file: it stays in the worker. Were its output led through the parent, a parent that is killed would have
every ``print`` of a handler fail.
"""

from __future__ import annotations

import io
import os
import sys

__all__ = ["LabelledLines", "label_output"]

_LONGEST = 1 << 16
"""A line that does not end is written after so many bytes."""


class LabelledLines(io.RawIOBase):
    """Writes whole lines to ``descriptor``, each with ``label`` before it."""

    def __init__(self, descriptor: int, label: str) -> None:
        self._descriptor, self._label = descriptor, label.encode()
        self._rest = bytearray()

    def fileno(self) -> int:
        """Where it goes."""
        return self._descriptor

    def writable(self) -> bool:
        """It is."""
        return True

    def isatty(self) -> bool:
        """Whether a person looks at it."""
        return os.isatty(self._descriptor)

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        """Take ``data``; what ends in a newline is written."""
        self._rest += data
        *lines, rest = bytes(self._rest).split(b"\n")
        if len(rest) > _LONGEST:
            lines, rest = [*lines, rest], b""
        self._rest = bytearray(rest)
        self._put(lines)
        return len(data)

    def close(self) -> None:
        """Write what did not end in a newline."""
        if not self.closed and self._rest:
            self._put([bytes(self._rest)])
            self._rest.clear()
        super().close()

    def _put(self, lines: list[bytes]) -> None:
        # In one call, so that no line of another worker comes in between.
        out = memoryview(b"".join(b"%b%b\n" % (self._label, line) for line in lines))
        while out:
            out = out[os.write(self._descriptor, out) :]


def label_output(label: str) -> None:
    """Have ``print``, logs and tracebacks of this process carry ``label``."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            continue  # closed, as some that start services do
        labelled = LabelledLines(stream.fileno(), label)
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(labelled), encoding=stream.encoding, errors=stream.errors, line_buffering=True
            ),
        )
