"""Decides where a stream resumes, from the group's committed offsets, Spark's checkpoint and the commit metadata.

This module is pure. The committed offsets are authoritative: if another client has changed them, a new generation of
the checkpoint starts there. Missing offsets have not been changed but have expired on the broker, and are taken from
the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailrace.admin.offsets import GroupOffset
from tailrace.records import TopicPartition
from tailrace.spark.offsets.checkpoint import PipelineState, SparkLogs, partition_of
from tailrace.spark.offsets.ranges import Offsets
from tailrace.spark.offsets.store import ClusterState

__all__ = ["Resumption", "backfill_metadata", "next_number", "resumption", "start_metadata", "stream_metadata"]

_METADATA = re.compile(r"spark (?:query=(?P<query>\S*)|backfill) batch=(?P<batch>\d+)")


# ---- commit metadata -------------------------------------------------------------------------------------------


def stream_metadata(query_id: str, batch_id: int) -> str:
    """Return the metadata of the commit of a micro-batch."""
    return f"spark query={query_id} batch={batch_id}"


def backfill_metadata(batch_id: int) -> str:
    """Return the metadata of the commit of a backfill's batch."""
    return f"spark backfill batch={batch_id}"


def start_metadata(name: str = "") -> str:
    """Return the metadata of the commit of start offsets; ``name`` distinguishes generations."""
    return f"spark begins {name}".rstrip()


def next_number(known: Iterable[int], texts: Iterable[str]) -> int:
    """Return a batch number above the numbers ``known`` and above those in ``texts``, from the commit metadata."""
    committed = (int(match["batch"]) + 1 for text in texts if (match := _METADATA.fullmatch(text)))
    return max([*known, *committed], default=0)


# ---- resumption ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resumption:
    """Decision about Spark's checkpoint.

    Attributes:
        continues: True if the generation of the checkpoint continues; False if a new one starts.
        offsets: offsets that replace the group's committed offsets: all offsets of the checkpoint if Spark committed
            those of the group, perhaps for an earlier batch; otherwise those that expired on the broker.
        last: last batch in the commit log, if the generation continues and has one.
    """

    continues: bool
    offsets: Offsets = field(default_factory=dict)
    last: int | None = None


def resumption(state: PipelineState, written: SparkLogs, seen: ClusterState) -> Resumption:
    """Decide whether Spark's checkpoint continues, from the group's offsets and the bounds of the logs."""
    if not state.generation:
        return Resumption(False)
    start = {partition_of(name): offset for name, offset in state.start.items()}
    ends = start if written.last is None else written.ends_of(written.last)
    if ends is None:
        return Resumption(False)
    expired = {one: ends[one] for one in ends.keys() - seen.found.keys() if _is_same_topic(one, state, seen)}
    is_unchanged = (
        not state.has_backfilled
        and ends.keys() <= seen.found.keys() | expired.keys()
        and _are_in_logs(ends, written, seen)
        and _were_committed_by_spark(start, ends, state, written, seen.found)
    )
    if not is_unchanged:
        return Resumption(False, expired)
    return Resumption(True, ends, written.last) if _can_read_new_partitions(ends, seen) else Resumption(False, ends)


def _is_same_topic(partition: TopicPartition, state: PipelineState, seen: ClusterState) -> bool:
    """Return False for a recreated topic, which has another id, and for one without a known id."""
    topic_id = seen.topics.get(partition.topic)
    return bool(topic_id) and partition in seen.logs and state.topics.get(partition.topic) == topic_id


def _are_in_logs(ends: Offsets, written: SparkLogs, seen: ClusterState) -> bool:
    """Return True if the logs have the offsets that Spark reads next: ``ends``, and the end of a started batch."""
    if any(one not in seen.logs or not seen.logs[one].begin <= at <= seen.logs[one].end for one, at in ends.items()):
        return False
    started = {} if written.begun is None else written.ends_of(written.begun) or {}
    return all(one in seen.logs and at <= seen.logs[one].end for one, at in started.items())


def _can_read_new_partitions(ends: Offsets, seen: ClusterState) -> bool:
    """Return False if Spark would fail at a new partition, or start it at the wrong offset.

    Spark reads a partition that its checkpoint does not contain from offset 0, and fails if the log does not begin
    there. That start is right for a partition added to a topic, but a new topic starts by ``auto_offset_reset``.
    """
    topics = {one.topic for one in ends}
    return all(one in ends or (one.topic in topics and log.begin == 0) for one, log in seen.logs.items())


def _were_committed_by_spark(
    start: Offsets, ends: Offsets, state: PipelineState, written: SparkLogs, found: Mapping[TopicPartition, GroupOffset]
) -> bool:
    """Return True if the group's offsets are the ends of the last batch, or of the batch that their metadata names.

    The driver may have died before it committed the last batches to the group.
    """
    committed = {one: at.offset for one, at in found.items()}
    if all(ends.get(one) == offset for one, offset in committed.items()):
        return True
    texts = {at.decoded_metadata.user_text for at in found.values()} - {""}
    if len(texts) != 1:
        return False
    text = texts.pop()
    expected = start if text == state.begun else _ends_of_named_batch(text, state, written)
    return expected is not None and all(expected.get(one) == offset for one, offset in committed.items())


def _ends_of_named_batch(text: str, state: PipelineState, written: SparkLogs) -> Offsets | None:
    """Return the end offsets of the batch that commit metadata names; None if it is not in this generation's log."""
    match = _METADATA.fullmatch(text)
    if match is None or not match["query"] or match["query"] != written.query_id or written.last is None:
        return None
    number = int(match["batch"]) - state.first_batch_id
    return written.ends_of(number) if 0 <= number <= written.last else None
