"""Binding of a call's arguments: one reader for each parameter, called in order."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tailrace.app.declare.parameters import Parameter

__all__ = ["NOTHING_OPENED", "Arguments", "Bind", "Binding", "DependencyKey", "Opened", "Reader", "binding"]

DependencyKey: TypeAlias = tuple[int | str, ...]
Opened: TypeAlias = Mapping[DependencyKey, object]
"""Values of open providers, by ``Dependency.key``."""
NOTHING_OPENED: Opened = types.MappingProxyType({})

Reader: TypeAlias = Callable[[Any, Opened], object]
"""Returns one argument for a record, or a batch, and open providers."""
Arguments: TypeAlias = tuple[list[object], dict[str, object]]
"""Positional and keyword arguments of a call."""
Bind: TypeAlias = Callable[[Any, Opened], Arguments]


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """Readers of the arguments of a call.

    Attributes:
        positional: Readers of positional parameters, in order.
        by_keyword: Names and readers of keyword-only parameters.
        bind: Calls all readers.
    """

    positional: tuple[Reader, ...]
    by_keyword: tuple[tuple[str, Reader], ...]
    bind: Bind


def binding(parameters: Sequence[Parameter], readers: Sequence[Reader]) -> Binding:
    """Return the binding of parameters and their readers."""
    both = list(zip(parameters, readers, strict=True))
    positional = tuple(reader for parameter, reader in both if not parameter.by_keyword)
    by_keyword = tuple((parameter.name, reader) for parameter, reader in both if parameter.by_keyword)

    def bind(subject: object, opened: Opened) -> Arguments:
        args = [read(subject, opened) for read in positional]
        return args, {name: read(subject, opened) for name, read in by_keyword}

    return Binding(positional, by_keyword, bind)
