"""The folder of a pipeline: whose it is, what was planned, and Spark's own checkpoint in a folder of each generation.

Rule of this file: read and written through Hadoop's file systems, as Spark does, so that it is where Spark's is. What a
generation is: one run of Spark's own offsets from a beginning that the group had; where the group is moved meanwhile,
the next one begins there.
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
    "Planned",
    "Written",
    "check_same",
    "ends_in_log",
    "key_of",
    "partition_of",
]

_FILE = "tailrace.json"
_DRAFT = "tailrace.json.draft"
_VERSION = re.compile(r"v\d+")
_SOURCE = re.compile(r"^[^{]*:(?=\{)")
"""Name of a source in format 2 of the offset log (Spark 4.2), where format 1 has its offsets alone."""


class BatchNumber(int):
    """The number of a batch, the same when the batch is handled again, and whose it is.

    Attributes:
        checkpoint: the id of the one that gave it; another one may give the same number to another batch.
    """

    checkpoint: str

    def __new__(cls, number: int, checkpoint: str = "") -> Self:
        """The number, as one of this checkpoint's."""
        made = super().__new__(cls, number)
        made.checkpoint = checkpoint
        return made


class _QueryMetadata(msgspec.Struct):
    """File in which Spark keeps the id of a query."""

    id: str


class Planned(msgspec.Struct, frozen=True):
    """A batch of a backfill that was begun."""

    batch_id: int
    start: dict[str, int]
    end: dict[str, int]


class PipelineState(msgspec.Struct):
    """What stands in the folder."""

    group_id: str
    handler: str
    id: str = ""
    """Of the checkpoint, made with it."""
    cluster_id: str = ""
    topics: dict[str, str] = {}
    """The id that each had when it was first read here, or when the generation began; empty where brokers have none."""
    generation: int = 0
    start: dict[str, int] = {}
    """Where the generation began, of each partition."""
    begun: str = ""
    """The text that stood beside the group's offsets then."""
    first_batch_id: int = 0
    """Of the generation; ids go on from one to the next, so that no sink sees one twice."""
    next_batch_id: int = 0
    """Of whatever comes after it."""
    planned: Planned | None = None
    """The batch of a backfill that may not be through."""

    @property
    def has_backfilled(self) -> bool:
        """Whether a backfill has begun a batch since the generation began: its number may be in sinks."""
        return self.next_batch_id > self.first_batch_id

    def number(self, batch_id: int) -> BatchNumber:
        """As sinks are given it."""
        return BatchNumber(batch_id, self.id)

    def note(self, cluster_id: str, topics: Mapping[str, str]) -> None:
        """What is read is of this cluster, and has these ids; a topic that is known keeps the one it had."""
        self.cluster_id, self.topics = self.cluster_id or cluster_id, {**topics, **self.topics}

    def begin(self, topics: Mapping[str, str], at: Offsets, said: str) -> None:
        """A new generation begins; what a backfill had begun is nobody's any more."""
        self.generation, self.first_batch_id, self.planned = self.generation + 1, self.next_batch_id, None
        self.topics, self.begun = dict(topics), said
        self.start = {key_of(one): offset for one, offset in at.items()}


@dataclass(frozen=True)
class Written:
    """What Spark has written down of a generation.

    Attributes:
        query_id: of its query; empty before the first run.
        last: the last batch in the commit log; None before the first.
        begun: the last that was begun.
        ends_of: where a batch ends; None when nothing is kept of it.
    """

    query_id: str
    last: int | None
    begun: int | None
    ends_of: Callable[[int], Offsets | None]


class Checkpoint:
    """The folder at a place.

    Args:
        spark: whose file systems it is on.
        place: a path or URL.
    """

    def __init__(self, spark: SparkSession, place: str) -> None:
        self.place = place.rstrip("/")
        inside: Any = spark
        self._jvm = inside._jvm  # noqa: SLF001 - Spark has no other way to its file systems
        self._hadoop = inside._jsc.hadoopConfiguration()  # noqa: SLF001 - nor to how they are set up

    def load(self, group_id: str, handler: str) -> PipelineState:
        """What stands there; new where nothing does.

        Raises:
            ConfigurationError: it is of another group or handler, or of something else than a pipeline.
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
                continue  # torn when its writer was killed: the other one is whole
        if found is None:
            if self._read(_FILE) is not None:
                raise ConfigurationError(f"{self.place}/{_FILE} cannot be read - give another folder as checkpoint=")
            if self._names(""):
                raise ConfigurationError(
                    f"{self.place} holds something else than a pipeline's checkpoint - give a folder of its own"
                )
            return PipelineState(group_id, handler, uuid.uuid4().hex[:12])
        if (found.group_id, found.handler) != (group_id, handler):
            raise ConfigurationError(
                f"{self.place} is the checkpoint of handler {found.handler!r} of group {found.group_id!r}, not of"
                f" {handler!r} of {group_id!r} - give each a folder of its own; where to go on the group knows"
            )
        return found

    def save(self, state: PipelineState) -> None:
        """Have it stand there; one of two copies is whole, whenever the driver ends."""
        text = msgspec.json.encode(state).decode()
        for name in (_DRAFT, _FILE):
            self._write(name, text)

    def folder_of(self, generation: int) -> str:
        """Where Spark keeps its own checkpoint."""
        return f"{self.place}/generation-{generation}"

    def last_commit(self, generation: int) -> int | None:
        """The last batch that Spark has seen through."""
        return max(self._numbers(generation, "commits"), default=None)

    def last_begun(self, generation: int) -> int | None:
        """The last batch that Spark has begun."""
        return max(self._numbers(generation, "offsets"), default=None)

    def ends_of(self, generation: int, batch: int) -> Offsets | None:
        """Return the end offsets of a batch; None when Spark keeps no entry of it.

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

    def written(self, generation: int) -> Written:
        """Return the batches and offsets that Spark has recorded for a generation.

        Raises:
            CorruptCheckpointError: Spark cannot continue from what the folder holds.
        """
        last = self.last_commit(generation)
        if last is not None:
            name = f"generation-{generation}/commits/{last}"
            if not _VERSION.match(self._read(name) or ""):
                raise self._corrupt(name, "it does not begin with a format version")
        return Written(
            self.query_id(generation),
            last,
            self.last_begun(generation),
            lambda batch: self.ends_of(generation, batch),
        )

    def query_id(self, generation: int) -> str:
        """Return the id that Spark gave its query, the same in each of its runs; empty before the first.

        Raises:
            CorruptCheckpointError: the file that holds it cannot be read.
        """
        name = f"generation-{generation}/metadata"
        text = self._read(name)
        try:
            return "" if text is None else msgspec.json.decode(text, type=_QueryMetadata).id
        except msgspec.DecodeError as error:
            raise self._corrupt(name, error) from error

    def _corrupt(self, name: str, why: object) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{self.place}/{name} cannot be read: {why} - start once more: a new generation of the checkpoint begins at"
            " the group's committed offsets"
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
                f"Spark has no way to checkpoint={self.place!r}: {line} - other places than folders need jars in the"
                f" session, as s3a:// needs spark.jars.packages=org.apache.hadoop:hadoop-aws:{version}"
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


def check_same(place: str, state: PipelineState, cluster_id: str, topics: Mapping[str, str]) -> None:
    """Refuse a checkpoint of another cluster, or of an app that reads other topics.

    Args:
        place: where it is.
        state: what stands there.
        cluster_id: of the cluster that is there now.
        topics: that are read now.

    Raises:
        ConfigurationError: naming what differs.
    """
    if state.cluster_id and cluster_id and state.cluster_id != cluster_id:
        raise ConfigurationError(
            f"{place} is a checkpoint of the cluster {state.cluster_id}, and this one is {cluster_id}"
            " - give each a folder of its own"
        )
    if state.topics and not state.topics.keys() & topics.keys():
        raise ConfigurationError(
            f"{place} is the checkpoint of an app that reads {', '.join(sorted(state.topics))}, and this one reads"
            f" {', '.join(sorted(topics))} - give each a folder of its own; where to go on the group knows"
        )


def ends_in_log(text: str) -> Offsets:
    """Return the end offsets in one entry of Spark's offset log, of format 1 or 2.

    Raises:
        ValueError: the entry is cut off, or of another format.
    """
    # A version, the batch's own metadata, and a line for each source, of which a pipeline has one.
    version, _, *sources = [*text.splitlines(), "", ""]
    if version not in {"v1", "v2"}:
        raise ValueError(f"its format is {version[:20]!r}, and only v1 and v2 are known")
    return offsets_of(_SOURCE.sub("", sources[0], count=1))


def key_of(partition: TopicPartition) -> str:
    """A partition as the name of a field; topics have no slash."""
    return f"{partition.topic}/{partition.partition}"


def partition_of(key: str) -> TopicPartition:
    """And back."""
    topic, _, number = key.rpartition("/")
    return TopicPartition(topic, int(number))
