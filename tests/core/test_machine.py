"""Transitions of state machines and their errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pytest

from tailrace.core.machine import Row, StateMachine, TransitionTable, all_but


class DoorState(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    LOCKED = "locked"
    GONE = "gone"


@dataclass(frozen=True)
class Push:
    force: int = 1


@dataclass(frozen=True)
class Remove:
    pass


class Door(StateMachine[DoorState, object, str]):
    def __init__(self) -> None:
        super().__init__(TABLE, DoorState.OPEN)

    def push(self, event: Push, _now: float) -> DoorState | None:
        self._effects.append(f"pushed with {event.force}")
        return {1: None, 2: DoorState.LOCKED}.get(event.force, DoorState.GONE)


TABLE = TransitionTable(
    [
        Row((DoorState.OPEN,), Push, Door.push, DoorState.CLOSED, (DoorState.LOCKED,)),
        Row((DoorState.CLOSED,), Push, Door.push),
        Row(all_but(DoorState, DoorState.LOCKED), Remove, Door.ignore, DoorState.GONE),
    ],
    final_states=frozenset({DoorState.GONE}),
)


@pytest.mark.parametrize(("force", "state"), [(1, DoorState.CLOSED), (2, DoorState.LOCKED)])
def test_a_step_returns_the_next_state_or_leaves_it_to_its_row(force, state):
    """A step returns None for the next state of its row, or one of the row's exceptions."""
    door = Door()

    door.receive(Push(force), 0.0)

    assert door.state is state
    assert list(door.effects()) == [f"pushed with {force}"]
    assert list(door.effects()) == []


def test_row_without_a_next_state_keeps_the_state():
    """A row without a next state runs its step and keeps the state."""
    door = Door()
    door.state = DoorState.CLOSED

    door.receive(Push(), 0.0)

    assert (door.state, list(door.effects())) == (DoorState.CLOSED, ["pushed with 1"])


def test_event_without_a_transition_raises():
    """An event without a transition raises and changes nothing."""
    door = Door()
    door.state = DoorState.LOCKED

    with pytest.raises(ValueError, match="Remove cannot happen while locked"):
        door.receive(Remove(), 0.0)

    assert (door.state, list(door.effects())) == (DoorState.LOCKED, [])


def test_state_that_the_row_does_not_list_raises():
    """A step that returns a state that its row does not list raises."""
    with pytest.raises(RuntimeError, match="Push led from open to gone, which its row does not list"):
        Door().receive(Push(3), 0.0)


def test_final_state_ignores_every_event():
    """A final state ignores events even where a row names all states."""
    door = Door()
    door.receive(Remove(), 0.0)

    door.receive(Push(), 0.0)
    door.receive(object(), 0.0)

    assert (door.is_over, door.state, list(door.effects())) == (True, DoorState.GONE, [])
    assert not [state for state, _ in TABLE if state is DoorState.GONE]


def test_duplicate_transition_is_refused():
    """Two rows for one state and event are refused."""
    row = Row((DoorState.OPEN,), Push, Door.push)

    with pytest.raises(ValueError, match="two transitions from open by Push"):
        TransitionTable([row, row], final_states=frozenset())
