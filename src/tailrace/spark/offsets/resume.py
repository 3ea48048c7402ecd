"""Decision where a query resumes, as pure functions of the group's committed offsets and Spark's checkpoint.

The committed offsets are authoritative: if another client has changed them, a new generation of the checkpoint starts
at these offsets. If the group has no committed offset of a partition in the checkpoint, the offset has expired on the
broker, and the offset of the checkpoint is used.
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

__all__ = ["Resumption", "backfill_metadata", "decide_resumption", "next_number", "start_metadata", "stream_metadata"]

_METADATA = re.compile(r"spark (?:query=(?P<query>\S*)|backfill) batch=(?P<batch>\d+)")


# ---- commit metadata -------------------------------------------------------------------------------------------


def stream_metadata(query_id: str, batch_id: int) -> str:
    """Return the text in the metadata of the commit of a query's batch."""
    return f"spark query={query_id} batch={batch_id}"


def backfill_metadata(batch_id: int) -> str:
    """Return the text in the metadata of the commit of a backfill's batch."""
    return f"spark backfill batch={batch_id}"


def start_metadata(name: str = "") -> str:
    """Return the text in the metadata of the commit of start offsets; ``name`` distinguishes generations."""
    return f"spark begins {name}".rstrip()


def next_number(known: Iterable[int], texts: Iterable[str]) -> int:
    """Return the lowest batch number that is not below any of ``known`` and is above all numbers in ``texts``.

    ``texts`` are texts in the metadata of commits.
    """
    committed = (int(match["batch"]) + 1 for text in texts if (match := _METADATA.fullmatch(text)))
    return max([*known, *committed], default=0)


# ---- resumption ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resumption:
    """Decision whether and how Spark's checkpoint is used.

    Attributes:
        continues: True if the generation of the checkpoint continues; False if a new generation starts.
        offsets: offsets of the checkpoint that replace the group's committed offsets: all offsets if Spark made the
            group's last commit; otherwise only those of partitions whose committed offsets have expired.
        last_committed: last batch in the commit log; None if there is none, or if a new generation starts.
    """

    continues: bool
    offsets: Offsets = field(default_factory=dict)
    last_committed: int | None = None


def decide_resumption(state: PipelineState, spark_logs: SparkLogs, cluster_state: ClusterState) -> Resumption:
    """Decide whether the generation of Spark's checkpoint continues, and which of its offsets are used."""
    if not state.generation:
        return Resumption(False)
    start = {partition_of(name): offset for name, offset in state.start.items()}
    ends = start if spark_logs.last_committed is None else spark_logs.ends_of(spark_logs.last_committed)
    if ends is None:
        return Resumption(False)
    missing = ends.keys() - cluster_state.committed.keys()
    expired = {one: ends[one] for one in missing if _is_same_topic(one, state, cluster_state)}
    is_unchanged = (
        not state.has_backfilled
        and ends.keys() <= cluster_state.committed.keys() | expired.keys()
        and _are_in_logs(ends, spark_logs, cluster_state)
        and _were_committed_by_spark(start, ends, state, spark_logs, cluster_state.committed)
    )
    if not is_unchanged:
        return Resumption(False, expired)
    if not _can_read_new_partitions(ends, cluster_state):
        return Resumption(False, ends)
    return Resumption(True, ends, spark_logs.last_committed)


def _is_same_topic(partition: TopicPartition, state: PipelineState, cluster_state: ClusterState) -> bool:
    """Return True if the topic has the id in ``state``; False if the topic was recreated or an id is unknown."""
    topic_id = cluster_state.topic_ids.get(partition.topic)
    return bool(topic_id) and partition in cluster_state.logs and state.topics.get(partition.topic) == topic_id


def _are_in_logs(ends: Offsets, spark_logs: SparkLogs, cluster_state: ClusterState) -> bool:
    """Return True if the logs have the offsets that Spark reads next: ``ends``, and the end of a planned batch."""
    logs = cluster_state.logs
    if any(one not in logs or not logs[one].begin <= offset <= logs[one].end for one, offset in ends.items()):
        return False
    planned = {} if spark_logs.last_planned is None else spark_logs.ends_of(spark_logs.last_planned) or {}
    return all(one in logs and offset <= logs[one].end for one, offset in planned.items())


def _can_read_new_partitions(ends: Offsets, cluster_state: ClusterState) -> bool:
    """Return False if Spark would fail to read a new partition, or would read it from a wrong offset.

    Spark reads a partition that its checkpoint does not contain from offset 0, and fails if the log does not begin
    there. Offset 0 is correct for a partition added to a topic, but a new topic starts by ``auto_offset_reset``.
    """
    topics = {one.topic for one in ends}
    return all(one in ends or (one.topic in topics and log.begin == 0) for one, log in cluster_state.logs.items())


def _were_committed_by_spark(
    start: Offsets,
    ends: Offsets,
    state: PipelineState,
    spark_logs: SparkLogs,
    committed: Mapping[TopicPartition, GroupOffset],
) -> bool:
    """Return True if the committed offsets are the ends of the last batch, or of the batch in their metadata.

    The driver may have died before it committed the last batches to the group.
    """
    offsets = {one: commit.offset for one, commit in committed.items()}
    if all(ends.get(one) == offset for one, offset in offsets.items()):
        return True
    texts = {commit.decoded_metadata.user_text for commit in committed.values()} - {""}
    if len(texts) != 1:
        return False
    text = texts.pop()
    expected = start if text == state.start_text else _ends_of_named_batch(text, state, spark_logs)
    return expected is not None and all(expected.get(one) == offset for one, offset in offsets.items())


def _ends_of_named_batch(text: str, state: PipelineState, spark_logs: SparkLogs) -> Offsets | None:
    """Return the end offsets of the batch that a commit text names; None if this generation has no such batch."""
    match = _METADATA.fullmatch(text)
    if (
        match is None
        or not match["query"]
        or match["query"] != spark_logs.query_id
        or spark_logs.last_committed is None
    ):
        return None
    number = int(match["batch"]) - state.first_batch_id
    return spark_logs.ends_of(number) if 0 <= number <= spark_logs.last_committed else None
