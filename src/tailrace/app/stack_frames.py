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
from tailrace.user_exceptions import shortened

__all__ = ["StackFrame", "frame_position", "innermost_user_frame", "where_raised", "with_short_tracebacks"]

_LIBRARY_PACKAGES = sys.stdlib_module_names | {"tailrace"}
_MAX_RELATED = 100
"""Maximum number of exceptions in a log entry: causes, contexts and members of groups."""


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
    try:
        stack = [frame_position(frame, line) for frame, line in traceback.walk_tb(_raised(error).__traceback__)]
    except Exception:  # noqa: BLE001 - properties of the user's class may raise any exception
        return None
    found = innermost_user_frame(stack[::-1])
    return None if found is None else str(found)


def with_short_tracebacks(error: BaseException) -> BaseException:
    """Return a copy of ``error`` for the log, whose traceback contains only frames of the user's own code.

    The frame that raised the error is kept, too, unless it is in tailrace. If no frame belongs to the user's own code,
    the copy has no traceback. Causes, contexts and members of exception groups are shortened in the same way. ``error``
    itself is unchanged, because it belongs to the user, and hooks and dead letters use it. An error that cannot be
    copied is returned unchanged. Of many causes, contexts and members, only the nearest are kept.
    """
    copies: dict[int, BaseException] = {}
    try:
        related = _related(error)
        # Members of a group are copied before the group, which cannot be changed after its construction.
        for one in reversed(related):
            copies[id(one)] = _copy(one, copies) or one
        for one in related:
            if (short := copies[id(one)]) is not one:
                _set(short, "__traceback__", _short_traceback(one))
                # Setting the cause suppresses the context.
                _set(short, "__cause__", copies.get(id(one.__cause__)))
                _set(short, "__context__", copies.get(id(one.__context__)))
                _set(short, "__suppress_context__", one.__suppress_context__)
    except Exception:  # noqa: BLE001 - properties of the user's classes may raise any exception
        return error
    return copies[id(error)]


def _related(error: BaseException) -> list[BaseException]:
    """Return an error, its causes and contexts and the members of groups, the nearest first."""
    found, seen = [error], {id(error)}
    for one in found:
        members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        for other in (one.__cause__, one.__context__, *members):
            if other is not None and id(other) not in seen and len(found) < _MAX_RELATED:
                seen.add(id(other))
                found.append(other)
    return found


def _set(copied: BaseException, name: str, value: object) -> None:
    """Set an attribute of a copy, even if its class refuses to set attributes, as a frozen dataclass does."""
    BaseException.__dict__[name].__set__(copied, value)


def _copy(error: BaseException, copies: dict[int, BaseException]) -> BaseException | None:
    """Return an error of the same type and text, or None if that fails; call ``__init__`` only if necessary.

    A long text is shortened, in an error of another type with the same name.
    """
    if (short := shortened(error)) is not error:
        return short

    def bare() -> BaseException:
        arguments = error.args
        if isinstance(error, BaseExceptionGroup):
            arguments = (error.message, [copies.get(id(one), one) for one in error.exceptions])
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
