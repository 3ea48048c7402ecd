"""Estimated size of the offset map, once a slice."""

from __future__ import annotations

import random

import pytest

from tailrace.core.delivery.offset_map_size import OffsetMapSize
from tailrace.core.delivery.progress import Progress
from tailrace.core.offset_map import EncodedMetadata, encode_metadata
from tailrace.records import TopicPartition
from tests.support.simulation.records import records_at

ONE = TopicPartition("t", 0)


def started(progress, offsets):
    """Deliver and start records at these offsets."""
    lease = progress.deliver(records_at(offsets), offsets[-1] + 1)
    progress.start_all([record.offset for record in lease.take(len(offsets))])
    lease.close_if_done()


@pytest.fixture
def ragged():
    """Return the progress of so many records, every other one finished in an incompressible order."""

    def make(count, progress=None):
        progress, chance = Progress(ONE, 0) if progress is None else progress, random.Random(3)
        started(progress, range(count))
        for offset in range(1, count):
            if chance.random() < 0.5:
                progress.finish(offset)
        return progress

    return make


def test_no_map_is_encoded_without_unfinished_records():
    """No map is encoded for any number of delivered records."""
    fill, progress = OffsetMapSize(), Progress(ONE, 0)
    assert not fill.is_due(progress, 4_096)
    progress.skip(10**6)

    assert not fill.is_due(progress, 4_096)


def test_no_map_is_encoded_for_one_stuck_record():
    """One unfinished record before any number of finished ones takes little space."""
    fill, progress = OffsetMapSize(), Progress(ONE, 0)
    started(progress, [0])

    for delivered in range(0, 10**7, 1_000):
        progress.skip(delivered)
        assert not fill.is_due(progress, 4_096)


def test_map_is_encoded_when_it_may_be_large(ragged):
    """The map is encoded again only after more records were delivered."""
    fill, progress = OffsetMapSize(), Progress(ONE, 0)
    assert not fill.is_due(progress, 4_096)
    ragged(30_000, progress)

    assert fill.is_due(progress, 4_096)
    fill.measure(progress, 4_096, "me", now=5.0)

    assert fill.fill == encode_metadata(progress.offset_map(), "", 4_096, writer="me").fill > 1
    assert fill.is_high
    progress.skip(31_000)
    assert not fill.is_due(progress, 4_096)
    progress.skip(32_100)
    assert fill.is_due(progress, 4_096)


def test_full_map_is_encoded_again_after_a_change(ragged):
    """The map is encoded after a pause, and not at all while nothing has finished."""
    fill, progress = OffsetMapSize(), ragged(30_000)
    fill.measure(progress, 4_096, "", now=5.0)

    assert fill.again_at(progress, 100.0) is None
    progress.finish(0)
    assert fill.again_at(progress, 5.001) == pytest.approx(5.02)
    assert fill.again_at(progress, 6.0) == 6.0


def test_commit_updates_the_size():
    """A commit encodes the map anyway, so the exact size is known."""
    fill = OffsetMapSize()
    fill.note_encoded(EncodedMetadata("", fill=0.8))

    assert (fill.fill, fill.is_high, fill.again_at(Progress(ONE, 0), 7.0)) == (0.8, True, 7.0)
    fill.note_encoded(EncodedMetadata("", fill=0.7))
    assert not fill.is_high


@pytest.mark.parametrize("limit", [128, 1_024, 4_096])
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.95])
def test_the_estimate_is_never_below_the_size_of_the_map(limit, share):
    """The estimate is never below the encoded size."""
    fill, progress, chance = OffsetMapSize(), Progress(ONE, 0), random.Random(limit)
    started(progress, [0])
    for start in range(1, 40_000, 50):
        offsets = range(start, start + 50)
        started(progress, offsets)
        for offset in offsets:
            if chance.random() > share:
                progress.finish(offset)
        if fill.is_due(progress, limit):
            fill.measure(progress, limit, "writer", 0.0)
            if fill.is_high:
                break

    assert encode_metadata(progress.offset_map(), "", limit, writer="writer").fill < 1
