"""Markers of handler parameters, and the sources of their arguments.

``signature`` reads them from a function; ``parameter_readers`` and ``dependencies`` provide the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "Asks",
    "Constant",
    "Depends",
    "Header",
    "Key",
    "OfHeader",
    "OfKey",
    "Parameter",
    "Provided",
    "Scope",
    "Value",
    "WholeRecord",
]

Scope: TypeAlias = Literal["record", "app"]


class Key:
    """Marker of the parameter for the record's key: ``customer: Annotated[str, Key]``.

    ``bytes`` are passed unchanged, ``str`` is UTF-8, numbers, dates and the like are parsed from text, the rest is
    JSON. A record without a key needs ``| None`` or a default.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Header:
    """Marker of the parameter for a header: ``trace: Annotated[str | None, Header("trace-id")]``.

    Types are those of ``Key``. Of several headers with the name, the last one counts. A null header counts as absent:
    it needs ``| None`` or a default.
    """

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Depends:
    """Marker of the parameter for a dependency: ``bank: Annotated[Bank, Depends(open_bank, scope="app")]``.

    Attributes:
        provider: Function, async function, generator, async generator or class that returns the argument. The code
            after the ``yield`` of a generator closes the dependency. A sync provider runs on the event loop and must
            not block.
        scope: ``"record"`` opens the dependency for each call of the handler, ``"app"`` once at start.
    """

    provider: Callable[..., object]
    scope: Scope = "record"


# ---- sources of arguments ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """The record's value, decoded."""

    annotation: object


@dataclass(frozen=True, slots=True)
class WholeRecord:
    """The record, not decoded."""


@dataclass(frozen=True, slots=True)
class OfKey:
    """The record's key; ``default`` is ``inspect.Parameter.empty`` if there is none."""

    annotation: object
    default: object


@dataclass(frozen=True, slots=True)
class OfHeader:
    """A header of the record."""

    name: str
    annotation: object
    default: object


@dataclass(frozen=True, slots=True)
class Provided:
    """The value of a provider."""

    depends: Depends


@dataclass(frozen=True, slots=True)
class Constant:
    """The default of a positional parameter that is followed by others."""

    value: object


Asks: TypeAlias = Value | WholeRecord | OfKey | OfHeader | Provided | Constant


@dataclass(frozen=True, slots=True)
class Parameter:
    """Parameter of a function, and the source of its argument."""

    name: str
    asks: Asks
    by_keyword: bool
