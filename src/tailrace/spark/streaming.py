"""Structured Streaming query: handles batches and commits the group's offsets after each.

Offsets of a batch are committed to the group after Spark has written the batch to its commit log. After a crash, only a
batch that is not in this log is handled again. A thread of the query polls Spark for the last written batch; unlike a
listener of Spark, it also runs on Spark Connect, whose listeners are removed when a connection is lost. At the end of
the query and at the next start, the last batch is read from the commit log, in case the thread has not seen it.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tailrace.config import ConsumerConfig
from tailrace.errors import (
    BrokerConnectionError,
    BrokerError,
    ConfigurationError,
    ConsumerStateError,
    OffsetOutOfRangeError,
    TailraceError,
    UnknownTopicError,
)
from tailrace.observe.events import CommitFailed, SparkQueryFailed
from tailrace.observe.hooks import Observer
from tailrace.spark.batches import BatchRunner
from tailrace.spark.handler_selection import SelectedHandlers
from tailrace.spark.offsets.checkpoint import Checkpoint, PipelineState
from tailrace.spark.offsets.ranges import Offsets, offsets_in, spark_json
from tailrace.spark.offsets.start_offsets import Resumption, StartOffsets, start_metadata, stream_metadata
from tailrace.spark.offsets.store import RECOMMIT_S, ClusterState, SparkOffsetStore
from tailrace.spark.session import line_of
from tailrace.spark.worker.task_metrics import TaskMetrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = [
    "ActiveRun",
    "SparkQuery",
    "Stage",
    "Trigger",
    "claim",
    "finish_ended_queries",
    "release",
    "start_stream",
    "stop_queries_with",
    "trigger_of",
]


# ---- trigger ---------------------------------------------------------------------------------------------------------

Trigger: TypeAlias = str | Mapping[str, Any] | None
"""Interval such as ``"5 seconds"``, ``"available_now"``, or the keyword arguments of Spark's ``trigger``."""

_RETRY_S = 10.0
"""Interval at which a failed commit is repeated while there is no new batch."""
_POLL_INTERVAL_S = 0.2
"""Interval at which Spark is asked for new batches, and at which ``stop`` checks whether the current one has ended."""
_MAX_FAILING_S = 30.0
"""Time for which calls of Spark may fail before the query is stopped, because its batches are not committed."""
_PARK_MS = 10_000
"""Maximum time for which Spark's thread sleeps until ``stop`` interrupts it."""
_GRACE_S = 20.0
"""Default time that a stopped query gives its current batch; Kubernetes allows 30 seconds for the whole process."""


def trigger_of(trigger: Trigger) -> dict[str, Any]:
    """Return the keyword arguments of Spark's ``trigger``.

    Raises:
        ConfigurationError: the trigger is ``continuous``, which has no batches, or ``once``, whose batch has no limit.
    """
    if trigger is None:
        return {}
    if isinstance(trigger, str):
        return {"availableNow": True} if trigger in {"available_now", "availableNow"} else {"processingTime": trigger}
    if "once" in trigger:
        raise ConfigurationError(
            "trigger 'once' reads all records in one batch and ignores max_records_per_batch - use 'available_now'"
        )
    if unknown := sorted(trigger.keys() - {"processingTime", "availableNow"}):
        raise ConfigurationError(
            f"trigger {unknown[0]!r} cannot run handlers, which need batches - use processingTime or availableNow"
        )
    return dict(trigger)


# ---- query -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """Group, topics and checkpoint of a query or a backfill that is about to start.

    Attributes:
        spark: session.
        selected: handler, its topics and its group.
        config: configuration of the app, with the handler's group.
        observer: receiver of events.
        store: offsets of the group and of the logs.
        cluster_state: state of cluster and group.
        state: state of the checkpoint.
        run: entry in the registry of runs.
        checkpoint: checkpoint of the pipeline, if it has one.
        batch_runner: runner of the batches; None if Spark writes them.
        source: options of Spark's Kafka source.
    """

    spark: SparkSession
    selected: SelectedHandlers
    config: ConsumerConfig
    observer: Observer
    store: SparkOffsetStore
    cluster_state: ClusterState
    state: PipelineState
    run: ActiveRun
    checkpoint: Checkpoint | None = None
    batch_runner: BatchRunner | None = None
    source: dict[str, str] = field(default_factory=dict)


class SparkQuery:
    """Running query that commits the offsets of a group, returned by ``SparkPipeline.start`` and ``start_in_group``.

    Args:
        stage: what the query needs; the query closes ``stage.store`` at its end.
        start_offsets: start offsets, and offset maps of records that are finished.
        last_batch: function that reads the last batch of Spark's commit log, if it is after the given one, and its end
            offsets.
        check_start: function that is called with the end offsets of the first batch before its commit, and raises an
            error if it may not be committed.

    Attributes:
        query: Spark's ``StreamingQuery``.
        counted: numbers of records handled since the start, by outcome; zero with ``start_in_group``.
        query_id: Spark's id of the query, the same after a restart; empty before the first start.
        run_id: Spark's id of this run of the query; empty before Spark has started it.
    """

    def __init__(
        self,
        stage: Stage,
        start_offsets: StartOffsets,
        last_batch: Callable[[int], tuple[int, Offsets] | None],
        check_start: Callable[[Offsets], None] | None = None,
    ) -> None:
        self._stage, self._start_offsets = stage, start_offsets
        self._last_batch, self._check_start = last_batch, check_start
        self.query: StreamingQuery = None  # type: ignore[assignment] # set by start_stream
        self.counted = TaskMetrics()
        self._failure: Exception | None = None
        """First error, which ``await_termination`` and ``stop`` raise if it is a TailraceError."""
        self._lock = threading.Lock()
        self._committed: tuple[int, Offsets] = (-1, {})
        """Last batch committed to the group, and its end offsets."""
        self._tried: tuple[int, float] = (-1, stage.store.now)
        """Last batch that was committed or failed to commit, and when."""
        self._has_ended = False
        self._error: Exception | None = None
        """Error with which Spark's query ended."""
        self._is_closed = threading.Event()
        """Set once the query has ended, its last batch is committed, and the connections are closed."""
        self._was_stop_called = False
        self._must_park = False
        """True after ``stop`` was called with a grace period: Spark's thread sleeps instead of starting a batch."""
        self._is_parked = threading.Event()
        """Set once Spark's thread sleeps instead of starting a batch."""
        self._is_spark_stopped = False
        """True once ``stop`` of Spark's query was called."""
        self.query_id = self.run_id = ""

    def __repr__(self) -> str:
        return f"<SparkQuery {self._stage.selected.name} group={self._stage.store.group_id}>"

    @property
    def is_active(self) -> bool:
        """True until the query has ended, for any reason."""
        return not self._has_ended and bool(self.query.isActive)

    @property
    def group_id(self) -> str:
        """Group whose offsets the query commits."""
        return self._stage.store.group_id

    def is_of(self, spark: SparkSession) -> bool:
        """Return True if the query runs in the session ``spark``."""
        mine, context = self._stage.spark, getattr(spark, "_sc", None)  # Spark Connect has no context.
        return mine is spark or (context is not None and getattr(mine, "_sc", None) is context)

    def launch(self, start: Callable[[], StreamingQuery]) -> None:
        """Start Spark's query by ``start``, and a thread that commits its batches."""
        self.query = start()
        self.query_id, self.run_id = str(self.query.id), str(self.query.runId)
        self._stage.run.query = self
        stop_queries_with(self._stage.spark)
        # The thread commits batches and closes connections even if the program never waits for the query.
        threading.Thread(target=self.finish, name="tailrace query", daemon=True).start()

    def finish(self) -> None:
        """Commit each batch until Spark has ended the query, then commit its last batch and close the connections.

        If calls of Spark fail for 30 seconds, Spark's query is stopped: its batches could not be committed. Another
        call has no effect. The error that ended the query is raised by ``await_termination`` and ``stop``.
        """
        failing_since: float | None = None
        store = self._stage.store
        while not self._has_ended:
            try:
                if self.query.awaitTermination(cast("int", _POLL_INTERVAL_S)):
                    self._end()
                    return
                self._commit_reported()
            except Exception as error:  # noqa: BLE001 - raised by await_termination
                if self._has_spark_ended:
                    # After a stop, the interrupted batch has caused the error.
                    self._end(None if self._is_spark_stopped else error)
                    return
                if failing_since is None:
                    failing_since, reason = store.now, line_of(error) or str(error)
                    event = CommitFailed(store.group_id, reason, will_retry=True, exception=error)
                    self._stage.observer.emit(event)
                if store.now - failing_since >= _MAX_FAILING_S:
                    with contextlib.suppress(Exception):  # The first error is raised.
                        self._stop_spark()
                    self._end(error)
                    return
                self._is_closed.wait(_POLL_INTERVAL_S)
            else:
                if self._tried[0] == self._committed[0]:
                    failing_since = None

    @property
    def _has_spark_ended(self) -> bool:
        """True if Spark's query is known to have ended."""
        try:
            return not self.query.isActive
        except Exception:  # noqa: BLE001 - Spark does not answer
            return False

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the query has ended and return True; return False after ``timeout_s`` seconds.

        Raises:
            GroupNotEmptyError: a live member joined the group.
            CommitFailedError: the group's offsets were changed by another client.
            HandlerFailedError: a handler failed for good, and its options end the query.
            OffsetOutOfRangeError: the next offsets were deleted from the log, and ``auto_offset_reset="none"``.
            UnknownTopicError: a topic was deleted.
            BrokerConnectionError: no broker answered the commit of the last batch.
            CorruptCheckpointError: the last batch is not committed because the checkpoint cannot be read.
            TailraceError: the next offsets were deleted from the log; the next start applies ``auto_offset_reset``.
            StreamingQueryException: Spark ended the query for another reason.
        """
        if not self._is_closed.wait(timeout_s):
            return False
        self._raise_from(self._error)
        if self._error is not None:
            raise self._error
        return True

    def stop(self, *, grace_s: float = _GRACE_S) -> None:
        """Stop the query and commit the last finished batch; the next run handles an interrupted batch again.

        Args:
            grace_s: seconds for which the current batch may continue; 0 interrupts it at once. No other batch starts.

        Raises:
            GroupNotEmptyError: a live member has joined, so the last batch is not committed.
            CommitFailedError: the commit of the last batch was rejected.
            BrokerConnectionError: no broker answers; the next start commits the last batch.
            HandlerFailedError, TailraceError, StreamingQueryException: the query had failed before the stop, as in
                ``await_termination``.
        """
        self._was_stop_called = True
        deadline = self._stage.store.now + grace_s
        before = self._reported_batch if self._stage.batch_runner is None else None
        self._must_park = grace_s > 0
        while self._stage.store.now < deadline and self.is_active and self.query.status["isTriggerActive"]:
            if self._is_parked.wait(_POLL_INTERVAL_S) or (before is not None and self._reported_batch != before):
                break
        # An error after this line is caused by the stop and is ignored.
        earlier_error = None if self._is_spark_stopped or self.is_active else self.query.exception()
        self._stop_spark()
        self._end(earlier_error)
        self._raise_from(earlier_error)
        if earlier_error is not None:
            raise earlier_error

    # ---- while it runs -----------------------------------------------------------------------------------------

    def handle(self, records: DataFrame, number: int) -> None:
        """Handle the batch ``number`` of Spark's query; called by ``foreachBatch``."""
        try:
            if self._must_park:
                self._park()
            self._raise_from(None)
            self._stage.store.check_unchanged()
            state = self._stage.state
            assert self._stage.batch_runner is not None
            metrics = self._stage.batch_runner.run(records, state.batch_number(state.first_batch_id + number))
        except Exception as error:
            self._fail(error)
            if self._is_spark_stopped:
                self._drop_java_stack(error)
            raise
        self.counted += metrics

    def _park(self) -> None:
        """Sleep in Spark's Java thread until ``stop`` interrupts it, which Spark treats as a normal end."""
        spark: Any = self._stage.spark
        self._is_parked.set()
        spark._jvm.java.lang.Thread.sleep(_PARK_MS)
        raise TailraceError(f"Spark did not stop the query within {_PARK_MS // 1000} s - call stop() again")

    def _drop_java_stack(self, error: Any) -> None:  # noqa: ANN401 - py4j is untyped
        """Remove the stack trace of a Java error.

        Spark applies a regular expression to the error of a stopped query, which overflows Java's stack if the text is
        long.
        """
        if isinstance(error, import_module("py4j.protocol").Py4JJavaError):
            context: Any = self._stage.spark.sparkContext
            gateway = context._gateway
            error.java_exception.setStackTrace(gateway.new_array(gateway.jvm.java.lang.StackTraceElement, 0))

    def _stop_spark(self) -> None:
        self._is_spark_stopped = True
        self.query.stop()

    @property
    def _reported_batch(self) -> int:
        """Last batch that Spark has reported; -1 before the first."""
        progress = self.query.lastProgress
        return -1 if progress is None else progress.batchId

    def _commit_reported(self) -> None:
        """Commit the last batch that Spark has reported; repeat a failed commit, and one made ten minutes ago."""
        with self._lock:
            if self._has_ended:
                return
            number, ends = self._committed
            progress = self.query.lastProgress
            if progress is not None and progress.batchId > number:
                number = progress.batchId
                ends = offsets_in([one.endOffset for one in progress.sources], self._stage.cluster_state.topic_ids)
            tried, tried_at = self._tried
            wait_s = _RETRY_S if number > self._committed[0] else RECOMMIT_S
            if (ends or number >= 0) and (number > tried or self._stage.store.now - tried_at > wait_s):
                self._commit(number, ends)

    def commit_batch(self, number: int, ends: Offsets, *, may_go_back: bool = False) -> None:
        """Commit ``ends``, the end offsets of batch ``number``, or the start offsets if ``number`` is -1.

        ``may_go_back`` is True to commit an offset that is lower than the committed one.

        Raises:
            TailraceError: as ``SparkOffsetStore.commit`` does.
        """
        state = self._stage.state
        if self._check_start is not None and self._committed[0] < 0:
            self._check_start(ends)
        text = stream_metadata(self.query_id, state.first_batch_id + number) if number >= 0 else state.start_text
        self._stage.store.commit(self._start_offsets.commits(ends), text, may_go_back=may_go_back)
        self._committed = number, ends

    def _commit(self, number: int, ends: Offsets) -> None:
        store, observer = self._stage.store, self._stage.observer
        self._tried = number, store.now
        try:
            self.commit_batch(number, ends)
        except BrokerConnectionError as error:
            # The commit of the next batch includes these offsets.
            observer.emit(CommitFailed(store.group_id, str(error), will_retry=not self._has_ended, exception=error))
            if self._has_ended:
                self._fail(error)
        except TailraceError as error:
            self._fail(error)
            observer.emit(CommitFailed(store.group_id, str(error), will_retry=False, exception=error))
            if not self._has_ended:
                self._stop_spark()

    # ---- end ---------------------------------------------------------------------------------------------------

    def _end(self, error: Exception | None = None) -> None:
        with self._lock, contextlib.ExitStack() as stack:
            if self._has_ended:
                return
            self._has_ended, self._error = True, error
            stack.callback(self._is_closed.set)
            stage = self._stage
            try:
                last = self._last_batch(self._committed[0])
                if last is not None:
                    self._commit(*last)
                if error is not None and not isinstance(self._failure, TailraceError):
                    self._failure = self._offsets_lost_error() or self._session_stopped_error() or self._failure
            except Exception as end_error:  # noqa: BLE001 - raised by await_termination
                self._fail(_uncommitted_error(end_error))
            finally:
                stage.store.close()
                release(stage.run)
            failure = self._failure if isinstance(self._failure, TailraceError) else error
            if failure is not None and not self._was_stop_called:
                reason = line_of(failure) or str(failure)
                stage.observer.emit(SparkQueryFailed(stage.store.group_id, stage.selected.name, reason, failure))

    def _session_stopped_error(self) -> TailraceError | None:
        """Return an error if the session was stopped, because Spark's error does not name this cause; else None."""
        context: Any = getattr(self._stage.spark, "_sc", None)  # Spark Connect has no context.
        if context is None or (context._jsc is not None and not context._jsc.sc().isStopped()):
            return None
        return TailraceError(
            "the Spark session was stopped while the query ran, so the current batch will be handled again - stop() the"
            " query before the session"
        )

    def _offsets_lost_error(self) -> TailraceError | None:
        """Return an error if the next offsets were deleted from the log, or a topic was deleted or recreated."""
        _, ends = self._committed
        try:
            logs = self._stage.store.logs(ends)
            self._stage.store.check_logs()
        except UnknownTopicError as error:
            return error
        except (BrokerConnectionError, BrokerError):
            return None  # Spark's error is raised instead.
        except TailraceError as error:
            return error
        for one, offset in sorted(ends.items()):
            if not logs[one].begin <= offset <= logs[one].end:
                if self._stage.config.begins_at == "none":
                    return OffsetOutOfRangeError(*one, offset)
                return TailraceError(
                    f"offset {offset} of {one} was deleted from the log before Spark read it - start the query again,"
                    " which continues at auto_offset_reset"
                )
        return None

    def _fail(self, error: Exception) -> None:
        """Store an error if it is the first one, or the first TailraceError: other errors may be its consequences."""
        if self._failure is None or (isinstance(error, TailraceError) and not isinstance(self._failure, TailraceError)):
            self._failure = error

    def _raise_from(self, error: Exception | None) -> None:
        """Raise the stored error with the cause ``error`` if the stored error is a TailraceError."""
        if isinstance(self._failure, TailraceError):
            raise self._failure from error


def _uncommitted_error(error: Exception) -> TailraceError:
    if isinstance(error, TailraceError):
        return error
    wrapped = TailraceError(
        f"the checkpoint cannot be read, so the last batch is not committed: {line_of(error) or error}"
        " - start the query again, which commits it"
    )
    wrapped.__cause__ = error
    return wrapped


def start_stream(
    stage: Stage, checkpoint: Checkpoint, resumption: Resumption, start_offsets: StartOffsets, trigger: Trigger
) -> SparkQuery:
    """Commit the start offsets, and start a query at these offsets.

    Raises:
        ConfigurationError: the trigger is not valid.
        GroupNotEmptyError: the group has live members.
        CommitFailedError: the group's offsets were changed by another client.
    """
    state = stage.state
    assert stage.batch_runner is not None
    stage = replace(stage, batch_runner=stage.batch_runner.with_offset_maps(start_offsets.offset_maps))
    query = SparkQuery(stage, start_offsets, lambda after: checkpoint.log(state.generation).last_batch(after))
    generation = state.generation if resumption.continues else state.generation + 1
    writer = _writer(stage, start_offsets.offsets, trigger).foreachBatch(query.handle)
    writer = writer.option("checkpointLocation", checkpoint.folder_of(generation))
    name = f"{state.group_id} {state.handler}"
    if all(one.name != name for one in stage.spark.streams.active):  # two queries with one name are an error
        writer = writer.queryName(name)
    stage.store.watch_maps(start_offsets.offset_maps)
    # Until here, nothing has changed the checkpoint or the group's offsets.
    if not resumption.continues:
        state.begin_generation(
            stage.cluster_state.topic_ids, start_offsets.offsets, start_metadata(uuid.uuid4().hex[:12])
        )
        checkpoint.save(state)
        query.commit_batch(-1, start_offsets.offsets, may_go_back=True)
    else:
        query.query_id = checkpoint.log(generation).query_id
        query.commit_batch(-1 if resumption.last_committed is None else resumption.last_committed, resumption.offsets)
    query.launch(writer.start)
    return query


def _writer(stage: Stage, start: Offsets, trigger: Trigger) -> DataStreamWriter:
    """Return a stream writer with the source and the trigger; raise ConfigurationError if Spark rejects the trigger."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    arguments = trigger_of(trigger)
    reader = stage.spark.readStream.format("kafka").options(**stage.source)
    reader = reader.option("subscribe", ",".join(sorted({one.topic for one in start})))
    writer = reader.option("startingOffsets", spark_json(start)).load().writeStream
    try:
        return writer.trigger(**arguments) if arguments else writer
    except (PySparkException, TypeError, ValueError) as error:
        reason = line_of(error) or error
        raise ConfigurationError(
            f"trigger={trigger!r} is not valid: {reason} - use an interval such as '5 seconds'"
        ) from error


# ---- registry --------------------------------------------------------------------------------------------------------

# Only one query or backfill may run for a group and topic, because two would handle the same records. Queries are
# stopped before their Spark session stops and before the process exits, so that the current batch finishes and is
# committed.


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
    query: SparkQuery | None = None

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


def _queries() -> list[SparkQuery]:
    with _lock:
        return [run.query for run in _runs if run.query is not None]


@atexit.register
def _stop_all() -> None:
    with contextlib.ExitStack() as stack:
        for query in _queries():
            if query.is_active:
                stack.callback(query.stop)
