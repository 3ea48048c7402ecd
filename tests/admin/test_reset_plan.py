"""Plan of an offset reset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigurationError, TopicPartition
from tailrace.admin.offset_resets import LogOffsets, ShiftBy, ToEarliest, ToLatest, ToOffset, ToTime, plan_change
from tailrace.admin.offsets import GroupOffset
from tailrace.core.offset_map import OffsetMap, encode_metadata

HERE = TopicPartition("orders", 0)
BEGIN, END = 100, 900


def committed(offset: int, metadata: str = "") -> GroupOffset:
    return GroupOffset(HERE, offset, metadata=metadata)


def planned(target, old: GroupOffset | None = None, at_time: int | None = None):
    log = LogOffsets(BEGIN, END) if at_time is None else LogOffsets(BEGIN, END, at_time)
    return plan_change(HERE, target, old, log)


@pytest.mark.parametrize(
    ("target", "new", "note"),
    [
        (ToEarliest(), 100, ""),
        (ToLatest(), 900, ""),
        (ToOffset(100), 100, ""),
        (ToOffset(512), 512, ""),
        (ToOffset(900), 900, ""),
        (ToOffset(99), 100, "99 is before the log; its first offset is used"),
        (ToOffset(901), 900, "901 is after the log; its end is used"),
        (ShiftBy(-100), 400, ""),
        (ShiftBy(-401), 100, "99 is before the log; its first offset is used"),
        (ShiftBy(1_000), 900, "1500 is after the log; its end is used"),
    ],
)
def test_a_target_is_an_offset_within_the_log(target, new, note):
    """A target outside the log becomes the nearer end, with a note."""
    change = planned(target, committed(500))

    assert (change.old, change.new, change.note) == (500, new, note)


def test_a_time_becomes_the_first_record_at_or_after_it():
    """A time after all records becomes the end, with a note."""
    assert planned(ToTime(5), at_time=512).new == 512
    assert planned(ToTime(5), at_time=-1).new == END
    assert planned(ToTime(5), at_time=-1).note == "no record is that late; the end of the log is used"


def test_a_shift_leaves_out_partitions_without_a_commit():
    """A shift omits partitions without a committed offset with a note, and other targets include them."""
    assert planned(ShiftBy(-5)).new is None
    assert "no committed offset" in planned(ShiftBy(-5)).note
    assert (planned(ToEarliest()).old, planned(ToEarliest()).new) == (None, 100)


def test_a_discarded_offset_map_is_noted():
    """A note counts the finished records of the offset map that the reset discards."""
    text = encode_metadata(OffsetMap(500, 506, (500, 502)), "", 4096).text

    def note(target) -> str:
        return planned(target, committed(500, text)).note

    assert note(ToOffset(500)) == note(ToOffset(499)) == "finished records from offset 500 on are handled again: 4"
    assert note(ToOffset(502)) == "finished records from offset 502 on are handled again: 3"
    assert note(ToOffset(505)) == "finished records from offset 505 on are handled again: 1"
    assert not note(ToOffset(506))
    assert not note(ToLatest())


@given(
    st.integers(0, 1_000),
    st.integers(0, 1_000),
    st.none() | st.integers(0, 3_000),
    st.sampled_from([ToEarliest(), ToLatest()])
    | st.integers(0, 3_000).map(ToOffset)
    | st.integers(-3_000, 3_000).filter(bool).map(ShiftBy),
)
def test_a_planned_offset_is_within_the_log(begin, size, old, target):
    """A planned offset is within the log for any target, and an omitted partition has a note."""
    change = plan_change(HERE, target, None if old is None else committed(old), LogOffsets(begin, begin + size))

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
def test_invalid_targets_raise(make):
    """An invalid target raises in the constructor with its value."""
    with pytest.raises(ConfigurationError, match=" must be "):
        make()


def test_a_duration_is_a_time_before_now():
    """A duration as target is a time before now."""
    assert ToTime.ago(3_600, now=7_200.5) == ToTime(3_600_500)
