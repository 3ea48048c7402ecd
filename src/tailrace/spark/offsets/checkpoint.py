"""Checkpoint folder of a pipeline: the pipeline's state, and a folder with Spark's own checkpoint for each generation.

A generation of the checkpoint (not of the group) is a sequence of batches of a query, each of which starts where the
previous batch ended. If another client changes the group's offsets, a new generation starts at these offsets. Spark's
checkpoint of a generation has two logs: the offset log has a file for each batch that was planned, and the commit log
has a file for each batch that has ended.

Files are read and written through Hadoop's file systems, so the folder may be on any file system that Spark supports.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tailrace.errors import ConfigurationError, CorruptCheckpointError
from tailrace.records import TopicPartition
from tailrace.spark.offsets.ranges import Offsets, offsets_in, offsets_of
from tailrace.spark.session import line_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "BatchNumber",
    "Checkpoint",
    "PipelineState",
    "PlannedBatch",
    "SparkLogs",
    "check_matches",
    "ends_in_log",
    "key_of",
    "partition_of",
]

_FILE = "tailrace.json"
_DRAFT = "tailrace.json.draft"
"""Second copy of the state, which is written first."""
_VERSION = re.compile(r"v\d+")
_SOURCE = re.compile(r"^[^{]*:(?=\{)")
"""Name of a source before its offsets in format 2 of the offset log (Spark 4.2); format 1 has no names."""


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


class _QueryMetadata(msgspec.Struct):
    """Content of the file in which Spark stores the id of a query."""

    id: str


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


@dataclass(frozen=True)
class SparkLogs:
    """Contents of Spark's own checkpoint of a generation.

    Attributes:
        query_id: id of the query; empty before the first run.
        last_committed: last batch in the commit log; None if there is none.
        last_planned: last batch in the offset log, even if it is not in the commit log; None if there is none.
        ends_of: function that returns the end offsets of a batch, or None if the offset log does not have the batch.
    """

    query_id: str
    last_committed: int | None
    last_planned: int | None
    ends_of: Callable[[int], Offsets | None]


class Checkpoint:
    """Checkpoint folder of a pipeline.

    Args:
        spark: session whose file systems are used.
        location: path or URL of the folder.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location.rstrip("/")
        untyped: Any = spark
        self._jvm = untyped._jvm
        self._hadoop = untyped._jsc.hadoopConfiguration()

    def load(self, group_id: str, handler: str) -> PipelineState:
        """Return the stored state, or a new state for an empty folder.

        Raises:
            ConfigurationError: the folder belongs to another group or handler, is not a pipeline's checkpoint, or its
                state cannot be read.
        """
        found: PipelineState | None = None
        for name in (_FILE, _DRAFT):
            text = self._read(name)
            if text is None:
                continue
            try:
                found = msgspec.json.decode(text, type=PipelineState)
                break
            except msgspec.DecodeError:
                continue  # The driver was killed while it wrote this copy, so the other copy is complete.
        if found is None:
            if self._read(_FILE) is not None:
                raise ConfigurationError(f"{self.location}/{_FILE} cannot be read - use another folder as checkpoint=")
            if self._names(""):
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
            self._write(name, text)

    def folder_of(self, generation: int) -> str:
        """Return the folder of Spark's own checkpoint of a generation."""
        return f"{self.location}/generation-{generation}"

    def last_committed(self, generation: int) -> int | None:
        """Return the last batch in Spark's commit log; None if there is none."""
        return max(self._numbers(generation, "commits"), default=None)

    def last_planned(self, generation: int) -> int | None:
        """Return the last batch in Spark's offset log; None if there is none."""
        return max(self._numbers(generation, "offsets"), default=None)

    def last_batch(self, generation: int, after: int) -> tuple[int, Offsets] | None:
        """Return the last batch in Spark's commit log and its end offsets; None if it is not after batch ``after``.

        Raises:
            CorruptCheckpointError: the file of the batch cannot be read.
        """
        last = self.last_committed(generation)
        ends = None if last is None or last <= after else self.ends_of(generation, last)
        return None if last is None or ends is None else (last, ends)

    def ends_of(self, generation: int, batch: int) -> Offsets | None:
        """Return the end offsets of a batch; None if the offset log does not have the batch.

        Raises:
            CorruptCheckpointError: the file of the batch cannot be read.
        """
        name = f"generation-{generation}/offsets/{batch}"
        text = self._read(name)
        if text is None:
            return None
        try:
            return ends_in_log(text)
        except ValueError as error:
            raise self._corrupt(name, error) from error

    def spark_logs(self, generation: int) -> SparkLogs:
        """Return the contents of Spark's own checkpoint of a generation.

        Raises:
            CorruptCheckpointError: the last file of the commit log, or the file with the query id, cannot be read.
        """
        last = self.last_committed(generation)
        if last is not None:
            name = f"generation-{generation}/commits/{last}"
            if not _VERSION.match(self._read(name) or ""):
                raise self._corrupt(name, "it does not begin with a format version")
        return SparkLogs(
            self.query_id(generation),
            last,
            self.last_planned(generation),
            lambda batch: self.ends_of(generation, batch),
        )

    def query_id(self, generation: int) -> str:
        """Return the id of Spark's query, which is the same in all runs of a generation; empty before the first run.

        Raises:
            CorruptCheckpointError: the file with the id cannot be read.
        """
        name = f"generation-{generation}/metadata"
        text = self._read(name)
        try:
            return "" if text is None else msgspec.json.decode(text, type=_QueryMetadata).id
        except msgspec.DecodeError as error:
            raise self._corrupt(name, error) from error

    def _corrupt(self, name: str, why: object) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{self.location}/{name} cannot be read: {why} - start again: a new generation of the checkpoint starts at"
            " the group's committed offsets"
        )

    # ---- files -------------------------------------------------------------------------------------------------

    def _numbers(self, generation: int, kind: str) -> list[int]:
        return [int(name) for name in self._names(f"generation-{generation}/{kind}") if name.isdigit()]

    def _path(self, name: str) -> tuple[Any, Any]:
        try:
            path = self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}" if name else self.location)
            return path.getFileSystem(self._hadoop), path
        except Exception as error:
            if (line := line_of(error)) is None:
                raise
            version = self._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            raise ConfigurationError(
                f"Spark has no file system for checkpoint={self.location!r}: {line} - add its jars to the session, such"
                f" as spark.jars.packages=org.apache.hadoop:hadoop-aws:{version} for s3a://"
            ) from error

    def _names(self, name: str) -> list[str]:
        system, path = self._path(name)
        return [one.getPath().getName() for one in system.listStatus(path)] if system.exists(path) else []

    def _read(self, name: str) -> str | None:
        system, path = self._path(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _write(self, name: str, text: str) -> None:
        system, path = self._path(name)
        stream = system.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()


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


def ends_in_log(text: str, topics: Collection[str] | None = None) -> Offsets:
    """Return the end offsets in a file of Spark's offset log, which has format 1 or 2.

    Args:
        text: content of the file.
        topics: topics whose offsets are returned; None for all topics of a query with one source.

    Raises:
        ValueError: the file is truncated or has another format.
    """
    # The lines are the version, metadata of the batch, and the offsets of each source.
    version, _, *sources = [*text.splitlines(), "", ""]
    if version not in {"v1", "v2"}:
        raise ValueError(f"its format is {version[:20]!r}, and only v1 and v2 are supported")
    texts = [_SOURCE.sub("", one, count=1) for one in sources]
    return offsets_of(texts[0]) if topics is None else offsets_in(texts, topics)


def key_of(partition: TopicPartition) -> str:
    """Return the key of a partition in ``PipelineState``; topic names have no slash."""
    return f"{partition.topic}/{partition.partition}"


def partition_of(key: str) -> TopicPartition:
    """Return the partition of a key in ``PipelineState``."""
    topic, _, number = key.rpartition("/")
    return TopicPartition(topic, int(number))
