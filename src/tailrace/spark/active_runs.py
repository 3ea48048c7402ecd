"""Registry of the queries and backfills of this process.

Only one may run per group and topic, since two would handle the same records. Queries are stopped before their Spark
session and before the process exits, so that the current batch finishes and is committed.
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
    """Interface of ``SparkQuery`` that this module needs to stop it."""

    @property
    def is_active(self) -> bool: ...

    @property
    def group_id(self) -> str: ...

    def is_of(self, spark: SparkSession) -> bool: ...

    def finish(self) -> None: ...

    def stop(self) -> None: ...


_lock = threading.Lock()
_runs: list[ActiveRun] = []
_hooked_sessions: list[SparkSession] = []
"""Sessions whose ``stop`` stops their queries first."""


@dataclass(eq=False)
class ActiveRun:
    """Running query or backfill.

    Attributes:
        name: name in the error that refuses a second run.
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
        """Return True if both runs read the same partition of one cluster for the same group."""
        is_same = self.group_id == other.group_id and self.seen.cluster_id == other.seen.cluster_id
        return is_same and not self.seen.logs.keys().isdisjoint(other.seen.logs)


def claim(name: str, group_id: str, seen: ClusterState) -> ActiveRun:
    """Register a run until ``release``.

    Raises:
        ConsumerStateError: another run of this group reads the same topics.
    """
    run = ActiveRun(name, group_id, seen)
    with _lock:
        for other in _runs:
            if other.is_active and run.overlaps(other):
                how = "wait until it ends" if other.query is None else "stop() it first"
                raise ConsumerStateError(f"{other.name} already reads the same topics in this process - {how}")
        _runs.append(run)
    return run


def release(run: ActiveRun) -> None:
    """Remove a run from the registry; may be called again."""
    with _lock, contextlib.suppress(ValueError):
        _runs.remove(run)


def finish_ended(group_id: str) -> None:
    """Commit the last batch of queries that Spark has ended; call it before reading the group's offsets."""
    for query in _queries():
        if query.group_id == group_id and not query.is_active:
            query.finish()


def stop_queries_before(spark: SparkSession) -> None:
    """Wrap the session's ``stop``, which ``with`` calls, so that it stops the session's queries first."""
    with _lock:
        if any(one is spark for one in _hooked_sessions):
            return
        _hooked_sessions.append(spark)
    stop_session = spark.stop

    def stop() -> None:
        with _lock:
            _hooked_sessions[:] = [one for one in _hooked_sessions if one is not spark]
        spark.stop = stop_session  # type: ignore[method-assign]
        with contextlib.ExitStack() as stack:
            # The session is stopped even if a query raises.
            stack.callback(stop_session)
            for query in _queries():
                if query.is_active and query.is_of(spark):
                    stack.callback(query.stop)

    spark.stop = stop  # type: ignore[method-assign]


def _queries() -> list[_Query]:
    with _lock:
        return [run.query for run in _runs if run.query is not None]


@atexit.register
def _stop_all() -> None:
    with contextlib.ExitStack() as stack:
        for query in _queries():
            if query.is_active:
                stack.callback(query.stop)
