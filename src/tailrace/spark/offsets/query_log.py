"""Spark's own checkpoint of a query: its id, its offset log and its commit log.

The offset log has a file for each batch that was planned, and the commit log has a file for each batch that has ended.
The files are read through Hadoop's file systems, so they may be on any file system that Spark supports. On Spark
Connect, which has no access to the JVM, they are read by Spark's jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.errors import ConfigurationError, CorruptCheckpointError
from tailrace.spark.offsets.ranges import Offsets, offsets_in, offsets_of
from tailrace.spark.session import line_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HadoopFolder", "QueryLog", "SparkLogs", "ends_in_log", "folder_of"]

_VERSION = re.compile(r"v\d+")
_SOURCE = re.compile(r"^[^{]*:(?=\{)")
"""Name of a source before its offsets in format 2 of the offset log (Spark 4.2); format 1 has no names."""


class _QueryMetadata(msgspec.Struct):
    """Content of the file in which Spark stores the id of a query."""

    id: str


@dataclass(frozen=True)
class SparkLogs:
    """Contents of Spark's own checkpoint of a query.

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


@dataclass(frozen=True)
class QueryLog:
    """Reader of a query's checkpoint.

    Attributes:
        folder: folder of the checkpoint.
        advice: advice in the error for a file that cannot be read.
        topics: topics whose offsets are read; None for all topics of a query with one source.
    """

    folder: HadoopFolder | _ConnectFolder
    advice: str
    topics: Collection[str] | None = None

    def logs(self) -> SparkLogs:
        """Return the contents of the checkpoint.

        Raises:
            CorruptCheckpointError: the last file of the commit log, or the file with the query id, cannot be read.
        """
        last = self._last("commits")
        if last is not None and not _VERSION.match(self.folder.read(f"commits/{last}") or ""):
            raise self._corrupt(f"commits/{last}", "it does not begin with a format version")
        return SparkLogs(self.query_id, last, self.last_planned, self._ends_of)

    @property
    def query_id(self) -> str:
        """Id of the query, the same in all its runs; empty before the first run.

        Raises:
            CorruptCheckpointError: the file with the id cannot be read.
        """
        text = self.folder.read("metadata")
        try:
            return "" if text is None else msgspec.json.decode(text, type=_QueryMetadata).id
        except msgspec.DecodeError as error:
            raise self._corrupt("metadata", error) from error

    @property
    def last_planned(self) -> int | None:
        """Last batch in the offset log; None if there is none."""
        return self._last("offsets")

    def last_batch(self, after: int) -> tuple[int, Offsets] | None:
        """Return the last batch in the commit log and its end offsets; None if it is not after batch ``after``.

        Raises:
            CorruptCheckpointError: the file of the batch cannot be read.
        """
        last = self._last("commits")
        ends = None if last is None or last <= after else self._ends_of(last)
        return None if last is None or ends is None else (last, ends)

    def start(self) -> Offsets:
        """Return the offsets at which Spark's Kafka sources started; empty before the first batch was planned."""
        texts = [self.folder.read(f"sources/{name}/0") or "" for name in self.folder.names("sources")]
        return offsets_in([text[text.find("{") :] for text in texts], self.topics or ())

    def _ends_of(self, batch: int) -> Offsets | None:
        text = self.folder.read(f"offsets/{batch}")
        try:
            return None if text is None else ends_in_log(text, self.topics)
        except ValueError as error:
            raise self._corrupt(f"offsets/{batch}", error) from error

    def _last(self, kind: str) -> int | None:
        return max((int(name) for name in self.folder.names(kind) if name.isdigit()), default=None)

    def _corrupt(self, name: str, why: object) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.folder.location}/{name} cannot be read: {why} - {self.advice}")


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


# ---- files -----------------------------------------------------------------------------------------------------------


def folder_of(spark: SparkSession, location: str) -> HadoopFolder | _ConnectFolder:
    """Return a folder that is read through the JVM, or on Spark Connect by jobs."""
    return HadoopFolder(spark, location) if hasattr(spark, "_jsc") else _ConnectFolder(spark, location)


class HadoopFolder:
    """Folder on one of Hadoop's file systems.

    Args:
        spark: session whose file systems are used.
        location: path or URL of the folder.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location.rstrip("/")
        untyped: Any = spark
        self._jvm = untyped._jvm
        self._hadoop = untyped._jsc.hadoopConfiguration()

    def names(self, name: str) -> list[str]:
        """Return the names of the files and folders in a folder; an empty list if it does not exist."""
        system, path = self._path(name)
        return [one.getPath().getName() for one in system.listStatus(path)] if system.exists(path) else []

    def read(self, name: str) -> str | None:
        """Return the content of a file; None if it does not exist."""
        system, path = self._path(name)
        if not system.exists(path):
            return None
        stream = system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Write a file, and overwrite an existing one."""
        system, path = self._path(name)
        stream = system.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

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


class _ConnectFolder:
    """Folder that is read by jobs of Spark, as a source of binary files.

    Args:
        spark: session of Spark Connect.
        location: path or URL of the folder.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location, self._spark = location.rstrip("/"), spark

    def names(self, name: str) -> list[str]:
        """Return the names of all files in a folder and its folders; of ``sources/0/0``, it is ``0``."""
        parts = (path.rpartition(f"/{name}/")[2].partition("/")[0] for path in self._column(f"{name}/*", "path"))
        return list(dict.fromkeys(parts))

    def read(self, name: str) -> str | None:
        """Return the content of a file; None if it does not exist."""
        return next((bytes(one).decode(errors="replace") for one in self._column(name, "content")), None)

    def _column(self, name: str, column: str) -> list[Any]:
        from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

        try:
            rows = self._spark.read.format("binaryFile").load(f"{self.location}/{name}").select(column).collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return []
            raise
        return [row[0] for row in rows]
