"""Checkpoint folder of a pipeline: its state, and Spark's own checkpoint in one folder per generation.

Files are read and written by Hadoop's file systems, as Spark does, so that the folder may be on any of these. A
generation is a sequence of batches, each of which starts where the previous one ended; if another client changes the
group's offsets, the next generation starts there.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tailrace.errors import ConfigurationError, CorruptCheckpointError
from tailrace.records import TopicPartition
from tailrace.spark.error_lines import line_of
from tailrace.spark.offsets.ranges import Offsets, offsets_of

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
_VERSION = re.compile(r"v\d+")
_SOURCE = re.compile(r"^[^{]*:(?=\{)")
"""Name of a source in format 2 of the offset log (Spark 4.2); format 1 has only its offsets."""


class BatchNumber(int):
    """Number of a batch; a batch that is handled again has the same number.

    Attributes:
        checkpoint: id of the checkpoint, because numbers are unique only within a checkpoint.
    """

    checkpoint: str

    def __new__(cls, number: int, checkpoint: str = "") -> Self:
        """Create a batch number of a checkpoint."""
        batch_number = super().__new__(cls, number)
        batch_number.checkpoint = checkpoint
        return batch_number


class _QueryMetadata(msgspec.Struct):
    """Content of the file in which Spark keeps the id of a query."""

    id: str


class PlannedBatch(msgspec.Struct, frozen=True):
    """Batch of a backfill that was planned and may have started, with its offset ranges."""

    batch_id: int
    start: dict[str, int]
    end: dict[str, int]


class PipelineState(msgspec.Struct):
    """State of a pipeline, stored in its checkpoint folder."""

    group_id: str
    handler: str
    id: str = ""
    """Random id of the checkpoint."""
    cluster_id: str = ""
    topics: dict[str, str] = {}
    """Topic ids at the first read or at the start of the generation; empty if the brokers have none."""
    generation: int = 0
    start: dict[str, int] = {}
    """Start offsets of the generation by partition."""
    begun: str = ""
    """Text in the commit metadata of the start offsets."""
    first_batch_id: int = 0
    """First batch id of the generation; ids continue across generations, so that no sink receives an id twice."""
    next_batch_id: int = 0
    """First batch id after the generation."""
    planned: PlannedBatch | None = None
    """Batch of a backfill that may not be committed."""

    @property
    def has_backfilled(self) -> bool:
        """True if a backfill has started a batch since the generation started, whose number sinks may have received."""
        return self.next_batch_id > self.first_batch_id

    def number(self, batch_id: int) -> BatchNumber:
        """Return the batch number that sinks receive for ``batch_id``."""
        return BatchNumber(batch_id, self.id)

    def note(self, cluster_id: str, topics: Mapping[str, str]) -> None:
        """Record cluster id and topic ids, unless they are already known."""
        self.cluster_id, self.topics = self.cluster_id or cluster_id, {**topics, **self.topics}

    def begin(self, topics: Mapping[str, str], at: Offsets, metadata: str) -> None:
        """Start a new generation and drop a planned batch."""
        self.generation, self.first_batch_id, self.planned = self.generation + 1, self.next_batch_id, None
        self.topics, self.begun = dict(topics), metadata
        self.start = {key_of(one): offset for one, offset in at.items()}


@dataclass(frozen=True)
class SparkLogs:
    """Spark's own logs of a generation, in its checkpoint.

    Attributes:
        query_id: id of the query; empty before the first run.
        last: last batch in the commit log; None if there is none.
        begun: last batch in the offset log, which was started and may not be in the commit log; None if there is none.
        ends_of: returns the end offsets of a batch; None if the offset log has no entry for the batch.
    """

    query_id: str
    last: int | None
    begun: int | None
    ends_of: Callable[[int], Offsets | None]


class Checkpoint:
    """Checkpoint folder of a pipeline.

    Args:
        spark: session whose file systems are used.
        place: path or URL of the folder.
    """

    def __init__(self, spark: SparkSession, place: str) -> None:
        self.place = place.rstrip("/")
        untyped: Any = spark
        self._jvm = untyped._jvm  # noqa: SLF001 - Spark has no public access to Hadoop's file systems
        self._hadoop = untyped._jsc.hadoopConfiguration()  # noqa: SLF001 - and none to their configuration

    def load(self, group_id: str, handler: str) -> PipelineState:
        """Return the stored state, or a new one for an empty folder.

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
                continue  # The driver was killed while it wrote this copy, so the other one is complete.
        if found is None:
            if self._read(_FILE) is not None:
                raise ConfigurationError(f"{self.place}/{_FILE} cannot be read - use another folder as checkpoint=")
            if self._names(""):
                raise ConfigurationError(
                    f"{self.place} is not empty and not a pipeline's checkpoint - use another folder as checkpoint="
                )
            return PipelineState(group_id, handler, uuid.uuid4().hex[:12])
        if (found.group_id, found.handler) != (group_id, handler):
            raise ConfigurationError(
                f"{self.place} is the checkpoint of handler {found.handler!r} of group {found.group_id!r}, not of"
                f" {handler!r} of {group_id!r} - use a separate folder; the run continues at the committed offsets"
            )
        return found

    def save(self, state: PipelineState) -> None:
        """Store the state in two copies, one of which is complete even if the driver is killed."""
        text = msgspec.json.encode(state).decode()
        for name in (_DRAFT, _FILE):
            self._write(name, text)

    def folder_of(self, generation: int) -> str:
        """Return the folder of Spark's own checkpoint."""
        return f"{self.place}/generation-{generation}"

    def last_commit(self, generation: int) -> int | None:
        """Return the last batch in Spark's commit log; None if there is none."""
        return max(self._numbers(generation, "commits"), default=None)

    def last_begun(self, generation: int) -> int | None:
        """Return the last batch in Spark's offset log; None if there is none."""
        return max(self._numbers(generation, "offsets"), default=None)

    def ends_of(self, generation: int, batch: int) -> Offsets | None:
        """Return the end offsets of a batch; None if the offset log has no entry for it.

        Raises:
            CorruptCheckpointError: the entry cannot be read.
        """
        name = f"generation-{generation}/offsets/{batch}"
        text = self._read(name)
        if text is None:
            return None
        try:
            return ends_in_log(text)
        except ValueError as error:
            raise self._corrupt(name, error) from error

    def written(self, generation: int) -> SparkLogs:
        """Return Spark's own logs of a generation.

        Raises:
            CorruptCheckpointError: an entry of the commit log or the query's metadata cannot be read.
        """
        last = self.last_commit(generation)
        if last is not None:
            name = f"generation-{generation}/commits/{last}"
            if not _VERSION.match(self._read(name) or ""):
                raise self._corrupt(name, "it does not begin with a format version")
        return SparkLogs(
            self.query_id(generation),
            last,
            self.last_begun(generation),
            lambda batch: self.ends_of(generation, batch),
        )

    def query_id(self, generation: int) -> str:
        """Return the id of Spark's query, which stays the same over runs; empty before the first run.

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
            f"{self.place}/{name} cannot be read: {why} - start again: a new generation of the checkpoint starts at the"
            " group's committed offsets"
        )

    # ---- files -------------------------------------------------------------------------------------------------

    def _numbers(self, generation: int, kind: str) -> list[int]:
        return [int(name) for name in self._names(f"generation-{generation}/{kind}") if name.isdigit()]

    def _path(self, name: str) -> tuple[Any, Any]:
        try:
            path = self._jvm.org.apache.hadoop.fs.Path(f"{self.place}/{name}" if name else self.place)
            return path.getFileSystem(self._hadoop), path
        except Exception as error:
            if (line := line_of(error)) is None:
                raise
            version = self._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            raise ConfigurationError(
                f"Spark has no file system for checkpoint={self.place!r}: {line} - add its jars to the session, such as"
                f" spark.jars.packages=org.apache.hadoop:hadoop-aws:{version} for s3a://"
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


def check_matches(place: str, state: PipelineState, cluster_id: str, topics: Mapping[str, str]) -> None:
    """Check that a checkpoint is of this cluster, and of an app that reads at least one of the same topics.

    Args:
        place: path or URL of the checkpoint.
        state: state of the checkpoint.
        cluster_id: id of the connected cluster.
        topics: topics to read.

    Raises:
        ConfigurationError: the checkpoint is of another cluster, or of other topics only.
    """
    if state.cluster_id and cluster_id and state.cluster_id != cluster_id:
        raise ConfigurationError(
            f"{place} is a checkpoint of cluster {state.cluster_id}, and this is cluster {cluster_id}"
            " - use a separate folder"
        )
    if state.topics and not state.topics.keys() & topics.keys():
        raise ConfigurationError(
            f"{place} is the checkpoint of an app that reads {', '.join(sorted(state.topics))}, and this one reads"
            f" {', '.join(sorted(topics))} - use a separate folder; the run continues at the committed offsets"
        )


def ends_in_log(text: str) -> Offsets:
    """Return the end offsets in an entry of Spark's offset log, of format 1 or 2.

    Raises:
        ValueError: the entry is truncated or of another format.
    """
    # The lines are the version, metadata of the batch, and the offsets of each source; a pipeline has one source.
    version, _, *sources = [*text.splitlines(), "", ""]
    if version not in {"v1", "v2"}:
        raise ValueError(f"its format is {version[:20]!r}, and only v1 and v2 are supported")
    return offsets_of(_SOURCE.sub("", sources[0], count=1))


def key_of(partition: TopicPartition) -> str:
    """Return the key of a partition in the state; topic names have no slash."""
    return f"{partition.topic}/{partition.partition}"


def partition_of(key: str) -> TopicPartition:
    """Return the partition of a key in the state."""
    topic, _, number = key.rpartition("/")
    return TopicPartition(topic, int(number))
