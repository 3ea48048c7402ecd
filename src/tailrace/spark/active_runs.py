"""Registry of the queries and backfills of this process.

Only one query or backfill may run for a group and topic, because two would handle the same records. Queries are stopped
before their Spark session stops and before the process exits, so that the current batch finishes and is committed.
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

__all__ = ["ActiveRun", "claim", "finish_ended_queries", "release", "stop_queries_with"]


class _Query(Protocol):
    """Part of ``SparkQuery`` that this module uses."""

    @property
    def is_active(self) -> bool: ...

    @property
    def group_id(self) -> str: ...

    def is_of(self, spark: SparkSession) -> bool: ...

    def finish(self) -> None: ...

    def stop(self) -> None: ...


_lock = threading.Lock()
_runs: list[ActiveRun] = []
_wrapped_sessions: list[SparkSession] = []
"""Sessions whose ``stop`` stops their queries first."""


@dataclass(eq=False)
class ActiveRun:
    """Running query or backfill.

    Attributes:
        name: description of this run in the error that refuses a second run.
        group_id: group whose offsets the run commits.
        cluster_state: state of the cluster before the run, with the partitions that the run reads.
        query: query; None for a backfill, and for a query that is not started yet.
    """

    name: str
    group_id: str
    cluster_state: ClusterState
    query: _Query | None = None

    @property
    def is_active(self) -> bool:
        """True for a backfill, and for a query that has not ended."""
        return self.query is None or self.query.is_active

    def overlaps(self, other: ActiveRun) -> bool:
        """Return True if both runs read a common partition for the same group of the same cluster."""
        mine, theirs = self.cluster_state, other.cluster_state
        is_same_group = self.group_id == other.group_id and mine.cluster_id == theirs.cluster_id
        return is_same_group and not mine.logs.keys().isdisjoint(theirs.logs)


def claim(name: str, group_id: str, cluster_state: ClusterState) -> ActiveRun:
    """Register a run, so that no other run for the same group and topics starts before ``release``.

    Raises:
        ConsumerStateError: another run for this group reads the same topics.
    """
    run = ActiveRun(name, group_id, cluster_state)
    with _lock:
        for other in _runs:
            if other.is_active and run.overlaps(other):
                advice = "wait until it ends" if other.query is None else "stop() it first"
                raise ConsumerStateError(f"{other.name} already reads the same topics in this process - {advice}")
        _runs.append(run)
    return run


def release(run: ActiveRun) -> None:
    """Remove a run from the registry, if it is registered."""
    with _lock, contextlib.suppress(ValueError):
        _runs.remove(run)


def finish_ended_queries(group_id: str) -> None:
    """Call ``finish`` of each query of the group that Spark has ended, which commits its last batch."""
    for query in _queries():
        if query.group_id == group_id and not query.is_active:
            query.finish()


def stop_queries_with(spark: SparkSession) -> None:
    """Wrap ``spark.stop``, so that it stops the queries of the session first; a ``with`` block calls it, too."""
    with _lock:
        if any(one is spark for one in _wrapped_sessions):
            return
        _wrapped_sessions.append(spark)
    stop_session = spark.stop

    def stop() -> None:
        with _lock:
            _wrapped_sessions[:] = [one for one in _wrapped_sessions if one is not spark]
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
