"""A pipeline on Structured Streaming: micro-batches, and the group committed behind Spark's own commits.

Rule of this file: the group is committed when Spark's commit log has the batch, and never before: so what the group
says is done is done, and at most one batch is handled again, whoever dies. Spark tells of it from a thread of its own;
whatever was not told is found in the checkpoint, at the end and at the next start.
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
from tailrace.spark.offsets.resume import Resumption, said_at_start, said_by_stream
from tailrace.spark.offsets.start_offsets import StartOffsets
from tailrace.spark.offsets.store import ClusterState, SparkOffsetStore
from tailrace.spark.worker.task_metrics import TaskMetrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["SparkQuery", "Stage", "Trigger", "begin_stream", "trigger_of"]

Trigger: TypeAlias = str | Mapping[str, Any] | None
"""``"5 seconds"``, ``"available_now"``, or what Spark's own ``trigger`` takes, by name."""

_AGAIN_S = 600.0
"""A query that has nothing to do commits again so often, lest the broker forget the group."""

_LOOK_S = 0.2
_LEAST_S = 0.001
"""Spark waits for a millisecond at least, and takes nothing less for a time."""
_STANDS_MS = 10_000
_GRACE_S = 20.0
"""For the batch under way when a query is stopped: Kubernetes gives 30 s in all."""


def trigger_of(trigger: Trigger) -> dict[str, Any]:
    """As Spark's ``trigger`` takes it.

    Raises:
        ConfigurationError: it is one without batches, or without a bound to them.
    """
    if trigger is None:
        return {}
    if isinstance(trigger, str):
        return {"availableNow": True} if trigger in {"available_now", "availableNow"} else {"processingTime": trigger}
    if "once" in trigger:
        raise ConfigurationError(
            "trigger 'once' makes one batch of all there is, whatever max_records_per_batch says - say 'available_now'"
        )
    if unknown := sorted(trigger.keys() - {"processingTime", "availableNow"}):
        raise ConfigurationError(
            f"trigger {unknown[0]!r} has no batches, and handlers run in batches - say processingTime or availableNow"
        )
    return dict(trigger)


# ---- the query -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """What a query stands on."""

    spark: SparkSession
    store: SparkOffsetStore
    batches: BatchRunner
    checkpoint: Checkpoint
    state: PipelineState
    seen: ClusterState
    start_offsets: StartOffsets
    goes: Resumption
    config: ConsumerConfig
    observer: Observer
    run: ActiveRun


class SparkQuery:
    """A handler at work on a stream; made by ``SparkPipeline.start``.

    Attributes:
        query: Spark's own.
        counted: what became of records since the start.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.query: StreamingQuery = None  # type: ignore[assignment] # set before anybody has it
        self.counted = TaskMetrics()
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._committed: tuple[int, Offsets] = (-1, {})
        """The last batch of which the group was told, and where it stands since."""
        self._committed_at = stage.store.now
        self._through: tuple[int, Offsets] = (-1, {})
        """The last batch of which Spark has told, and where it ends."""
        self._is_over = False
        self._is_asked = self._is_stopped = False
        self._is_wanted = True
        """False once the user has asked for its end."""
        self._stands = threading.Event()
        self._listener: Any = None
        self.query_id = self.run_id = ""
        """Spark's; empty before it was started for the first time, and before it is started."""

    def __repr__(self) -> str:
        return f"<SparkQuery {self._stage.batches.chosen.name} group={self._stage.store.group_id}>"

    @property
    def is_active(self) -> bool:
        """Whether it goes on."""
        return not self._is_over and bool(self.query.isActive)

    @property
    def group_id(self) -> str:
        """The group whose records it handles."""
        return self._stage.store.group_id

    def is_of(self, spark: SparkSession) -> bool:
        """Return True if it ends with this session."""
        return self._stage.spark.sparkContext is spark.sparkContext

    def finish(self) -> None:
        """Commit the last batch and close the connections after Spark has ended the query; once is enough.

        Nothing is raised: ``await_termination`` and ``stop`` raise what has ended it.
        """
        try:
            self.query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - raised by await_termination
            # A batch that a stop cuts short has an error of its own.
            self._end(None if self._is_stopped else error)
        else:
            self._end()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; False when it has not in so many seconds, of which 0 only look.

        Raises:
            GroupNotEmptyError: a live member of the group was there, or joined.
            CommitFailedError: somebody else has moved the group meanwhile.
            HandlerFailedError: a handler failed for good, and nothing says what else to do.
            OffsetOutOfRangeError: what was still to read was removed, and ``auto_offset_reset="none"``.
            UnknownTopicError: a topic was deleted.
            BrokerConnectionError: no broker answered when the last batch was to be committed.
            CorruptCheckpointError: the last batch is not committed, as the checkpoint does not say where it ends.
            TailraceError: what was still to read was removed; the next start goes on by policy and counts what is lost.
            StreamingQueryException: Spark's own.
        """
        wait_s = None if timeout_s is None else max(timeout_s, _LEAST_S)
        try:
            # Spark gives None where it waits without an end.
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
        """End the query, and commit what is done; a batch that is cut short is handled again by whoever goes on.

        Args:
            grace_s: seconds that the batch under way has to end; no other begins meanwhile. 0 cuts it short at once.

        Raises:
            GroupNotEmptyError: a live member has joined, and the last batch is not committed.
            CommitFailedError: it was refused.
            BrokerConnectionError: no broker answers, so that it is not committed; the next start does it.
            HandlerFailedError, TailraceError, StreamingQueryException: what it had died of before, as
                ``await_termination`` tells it.
        """
        self._is_wanted = False
        ends_at = self._stage.store.now + grace_s
        self._is_asked = grace_s > 0
        while self._stage.store.now < ends_at and self.is_active and self.query.status["isTriggerActive"]:
            if self._stands.wait(_LOOK_S):
                break
        # What comes of the stop itself is none of its errors.
        died_of = None if self._is_stopped or self.is_active else self.query.exception()
        self._stop_spark()
        self._end(died_of)
        self._raise_from(died_of)
        if died_of is not None:
            raise died_of

    # ---- while it runs -----------------------------------------------------------------------------------------

    def handle(self, records: DataFrame, number: int) -> None:
        """One micro-batch, as ``foreachBatch`` has it."""
        try:
            if self._is_asked:
                self._stand()
            self._raise_from(None)
            self._stage.store.check_untouched()
            state = self._stage.state
            tally = self._stage.batches.run(records, state.number(state.first_batch_id + number))
        except Exception as error:
            self._fail(error)
            if self._is_stopped:
                self._shorten(error)
            raise
        self.counted += tally

    def _stand(self) -> None:
        """Wait to be stopped: in Java, in Spark's own thread, where its stop interrupts, and takes that for an end."""
        inside: Any = self._stage.spark
        self._stands.set()
        inside._jvm.java.lang.Thread.sleep(_STANDS_MS)  # noqa: SLF001 - there is no other way into that thread
        raise TailraceError("the query was asked to end, and is not stopped yet")

    def _shorten(self, error: Any) -> None:  # noqa: ANN401 - py4j is untyped
        """Spark sees by a pattern in the text that it was stopped; in a long text Java's stack is too small for it."""
        if isinstance(error, import_module("py4j.protocol").Py4JJavaError):
            inside: Any = self._stage.spark.sparkContext
            java = inside._gateway  # noqa: SLF001 - as above
            error.java_exception.setStackTrace(java.new_array(java.jvm.java.lang.StackTraceElement, 0))

    def _stop_spark(self) -> None:
        self._is_stopped = True
        self.query.stop()

    def progressed(self, number: int, ends: Offsets) -> None:
        """Spark's commit log has this batch."""
        with self._lock:
            if not self._is_over and number > self._committed[0]:
                self._through = number, ends
                self._commit(number, ends)

    def idle(self) -> None:
        """There is nothing to do: what no broker has taken is said once more, as no next batch may say it, too."""
        with self._lock:
            is_behind = self._through[0] > self._committed[0]
            if not self._is_over and (is_behind or self._stage.store.now - self._committed_at > _AGAIN_S):
                self._commit(*(self._through if is_behind else self._committed))

    def tell_group(self, number: int, ends: Offsets, *, may_go_back: bool = False) -> None:
        """Commit that a batch is through; -1 is the beginning.

        Raises:
            TailraceError: as ``SparkOffsetStore.commit`` does.
        """
        state = self._stage.state
        said = said_by_stream(self.query_id, state.first_batch_id + number) if number >= 0 else state.begun
        self._stage.store.commit(self._stage.start_offsets.commits(ends), said, may_go_back=may_go_back)
        self._committed, self._committed_at = (number, ends), self._stage.store.now

    def _commit(self, number: int, ends: Offsets) -> None:
        store, observer = self._stage.store, self._stage.observer
        try:
            self.tell_group(number, ends)
        except BrokerConnectionError as error:
            # The next batch's commit says it, too, if there is one.
            observer.emit(CommitFailed(store.group_id, str(error), will_retry=not self._is_over))
            if self._is_over:
                self._fail(error)
        except TailraceError as error:
            self._fail(error)
            observer.emit(CommitFailed(store.group_id, str(error), will_retry=False))
            if not self._is_over:
                # Not from Spark's own thread, which its end waits for.
                threading.Thread(target=self._stop_spark, name="tailrace stop", daemon=True).start()

    # ---- its end -----------------------------------------------------------------------------------------------

    def _end(self, error: Exception | None = None) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            stage = self._stage
            try:
                self.unlisten()
                last = stage.checkpoint.last_commit(stage.state.generation)
                if last is not None and last > self._committed[0]:
                    self._commit_from_log(last)
                if error is not None and not isinstance(self._failure, TailraceError):
                    self._failure = self._overtaken() or self._session_stopped() or self._failure
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
        """Return what ended it if its session was stopped: Spark's own error does not say so."""
        context: Any = self._stage.spark.sparkContext
        if context._jsc is not None and not context._jsc.sc().isStopped():  # noqa: SLF001 - Python has no other way
            return None
        return TailraceError(
            "the Spark session was stopped while the query ran, and the batch under way is handled again - stop() the"
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

    def _overtaken(self) -> TailraceError | None:
        """What ended it when retention has removed what it was to read, or somebody its topic; else nothing."""
        _, ends = self._committed
        try:
            logs = self._stage.store.logs(ends)
        except UnknownTopicError as error:
            return error
        except TailraceError:
            return None  # Spark's own error is told then
        for one, offset in sorted(ends.items()):
            if not logs[one].begin <= offset <= logs[one].end:
                if self._stage.config.begins_at == "none":
                    return OffsetOutOfRangeError(*one, offset)
                return TailraceError(
                    f"offset {offset} of {one} was removed before Spark had read it - start once more: it goes on by"
                    " auto_offset_reset, and counts what is lost"
                )
        return None

    def _fail(self, error: Exception) -> None:
        """The first of our own errors is told; Spark's may come of its end alone."""
        if self._failure is None or (isinstance(error, TailraceError) and not isinstance(self._failure, TailraceError)):
            self._failure = error

    def _raise_from(self, error: Exception | None) -> None:
        if isinstance(self._failure, TailraceError):
            raise self._failure from error

    def unlisten(self) -> None:
        """Have it tell no more."""
        self._stage.spark.streams.removeListener(self._listener)

    def listen(self) -> None:
        """Have Spark tell what it has committed."""
        from pyspark.sql.streaming.listener import StreamingQueryListener  # noqa: PLC0415 - an extra

        this = self

        class Listener(StreamingQueryListener):
            """Spark's own callbacks."""

            def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's own
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
    made = TailraceError(
        f"the checkpoint cannot be read, so the last batch is not committed: {line_of(error) or error}"
        " - the next start commits it"
    )
    made.__cause__ = error
    return made


def begin_stream(stage: Stage, options: Mapping[str, str], trigger: Trigger) -> SparkQuery:
    """Have Spark go on where the group stands.

    Args:
        stage: what it stands on; the query closes the desk at its end.
        options: of Spark's Kafka source.
        trigger: when a micro-batch is begun.

    Raises:
        ConfigurationError: there is no such trigger.
        GroupNotEmptyError: the group has live members.
        CommitFailedError: somebody else has moved the group since it was looked at.
    """
    state, goes, start_offsets = stage.state, stage.goes, stage.start_offsets
    query = SparkQuery(stage)
    generation = state.generation if goes.is_same else state.generation + 1
    writer = _writer(stage, options, trigger).foreachBatch(query.handle)
    writer = writer.option("checkpointLocation", stage.checkpoint.folder_of(generation))
    stage.store.watch_maps(start_offsets.done)
    # From here on somebody else may see it.
    if not goes.is_same:
        state.begin(stage.seen.topics, start_offsets.at, said_at_start(uuid.uuid4().hex[:12]))
        stage.checkpoint.save(state)
        query.tell_group(-1, start_offsets.at, may_go_back=True)
    else:
        query.query_id = stage.checkpoint.query_id(generation)
        query.tell_group(-1 if goes.last is None else goes.last, goes.stands)
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
    # Its end is committed and its connections are closed although nobody waits for it.
    threading.Thread(target=query.finish, name="tailrace query", daemon=True).start()
    return query


def _writer(stage: Stage, options: Mapping[str, str], trigger: Trigger) -> DataStreamWriter:
    """The stream, but for what becomes of it; what Spark does not understand is told here."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    when, at = trigger_of(trigger), stage.start_offsets.at
    reader = stage.spark.readStream.format("kafka").options(**options)
    reader = reader.option("subscribe", ",".join(sorted({one.topic for one in at})))
    writer = reader.option("startingOffsets", spark_json(at)).load().writeStream
    try:
        return writer.trigger(**when) if when else writer
    except (PySparkException, TypeError, ValueError) as error:
        told = line_of(error) or error
        raise ConfigurationError(f"trigger={trigger!r} will not do: {told} - say '5 seconds', for example") from error
