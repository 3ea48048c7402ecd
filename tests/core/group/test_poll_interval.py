"""When a reader is taken for stuck, and when not."""

from __future__ import annotations

import pytest

from tailrace.core.group.poll_interval import PollIntervalClock

LIMIT_S = 10.0


@pytest.fixture
def clock() -> PollIntervalClock:
    """One that has seen the first step at 0."""
    made = PollIntervalClock(LIMIT_S)
    made.look("first", 0, is_owed=True)
    return made


def test_a_reader_that_is_owed_and_does_not_move_is_stuck(clock):
    """From the limit on, counted from its last step."""
    clock.look("first", 9.9, is_owed=True)
    assert not clock.is_stuck

    clock.look("first", 10, is_owed=True)
    assert clock.is_stuck


def test_a_reader_that_moves_is_not(clock):
    """However long it takes in all."""
    for step in range(1, 50):
        clock.look(step, step * 9.0, is_owed=True)

        assert not clock.is_stuck


def test_a_reader_that_is_owed_nothing_is_not(clock):
    """Its time begins when there is something to read again."""
    clock.look("first", 100, is_owed=False)
    clock.look("first", 109, is_owed=True)
    assert not clock.is_stuck

    clock.look("first", 110, is_owed=True)
    assert clock.is_stuck


def test_only_the_readers_own_step_makes_it_unstuck(clock):
    """That what it was owed went to somebody else does not."""
    clock.look("first", 10, is_owed=True)

    clock.look("first", 20, is_owed=False)
    assert clock.is_stuck

    clock.look("second", 21, is_owed=False)
    assert not clock.is_stuck


def test_it_is_looked_at_often_enough(clock):
    """The limit is overrun by a quarter at most."""
    assert clock.next_at(7) == 7 + LIMIT_S / 4
