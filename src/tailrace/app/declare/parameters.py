"""What a parameter of a handler asks for: the markers that users write, and what a signature is read into.

Rule of this file: values only. ``signature`` finds them, ``readers`` and ``dependencies`` fill them in.
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
    """Marks the parameter that takes the record's key: ``customer: Annotated[str, Key]``.

    ``bytes`` are as they are, ``str`` is UTF-8, numbers, dates and the like are read from text, the rest is JSON.
    A record without a key needs ``| None`` or a default.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Header:
    """Marks the parameter that takes a header: ``trace: Annotated[str | None, Header("trace-id")]``.

    Types are those of ``Key``. Of several headers of one name it is the last, and one that is null is as one that
    is absent: it needs ``| None`` or a default.
    """

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Depends:
    """Marks the parameter that a provider gives: ``bank: Annotated[Bank, Depends(open_bank, scope="app")]``.

    Attributes:
        provider: a function, an async function, a generator, an async generator, or a class. What a generator has
            behind its ``yield`` closes what it gave. A plain one runs on the event loop, so it must not block.
        scope: ``"record"`` opens it for each call of the handler; ``"app"`` once, at start, for all of them.
    """

    provider: Callable[..., object]
    scope: Scope = "record"


# ---- what a signature is read into ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Value:
    """The record's value, decoded."""

    annotation: object


@dataclass(frozen=True, slots=True)
class WholeRecord:
    """The record as the broker stored it."""


@dataclass(frozen=True, slots=True)
class OfKey:
    """The record's key; ``default`` is ``inspect.Parameter.empty`` without one."""

    annotation: object
    default: object


@dataclass(frozen=True, slots=True)
class OfHeader:
    """One of the record's headers."""

    name: str
    annotation: object
    default: object


@dataclass(frozen=True, slots=True)
class Provided:
    """What a provider gives."""

    depends: Depends


@dataclass(frozen=True, slots=True)
class Constant:
    """A positional parameter that is left at its default, though one behind it is not."""

    value: object


Asks: TypeAlias = Value | WholeRecord | OfKey | OfHeader | Provided | Constant


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, what it asks for, and how it is passed."""

    name: str
    asks: Asks
    by_keyword: bool
