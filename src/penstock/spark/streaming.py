"""A pipeline on Structured Streaming: micro-batches, and the group committed behind Spark's own commits.

Rule of this file: the group is committed when Spark's commit log has the batch, and never before: so what the group
says is done is done, and at most one batch is handled again, whoever dies. Spark tells of it from a thread of its own;
whatever was not told is found in the checkpoint, at the end and at the next start.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from penstock.errors import BrokerConnectionError, ConfigurationError, PenstockError
from penstock.observe.events import CommitFailed
from penstock.observe.hooks import Observer
from penstock.spark.checkpoints import Checkpoint, State, key_of
from penstock.spark.group_desk import GroupDesk
from penstock.spark.places import Places
from penstock.spark.ranges import Offsets, offsets_of, spark_json
from penstock.spark.running import Batches
from penstock.spark.tallies import Tally

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["SparkQuery", "Stage", "Trigger", "begin_stream", "generation_for", "said_of", "trigger_of"]

Trigger: TypeAlias = str | Mapping[str, Any] | None
"""``"5 seconds"``, ``"available_now"``, or what Spark's own ``trigger`` takes, by name."""

_AGAIN_S = 600.0
"""A query that has nothing to do commits again so often, lest the broker forget the group."""

_LOOK_S = 0.2
_STANDS_MS = 10_000


def said_of(query_id: str, batch_id: int) -> str:
    """The text beside a commit."""
    return f"spark query={query_id} batch={batch_id}"


# ---- where to go on ------------------------------------------------------------------------------------------


def generation_for(checkpoint: Checkpoint, state: State, places: Places) -> tuple[bool, Offsets | None]:
    """Whether Spark's checkpoint goes on from where the group stands; and what the group has still to be told.

    Where the two differ the group wins: somebody else has worked for it, or has moved it.
    """
    last = checkpoint.last_commit(state.generation) if state.generation else None
    stands = {one: (found.offset, found.metadata) for one, found in places.found.items()}
    is_as_begun = {key_of(one): what for one, what in stands.items()} == state.start
    if not state.generation:
        return False, None
    if last is None:
        return is_as_begun, None
    ends = checkpoint.ends_of(state.generation, last)
    if ends is None or any(ends[one] < log.begin for one, log in places.logs.items() if one in ends):
        return False, None
    if {one: offset for one, (offset, _) in stands.items()} == ends:
        return True, None
    if last == 0:
        return is_as_begun, ends
    said = said_of(checkpoint.query_id(state.generation), state.first_batch_id + last - 1)
    was = checkpoint.ends_of(state.generation, last - 1)
    is_one_behind = was == {one: offset for one, (offset, _) in stands.items()} and all(
        found.said.user_text == said for found in places.found.values()
    )
    return is_one_behind, ends


def trigger_of(trigger: Trigger) -> dict[str, Any]:
    """As Spark's ``trigger`` takes it.

    Raises:
        ConfigurationError: it is one without batches.
    """
    if trigger is None:
        return {}
    if isinstance(trigger, str):
        return {"availableNow": True} if trigger in {"available_now", "availableNow"} else {"processingTime": trigger}
    if unknown := sorted(trigger.keys() - {"processingTime", "availableNow", "once"}):
        raise ConfigurationError(
            f"trigger {unknown[0]!r} has no batches, and handlers run in batches - say processingTime or availableNow"
        )
    return dict(trigger)


# ---- the query -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """What a query stands on."""

    spark: SparkSession
    desk: GroupDesk
    batches: Batches
    checkpoint: Checkpoint
    state: State
    places: Places
    observer: Observer


class SparkQuery:
    """A handler at work on a stream; made by ``SparkPipeline.start``.

    Attributes:
        query: Spark's own.
        counted: what became of records since the start.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.query: StreamingQuery = None  # type: ignore[assignment] # set before anybody has it
        self.counted = Tally()
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self._committed: tuple[int, Offsets] | None = None
        self._committed_at = stage.desk.now
        self._is_over = False
        self._is_asked = False
        self._stands = threading.Event()
        self._listener: Any = None
        self.run_id = ""
        """Of Spark's; empty before it was started."""

    def __repr__(self) -> str:
        return f"<SparkQuery {self._stage.batches.chosen.name} group={self._stage.desk.group_id}>"

    @property
    def is_active(self) -> bool:
        """Whether it goes on."""
        return bool(self.query.isActive)

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; False when it has not in so many seconds.

        Raises:
            GroupNotEmptyError: a live member of the group was there, or joined.
            HandlerFailedError: a handler failed for good, and nothing says what else to do.
            StreamingQueryException: Spark's own.
        """
        try:
            # Spark gives None where it waits without an end.
            has_ended = (
                self.query.awaitTermination()
                if timeout_s is None
                else self.query.awaitTermination(cast("int", timeout_s))
            )
        except Exception as error:
            self._end()
            self._raise_from(error)
            raise
        if has_ended is False:
            return False
        self._end()
        self._raise_from(None)
        return True

    def stop(self, *, grace_s: float = 0.0) -> None:
        """End it, and commit what is done; what of a batch is under way is handled again by whoever goes on.

        Args:
            grace_s: so many seconds the batch under way may take to its end; no other is begun meanwhile.

        Raises:
            GroupNotEmptyError: a live member has joined, and the last batch is not committed.
        """
        ends_at = self._stage.desk.now + grace_s
        self._is_asked = grace_s > 0
        while self._stage.desk.now < ends_at and self.is_active and self.query.status["isTriggerActive"]:
            if self._stands.wait(_LOOK_S):
                break
        self.query.stop()
        self._end()
        self._raise_from(None)

    # ---- while it runs -----------------------------------------------------------------------------------------

    def handle(self, records: DataFrame, number: int) -> None:
        """One micro-batch, as ``foreachBatch`` has it."""
        if self._is_asked:
            self._stand()
        try:
            self._raise_from(None)
            self._stage.desk.check_idle()
            tally = self._stage.batches.run(records, self._stage.state.first_batch_id + number)
        except Exception as error:
            self._failure = self._failure or error
            raise
        self.counted += tally

    def _stand(self) -> None:
        """Wait to be stopped: in Java, in Spark's own thread, where its stop interrupts, and takes that for an end."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - an extra

        inside: Any = self._stage.spark.sparkContext
        java = inside._gateway  # noqa: SLF001 - there is no other way into that thread
        self._stands.set()
        try:
            java.jvm.java.lang.Thread.sleep(_STANDS_MS)
        except Py4JJavaError as error:
            # Spark finds the interrupt in the text by a pattern that the stack of Java is too small for.
            error.java_exception.setStackTrace(java.new_array(java.jvm.java.lang.StackTraceElement, 0))
            raise
        raise PenstockError("the query was asked to end, and is not stopped yet")

    def progressed(self, number: int, ends: Offsets) -> None:
        """Spark's commit log has this batch."""
        with self._lock:
            if not self._is_over and (self._committed is None or number > self._committed[0]):
                self._commit(number, ends)

    def idle(self) -> None:
        """There is nothing to do."""
        with self._lock:
            if not self._is_over and self._committed and self._stage.desk.now - self._committed_at > _AGAIN_S:
                self._commit(*self._committed)

    def _commit(self, number: int, ends: Offsets) -> None:
        stage = self._stage
        try:
            batch_id = stage.state.first_batch_id + number
            stage.desk.commit(stage.places.commits(ends), said_of(str(self.query.id), batch_id))
        except BrokerConnectionError as error:
            # The next batch's commit says it, too.
            stage.observer.tell(CommitFailed(stage.desk.group_id, str(error), will_retry=True))
        except PenstockError as error:
            self._failure = self._failure or error
            stage.observer.tell(CommitFailed(stage.desk.group_id, str(error), will_retry=False))
            # Not from Spark's own thread, which its end waits for.
            threading.Thread(target=self.query.stop, name="penstock stop", daemon=True).start()
        else:
            self._committed, self._committed_at = (number, ends), stage.desk.now

    # ---- its end -----------------------------------------------------------------------------------------------

    def _end(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            stage = self._stage
            self.unlisten()
            last = stage.checkpoint.last_commit(stage.state.generation)
            if last is not None and (self._committed is None or self._committed[0] < last):
                ends = stage.checkpoint.ends_of(stage.state.generation, last)
                if ends is not None:
                    self._commit(last, ends)
            stage.desk.close()

    def _raise_from(self, error: Exception | None) -> None:
        if isinstance(self._failure, PenstockError):
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


def begin_stream(stage: Stage, options: Mapping[str, str], trigger: Trigger) -> SparkQuery:
    """Have Spark go on where the group stands.

    Args:
        stage: what it stands on; the query closes the desk at its end.
        options: of Spark's Kafka source.
        trigger: when a micro-batch is begun.

    Raises:
        ConfigurationError: there is no such trigger.
        GroupNotEmptyError: the group has live members.
    """
    when, state, checkpoint, places = trigger_of(trigger), stage.state, stage.checkpoint, stage.places
    goes_on, behind = generation_for(checkpoint, state, places)
    if goes_on and behind is not None:
        last = state.first_batch_id + (checkpoint.last_commit(state.generation) or 0)
        stage.desk.commit(places.commits(behind), said_of(checkpoint.query_id(state.generation), last))
    if not goes_on:
        stage.desk.commit(places.commits(places.unsaid), "spark begins", may_go_back=True)
        state.generation += 1
        state.first_batch_id = state.next_batch_id
        state.start = {key_of(one): (found.offset, found.metadata) for one, found in stage.desk.committed().items()}
        state.start = {name: state.start[name] for name in map(key_of, places.at)}
        checkpoint.save(state)
    query = SparkQuery(stage)
    reader = stage.spark.readStream.format("kafka").options(**options)
    records = (
        reader.option("subscribe", ",".join(sorted({one.topic for one in places.at})))
        .option("startingOffsets", spark_json(places.at))
        .load()
    )
    writer = records.writeStream.foreachBatch(query.handle)
    writer = writer.option("checkpointLocation", checkpoint.folder_of(state.generation))
    query.listen()
    try:
        query.query = (writer.trigger(**when) if when else writer).start()
    except BaseException:
        query.unlisten()
        raise
    query.run_id = str(query.query.runId)
    return query
