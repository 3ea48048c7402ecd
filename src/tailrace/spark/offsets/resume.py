"""Where a stream goes on, and with which number: what the group, the checkpoint and the text beside a commit come to.

Rule of this file: pure. The group is the truth: whoever has worked for it or moved it is followed, and Spark begins a
new generation of its checkpoint there. What is absent was not moved: where the broker has forgotten what the group had
committed, the checkpoint knows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailrace.admin.offsets import GroupOffset
from tailrace.records import TopicPartition
from tailrace.spark.offsets.checkpoint import PipelineState, Written, partition_of
from tailrace.spark.offsets.ranges import Offsets
from tailrace.spark.offsets.store import ClusterState

__all__ = ["Resumption", "next_number", "resumption", "said_at_start", "said_by_backfill", "said_by_stream"]

_SAID = re.compile(r"spark (?:query=(?P<query>\S*)|backfill) batch=(?P<batch>\d+)")


# ---- the text beside a commit ----------------------------------------------------------------------------------


def said_by_stream(query_id: str, batch_id: int) -> str:
    """Beside the commit of a micro-batch."""
    return f"spark query={query_id} batch={batch_id}"


def said_by_backfill(batch_id: int) -> str:
    """Beside the commit of a backfill's batch."""
    return f"spark backfill batch={batch_id}"


def said_at_start(name: str = "") -> str:
    """Beside the commit of where Spark begins; a generation has a name of its own, lest it be taken for another."""
    return f"spark begins {name}".rstrip()


def next_number(known: Iterable[int], texts: Iterable[str]) -> int:
    """The number of a batch that none had before, as far as the checkpoint (``known``) or the group's texts say."""
    said = (int(match["batch"]) + 1 for text in texts if (match := _SAID.fullmatch(text)))
    return max([*known, *said], default=0)


# ---- where to go on --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resumption:
    """What becomes of Spark's checkpoint.

    Attributes:
        is_same: whether its generation goes on; else a new one begins.
        stands: offsets of which the checkpoint knows better than the group: all of it where the group is where it left
            it, which the group has to be told; else those that the group has forgotten.
        last: the last batch in its commit log, where it goes on and there is one.
    """

    is_same: bool
    stands: Offsets = field(default_factory=dict)
    last: int | None = None


def resumption(state: PipelineState, written: Written, seen: ClusterState) -> Resumption:
    """Whether Spark's checkpoint goes on, given where the group stands and how far the logs go."""
    if not state.generation:
        return Resumption(False)
    start = {partition_of(name): offset for name, offset in state.start.items()}
    ends = start if written.last is None else written.ends_of(written.last)
    if ends is None:
        return Resumption(False)
    forgotten = {one: ends[one] for one in ends.keys() - seen.found.keys() if _is_the_same_log(one, state, seen)}
    is_known = (
        not state.has_backfilled
        and ends.keys() <= seen.found.keys() | forgotten.keys()
        and _is_in_the_logs(ends, written, seen)
        and _is_where_it_left_the_group(start, ends, state, written, seen.found)
    )
    if not is_known:
        return Resumption(False, forgotten)
    return Resumption(True, ends, written.last) if _takes_what_is_new(ends, seen) else Resumption(False, ends)


def _is_the_same_log(partition: TopicPartition, state: PipelineState, seen: ClusterState) -> bool:
    """A topic that was made anew has another id; one of which no id is known may have been."""
    topic_id = seen.topics.get(partition.topic)
    return bool(topic_id) and partition in seen.logs and state.topics.get(partition.topic) == topic_id


def _is_in_the_logs(ends: Offsets, written: Written, seen: ClusterState) -> bool:
    """Spark begins at ``ends``, and reads to the ends of a batch that it has begun, if there is one."""
    if any(one not in seen.logs or not seen.logs[one].begin <= at <= seen.logs[one].end for one, at in ends.items()):
        return False
    wanted = {} if written.begun is None else written.ends_of(written.begun) or {}
    return all(one in seen.logs and at <= seen.logs[one].end for one, at in wanted.items())


def _takes_what_is_new(ends: Offsets, seen: ClusterState) -> bool:
    """Spark reads partitions that its checkpoint does not know from 0, and ends where that was removed.

    So it is with those that were added to a topic; where one that is new begins the policy says.
    """
    topics = {one.topic for one in ends}
    return all(one in ends or (one.topic in topics and log.begin == 0) for one, log in seen.logs.items())


def _is_where_it_left_the_group(
    start: Offsets, ends: Offsets, state: PipelineState, written: Written, found: Mapping[TopicPartition, GroupOffset]
) -> bool:
    """Whether the group stands at the end of the last batch, or of one before it by the text beside.

    The driver may have died before it had told the group of the last ones.
    """
    stands = {one: at.offset for one, at in found.items()}
    if all(ends.get(one) == offset for one, offset in stands.items()):
        return True
    texts = {at.said.user_text for at in found.values()} - {""}
    if len(texts) != 1:
        return False
    text = texts.pop()
    was = start if text == state.begun else _ends_of_said(text, state, written)
    return was is not None and all(was.get(one) == offset for one, offset in stands.items())


def _ends_of_said(text: str, state: PipelineState, written: Written) -> Offsets | None:
    """Where the batch ends that the text names; None when it is none of this generation's that is through."""
    match = _SAID.fullmatch(text)
    if match is None or not match["query"] or match["query"] != written.query_id or written.last is None:
        return None
    number = int(match["batch"]) - state.first_batch_id
    return written.ends_of(number) if 0 <= number <= written.last else None
