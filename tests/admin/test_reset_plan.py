"""Where a reset goes to, decided without a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigurationError, TopicPartition
from tailrace.admin.offsets import GroupOffset
from tailrace.admin.reset_plan import ShiftBy, ToEarliest, ToLatest, ToOffset, ToTime, planned_change
from tailrace.core.offset_map import OffsetMap, encode_metadata
from tailrace.protocol.list_offsets import ListedOffset

HERE = TopicPartition("orders", 0)
BEGIN, END = 100, 900


def committed(offset: int, metadata: str = "") -> GroupOffset:
    return GroupOffset(HERE, offset, metadata=metadata)


def planned(target, old: GroupOffset | None = None, at_time: int | None = None):
    listed = None if at_time is None else ListedOffset(*HERE, 0, offset=at_time)
    return planned_change(HERE, target, old, BEGIN, END, listed)


@pytest.mark.parametrize(
    ("target", "new", "note"),
    [
        (ToEarliest(), 100, ""),
        (ToLatest(), 900, ""),
        (ToOffset(100), 100, ""),
        (ToOffset(512), 512, ""),
        (ToOffset(900), 900, ""),
        (ToOffset(99), 100, "99 is before the log: its first offset"),
        (ToOffset(901), 900, "901 is after the log: its end"),
        (ShiftBy(-100), 400, ""),
        (ShiftBy(-401), 100, "99 is before the log: its first offset"),
        (ShiftBy(1_000), 900, "1500 is after the log: its end"),
    ],
)
def test_a_target_is_an_offset_within_the_log(target, new, note):
    """Each target has its offset; one outside of the log is taken back to the nearer end, and says so."""
    change = planned(target, committed(500))

    assert (change.old, change.new, change.note) == (500, new, note)


def test_a_time_is_the_first_record_that_is_not_older():
    """A time that is later than all records is the end, and says so."""
    assert planned(ToTime(5), at_time=512).new == 512
    assert planned(ToTime(5), at_time=-1).new == END
    assert planned(ToTime(5), at_time=-1).note == "no record is that late: the end of the log"


def test_without_a_commit_there_is_nothing_to_shift_from():
    """Such a partition is left out, and says why; every other target reaches it."""
    assert planned(ShiftBy(-5)).new is None
    assert "no committed offset" in planned(ShiftBy(-5)).note
    assert (planned(ToEarliest()).old, planned(ToEarliest()).new) == (None, 100)


def test_what_was_finished_beyond_is_told_when_it_is_handled_again():
    """A map of finished records does not outlive a reset to before them; ahead of it there is nothing to tell."""
    text = encode_metadata(OffsetMap(500, 504, (500, 502)), "", 4096).text

    assert planned(ToOffset(500), committed(500, text)).note == "2 finished records after 500 are handled again"
    assert not planned(ToLatest(), committed(500, text)).note


@given(
    st.integers(0, 1_000),
    st.integers(0, 1_000),
    st.none() | st.integers(0, 3_000),
    st.sampled_from([ToEarliest(), ToLatest()])
    | st.integers(0, 3_000).map(ToOffset)
    | st.integers(-3_000, 3_000).filter(bool).map(ShiftBy),
)
def test_no_plan_leads_out_of_the_log(begin, size, old, target):
    """Whatever is asked for, what is planned can be read from, and what is changed by more than asked has a note."""
    change = planned_change(HERE, target, None if old is None else committed(old), begin, begin + size)

    assert change.new is None or begin <= change.new <= begin + size
    assert change.note or change.new is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: ToOffset(-1),
        lambda: ToOffset(1 << 63),
        lambda: ToTime(-1),
        lambda: ShiftBy(0),
        lambda: ToTime.ago(-1, now=100),
        lambda: ToTime.ago(101, now=100),
        lambda: ToTime.ago(float("nan"), now=100),
    ],
)
def test_what_is_no_target_is_refused(make):
    """Before anybody is asked, in words."""
    with pytest.raises(ConfigurationError, match=" must be "):
        make()


def test_a_duration_is_a_time_before_now():
    """An hour ago is an hour before the time that the caller says it is."""
    assert ToTime.ago(3_600, now=7_200.5) == ToTime(3_600_500)
