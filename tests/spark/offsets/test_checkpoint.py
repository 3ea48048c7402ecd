"""What numbers and names say: of a batch, beside a commit, of a checkpoint."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigurationError
from tailrace.core.offset_map import OffsetMap, decode_metadata, encode_metadata
from tailrace.spark.offsets.checkpoint import PipelineState, check_matches
from tailrace.spark.offsets.resume import backfill_metadata, next_number, start_metadata, stream_metadata
from tailrace.spark.offsets.store import PartitionCommit, commit_metadata


def test_numbers_go_on_over_streams_and_backfills():
    """The next number is above all that the checkpoint and the group's texts know; other texts say nothing."""
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
def test_a_map_goes_before_a_text(unfinished, said, limit, writer):
    """What is finished behind an offset is committed wherever it fits alone, and is told of where it does not."""
    done = None if unfinished is None else OffsetMap(0, 6_000, tuple(sorted(unfinished)))

    envelope = commit_metadata(PartitionCommit(0, done), said, limit, writer)

    fits = done is None or not encode_metadata(done, "", limit).is_map_dropped
    found = decode_metadata(envelope.text, 0)
    assert envelope.is_map_dropped is not fits
    assert len(envelope.text.encode()) <= max(limit, len(said.encode()) + 40)
    if done is not None:
        assert found.offset_map == (done if fits else None)
    if limit < 256:
        assert found.user_text == ""


def test_a_number_knows_its_checkpoint():
    """It is a number like any other, also where a sink sends it to workers, and says which checkpoint gave it."""
    number = PipelineState("g", "h", "abc").number(7)
    sent = pickle.loads(pickle.dumps(number))

    assert (number, f"{number}", number + 1) == (7, "7", 8)
    assert (sent, sent.checkpoint) == (7, "abc")


# ---- whose checkpoint it is ------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_cluster_or_app_is_refused():
    """One of another cluster, or of an app that reads nothing of the same, is named; topics may come and go."""
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
