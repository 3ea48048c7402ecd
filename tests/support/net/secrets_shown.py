"""Search for secrets in everything that an error shows, including local variables of its frames."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

_TESTS = str(Path(__file__).parents[2])


def shown_by(error: BaseException) -> Iterator[str]:
    """Return the printed traceback of an error and its causes, and the local variables of all frames but the tests'.

    Frames of other packages are included, because tools such as sentry and rich show their variables, too.
    """
    yield from traceback.format_exception(error)
    for one in _chain(error, set()):
        yield str(one)
        yield repr(one)
        for frame in traceback.TracebackException.from_exception(one, capture_locals=True).stack:
            if not frame.filename.startswith(_TESTS):
                yield from (f"{frame.name}: {name}={value}" for name, value in (frame.locals or {}).items())


def _chain(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    # Contexts hidden by ``from None`` are included, because tools may show them.
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    yield from _chain(error.__cause__, seen)
    yield from _chain(error.__context__, seen)
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _chain(one, seen)
