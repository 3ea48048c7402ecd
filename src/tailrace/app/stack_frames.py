"""Stacks as a user wants to read them: which line of his own code it is.

Rule of this file: it looks at frames and keeps none, so that nothing lives longer for being looked at.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import traceback
from collections.abc import Sequence
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import NamedTuple

from tailrace.errors import DecodeError

__all__ = ["StackFrame", "culprit", "seen", "where_raised", "with_short_tracebacks"]

_NOT_THEIRS = sys.stdlib_module_names | {"tailrace"}


class StackFrame(NamedTuple):
    """One frame, as it was when it was looked at."""

    module: str
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line} in {self.function}"

    @property
    def package(self) -> str:
        """The first part of the module's name."""
        return self.module.partition(".")[0]

    @property
    def is_installed(self) -> bool:
        """Whether it is of a package that was installed."""
        return not {"site-packages", "dist-packages"}.isdisjoint(PurePath(self.file).parts)


def seen(frame: FrameType, line: int | None = None) -> StackFrame:
    """A frame, at the line where it is, or was."""
    code = frame.f_code
    function = code.co_qualname.rpartition("<locals>.")[2]
    at = frame.f_lineno if line is None else line
    return StackFrame(str(frame.f_globals.get("__name__", "")), code.co_filename, at or 0, function)


def culprit(stack: Sequence[StackFrame]) -> StackFrame | None:
    """The innermost frame of the user's own code, the innermost of the stack being its first; None without any.

    That is what neither the standard library nor tailrace nor an installed package has. A program may be installed
    itself: then it is what the loop called into, and the innermost frame of that package counts.
    """
    theirs = [frame for frame in stack if frame.package not in _NOT_THEIRS]
    if not theirs:
        return None
    own = [frame for frame in theirs if not frame.is_installed]
    return own[0] if own else next(frame for frame in theirs if frame.package == theirs[-1].package)


def where_raised(error: BaseException) -> str | None:
    """The line of the user's own code that an error came through last; None if it came through none."""
    stack = [seen(frame, line) for frame, line in traceback.walk_tb(_raised(error).__traceback__)]
    found = culprit(stack[::-1])
    return None if found is None else str(found)


def with_short_tracebacks(error: BaseException) -> BaseException:
    """Return a copy of ``error`` for the log: it, its causes and the members of groups have the user's frames alone.

    The error itself stays as it is, for hooks and dead letters. One that cannot be copied is returned whole.
    """
    return _shortened(error, {})


def _shortened(error: BaseException, copies: dict[int, BaseException]) -> BaseException:
    if (known := copies.get(id(error))) is not None:
        return known
    short = _copy(error, copies)
    if short is None:
        copies[id(error)] = error
        return error
    copies[id(error)] = short
    short.__traceback__ = _short_traceback(error)
    # Setting the cause suppresses the context.
    short.__cause__ = error.__cause__ and _shortened(error.__cause__, copies)
    short.__context__ = error.__context__ and _shortened(error.__context__, copies)
    short.__suppress_context__ = error.__suppress_context__
    return short


def _copy(error: BaseException, copies: dict[int, BaseException]) -> BaseException | None:
    """Return an error of the same type and text, made without calling the user's ``__init__`` where that goes."""

    def bare() -> BaseException:
        arguments = error.args
        if isinstance(error, BaseExceptionGroup):
            arguments = (error.message, [_shortened(one, copies) for one in error.exceptions])
        made: BaseException = type(error).__new__(type(error), *arguments)
        made.__dict__.update(error.__dict__)
        return made

    def reduced() -> BaseException:
        return copy.copy(error)

    for make in (bare, reduced):
        # Constructors and reducers are the user's own code.
        with contextlib.suppress(Exception):
            made = make()
            if made is not error and type(made) is type(error) and str(made) == str(error):
                return made
    return None


def _short_traceback(error: BaseException) -> TracebackType | None:
    """Return the frames of the user's own code, and the one that raised if it is a library's."""
    entries: list[TracebackType] = []
    entry = _raised(error).__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    frames = [seen(one.tb_frame, one.tb_lineno) for one in entries]
    blamed = culprit(frames[::-1])
    if blamed is None:
        return None
    found: TracebackType | None = None
    for one, frame in zip(reversed(entries), reversed(frames), strict=True):
        is_theirs = frame.package == blamed.package or (frame.package not in _NOT_THEIRS and not frame.is_installed)
        if is_theirs or (one is entries[-1] and frame.package != "tailrace"):
            found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found


def _raised(error: BaseException) -> BaseException:
    """Return the error whose traceback tells where ``error`` came from.

    A value is decoded within the user's middleware, whose line has nothing to do with it; a validator's error is the
    cause of tailrace's DecodeError.
    """
    if not isinstance(error, DecodeError) or error.__cause__ is None:
        return error
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    return error.__cause__ if last and seen(last[0]).package == "tailrace" else error
