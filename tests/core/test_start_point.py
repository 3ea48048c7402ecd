"""Start points, seeks, partition specs, and meters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.consumer.positions.partition_spec import PartitionSpec, partition_specs
from tailrace.consumer.positions.seek import seek_targets
from tailrace.core.metrics import Meter
from tailrace.core.start_point import EARLIEST, LATEST, StartFrom, StartPoint, shares_of
from tailrace.errors import ConfigurationError
from tailrace.protocol.records import ListedOffset
from tailrace.records import TopicPartition

ONE, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)


def answer(start: StartPoint, first: int, end: int, at_time: int = -1) -> int:
    """Resolve a start point in a log from ``first`` to ``end``, as its leader answers."""
    known = {}
    while (question := start.next_timestamp(known)) is not None:
        offset = {EARLIEST: first, LATEST: end}.get(question, at_time)
        known[question] = ListedOffset("orders", 0, 0, offset=offset)
    return start.resolve(known)[0]


@pytest.mark.parametrize(
    ("start", "place"),
    [
        (StartPoint(StartFrom.EARLIEST), 10),
        (StartPoint(StartFrom.LATEST), 100),
        (StartPoint(StartFrom.EARLIEST, shift=5), 15),
        (StartPoint(StartFrom.LATEST, shift=-10), 90),
        (StartPoint(StartFrom.OFFSET, 50), 50),
        (StartPoint(StartFrom.OFFSET, 5), 10),
        (StartPoint(StartFrom.TIME, 1_000), 100),
        (StartPoint(StartFrom.AGO, 500).with_timestamp(1_500), 100),
    ],
    ids=str,
)
def test_start_point_is_resolved_to_an_offset(start, place):
    """A start point counts from either end, by number or by time; a time after the last record is the end."""
    assert answer(start, 10, 100) == place


def test_time_is_the_first_record_not_older():
    """A time is resolved to the first record that is not older, with one request if there is one."""
    start = StartPoint(StartFrom.TIME, 1_000)

    assert start.next_timestamp({}) == 1_000
    assert answer(start, 10, 100, at_time=42) == 42


@given(
    st.integers(0, 1_000), st.integers(0, 1_000), st.integers(-3_000, 3_000), st.sampled_from(["earliest", "latest"])
)
def test_start_point_stays_within_the_log(first, length, shift, whence):
    """A start point with any shift is resolved to an offset within the log."""
    assert first <= answer(StartPoint(StartFrom(whence), shift=shift), first, first + length) <= first + length


@given(st.integers(-10_000, 10_000), st.integers(1, 50))
def test_total_is_spread_evenly(total, parts):
    """Shares of a total differ by one at most, the larger ones first."""
    shares = shares_of(total, parts)

    assert (sum(shares), len(shares)) == (total, parts)
    assert max(shares) - min(shares) <= 1
    assert [abs(one) for one in shares] == sorted(map(abs, shares), reverse=True)


def test_seek_targets_may_be_spread_over_partitions():
    """A seek to an offset, an end or the position applies to each partition, or is spread over all."""
    now = {ONE: 20, TWO: 3}

    assert seek_targets(now, 7, "offset", spread=False) == {ONE: 7, TWO: 7}
    assert seek_targets(now, -5, "current", spread=False) == {
        ONE: StartPoint(StartFrom.OFFSET, 15),
        TWO: StartPoint(StartFrom.OFFSET, 0),
    }
    assert seek_targets(now, 3, "earliest", spread=True) == {
        ONE: StartPoint(StartFrom.EARLIEST, shift=2),
        TWO: StartPoint(StartFrom.EARLIEST, shift=1),
    }


@pytest.mark.parametrize("offset", [True, 1.5, "7", None, 1 << 63])
def test_seek_offset_must_be_an_integer(offset):
    """A seek to an offset that is not an integer of 63 bits is refused."""
    with pytest.raises(ConfigurationError, match="must be an integer"):
        seek_targets({ONE: 0}, offset, "offset", spread=False)


def test_partition_specs_are_accepted_in_all_forms():
    """Partition specs of all forms are read in order, some with a start of their own."""
    given_forms = ["a", ("b", 1), ("c", 2, 5), {"d": 0}, {"e": [0, 1]}, {("f", 1): 9}, [ONE], ["g", "h"], ["i", 2]]

    assert partition_specs(given_forms, None, lambda place: place) == [
        PartitionSpec("a", None, None),
        PartitionSpec("b", 1, None),
        PartitionSpec("c", 2, 5),
        PartitionSpec("d", 0, None),
        PartitionSpec("e", 0, None),
        PartitionSpec("e", 1, None),
        PartitionSpec("f", 1, 9),
        PartitionSpec("orders", 0, None),
        PartitionSpec("g", None, None),
        PartitionSpec("h", None, None),
        PartitionSpec("i", 2, None),
    ]


@pytest.mark.parametrize(
    "form", ["", 5, None, (), ("a",), ("a", "b"), ("a", -1), ("a", True), {5: 0}, {"a": "b"}, ("a", 1 << 31)]
)
def test_invalid_partition_spec_is_refused(form):
    with pytest.raises(ConfigurationError):
        partition_specs([form], None, lambda place: place)


def test_meter_covers_the_last_half_minute():
    """Rate, mean and maximum cover the last half minute; count and sum cover all time."""
    meter = Meter(0.0)
    for second in range(10):
        meter.note(float(second), 5.0)

    assert (meter.count, meter.sum, meter.mean(10.0), meter.max(10.0)) == (10, 50.0, 5.0, 5.0)
    assert meter.rate(10.0) == pytest.approx(1.0)
    assert (meter.rate(1_000.0), meter.mean(1_000.0), meter.max(1_000.0), meter.count) == (0.0, 0.0, 0.0, 10)
