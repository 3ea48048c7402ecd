"""How full the commit metadata would be, asked once a slice."""

from __future__ import annotations

import random

import pytest

from tailrace.core.delivery.offset_map_size import OffsetMapSize
from tailrace.core.delivery.offset_tracker import OffsetTracker
from tailrace.core.offset_map import EncodedMetadata, encode_metadata


@pytest.fixture
def ragged():
    """Makes a tracker of so many records, every other one finished, in no order that could be told in few words."""

    def make(count):
        tracker, chance = OffsetTracker(0), random.Random(3)
        tracker.begin_all(range(count))
        for offset in range(1, count):
            if chance.random() < 0.5:
                tracker.finish(offset)
        return tracker

    return make


def test_nothing_is_looked_at_where_nothing_is_unfinished():
    """However many records have passed."""
    fill, tracker = OffsetMapSize(), OffsetTracker(0)
    tracker.advance(10**6)

    assert not fill.is_due(tracker, 0, 4_096)
    assert not fill.is_due(tracker, 10**6, 4_096)


def test_a_stuck_record_alone_is_not_looked_at():
    """One before any number of finished ones takes no room, so that no map is made to know it."""
    fill, tracker = OffsetMapSize(), OffsetTracker(0)
    tracker.begin(0)

    assert not any(fill.is_due(tracker, delivered, 4_096) for delivered in range(0, 10**7, 1_000))


def test_it_is_looked_at_now_and_then(ragged):
    """When there may be too much, and again only when more was begun."""
    fill, tracker = OffsetMapSize(), ragged(30_000)
    assert not fill.is_due(tracker, 10_000, 4_096)

    assert fill.is_due(tracker, 30_000, 4_096)
    fill.look(tracker, 30_000, 4_096, "me", now=5.0)

    assert fill.fill == encode_metadata(tracker.offset_map(), "", 4_096, writer="me").fill > 1
    assert fill.is_high
    assert not fill.is_due(tracker, 31_000, 4_096)
    assert fill.is_due(tracker, 32_100, 4_096)


def test_one_that_was_too_full_is_made_again_when_something_has_changed(ragged):
    """Not before a pause is over, and not at all while nothing was finished."""
    fill, tracker = OffsetMapSize(), ragged(30_000)
    fill.look(tracker, 30_000, 4_096, "", now=5.0)

    assert fill.again_at(tracker, 100.0) is None
    tracker.finish(0)
    assert fill.again_at(tracker, 5.001) == pytest.approx(5.02)
    assert fill.again_at(tracker, 6.0) == 6.0


def test_a_commit_looks_as_well():
    """Whoever makes the map says how large it is."""
    fill = OffsetMapSize()
    fill.saw(EncodedMetadata("", fill=0.8))

    assert (fill.fill, fill.is_high, fill.again_at(OffsetTracker(0), 7.0)) == (0.8, True, 7.0)
    fill.saw(EncodedMetadata("", fill=0.7))
    assert not fill.is_high


@pytest.mark.parametrize("limit", [128, 1_024, 4_096])
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.95])
def test_no_map_is_too_full_that_was_not_looked_at(limit, share):
    """What costs next to nothing to know errs on one side only."""
    fill, tracker, chance = OffsetMapSize(), OffsetTracker(0), random.Random(limit)
    tracker.begin(0)
    for start in range(1, 40_000, 50):
        offsets = range(start, start + 50)
        tracker.begin_all(offsets)
        for offset in offsets:
            if chance.random() > share:
                tracker.finish(offset)
        if fill.is_due(tracker, start + 50, limit):
            fill.look(tracker, start + 50, limit, "writer", 0.0)
            if fill.is_high:
                break

    assert encode_metadata(tracker.offset_map(), "", limit, writer="writer").fill < 1
