"""Detection of an application that does not poll."""

from __future__ import annotations

import pytest

from tailrace.consumer.group.group_machine import PollIntervalClock

LIMIT_S = 10.0


@pytest.fixture
def clock() -> PollIntervalClock:
    """Return a clock that saw the first progress at 0."""
    made = PollIntervalClock(LIMIT_S)
    made.look("first", 0, awaits_poll=True)
    return made


def test_reader_with_records_and_no_progress_is_stuck(clock):
    """A reader with records and without progress is stuck when the limit since its last progress has passed."""
    clock.look("first", 9.9, awaits_poll=True)
    assert not clock.is_stuck

    clock.look("first", 10, awaits_poll=True)
    assert clock.is_stuck


def test_reader_with_progress_is_not_stuck(clock):
    """A reader with progress is not stuck, however long it takes in total."""
    for step in range(1, 50):
        clock.look(step, step * 9.0, awaits_poll=True)

        assert not clock.is_stuck


def test_reader_without_records_is_not_stuck(clock):
    """A reader without records is not stuck; the time starts when there are records again."""
    clock.look("first", 100, awaits_poll=False)
    clock.look("first", 109, awaits_poll=True)
    assert not clock.is_stuck

    clock.look("first", 110, awaits_poll=True)
    assert clock.is_stuck


def test_a_stuck_member_recovers_only_by_progress(clock):
    """A stuck reader recovers by progress, and not by the removal of its records."""
    clock.look("first", 10, awaits_poll=True)

    clock.look("first", 20, awaits_poll=False)
    assert clock.is_stuck

    clock.look("second", 21, awaits_poll=False)
    assert not clock.is_stuck


def test_stuck_reader_is_detected_soon_after_the_limit(clock):
    """A stuck reader is detected at most a quarter of the limit late."""
    assert clock.next_at(7) == 7 + LIMIT_S / 4
