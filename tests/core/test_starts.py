"""Where to begin: what has to be asked, what the answers come to, how a number is spread, how partitions are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.metrics import Meter
from penstock.core.placing import Wish, wishes
from penstock.core.seeks import seeks
from penstock.core.starts import EARLIEST, LATEST, Start, Whence, shares_of
from penstock.errors import ConfigurationError
from penstock.messages import ListedOffset
from penstock.records import TopicPartition

ONE, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)


def answer(start: Start, first: int, end: int, at_time: int = -1) -> int:
    """The place, when the leader of a log from ``first`` to ``end`` is asked until nothing is left to ask."""
    known = {}
    while (question := start.question(known)) is not None:
        offset = {EARLIEST: first, LATEST: end}.get(question, at_time)
        known[question] = ListedOffset("orders", 0, 0, offset=offset)
    return start.place(known)[0]


@pytest.mark.parametrize(
    ("start", "place"),
    [
        (Start(Whence.EARLIEST), 10),
        (Start(Whence.LATEST), 100),
        (Start(Whence.EARLIEST, shift=5), 15),
        (Start(Whence.LATEST, shift=-10), 90),
        (Start(Whence.OFFSET, 50), 50),
        (Start(Whence.OFFSET, 5), 10),
        (Start(Whence.TIME, 1_000), 100),
        (Start(Whence.AGO, 500).fixed(1_500), 100),
    ],
    ids=str,
)
def test_a_start_becomes_an_offset(start, place):
    """From either end, by number or by time; a time behind the last record is the end."""
    assert answer(start, 10, 100) == place


def test_a_time_is_the_first_record_that_is_not_older():
    """One question is enough where there is such a record."""
    start = Start(Whence.TIME, 1_000)

    assert start.question({}) == 1_000
    assert answer(start, 10, 100, at_time=42) == 42


@given(
    st.integers(0, 1_000), st.integers(0, 1_000), st.integers(-3_000, 3_000), st.sampled_from(["earliest", "latest"])
)
def test_no_start_leads_out_of_the_log(first, length, shift, whence):
    """However far it is shifted."""
    assert first <= answer(Start(Whence(whence), shift=shift), first, first + length) <= first + length


@given(st.integers(-10_000, 10_000), st.integers(1, 50))
def test_a_total_is_spread_evenly(total, parts):
    """Nothing is lost, no two shares differ by more than one, and the larger ones come first."""
    shares = shares_of(total, parts)

    assert (sum(shares), len(shares)) == (total, parts)
    assert max(shares) - min(shares) <= 1
    assert [abs(one) for one in shares] == sorted(map(abs, shares), reverse=True)


def test_seeks_count_from_where_they_are_told():
    """An offset, an end, the position; together or spread."""
    now = {ONE: 20, TWO: 3}

    assert seeks(now, 7, "offset", spread=False) == {ONE: 7, TWO: 7}
    assert seeks(now, -5, "current", spread=False) == {ONE: Start(Whence.OFFSET, 15), TWO: Start(Whence.OFFSET, 0)}
    assert seeks(now, 3, "earliest", spread=True) == {
        ONE: Start(Whence.EARLIEST, shift=2),
        TWO: Start(Whence.EARLIEST, shift=1),
    }


@pytest.mark.parametrize("offset", [True, 1.5, "7", None, 1 << 63])
def test_a_seek_to_what_is_no_number_is_refused(offset):
    """Nothing but whole numbers of 63 bits."""
    with pytest.raises(ConfigurationError, match="whole number"):
        seeks({ONE: 0}, offset, "offset", spread=False)


def test_partitions_are_named_in_many_forms():
    """What comes out is the same, in order; a place of their own wins over the default."""
    given_forms = ["a", ("b", 1), ("c", 2, 5), {"d": 0}, {"e": [0, 1]}, {("f", 1): 9}, [ONE], ["g", "h"], ["i", 2]]

    assert wishes(given_forms, None, lambda place: place) == [
        Wish("a", None, None),
        Wish("b", 1, None),
        Wish("c", 2, 5),
        Wish("d", 0, None),
        Wish("e", 0, None),
        Wish("e", 1, None),
        Wish("f", 1, 9),
        Wish("orders", 0, None),
        Wish("g", None, None),
        Wish("h", None, None),
        Wish("i", 2, None),
    ]


@pytest.mark.parametrize(
    "form", ["", 5, None, (), ("a",), ("a", "b"), ("a", -1), ("a", True), {5: 0}, {"a": "b"}, ("a", 1 << 31)]
)
def test_what_names_no_partition_is_refused(form):
    """Each wrong form is an error that shows the right ones."""
    with pytest.raises(ConfigurationError):
        wishes([form], None, lambda place: place)


def test_a_meter_forgets_what_is_long_ago():
    """Rates, means and maxima are of the last half minute; totals stay."""
    meter = Meter(0.0)
    for second in range(10):
        meter.note(float(second), 5.0)

    assert (meter.count, meter.sum, meter.mean(10.0), meter.max(10.0)) == (10, 50.0, 5.0, 5.0)
    assert meter.rate(10.0) == pytest.approx(1.0)
    assert (meter.rate(1_000.0), meter.mean(1_000.0), meter.max(1_000.0), meter.count) == (0.0, 0.0, 0.0, 10)
