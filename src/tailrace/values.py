"""Base class of immutable values (events, effects, messages), and values that tracebacks do not show.

The modules that a consumer imports declare about two hundred of these classes. To declare a frozen dataclass takes
about 1 ms, because its methods are compiled from source text. To declare a struct takes a fraction of that, and its
instances are created in C.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, dataclass_transform

import msgspec

__all__ = ["Hidden", "Secret", "Value", "robust_repr"]


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True):
    """Immutable value, compared by its fields; subclasses declare fields as in a dataclass."""


def robust_repr(method: Callable[[Any], str]) -> Callable[[Any], str]:
    """Decorate a ``__repr__`` to return a text, too, for an object whose constructor has raised.

    Programs that report errors show the local variables of a traceback, such as ``self`` of a constructor.
    """

    @functools.wraps(method)
    def shown(self: object) -> str:
        try:
            return method(self)
        except AttributeError:
            return f"<{type(self).__name__} not constructed>"

    return shown


class Hidden:
    """Credentials or a URL that contains some.

    Tools that log the local variables of a traceback show only ``<hidden>``.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:  # noqa: ANN401 - any credentials
        self.value: Any = value

    def __repr__(self) -> str:
        return "<hidden>"


class Secret(str):
    """Text whose ``repr`` is ``<hidden>``, for the same reason; for all other purposes, it is a str."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<hidden>"
