"""Stacks as a user wants to read them: which line of his own code it is.

Rule of this file: it looks at frames and keeps none, so that nothing lives longer for being looked at.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from pathlib import PurePath
from types import FrameType
from typing import NamedTuple

__all__ = ["Frame", "culprit", "seen", "where_raised"]

_NOT_THEIRS = sys.stdlib_module_names | {"penstock"}


class Frame(NamedTuple):
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


def seen(frame: FrameType, line: int | None = None) -> Frame:
    """A frame, at the line where it is, or was."""
    code = frame.f_code
    function = code.co_qualname.rpartition("<locals>.")[2]
    at = frame.f_lineno if line is None else line
    return Frame(str(frame.f_globals.get("__name__", "")), code.co_filename, at or 0, function)


def culprit(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's own code, the innermost of the stack being its first; None without any.

    That is what neither the standard library nor penstock nor an installed package has. A program may be installed
    itself: then it is what the loop called into, and the innermost frame of that package counts.
    """
    theirs = [frame for frame in stack if frame.package not in _NOT_THEIRS]
    if not theirs:
        return None
    own = [frame for frame in theirs if not frame.is_installed]
    return own[0] if own else next(frame for frame in theirs if frame.package == theirs[-1].package)


def where_raised(error: BaseException) -> str | None:
    """The line of the user's own code that an error came through last; None if it came through none."""
    stack = [seen(frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    found = culprit(stack[::-1])
    return None if found is None else str(found)
