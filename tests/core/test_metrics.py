"""Meters of a handler's calls."""

from __future__ import annotations

import pytest

from tailrace.core.metrics import CallMeter, UnmeasuredRun


def test_calls_that_do_not_suspend_count_with_their_mean():
    """Calls that do not suspend are measured together, each with their mean duration."""
    meter = CallMeter()

    meter.note_run(100, 0.2)

    assert meter.records == meter.durations.count == 100
    assert meter.durations.sum_s == pytest.approx(0.2)
    assert meter.durations.counts[3] == 100  # up to 5 ms


def test_the_call_that_suspends_has_its_own_duration():
    """A call that suspends has the mean duration of the calls before it, plus the time while it was suspended."""
    run, free = UnmeasuredRun(), iter(range(20))
    run.begin(100.0)
    run.count_records(free)
    for _ in range(9):
        next(free)

    before = run.suspend(100.1)
    next(free)  # by another worker
    suspended = run.end(102.1)

    assert before == (9, pytest.approx(0.09))
    assert suspended == (1, pytest.approx(2.01))
    assert run.end(103.0) == (0, pytest.approx(0.9))


def test_calls_are_measured_once():
    """A call that was measured is not measured again."""
    run, free = UnmeasuredRun(), iter(range(20))
    run.begin(100.0)
    run.count_records(free)
    next(free)

    assert run.end(100.5) == (2, 0.5)
    assert run.end(101.0)[0] == 0
    next(free)
    next(free)
    assert run.end(102.0) == (2, 1.0)
    assert run.suspend(103.0) == (0, 0.0)
    assert run.end(104.0)[0] == 0


def test_failed_calls_have_a_duration_and_no_record():
    """A failed call has a duration, and its failed records and its batch are not counted as finished."""
    meter = CallMeter()

    meter.note_run(3, 0.3, failed=1)
    meter.note_run(0, 5.0)
    meter.note_batch(10, 0.1, failed=4)
    meter.note_batch(10, 0.1)

    assert meter.records == 2 + 6 + 10
    assert meter.batches == 1
    assert meter.durations.count == 3 + 2
