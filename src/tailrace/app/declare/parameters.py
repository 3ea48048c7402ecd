"""Markers in the annotations of handler parameters, and sources of the parameters' arguments.

``declare.signature`` derives the source of each parameter from its annotation; ``declare.parameter_readers`` and
``declare.dependencies`` read the argument from the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "ArgumentSource",
    "DefaultSource",
    "DependencySource",
    "Depends",
    "Header",
    "HeaderSource",
    "Key",
    "KeySource",
    "Parameter",
    "Provider",
    "RecordSource",
    "Scope",
    "ValueSource",
]

Provider: TypeAlias = Callable[..., object]
"""Function, generator (sync or async) or class that returns a dependency, which may be any object."""
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

    provider: Provider
    scope: Scope = "record"


# ---- sources of arguments ---------------------------------------------------------------------------------
# A ``default`` is ``inspect.Parameter.empty`` if the parameter has none.


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Source of a parameter without a marker: the decoded value of the record, or the list of a batch."""

    annotation: object


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Source of a parameter annotated with ``Record``: the record itself, not decoded."""


@dataclass(frozen=True, slots=True)
class KeySource:
    """Source of a parameter marked with ``Key``: the record's decoded key."""

    annotation: object
    default: object


@dataclass(frozen=True, slots=True)
class HeaderSource:
    """Source of a parameter marked with ``Header``: the decoded header ``name`` of the record."""

    name: str
    annotation: object
    default: object


@dataclass(frozen=True, slots=True)
class DependencySource:
    """Source of a parameter marked with ``Depends``: the result of the provider."""

    depends: Depends


@dataclass(frozen=True, slots=True)
class DefaultSource:
    """Source of a parameter that keeps its default, which is passed only if a later positional one gets an argument."""

    value: object


ArgumentSource: TypeAlias = ValueSource | RecordSource | KeySource | HeaderSource | DependencySource | DefaultSource


@dataclass(frozen=True, slots=True)
class Parameter:
    """Parameter of a function, and the source of its argument.

    Attributes:
        by_keyword: True for a keyword-only parameter.
    """

    name: str
    source: ArgumentSource
    by_keyword: bool
