"""Windows, which decide when a transaction is committed or aborted, and records deferred to a later one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import PublishError, Record, TopicPartition
from tailrace.app.failures.delayed_records import wait_ms
from tailrace.app.transactions.window import DeferredRecords, Window, WindowSettings, WindowStep

SETTINGS = WindowSettings(interval_s=0.1, max_records=10, timeout_s=10)
HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
RETRIES = TopicPartition("t.retry", 0)
BROKEN = PublishError("broken")


def record(offset: int) -> Record:
    return Record("t", 0, offset, None, b"", 0, ())


def opened(count: int = 1) -> Window:
    window = Window(SETTINGS)
    window.add(count, 0.0)
    return window


def test_a_window_opens_with_its_first_record():
    """A window opens with its first record, and its interval begins then."""
    window = Window(SETTINGS)

    assert window.step(1_000, is_done=True) is WindowStep.FEED
    assert window.next_deadline(1_000) is None
    window.add(1, 1_000)
    assert window.next_deadline(1_000) == 1_000.1


def test_a_window_is_committed_after_its_interval_once_all_records_are_finished():
    """A window is committed when its interval is over and all of its records are finished."""
    window = opened()

    assert window.step(0.05, is_done=True) is WindowStep.FEED
    assert window.step(0.1, is_done=True) is WindowStep.COMMIT
    window.end_committed(0.1)
    assert window.step(0.3, is_done=True) is WindowStep.FEED


def test_a_window_is_cut_after_its_interval_whatever_was_delivered():
    """A window starts no more records after its interval; those not started are carried into the next one."""
    window = opened(10)

    assert window.step(0.05, is_done=False) is WindowStep.DRAIN
    assert window.step(0.1, is_done=False) is WindowStep.CUT
    assert window.next_deadline(0.1) == 8
    assert window.step(0.2, is_done=False, is_idle=True) is WindowStep.COMMIT
    window.end_committed(0.2, carried=7)
    assert [window.count, window.room, window.opened_at] == [7, 3, 0.2]
    window.end_committed(0.3)
    assert not window.is_open


def test_a_window_stops_starting_records_in_time_to_drain():
    """A window stops starting records early enough for the running ones to finish before the transaction timeout."""
    window, cuts, now = Window(SETTINGS), [], 0.0
    for end_s in (0.1, 0.3, 1, 0.0):
        window.add(1, now)
        cut_at = now
        while window.step(cut_at, is_done=False) is WindowStep.FEED:
            cut_at = window.next_deadline(cut_at)
        cuts.append(round(cut_at - now, 3))
        now = cut_at + end_s
        window.end_committed(now)

    assert cuts == [0.1, 0.4, 1.2, 2]


def test_the_last_record_of_a_window_has_time_for_its_attempt():
    """A handler without timeout_ms gets half of the transaction timeout, or what the wait for batches leaves."""
    bare, half = SETTINGS, WindowSettings(interval_s=0.1, max_records=10, timeout_s=10, max_handler_s=7)
    long = WindowSettings(interval_s=4, max_records=10, timeout_s=10, max_handler_s=5)

    assert [bare.latest_cut_s, half.latest_cut_s, long.latest_cut_s] == [2, 1, 4]
    assert [
        bare.default_handler_timeout_s(),
        bare.default_handler_timeout_s(4),
        bare.default_handler_timeout_s(7.5),
        long.default_handler_timeout_s(),
    ] == [5, 4, 1, 4]


def test_a_cut_window_starts_no_more_records():
    """A cut window starts no more records and is committed once running ones are finished."""
    window = opened()
    window.cut()

    assert window.room == 0
    assert window.step(0.01, is_done=False) is WindowStep.CUT
    assert window.step(0.02, is_done=False, is_idle=True) is WindowStep.COMMIT


def test_a_window_stays_open_for_a_batch_that_is_filling():
    """A window stays open past its interval while a batch gathers records, for batch_wait_s at most."""
    window = Window(WindowSettings(interval_s=0.1, max_records=10, timeout_s=10, batch_wait_s=2))
    window.add(1, 0.0)

    assert [window.is_kept_open(0.05), window.is_kept_open(0.1)] == [False, True]
    assert window.step(0.1, is_done=False, is_gathering=True) is WindowStep.FEED
    assert [window.next_deadline(0.05), window.next_deadline(0.1), window.next_deadline(2)] == [0.1, 2, 8]
    assert window.step(0.5, is_done=True) is WindowStep.COMMIT
    assert window.step(0.5, is_done=False) is WindowStep.CUT
    assert window.step(2, is_done=False, is_gathering=True) is WindowStep.CUT


def test_a_full_or_closed_window_is_committed_early():
    """A full or closed window is committed before its interval is over."""
    full, asked = opened(10), opened()
    asked.close()

    assert full.room == asked.room == 0
    assert full.step(0.01, is_done=True) is asked.step(0.01, is_done=True) is WindowStep.COMMIT


def test_closing_and_aborting_require_an_open_window():
    """close() and require_abort() have no effect on the next window if no window is open."""
    window = Window(SETTINGS)
    window.close()
    window.require_abort(BROKEN)
    window.add(1, 0.0)

    assert window.room == 9
    assert window.step(0.01, is_done=True) is WindowStep.FEED


def test_a_window_is_aborted_before_the_brokers_transaction_timeout():
    """A window that exceeds its time is aborted before the broker's timeout, which would fence the producer."""
    late, in_time = opened(), opened()

    assert late.step(8, is_done=False) is WindowStep.ABORT
    assert "transaction_timeout_ms" in str(late.abort_cause)
    assert not late.needs_backoff
    assert not late.is_timed_out(9.9)
    assert late.is_timed_out(10)
    assert in_time.step(8, is_done=True) is WindowStep.COMMIT


def test_an_attempt_has_time_if_it_ends_before_the_window_is_aborted():
    """An attempt may start if it ends before the window is aborted, and never in one that must be aborted."""
    window = opened()

    assert window.has_time(3, 4.9)
    assert not window.has_time(3, 5)
    window.require_abort(BROKEN)
    assert not window.has_time(0, 1)
    assert Window(SETTINGS).has_time(1_000, 0.0)


def test_a_window_that_must_be_aborted_keeps_the_first_cause():
    """A window that must be aborted takes no more records, and keeps the first cause until the abort."""
    window = opened()
    window.require_abort(BROKEN)
    window.require_abort(PublishError("because of that"))

    assert window.room == 0
    assert window.step(0.01, is_done=True) is WindowStep.ABORT
    assert window.abort_cause is BROKEN
    window.end_aborted()
    assert window.abort_cause is None


def test_windows_are_halved_until_the_refused_record_is_found():
    """An abort with shrink=True halves the size of the next window, and commits double it again."""
    window, rooms = Window(SETTINGS), []
    for _ in range(4):
        rooms.append(window.room)
        window.add(window.room, 0.0)
        window.end_aborted(shrink=True)
    for _ in range(5):
        rooms.append(window.room)
        window.add(1, 0.0)
        window.end_committed(0.0)

    assert rooms == [10, 5, 2, 1, 1, 2, 4, 8, 10]


def test_windows_do_not_grow_while_a_refused_record_is_searched():
    """Windows do not grow on commits while a refused record is searched."""
    window = Window(SETTINGS)
    window.add(2, 0.0)
    window.end_aborted(shrink=True)
    window.add(1, 0.0)
    window.end_committed(0.0, is_searching=True)

    assert window.room == 1


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5), st.booleans()), max_size=30))
def test_windows_keep_their_limits_of_records_and_time(moments):
    """A window takes records within its interval and its room only, and never drains past its timeout."""
    window, now = Window(SETTINGS), 0.0
    for pause, count, is_done in moments:
        now += pause
        match window.step(now, is_done=is_done):
            case WindowStep.FEED:
                window.add(min(count, window.room), now)
            case WindowStep.DRAIN | WindowStep.CUT:
                assert now < window.abort_at
            case WindowStep.COMMIT:
                window.end_committed(now)
            case WindowStep.ABORT:
                assert now >= window.abort_at
                window.end_aborted()

        assert window.count <= SETTINGS.max_records
        assert window.is_open is (window.count > 0)


MOMENTS = st.integers(0, 10**9).map(lambda ms: ms / 1000) | st.floats(0, 1e6)


@given(MOMENTS, st.integers(1, 500), st.integers(0, 999), st.booleans(), st.booleans())
def test_a_step_at_a_deadline_advances_whatever_the_rounding(opened_at, interval_ms, gathers_ms, is_gathering, is_full):
    """A step at a deadline always advances, whatever the clock's rounding."""
    settings = WindowSettings(
        interval_s=interval_ms / 1000, max_records=1 + (not is_full), timeout_s=1.25, batch_wait_s=gathers_ms / 1000
    )
    window, now, steps = Window(settings), opened_at, []
    window.add(1, opened_at)
    while not steps or steps[-1] is not WindowStep.ABORT:
        deadline = window.next_deadline(now)
        assert deadline is not None
        assert deadline > now
        now = deadline
        steps.append(window.step(now, is_done=False, is_gathering=is_gathering))

    feeds = not is_full and is_gathering and gathers_ms > interval_ms
    cuts = 1 if is_full else 1 + (gathers_ms > interval_ms) - feeds
    assert steps == [*([WindowStep.FEED] if feeds else []), *[WindowStep.CUT] * cuts, WindowStep.ABORT]


@pytest.mark.parametrize(
    ("now", "is_gathering"), [(0, False), (0.09, False), (0.1, False), (0.3, True), (0.5, True), (9, True)]
)
@pytest.mark.parametrize("what", ["not open", "open", "closed", "aborting", "full"])
def test_the_step_of_a_filling_window_does_not_depend_on_finished_records(what, now, is_gathering):
    """A window that still takes records gives the same step whether or not its records are finished."""

    def step(*, is_done: bool) -> tuple[bool, WindowStep]:
        window = Window(WindowSettings(interval_s=0.1, max_records=3, timeout_s=10, batch_wait_s=0.5))
        if what != "not open":
            window.add(3 if what == "full" else 1, 0)
        if what == "closed":
            window.close()
        if what == "aborting":
            window.require_abort(PublishError("away"))
        return window.takes_records(now, is_gathering=is_gathering), window.step(
            now, is_done=is_done, is_gathering=is_gathering
        )

    assert step(is_done=True)[0] is (step(is_done=True)[1] is step(is_done=False)[1] is WindowStep.FEED)


# ---- deferred records ------------------------------------------------------------------------------------------


def test_records_before_a_deferred_record_are_delivered():
    """Records before a deferred offset are delivered; other partitions are not affected."""
    aside = DeferredRecords((), lambda _record: 0.0)
    aside.defer(HERE, 10, due_at=5)

    assert aside.room(HERE, 3, 100, 0.0, is_open=True) == 7
    assert aside.room(HERE, 10, 100, 0.0, is_open=True) == 0
    assert aside.room(THERE, 10, 100, 0.0, is_open=True) == 100
    assert [one.offset for one in aside.first_of([record(8), record(9), record(11)], 100, 0.0)] == [8, 9]


def test_a_deferred_record_is_retried_in_its_own_transaction():
    """A deferred record is retried alone in a transaction."""
    aside = DeferredRecords((), lambda _record: 0.0)
    aside.defer(HERE, 10, due_at=5)

    assert aside.room(HERE, 10, 100, 4.9, is_open=False) == 0
    assert aside.room(HERE, 10, 100, 5, is_open=True) == 0
    assert aside.room(HERE, 10, 100, 5, is_open=False) == 1
    assert aside.reaches(HERE, 10)
    assert not aside.reaches(HERE, 9)
    aside.finish(HERE)
    assert aside.room(HERE, 10, 100, 5, is_open=True) == 100


def test_the_first_deferred_record_of_a_partition_stops_it():
    """Only the first deferred record of a partition is kept, and a later entry for it replaces its due time."""
    aside = DeferredRecords((), lambda _record: 0.0)
    for offset, due_at in ((12, 5), (10, 6), (11, 7), (10, 8)):
        aside.defer(HERE, offset, due_at, is_given_up=due_at < 8)

    assert len(aside) == 1
    assert aside.count_given_up == 0
    assert aside.next_due_at(7, {HERE: 10}) == 8
    assert aside.next_due_at(7, {HERE: 9}) is None
    assert aside.next_due_at(7, {}) is None
    aside.defer(THERE, 3, due_at=6)
    assert [aside.next_due_at(now, {HERE: 10, THERE: 3}) for now in (5, 6, 8)] == [6, 8, None]


def test_the_wait_for_a_delayed_retry_counts_from_its_first_reading():
    """A record that is read again after an aborted transaction is due as before, whatever the wall clock says."""
    clock_s = 60.0

    def wait_s(one: Record) -> float:
        return wait_ms(None, written_at_ms=one.timestamp, delay_ms=1_000, now_ms=round(clock_s * 1000)) / 1000

    deferred = DeferredRecords({RETRIES.topic}, wait_s)
    records = [Record(*RETRIES, offset, None, b"", 60_000) for offset in range(3)]
    deferred.note_read(records[:2], 10.0)
    clock_s = 0.0
    deferred.note_read(records, 10.5)

    assert deferred.first_of(records, 3, 10.9) == []
    assert deferred.next_due_at(10.9, {}, records[:1]) == 11.0
    assert deferred.first_of(records, 3, 11.0) == records[:2]
    assert deferred.next_due_at(11.0, {}, records[2:]) == pytest.approx(11.501)

    deferred.forget_committed({RETRIES: 2})
    deferred.note_read(records, 20.0)
    assert deferred.first_of(records[2:], 3, 20.0) == records[2:]
    assert deferred.first_of(records, 3, 20.0) == []
    deferred.forget(RETRIES)
    assert deferred.first_of(records, 3, 20.0) == records
