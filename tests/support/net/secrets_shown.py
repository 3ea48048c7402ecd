"""Looks for secrets in everything that an error shows, its frames' local variables included."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import tailrace

_OURS = str(Path(tailrace.__file__).parent)


def shown_by(error: BaseException) -> Iterator[str]:
    """All that is printed of an error and of those behind it, and what a tool sees that prints locals of our frames."""
    yield from traceback.format_exception(error)
    for one in _chain(error):
        yield str(one)
        yield repr(one)
        for frame in traceback.TracebackException.from_exception(one, capture_locals=True).stack:
            if frame.filename.startswith(_OURS):
                yield from (f"{frame.name}: {name}={value}" for name, value in (frame.locals or {}).items())


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    # Also what ``from None`` hides from people: it is still there for a tool that looks.
    if error is not None:
        yield error
        yield from _chain(error.__cause__)
        yield from _chain(error.__context__)
