"""Functions of tailrace that run while something happens."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import tailrace

SOURCE = str(Path(tailrace.__file__).parent)


@contextlib.contextmanager
def calls(on_call: Callable[[FrameType], None] = lambda _: None) -> Iterator[list[tuple[str, str]]]:
    """Collect the file and the name of each function of tailrace that this thread calls or resumes."""
    found: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            found.append((code.co_filename.removeprefix(SOURCE), code.co_qualname))
            on_call(frame)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def since_response(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the calls since bytes of the last response arrived."""
    last = max(at for at, (_, name) in enumerate(found) if name.endswith(".buffer_updated"))
    return found[last:]


def frames_of(frame: FrameType | None) -> int:
    """Return the number of frames of tailrace from ``frame`` outward."""
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith(SOURCE)
        frame = frame.f_back
    return count
