"""Estimated size of the offset map, which is not encoded for each record."""

from __future__ import annotations

import random

import pytest

from tailrace.consumer.partition import OffsetMapSize
from tailrace.core.offset_map import EncodedMetadata, encode_metadata
from tailrace.core.progress import Progress
from tailrace.records import TopicPartition
from tests.support.simulation.records import records_at

ONE = TopicPartition("t", 0)


def started(progress, offsets):
    """Deliver and start records at these offsets."""
    lease = progress.deliver(records_at(offsets), offsets[-1] + 1)
    lease.take()
    lease.start()


@pytest.fixture
def ragged():
    """Return the progress of ``count`` records of which about half finished in an incompressible order."""

    def make(count, progress=None):
        progress, chance = Progress(ONE, 0) if progress is None else progress, random.Random(3)
        started(progress, range(count))
        for offset in range(1, count):
            if chance.random() < 0.5:
                progress.finish(offset)
        return progress

    return make


def test_no_map_is_encoded_without_unfinished_records():
    """Without unfinished records the offset map is never encoded, however many records were delivered."""
    fill, progress = OffsetMapSize(), Progress(ONE, 0)
    assert not fill.is_due(progress, 4_096)
    progress.skip(10**6)

    assert not fill.is_due(progress, 4_096)


def test_no_map_is_encoded_for_one_stuck_record():
    """The map of one unfinished record takes little space, and is not encoded, however many later records finish."""
    fill, progress = OffsetMapSize(), Progress(ONE, 0)
    started(progress, [0])

    for delivered in range(0, 10**7, 1_000):
        progress.skip(delivered)
        assert not fill.is_due(progress, 4_096)


def test_map_is_encoded_when_it_may_be_large(ragged):
    """The map is encoded when it may be large, and again only after more records were delivered."""
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
    """A full map is encoded again a short time after a record finished, and not before one finishes."""
    fill, progress = OffsetMapSize(), ragged(30_000)
    fill.measure(progress, 4_096, "", now=5.0)

    assert fill.again_at(progress, 100.0) is None
    progress.finish(0)
    assert fill.again_at(progress, 5.001) == pytest.approx(5.02)
    assert fill.again_at(progress, 6.0) == 6.0


def test_commit_updates_the_size():
    """A commit, which encodes the map anyway, sets the exact size."""
    fill = OffsetMapSize()
    fill.note_encoded(EncodedMetadata("", fill=0.8))

    assert (fill.fill, fill.is_high, fill.again_at(Progress(ONE, 0), 7.0)) == (0.8, True, 7.0)
    fill.note_encoded(EncodedMetadata("", fill=0.7))
    assert not fill.is_high


@pytest.mark.parametrize("limit", [128, 1_024, 4_096])
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.95])
def test_the_estimate_is_never_below_the_size_of_the_map(limit, share):
    """The map fits into the limit until the estimate reports that it is nearly full."""
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
