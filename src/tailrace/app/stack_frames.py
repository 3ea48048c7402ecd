"""Lines of the user's own code in stacks and tracebacks."""

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

__all__ = ["StackFrame", "frame_position", "innermost_user_frame", "where_raised", "with_short_tracebacks"]

_LIBRARY_PACKAGES = sys.stdlib_module_names | {"tailrace"}


class StackFrame(NamedTuple):
    """Module, file, line and function of a frame.

    The frame object itself is not referenced, because it would keep the frame's local variables alive.
    """

    module: str
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line} in {self.function}"

    @property
    def package(self) -> str:
        """Top-level package of the module."""
        return self.module.partition(".")[0]

    @property
    def is_installed(self) -> bool:
        """True if the file belongs to an installed package."""
        return not {"site-packages", "dist-packages"}.isdisjoint(PurePath(self.file).parts)


def frame_position(frame: FrameType, line: int | None = None) -> StackFrame:
    """Return module, file, line and function of a frame; without ``line``, the line is the frame's current line."""
    code = frame.f_code
    function = code.co_qualname.rpartition("<locals>.")[2]
    at = frame.f_lineno if line is None else line
    return StackFrame(str(frame.f_globals.get("__name__", "")), code.co_filename, at or 0, function)


def innermost_user_frame(stack: Sequence[StackFrame]) -> StackFrame | None:
    """Return the innermost frame of the user's own code; None if all frames are in the standard library or tailrace.

    The user's own code is all code outside the standard library, tailrace and installed packages. If the stack contains
    none of it, the user's program is assumed to be an installed package: that of the outermost frame outside the
    standard library and tailrace.

    Args:
        stack: frames, the innermost first.
    """
    candidates = [frame for frame in stack if frame.package not in _LIBRARY_PACKAGES]
    if not candidates:
        return None
    own = [frame for frame in candidates if not frame.is_installed]
    return own[0] if own else next(frame for frame in candidates if frame.package == candidates[-1].package)


def where_raised(error: BaseException) -> str | None:
    """Return file, line and function of the innermost frame of the user's own code in the traceback of an error.

    Return None if the traceback contains none.
    """
    stack = [frame_position(frame, line) for frame, line in traceback.walk_tb(_raised(error).__traceback__)]
    found = innermost_user_frame(stack[::-1])
    return None if found is None else str(found)


def with_short_tracebacks(error: BaseException) -> BaseException:
    """Return a copy of ``error`` for the log, whose traceback contains only frames of the user's own code.

    The frame that raised the error is kept, too, unless it is in tailrace. If no frame belongs to the user's own code,
    the copy has no traceback. Causes, contexts and members of exception groups are shortened in the same way. ``error``
    itself is unchanged, because hooks and dead letters use it. An error that cannot be copied is returned unchanged.
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
    """Return an error of the same type and text, or None if that fails; call ``__init__`` only if necessary."""

    def bare() -> BaseException:
        arguments = error.args
        if isinstance(error, BaseExceptionGroup):
            arguments = (error.message, [_shortened(one, copies) for one in error.exceptions])
        made: BaseException = type(error).__new__(type(error), *arguments)
        made.__dict__.update(error.__dict__)
        return made

    def copied() -> BaseException:
        return copy.copy(error)

    for make in (bare, copied):
        # Constructors and ``__reduce__`` are code of the user, which may raise any exception.
        with contextlib.suppress(Exception):
            made = make()
            if made is not error and type(made) is type(error) and str(made) == str(error):
                return made
    return None


def _short_traceback(error: BaseException) -> TracebackType | None:
    """Return a traceback of the frames that ``with_short_tracebacks`` keeps; None if there are none."""
    entries: list[TracebackType] = []
    entry = _raised(error).__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    frames = [frame_position(one.tb_frame, one.tb_lineno) for one in entries]
    user_frame = innermost_user_frame(frames[::-1])
    if user_frame is None:
        return None
    found: TracebackType | None = None
    for one, frame in zip(reversed(entries), reversed(frames), strict=True):
        is_users = frame.package == user_frame.package or (
            frame.package not in _LIBRARY_PACKAGES and not frame.is_installed
        )
        if is_users or (one is entries[-1] and frame.package != "tailrace"):
            found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found


def _raised(error: BaseException) -> BaseException:
    """Return the error whose traceback shows where ``error`` came from.

    For a DecodeError that tailrace raised, this is its cause, whose traceback shows the line of the user's validator.
    The traceback of the DecodeError itself shows lines of the user's middleware, which is not at fault.
    """
    if not isinstance(error, DecodeError) or error.__cause__ is None:
        return error
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    return error.__cause__ if last and frame_position(last[0]).package == "tailrace" else error
