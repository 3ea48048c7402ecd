"""State machines without a clock and without I/O. Pure: no clock, IO or logging.

Events and the time are arguments. A transition table names the step for each state and event; a step returns the next
state and may append effects, which are values. The coroutine that drives the machine performs the effects and reports
their outcomes as events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

__all__ = ["Row", "StateMachine", "Transition", "TransitionTable", "all_but"]

MachineT = TypeVar("MachineT")
StateT = TypeVar("StateT", bound=StrEnum)
EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")


@dataclass(frozen=True, slots=True)
class Row(Generic[MachineT, StateT, EventT]):
    """Transitions that several states or events have in common."""

    states: Iterable[StateT]
    events: type[EventT] | tuple[type[EventT], ...]
    step: Callable[[MachineT, EventT, float], StateT | None]
    """Function that performs the transition. It returns None, which leads to ``then``, or a state of ``exceptions``."""
    then: StateT | None = None
    """State after a step that returns None; None to keep the state."""
    exceptions: tuple[StateT, ...] = ()
    """Other states that the step may return."""


def all_but(states: type[StateT], *excluded: StateT) -> tuple[StateT, ...]:
    return tuple(state for state in states if state not in excluded)


@dataclass(frozen=True, slots=True)
class Transition(Generic[StateT]):
    """Transition from one state by one event."""

    step: Callable[[Any, Any, float], StateT | None]
    then: StateT
    exceptions: tuple[StateT, ...]


class TransitionTable(dict[tuple[StateT, type[Any]], Transition[StateT]]):
    """Every transition of a machine.

    Args:
        rows: transitions; only one row may name a given pair of state and event.
        final_states: states in which every event is ignored; rows have no effect on them.

    Raises:
        ValueError: two rows name the same state and event.
    """

    def __init__(self, rows: Iterable[Row[Any, StateT, Any]], final_states: frozenset[StateT]) -> None:
        super().__init__()
        self.final_states = final_states
        for row in rows:
            events = row.events if isinstance(row.events, tuple) else (row.events,)
            for key in ((state, event) for state in row.states if state not in final_states for event in events):
                if key in self:
                    raise ValueError(f"two transitions from {key[0]} by {key[1].__name__}")
                self[key] = Transition(row.step, key[0] if row.then is None else row.then, row.exceptions)

    def next_state(self, machine: object, state: StateT, event: object, now: float) -> StateT:
        """Run the step of ``event`` and return the state after it.

        Raises:
            ValueError: the table has no transition for ``event`` in this state; no step was run.
            RuntimeError: the step returned a state that its row does not list.
        """
        transition = self.get((state, type(event)))
        if transition is None:
            raise ValueError(f"{type(event).__name__} cannot happen while {state}")
        then = transition.step(machine, event, now)
        if then is None:
            return transition.then
        if then is not transition.then and then not in transition.exceptions:
            raise RuntimeError(f"{type(event).__name__} led from {state} to {then}, which its row does not list")
        return then


class StateMachine(Generic[StateT, EventT, EffectT]):
    """Machine driven by a coroutine, which passes events to ``receive`` and performs the ``effects``."""

    def __init__(self, table: TransitionTable[StateT], state: StateT) -> None:
        self._table = table
        self.state = state
        self._effects: deque[EffectT] = deque()

    @property
    def is_over(self) -> bool:
        return self.state in self._table.final_states

    def receive(self, event: EventT, now: float) -> None:
        """Handle an event; in a final state, ignore the event.

        Raises:
            ValueError: the event cannot happen in this state; nothing has changed.
        """
        if not self.is_over:
            self.state = self._table.next_state(self, self.state, event, now)

    def effects(self) -> Iterator[EffectT]:
        """Yield the effects to perform, in order, and remove each from the queue."""
        while self._effects:
            yield self._effects.popleft()

    def ignore(self, event: EventT, now: float) -> None:
        """Do nothing; the step of events that have no effect in a state."""
