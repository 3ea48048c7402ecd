"""Batch numbers, commit metadata and checks of a checkpoint."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigurationError
from tailrace.core.offset_map import OffsetMap, decode_metadata, encode_metadata
from tailrace.spark.offsets.checkpoint import PipelineState, check_matches
from tailrace.spark.offsets.start_offsets import backfill_metadata, next_number, start_metadata, stream_metadata
from tailrace.spark.offsets.store import PartitionCommit, commit_metadata


def test_batch_numbers_continue_across_streams_and_backfills():
    """The next batch number is above those of the checkpoint and of the commit metadata."""
    texts = [stream_metadata("0b4cf2ad", 12), backfill_metadata(13), start_metadata("a"), "", "spark", "mine batch=99"]

    assert next_number([4], texts) == 14
    assert next_number([20], texts) == 20
    assert next_number([], []) == 0


@given(
    st.one_of(st.none(), st.sets(st.integers(0, 5_000), min_size=1, max_size=400)),
    st.text(max_size=80),
    st.integers(0, 4_096),
    st.text(max_size=30),
)
def test_an_offset_map_has_priority_over_the_text(unfinished, text, limit, writer):
    """The offset map is committed if it fits without the text, and an event is emitted otherwise."""
    done = None if unfinished is None else OffsetMap(0, 6_000, tuple(sorted(unfinished)))

    envelope = commit_metadata(PartitionCommit(0, done), text, limit, writer)

    fits = done is None or not encode_metadata(done, "", limit).is_map_dropped
    found = decode_metadata(envelope.text, 0)
    assert envelope.is_map_dropped is not fits
    assert len(envelope.text.encode()) <= max(limit, len(text.encode()) + 40)
    if done is not None:
        assert found.offset_map == (done if fits else None)
    if limit < 256:
        assert found.user_text == ""


def test_a_batch_number_keeps_its_checkpoint_when_pickled():
    """A batch number is an int that keeps the id of its checkpoint when it is pickled."""
    number = PipelineState("g", "h", "abc").batch_number(7)
    sent = pickle.loads(pickle.dumps(number))

    assert (number, f"{number}", number + 1) == (7, "7", 8)
    assert (sent, sent.checkpoint) == (7, "abc")


# ---- owner of a checkpoint -------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_cluster_or_app_is_refused():
    """A checkpoint of another cluster, or of an app without a common topic, is refused."""
    mine = PipelineState("g", "h", cluster_id="c", topics={"t": "1", "u": "2"})

    check_matches("place", mine, "c", {"u": "9", "v": "3"})
    check_matches("place", PipelineState("g", "h"), "c", {"t": "1"})
    check_matches("place", mine, "", {"t": ""})
    with pytest.raises(ConfigurationError, match="place is a checkpoint of cluster c, and this is cluster d"):
        check_matches("place", mine, "d", {"t": "1"})
    with pytest.raises(
        ConfigurationError, match="place is the checkpoint of an app that reads t, u, and this one reads v"
    ):
        check_matches("place", mine, "c", {"v": "3"})
