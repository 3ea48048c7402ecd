"""Queries and backfills that run in this process.

One at a time runs for a group and a topic: two of them would handle the same records. Queries are stopped before their
Spark session and before the process ends, so that the batch under way comes to its end and is committed.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tailrace.errors import ConsumerStateError
from tailrace.spark.offsets.store import ClusterState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ActiveRun", "claim", "finish_ended", "release", "stop_queries_before"]


class _Query(Protocol):
    """A ``SparkQuery``, as far as it is ended here."""

    @property
    def is_active(self) -> bool: ...

    @property
    def group_id(self) -> str: ...

    def is_of(self, spark: SparkSession) -> bool: ...

    def finish(self) -> None: ...

    def stop(self) -> None: ...


_lock = threading.Lock()
_runs: list[ActiveRun] = []
_with_hook: list[SparkSession] = []
"""Sessions whose ``stop`` stops the queries first."""


@dataclass(eq=False)
class ActiveRun:
    """A query or a backfill.

    Attributes:
        name: shown to the user who starts another one.
        query: None for a backfill, and for a query that is not started yet.
    """

    name: str
    group_id: str
    seen: ClusterState
    query: _Query | None = None

    @property
    def is_active(self) -> bool:
        """False once its query has ended."""
        return self.query is None or self.query.is_active

    def overlaps(self, other: ActiveRun) -> bool:
        """Return True if both are of one group and share a partition of one cluster."""
        is_same = self.group_id == other.group_id and self.seen.cluster_id == other.seen.cluster_id
        return is_same and not self.seen.logs.keys().isdisjoint(other.seen.logs)


def claim(name: str, group_id: str, seen: ClusterState) -> ActiveRun:
    """Register a run until ``release``.

    Raises:
        ConsumerStateError: another one of this group reads the same topics.
    """
    run = ActiveRun(name, group_id, seen)
    with _lock:
        for other in _runs:
            if other.is_active and run.overlaps(other):
                how = "wait for its end" if other.query is None else "stop() it"
                raise ConsumerStateError(
                    f"{other.name} runs in this process already and reads the same topics - {how} first"
                )
        _runs.append(run)
    return run


def release(run: ActiveRun) -> None:
    """Forget a run; once is enough."""
    with _lock, contextlib.suppress(ValueError):
        _runs.remove(run)


def finish_ended(group_id: str) -> None:
    """Commit the last batch of queries that Spark has ended, before the group's offsets are read."""
    for query in _queries():
        if query.group_id == group_id and not query.is_active:
            query.finish()


def stop_queries_before(spark: SparkSession) -> None:
    """Have the session's ``stop``, which ``with`` calls, and the end of the process stop the queries first."""
    with _lock:
        if any(one is spark for one in _with_hook):
            return
        _with_hook.append(spark)
    stop_session = spark.stop

    def stop() -> None:
        with _lock:
            _with_hook[:] = [one for one in _with_hook if one is not spark]
        spark.stop = stop_session  # type: ignore[method-assign]
        with contextlib.ExitStack() as ending:
            # Also when a query raises: it tells of its own end.
            ending.callback(stop_session)
            for query in _queries():
                if query.is_active and query.is_of(spark):
                    ending.callback(query.stop)

    spark.stop = stop  # type: ignore[method-assign]


def _queries() -> list[_Query]:
    with _lock:
        return [run.query for run in _runs if run.query is not None]


@atexit.register
def _stop_all() -> None:
    with contextlib.ExitStack() as ending:
        for query in _queries():
            if query.is_active:
                ending.callback(query.stop)
