"""Binding of arguments to the parameters of a handler or provider.

Each parameter has a reader, a function that returns its argument; the readers are called in the order of the
parameters. A unit is the record, or the list of records of a batch, for which a handler is called.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tailrace.app.declare.parameters import Parameter

__all__ = ["NOTHING_OPENED", "Arguments", "Bind", "Binding", "DependencyKey", "Opened", "Reader", "create_binding"]

DependencyKey: TypeAlias = tuple[int | str, ...]
"""Identity of a provider, and scope."""
Opened: TypeAlias = Mapping[DependencyKey, object]
"""Values of open dependencies, by ``Dependency.key``."""
NOTHING_OPENED: Opened = types.MappingProxyType({})

Reader: TypeAlias = Callable[[Any, Opened], object]
"""Returns the argument for one parameter; called with a unit and the open dependencies."""
Arguments: TypeAlias = tuple[list[object], dict[str, object]]
"""Positional and keyword arguments of a call."""
Bind: TypeAlias = Callable[[Any, Opened], Arguments]
"""Returns all arguments of a call; called with a unit and the open dependencies."""


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """Readers of the arguments of a call.

    Attributes:
        positional: Readers of positional parameters, in order.
        by_keyword: Names and readers of keyword-only parameters.
        bind: Calls all readers and returns their results.
    """

    positional: tuple[Reader, ...]
    by_keyword: tuple[tuple[str, Reader], ...]
    bind: Bind


def create_binding(parameters: Sequence[Parameter], readers: Sequence[Reader]) -> Binding:
    """Return a binding in which each reader reads the argument for the parameter at the same index."""
    pairs = list(zip(parameters, readers, strict=True))
    positional = tuple(reader for parameter, reader in pairs if not parameter.by_keyword)
    by_keyword = tuple((parameter.name, reader) for parameter, reader in pairs if parameter.by_keyword)

    def bind(unit: object, opened: Opened) -> Arguments:
        args = [read(unit, opened) for read in positional]
        return args, {name: read(unit, opened) for name, read in by_keyword}

    return Binding(positional, by_keyword, bind)
