"""The arguments of a call: one reader a parameter, put together once.

Rule of this file: readers are asked in the order of the parameters, and nothing else happens for a call.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tailrace.app.declare.parameters import Parameter

__all__ = ["NOTHING_OPENED", "Arguments", "Bind", "Binding", "DependencyKey", "Opened", "Reader", "binding"]

DependencyKey: TypeAlias = tuple[int | str, ...]
Opened: TypeAlias = Mapping[DependencyKey, object]
"""What providers gave, by ``Dependency.key``."""
NOTHING_OPENED: Opened = types.MappingProxyType({})

Reader: TypeAlias = Callable[[Any, Opened], object]
"""Gives one argument, of a record (or a batch of them) and what is open."""
Arguments: TypeAlias = tuple[list[object], dict[str, object]]
"""As in ``function(*args, **kwargs)``."""
Bind: TypeAlias = Callable[[Any, Opened], Arguments]


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """What gives the arguments of a call.

    Attributes:
        positional: readers, in order.
        by_keyword: names and readers of those that go by name.
        bind: all of them asked.
    """

    positional: tuple[Reader, ...]
    by_keyword: tuple[tuple[str, Reader], ...]
    bind: Bind


def binding(parameters: Sequence[Parameter], readers: Sequence[Reader]) -> Binding:
    """The binding of ``parameters``, each with its reader."""
    both = list(zip(parameters, readers, strict=True))
    positional = tuple(reader for parameter, reader in both if not parameter.by_keyword)
    by_keyword = tuple((parameter.name, reader) for parameter, reader in both if parameter.by_keyword)

    def bind(subject: object, opened: Opened) -> Arguments:
        args = [read(subject, opened) for read in positional]
        return args, {name: read(subject, opened) for name, read in by_keyword}

    return Binding(positional, by_keyword, bind)
