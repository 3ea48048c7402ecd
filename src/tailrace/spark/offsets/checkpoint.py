"""Checkpoint folder of a pipeline: the pipeline's state, and a folder with Spark's own checkpoint for each generation.

A generation of the checkpoint (not of the group) is a sequence of batches of a query, each of which starts where the
previous batch ended. If another client changes the group's offsets, a new generation starts at these offsets.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Self

import msgspec

from tailrace.errors import ConfigurationError
from tailrace.records import TopicPartition
from tailrace.spark.offsets.query_log import HadoopFolder, QueryLog
from tailrace.spark.offsets.ranges import Offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "BatchNumber",
    "Checkpoint",
    "PipelineState",
    "PlannedBatch",
    "check_matches",
    "key_of",
    "partition_of",
]

_FILE = "tailrace.json"
_DRAFT = "tailrace.json.draft"
"""Second copy of the state, which is written first."""


class BatchNumber(int):
    """Number of a batch; the number stays the same if the batch is handled again.

    Attributes:
        checkpoint: id of the checkpoint; numbers are unique only within a checkpoint.
    """

    checkpoint: str

    def __new__(cls, number: int, checkpoint: str = "") -> Self:
        """Create a batch number of a checkpoint."""
        batch_number = super().__new__(cls, number)
        batch_number.checkpoint = checkpoint
        return batch_number


class PlannedBatch(msgspec.Struct, frozen=True):
    """Batch of a backfill, saved before the batch starts. The keys of the offsets are those of ``key_of``."""

    batch_id: int
    start: dict[str, int]
    """Start offsets."""
    end: dict[str, int]
    """End offsets."""


class PipelineState(msgspec.Struct):
    """State of a pipeline, stored in its checkpoint folder."""

    group_id: str
    handler: str
    """Name of the handler."""
    id: str = ""
    """Random id of the checkpoint."""
    cluster_id: str = ""
    topics: dict[str, str] = {}
    """Id of each topic when the generation started, or when the topic was first read; empty if brokers have no ids."""
    generation: int = 0
    """Number of the current generation; 0 before the first query."""
    start: dict[str, int] = {}
    """Start offsets of the generation, with the keys of ``key_of``."""
    start_text: str = msgspec.field(default="", name="begun")
    """Text in the commit metadata of the start offsets."""
    first_batch_id: int = 0
    """Id of the generation's first batch. Ids continue across generations, so that no two batches have the same id."""
    next_batch_id: int = 0
    """Id of the next batch of a backfill, or of the first batch of the next generation."""
    planned: PlannedBatch | None = None
    """Last batch of a backfill; None if there is none, or if it is known to be committed."""

    @property
    def has_backfilled(self) -> bool:
        """True if a backfill has started a batch since the generation started."""
        return self.next_batch_id > self.first_batch_id

    def batch_number(self, batch_id: int) -> BatchNumber:
        """Return the number that a sink receives for the batch ``batch_id``."""
        return BatchNumber(batch_id, self.id)

    def add_ids(self, cluster_id: str, topic_ids: Mapping[str, str]) -> None:
        """Add the cluster id and topic ids, but keep ids that the state already has."""
        self.cluster_id, self.topics = self.cluster_id or cluster_id, {**topic_ids, **self.topics}

    def begin_generation(self, topic_ids: Mapping[str, str], offsets: Offsets, start_text: str) -> None:
        """Start a new generation at ``offsets``, and forget a planned batch."""
        self.generation, self.first_batch_id, self.planned = self.generation + 1, self.next_batch_id, None
        self.topics, self.start_text = dict(topic_ids), start_text
        self.start = {key_of(one): offset for one, offset in offsets.items()}


class Checkpoint:
    """Checkpoint folder of a pipeline.

    Args:
        spark: session whose file systems are used.
        location: path or URL of the folder.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark, self._folder = spark, HadoopFolder(spark, location)
        self.location = self._folder.location

    def load(self, group_id: str, handler: str) -> PipelineState:
        """Return the stored state, or a new state for an empty folder.

        Raises:
            ConfigurationError: the folder belongs to another group or handler, is not a pipeline's checkpoint, or its
                state cannot be read.
        """
        found: PipelineState | None = None
        for name in (_FILE, _DRAFT):
            text = self._folder.read(name)
            if text is None:
                continue
            try:
                found = msgspec.json.decode(text, type=PipelineState)
                break
            except msgspec.DecodeError:
                continue  # The driver was killed while it wrote this copy, so the other copy is complete.
        if found is None:
            if self._folder.read(_FILE) is not None:
                raise ConfigurationError(f"{self.location}/{_FILE} cannot be read - use another folder as checkpoint=")
            if self._folder.names(""):
                raise ConfigurationError(
                    f"{self.location} is not empty and not a pipeline's checkpoint - use another folder as checkpoint="
                )
            return PipelineState(group_id, handler, uuid.uuid4().hex[:12])
        if (found.group_id, found.handler) != (group_id, handler):
            raise ConfigurationError(
                f"{self.location} is the checkpoint of handler {found.handler!r} of group {found.group_id!r}, not of"
                f" {handler!r} of {group_id!r} - use a separate folder; the run continues at the committed offsets"
            )
        return found

    def save(self, state: PipelineState) -> None:
        """Store the state in two files, one after the other: one file is complete even if the driver is killed."""
        text = msgspec.json.encode(state).decode()
        for name in (_DRAFT, _FILE):
            self._folder.write(name, text)

    def folder_of(self, generation: int) -> str:
        """Return the folder of Spark's own checkpoint of a generation."""
        return f"{self.location}/generation-{generation}"

    def log(self, generation: int) -> QueryLog:
        """Return the reader of Spark's own checkpoint of a generation."""
        advice = "start again: a new generation of the checkpoint starts at the group's committed offsets"
        return QueryLog(HadoopFolder(self._spark, self.folder_of(generation)), advice)


def check_matches(location: str, state: PipelineState, cluster_id: str, topics: Collection[str]) -> None:
    """Check that a checkpoint belongs to the connected cluster, and to at least one of the topics to read.

    Args:
        location: path or URL of the checkpoint.
        state: state of the checkpoint.
        cluster_id: id of the connected cluster.
        topics: names of the topics to read.

    Raises:
        ConfigurationError: the checkpoint belongs to another cluster, or to other topics only.
    """
    if state.cluster_id and cluster_id and state.cluster_id != cluster_id:
        raise ConfigurationError(
            f"{location} is a checkpoint of cluster {state.cluster_id}, and this is cluster {cluster_id}"
            " - use a separate folder"
        )
    if state.topics and not state.topics.keys() & set(topics):
        raise ConfigurationError(
            f"{location} is the checkpoint of an app that reads {', '.join(sorted(state.topics))}, and this one reads"
            f" {', '.join(sorted(topics))} - use a separate folder; the run continues at the committed offsets"
        )


def key_of(partition: TopicPartition) -> str:
    """Return the key of a partition in ``PipelineState``; topic names have no slash."""
    return f"{partition.topic}/{partition.partition}"


def partition_of(key: str) -> TopicPartition:
    """Return the partition of a key in ``PipelineState``."""
    topic, _, number = key.rpartition("/")
    return TopicPartition(topic, int(number))
