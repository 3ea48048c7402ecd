"""Search for secrets in everything that an error shows, including local variables of its frames."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import tailrace

_OURS = str(Path(tailrace.__file__).parent)


def shown_by(error: BaseException) -> Iterator[str]:
    """Return the printed traceback of an error and its causes, and the local variables of tailrace's frames."""
    yield from traceback.format_exception(error)
    for one in _chain(error):
        yield str(one)
        yield repr(one)
        for frame in traceback.TracebackException.from_exception(one, capture_locals=True).stack:
            if frame.filename.startswith(_OURS):
                yield from (f"{frame.name}: {name}={value}" for name, value in (frame.locals or {}).items())


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    # Contexts hidden by ``from None`` are included, because tools may show them.
    if error is not None:
        yield error
        yield from _chain(error.__cause__)
        yield from _chain(error.__context__)
