"""State machines driven by a test: their effects, their state, and random steps of a simulation."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol, TypeVar

__all__ = ["NOW", "Pick", "RandomSteps", "check_events", "effects_of", "state_of", "told"]

NOW = 1_000.0
"""Time of an event for which a test names none."""

T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]


class Machine(Protocol):
    """What the state machines of core have in common."""

    def receive(self, event: Any, now: float) -> None: ...

    def effects(self) -> Iterable[Any]: ...


def effects_of(machine: Machine) -> list[Any]:
    """Take the effects that wait to be performed."""
    return list(machine.effects())


def told(machine: Machine, *events: object, now: float = NOW) -> list[Any]:
    """Give the machine ``events``; return the effects that follow."""
    for event in events:
        machine.receive(event, now)
    return effects_of(machine)


def state_of(one: object) -> object:
    """Copy everything that a machine and its parts know, to be compared with a later copy."""
    if type(one).__module__.startswith("tailrace.core") and hasattr(one, "__dict__"):
        return {name: state_of(value) for name, value in vars(one).items()}
    return copy.copy(one)


def check_events(
    module: ModuleType, base: type, table: Iterable[tuple[object, type]], examples: Mapping[type, object]
) -> None:
    """Assert that ``examples`` has one of each event of ``module``, and that ``table`` knows no other."""
    named = {getattr(module, name) for name in module.__all__}

    assert {one for one in named if inspect.isclass(one) and issubclass(one, base)} - {base} == set(examples)
    assert {event for _, event in table} <= set(examples)


class RandomSteps:
    """A simulation that goes on one possible step at a time; ``pick`` chooses it."""

    def __init__(self, pick: Pick[Any]) -> None:
        self.pick = pick

    def step(self) -> None:
        """Take one of the steps that are possible now, and check what must hold after it."""
        self.pick([act for act, is_possible in self.acts() if is_possible])()
        self.check()

    def acts(self) -> Iterator[tuple[Callable[[], None], bool]]:
        """Give each kind of step, and whether it is possible now."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert what must hold after every step."""
        raise NotImplementedError
