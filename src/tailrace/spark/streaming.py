"""Structured Streaming query: handles micro-batches and commits the group's offsets after Spark's own commits.

Offsets are committed to the group only after Spark's commit log has the batch, so at most one batch is handled again
after a crash. Spark's listener reports batches from its own thread; batches it has not reported are found in the
checkpoint, at the end of the query and at the next start.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tailrace.config import ConsumerConfig
from tailrace.errors import (
    BrokerConnectionError,
    ConfigurationError,
    CorruptCheckpointError,
    OffsetOutOfRangeError,
    TailraceError,
    UnknownTopicError,
)
from tailrace.observe.events import CommitFailed, SparkQueryFailed
from tailrace.observe.hooks import Observer
from tailrace.spark.active_runs import ActiveRun, release, stop_queries_before
from tailrace.spark.batches import BatchRunner
from tailrace.spark.error_lines import line_of
from tailrace.spark.offsets.checkpoint import Checkpoint, PipelineState
from tailrace.spark.offsets.ranges import Offsets, offsets_of, spark_json
from tailrace.spark.offsets.resume import Resumption, start_metadata, stream_metadata
from tailrace.spark.offsets.start_offsets import StartOffsets
from tailrace.spark.offsets.store import ClusterState, SparkOffsetStore
from tailrace.spark.worker.task_metrics import TaskMetrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["SparkQuery", "Stage", "Trigger", "start_stream", "trigger_of"]

Trigger: TypeAlias = str | Mapping[str, Any] | None
"""Interval such as ``"5 seconds"``, ``"available_now"``, or the keyword arguments of Spark's ``trigger``."""

_RECOMMIT_S = 600.0
"""Interval at which an idle query commits again, so that the broker does not expire the group's offsets."""

_POLL_INTERVAL_S = 0.2
_MIN_WAIT_S = 0.001
"""Shortest timeout that Spark accepts."""
_SLEEP_MS = 10_000
_GRACE_S = 20.0
"""Default time for the current batch when a query is stopped; Kubernetes allows 30 s in all."""


def trigger_of(trigger: Trigger) -> dict[str, Any]:
    """Return the keyword arguments of Spark's ``trigger``.

    Raises:
        ConfigurationError: the trigger has no batches (``continuous``), or one batch without a limit (``once``).
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
            f"trigger {unknown[0]!r} has no batches, which handlers need - use processingTime or availableNow"
        )
    return dict(trigger)


# ---- the query -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """Parts and state that a query starts with."""

    spark: SparkSession
    store: SparkOffsetStore
    batches: BatchRunner
    checkpoint: Checkpoint
    state: PipelineState
    seen: ClusterState
    start_offsets: StartOffsets
    resumed: Resumption
    config: ConsumerConfig
    observer: Observer
    run: ActiveRun


class SparkQuery:
    """Running query, returned by ``SparkPipeline.start``.

    Attributes:
        query: Spark's ``StreamingQuery``.
        counted: numbers of records handled since the start, by outcome.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.query: StreamingQuery = None  # type: ignore[assignment] # set by start_stream
        self.counted = TaskMetrics()
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._committed: tuple[int, Offsets] = (-1, {})
        """Last batch committed to the group, and its end offsets."""
        self._committed_at = stage.store.now
        self._reported: tuple[int, Offsets] = (-1, {})
        """Last batch that Spark has reported, and its end offsets."""
        self._has_ended = False
        self._is_stop_requested = self._is_stopped = False
        self._is_wanted = True
        """False once the user has called ``stop``."""
        self._is_parked = threading.Event()
        """Set when Spark's thread sleeps instead of starting a batch, because a stop was requested."""
        self._listener: Any = None
        self.query_id = self.run_id = ""
        """Spark's ids; empty before the first start of the query, and before this start."""

    def __repr__(self) -> str:
        return f"<SparkQuery {self._stage.batches.chosen.name} group={self._stage.store.group_id}>"

    @property
    def is_active(self) -> bool:
        """True until the query has ended."""
        return not self._has_ended and bool(self.query.isActive)

    @property
    def group_id(self) -> str:
        """Group of the handler."""
        return self._stage.store.group_id

    def is_of(self, spark: SparkSession) -> bool:
        """Return True if the query runs in this session."""
        return self._stage.spark.sparkContext is spark.sparkContext

    def finish(self) -> None:
        """Wait until Spark has ended the query, commit its last batch and close connections; may be called again.

        Raises nothing: ``await_termination`` and ``stop`` raise the error that ended the query.
        """
        try:
            self.query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - raised by await_termination
            # After a stop this is the error of the interrupted batch.
            self._end(None if self._is_stopped else error)
        else:
            self._end()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the query has ended; return False after ``timeout_s``, which may be 0.

        Raises:
            GroupNotEmptyError: a live member joined the group.
            CommitFailedError: the group's offsets were changed by another client.
            HandlerFailedError: a handler failed for good and its options end the run.
            OffsetOutOfRangeError: the next offsets were deleted from the log, and ``auto_offset_reset="none"``.
            UnknownTopicError: a topic was deleted.
            BrokerConnectionError: no broker answered the commit of the last batch.
            CorruptCheckpointError: the last batch is not committed because the checkpoint cannot be read.
            TailraceError: the next offsets were deleted from the log; the next start applies ``auto_offset_reset``.
            StreamingQueryException: Spark ended the query for another reason.
        """
        wait_s = None if timeout_s is None else max(timeout_s, _MIN_WAIT_S)
        try:
            # Spark returns None if called without a timeout.
            has_ended = (
                self.query.awaitTermination() if wait_s is None else self.query.awaitTermination(cast("int", wait_s))
            )
        except Exception as error:
            self._end(error)
            self._raise_from(error)
            raise
        if has_ended is False:
            return False
        self._end()
        self._raise_from(None)
        return True

    def stop(self, *, grace_s: float = _GRACE_S) -> None:
        """Stop the query and commit finished batches; an interrupted batch is handled again by the next run.

        Args:
            grace_s: seconds that the current batch has to finish; no other batch starts. 0 interrupts it at once.

        Raises:
            GroupNotEmptyError: a live member has joined, so the last batch is not committed.
            CommitFailedError: the commit of the last batch was rejected.
            BrokerConnectionError: no broker answers; the next start commits the last batch.
            HandlerFailedError, TailraceError, StreamingQueryException: the query had failed before, as in
                ``await_termination``.
        """
        self._is_wanted = False
        deadline = self._stage.store.now + grace_s
        self._is_stop_requested = grace_s > 0
        while self._stage.store.now < deadline and self.is_active and self.query.status["isTriggerActive"]:
            if self._is_parked.wait(_POLL_INTERVAL_S):
                break
        # Errors that the stop itself causes are ignored.
        earlier_error = None if self._is_stopped or self.is_active else self.query.exception()
        self._stop_spark()
        self._end(earlier_error)
        self._raise_from(earlier_error)
        if earlier_error is not None:
            raise earlier_error

    # ---- while it runs -----------------------------------------------------------------------------------------

    def handle(self, records: DataFrame, number: int) -> None:
        """Handle one micro-batch; called by ``foreachBatch``."""
        try:
            if self._is_stop_requested:
                self._park()
            self._raise_from(None)
            self._stage.store.check_unchanged()
            state = self._stage.state
            metrics = self._stage.batches.run(records, state.number(state.first_batch_id + number))
        except Exception as error:
            self._fail(error)
            if self._is_stopped:
                self._drop_java_stack(error)
            raise
        self.counted += metrics

    def _park(self) -> None:
        """Sleep in Spark's Java thread until the stop interrupts it, which Spark treats as a normal end."""
        spark: Any = self._stage.spark
        self._is_parked.set()
        spark._jvm.java.lang.Thread.sleep(_SLEEP_MS)  # noqa: SLF001 - Spark has no public access to that thread
        raise TailraceError("the query was asked to stop, and Spark did not stop it in time - call stop() again")

    def _drop_java_stack(self, error: Any) -> None:  # noqa: ANN401 - py4j is untyped
        """Remove the stack trace: Spark's regular expression for a stop overflows Java's stack on a long text."""
        if isinstance(error, import_module("py4j.protocol").Py4JJavaError):
            context: Any = self._stage.spark.sparkContext
            java = context._gateway  # noqa: SLF001 - as above
            error.java_exception.setStackTrace(java.new_array(java.jvm.java.lang.StackTraceElement, 0))

    def _stop_spark(self) -> None:
        self._is_stopped = True
        self.query.stop()

    def progressed(self, number: int, ends: Offsets) -> None:
        """Commit the end offsets of a batch that Spark has written to its commit log."""
        with self._lock:
            if not self._has_ended and number > self._committed[0]:
                self._reported = number, ends
                self._commit(number, ends)

    def idle(self) -> None:
        """Retry a failed commit, as no later batch may follow; otherwise renew the last commit before it expires."""
        with self._lock:
            is_pending = self._reported[0] > self._committed[0]
            if not self._has_ended and (is_pending or self._stage.store.now - self._committed_at > _RECOMMIT_S):
                self._commit(*(self._reported if is_pending else self._committed))

    def commit_batch(self, number: int, ends: Offsets, *, may_go_back: bool = False) -> None:
        """Commit the end offsets of a batch to the group; number -1 commits the start offsets.

        Raises:
            TailraceError: as ``SparkOffsetStore.commit`` does.
        """
        state = self._stage.state
        text = stream_metadata(self.query_id, state.first_batch_id + number) if number >= 0 else state.begun
        self._stage.store.commit(self._stage.start_offsets.commits(ends), text, may_go_back=may_go_back)
        self._committed, self._committed_at = (number, ends), self._stage.store.now

    def _commit(self, number: int, ends: Offsets) -> None:
        store, observer = self._stage.store, self._stage.observer
        try:
            self.commit_batch(number, ends)
        except BrokerConnectionError as error:
            # The commit of the next batch covers this one.
            observer.emit(CommitFailed(store.group_id, str(error), will_retry=not self._has_ended, exception=error))
            if self._has_ended:
                self._fail(error)
        except TailraceError as error:
            self._fail(error)
            observer.emit(CommitFailed(store.group_id, str(error), will_retry=False, exception=error))
            if not self._has_ended:
                # In another thread: stopping waits for Spark's own thread, which runs this.
                threading.Thread(target=self._stop_spark, name="tailrace stop", daemon=True).start()

    # ---- end ---------------------------------------------------------------------------------------------------

    def _end(self, error: Exception | None = None) -> None:
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            stage = self._stage
            try:
                self.unlisten()
                last = stage.checkpoint.last_commit(stage.state.generation)
                if last is not None and last > self._committed[0]:
                    self._commit_from_log(last)
                if error is not None and not isinstance(self._failure, TailraceError):
                    self._failure = self._offsets_lost() or self._session_stopped() or self._failure
            except Exception as found:  # noqa: BLE001 - raised by await_termination
                self._fail(_uncommitted(found))
            finally:
                stage.store.close()
                release(stage.run)
            failure = self._failure if isinstance(self._failure, TailraceError) else error
            if failure is not None and self._is_wanted:
                reason = line_of(failure) or str(failure)
                stage.observer.emit(SparkQueryFailed(stage.store.group_id, stage.batches.chosen.name, reason, failure))

    def _session_stopped(self) -> TailraceError | None:
        """Return an error if the session was stopped: Spark's own error does not name that cause."""
        context: Any = self._stage.spark.sparkContext
        if context._jsc is not None and not context._jsc.sc().isStopped():  # noqa: SLF001 - Python has no other way
            return None
        return TailraceError(
            "the Spark session was stopped while the query ran, so the current batch will be handled again - stop() the"
            " query before the session"
        )

    def _commit_from_log(self, last: int) -> None:
        """Commit a batch that Spark has in its commit log and its listener has not reported."""
        stage = self._stage
        try:
            ends = stage.checkpoint.ends_of(stage.state.generation, last)
        except CorruptCheckpointError as error:
            self._fail(error)
            return
        if ends is not None:
            self._commit(last, ends)

    def _offsets_lost(self) -> TailraceError | None:
        """Return an error if the next offsets were deleted from the log, or a topic was deleted."""
        _, ends = self._committed
        try:
            logs = self._stage.store.logs(ends)
        except UnknownTopicError as error:
            return error
        except TailraceError:
            return None  # Spark's own error is raised then
        for one, offset in sorted(ends.items()):
            if not logs[one].begin <= offset <= logs[one].end:
                if self._stage.config.begins_at == "none":
                    return OffsetOutOfRangeError(*one, offset)
                return TailraceError(
                    f"offset {offset} of {one} was deleted from the log before Spark read it - start the query again:"
                    " it continues by auto_offset_reset and counts the lost offsets"
                )
        return None

    def _fail(self, error: Exception) -> None:
        """Store the first error; a TailraceError replaces another one, which may be Spark's consequence of it."""
        if self._failure is None or (isinstance(error, TailraceError) and not isinstance(self._failure, TailraceError)):
            self._failure = error

    def _raise_from(self, error: Exception | None) -> None:
        if isinstance(self._failure, TailraceError):
            raise self._failure from error

    def unlisten(self) -> None:
        """Remove the listener from Spark."""
        self._stage.spark.streams.removeListener(self._listener)

    def listen(self) -> None:
        """Add a listener to Spark that reports committed batches."""
        from pyspark.sql.streaming.listener import StreamingQueryListener  # noqa: PLC0415 - an extra

        this = self

        class Listener(StreamingQueryListener):
            """Callbacks of Spark."""

            def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
                pass

            def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802
                if str(event.progress.runId) == this.run_id:
                    this.progressed(event.progress.batchId, offsets_of(event.progress.sources[0].endOffset))

            def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401, N802
                if str(event.runId) == this.run_id:
                    this.idle()

            def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401, N802
                pass

        self._listener = Listener()
        self._stage.spark.streams.addListener(self._listener)


def _uncommitted(error: Exception) -> TailraceError:
    if isinstance(error, TailraceError):
        return error
    wrapped = TailraceError(
        f"the checkpoint cannot be read, so the last batch is not committed: {line_of(error) or error}"
        " - start the query again, which commits it"
    )
    wrapped.__cause__ = error
    return wrapped


def start_stream(stage: Stage, options: Mapping[str, str], trigger: Trigger) -> SparkQuery:
    """Start a query at the group's offsets.

    Args:
        stage: dependencies of the query, which closes the store at its end.
        options: options of Spark's Kafka source.
        trigger: trigger of micro-batches.

    Raises:
        ConfigurationError: the trigger is not valid.
        GroupNotEmptyError: the group has live members.
        CommitFailedError: the group's offsets were changed by another client.
    """
    state, resumed, start_offsets = stage.state, stage.resumed, stage.start_offsets
    query = SparkQuery(stage)
    generation = state.generation if resumed.continues else state.generation + 1
    writer = _writer(stage, options, trigger).foreachBatch(query.handle)
    writer = writer.option("checkpointLocation", stage.checkpoint.folder_of(generation))
    stage.store.watch_maps(start_offsets.done)
    # Everything above can fail without effects on checkpoint and group.
    if not resumed.continues:
        state.begin(stage.seen.topics, start_offsets.at, start_metadata(uuid.uuid4().hex[:12]))
        stage.checkpoint.save(state)
        query.commit_batch(-1, start_offsets.at, may_go_back=True)
    else:
        query.query_id = stage.checkpoint.query_id(generation)
        query.commit_batch(-1 if resumed.last is None else resumed.last, resumed.offsets)
    query.listen()
    try:
        query.query = writer.start()
    except BaseException:
        query.unlisten()
        raise
    query.query_id = str(query.query.id)
    query.run_id = str(query.query.runId)
    stage.run.query = query
    stop_queries_before(stage.spark)
    # Commits the last batch and closes connections even if the program never waits for the query.
    threading.Thread(target=query.finish, name="tailrace query", daemon=True).start()
    return query


def _writer(stage: Stage, options: Mapping[str, str], trigger: Trigger) -> DataStreamWriter:
    """Return the configured stream writer, and refuse a trigger that Spark rejects."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    arguments, at = trigger_of(trigger), stage.start_offsets.at
    reader = stage.spark.readStream.format("kafka").options(**options)
    reader = reader.option("subscribe", ",".join(sorted({one.topic for one in at})))
    writer = reader.option("startingOffsets", spark_json(at)).load().writeStream
    try:
        return writer.trigger(**arguments) if arguments else writer
    except (PySparkException, TypeError, ValueError) as error:
        reason = line_of(error) or error
        raise ConfigurationError(
            f"trigger={trigger!r} is not valid: {reason} - use an interval such as '5 seconds'"
        ) from error
