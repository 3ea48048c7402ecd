"""Markers in the annotations of parameters, and sources from which parameters get their arguments.

``declare.signature`` derives the source of each parameter from its annotation. ``declare.parameter_readers`` and
``declare.dependencies`` create the functions that read the arguments from the sources.
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
"""Function, generator or class, sync or async, whose result is the value of a dependency."""
Scope: TypeAlias = Literal["record", "app"]
"""Duration for which a dependency stays open: one call of a handler, or from start to stop of the app."""


class Key:
    """Marker of the parameter for the record's key: ``customer: Annotated[str, Key]``.

    The key is passed unchanged to a parameter of type ``bytes``. ``str``, numbers, booleans, enums, dates, times and
    UUIDs are read from text in UTF-8, and other types from JSON; a codec with ``keys=True`` decodes all types but
    ``bytes``. If records may have no key, add ``| None`` to the type, or a default.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Header:
    """Marker of the parameter for a header: ``trace: Annotated[str | None, Header("trace-id")]``.

    Headers are read from text or JSON, as described for ``Key``. If a record has several headers of this name, the last
    one is used. If the header may be missing or null, add ``| None`` to the type, or a default.
    """

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Depends:
    """Marker of the parameter for a dependency: ``bank: Annotated[Bank, Depends(open_bank, scope="app")]``.

    Attributes:
        provider: Function, async function, generator, async generator or class. Its result, or the value that it
            yields, is the argument. A returned coroutine is awaited; other awaitable objects are passed on unchanged.
            The code after the ``yield`` of a generator closes the dependency. A sync provider runs in the event loop
            and must not block.
        scope: ``"record"`` opens the dependency for each call of the handler, ``"app"`` once when the app starts.
    """

    provider: Provider
    scope: Scope = "record"


# ---- sources of arguments ---------------------------------------------------------------------------------
# The attribute ``default`` is ``inspect.Parameter.empty`` if the parameter has no default.


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Source of a parameter without a marker: the decoded value of the record, or the values of a batch."""

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
    """Source of a parameter that keeps its default.

    The default is passed explicitly only if a later positional parameter needs an argument.
    """

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
