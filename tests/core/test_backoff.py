"""Pauses between attempts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.backoff import Backoff

CHANCE = st.floats(0, 1, exclude_max=True)
EVEN = 0.5
"""Chance without jitter."""


def test_pauses_double_up_to_the_longest():
    """Each pause is twice as long as the last, up to the longest (KIP-580)."""
    backoff = Backoff(0.1, 1.0)

    assert [backoff.pause_s(n, EVEN) for n in range(1, 7)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_the_pause_after_no_failure_is_the_first_pause():
    """The pause after zero failures is the first one."""
    assert Backoff(0.1, 1.0).pause_s(0, EVEN) == pytest.approx(0.1)


@given(st.integers(0, 1 << 70), CHANCE, st.floats(0, 10), st.floats(0, 100))
def test_jitter_is_at_most_a_fifth(failures, chance, first_s, longest_s):
    """Jitter changes a pause by a fifth at most, for any number of failures."""
    backoff = Backoff(first_s, longest_s)
    even = backoff.pause_s(failures, EVEN)

    assert even <= longest_s * 1.000_001
    assert 0.8 * even <= backoff.pause_s(failures, chance) * 1.000_001
    assert backoff.pause_s(failures, chance) <= 1.2 * even * 1.000_001


@given(st.integers(1, 100), CHANCE)
def test_pauses_never_shrink(failures, chance):
    """With the same jitter, a pause is at least as long as the last."""
    backoff = Backoff(0.1, 30.0)

    assert backoff.pause_s(failures, chance) <= backoff.pause_s(failures + 1, chance)


def test_options_are_in_milliseconds():
    """Backoff.of_ms() takes milliseconds, and raises a longest pause below the first to the first."""
    assert Backoff(0.1, 1.0) == Backoff.of_ms(100, 1_000)
    assert Backoff(0.1, 0.1) == Backoff.of_ms(100, 50)
