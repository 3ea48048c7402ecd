"""State machines that a test drives: their effects, their state, and random steps of a simulation."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol, TypeVar

__all__ = ["NOW", "Pick", "RandomSteps", "check_events", "effects_after", "effects_of", "state_of"]

NOW = 1_000.0
"""Time of an event for which a test names none."""

T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]


class Machine(Protocol):
    """Interface of tailrace's state machines."""

    def receive(self, event: Any, now: float) -> None: ...

    def effects(self) -> Iterable[Any]: ...


def effects_of(machine: Machine) -> list[Any]:
    """Return the pending effects."""
    return list(machine.effects())


def effects_after(machine: Machine, *events: object, now: float = NOW) -> list[Any]:
    """Pass ``events`` to the machine and return the resulting effects."""
    for event in events:
        machine.receive(event, now)
    return effects_of(machine)


def state_of(one: object) -> object:
    """Copy the whole state of a machine, for comparison with a later copy."""
    if type(one).__module__.startswith("tailrace.") and hasattr(one, "__dict__"):
        return {name: state_of(value) for name, value in vars(one).items()}
    return copy.copy(one)


def check_events(
    module: ModuleType, base: type, table: Iterable[tuple[object, type]], examples: Mapping[type, object]
) -> None:
    """Assert that ``examples`` has one of each event of ``module``, and that ``table`` has no others."""
    named = [getattr(module, name) for name in module.__all__]

    assert {one for one in named if inspect.isclass(one) and issubclass(one, base)} - {base} == set(examples)
    assert {event for _, event in table} <= set(examples)


class RandomSteps:
    """Simulation of random steps, chosen by ``pick``."""

    def __init__(self, pick: Pick[Any]) -> None:
        self.pick = pick

    def step(self) -> None:
        """Take one of the possible steps and check the invariants."""
        self.pick([act for act, is_possible in self.acts() if is_possible])()
        self.check()

    def acts(self) -> Iterator[tuple[Callable[[], None], bool]]:
        """Return each kind of step and whether it is possible."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert the invariants."""
        raise NotImplementedError
