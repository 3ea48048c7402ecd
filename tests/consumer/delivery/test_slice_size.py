"""Size of a slice, which is the number of records to decode at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.consumer.delivery.reader import FIRST_SLICE, MAX_HOLD_S, adapted_slice_size, is_too_long


def test_fast_handler_gets_longer_slices():
    """The slices of a fast handler double in size, up to the limit."""
    assert adapted_slice_size(FIRST_SLICE, 0.0, 2_000) == 2 * FIRST_SLICE
    assert adapted_slice_size(100, MAX_HOLD_S / 1_000, 2_000) == 200
    assert adapted_slice_size(1_500, 0.000_01, 2_000) == 2_000


def test_slow_handler_gets_shorter_slices():
    """After a slice that took ten times too long, the next one is a tenth as large."""
    assert adapted_slice_size(1_000, 10 * MAX_HOLD_S, 2_000) == 100
    assert adapted_slice_size(16, 1_000.0, 2_000) == 1


@given(st.integers(1, 5_000), st.floats(0, 1e6), st.integers(1, 5_000))
def test_slice_size_is_bounded(size, took_s, longest):
    """A slice has at least one record, at most the limit, and at most twice the size of the last one."""
    found = adapted_slice_size(size, took_s, longest)

    assert 1 <= found <= max(1, min(longest, 2 * size))


@given(st.floats(1e-6, 0.1))
def test_slices_settle_at_the_target_time(record_s):
    """A handler of constant speed gets slices of the target time, or of one record."""
    size = FIRST_SLICE
    for _ in range(30):
        size = adapted_slice_size(size, size * record_s, 100_000)

    assert size == 1 or size * record_s <= MAX_HOLD_S
    assert (size + 1) * record_s > MAX_HOLD_S * 0.99


def test_loop_gets_a_turn_after_the_target_time():
    """After the target time the event loop runs other tasks."""
    assert not is_too_long(MAX_HOLD_S * 0.9)
    assert is_too_long(MAX_HOLD_S)
