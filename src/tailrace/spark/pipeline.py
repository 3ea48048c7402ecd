"""SparkPipeline: an app's handlers on Spark, with the group's offsets.

Rule of this file: what users call, and what is checked before anything runs. The group's offsets say where to go on,
for the live app and for Spark alike; whatever else knows of offsets follows them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

from tailrace.app.app import App
from tailrace.app.declare.plan import planned
from tailrace.app.loading import load_app
from tailrace.app.substitution import settings_of
from tailrace.config import ConsumerConfig, resolve
from tailrace.error_codes import ErrorCode
from tailrace.errors import ConfigurationError, CorruptCheckpointError, UnknownTopicError
from tailrace.observe.events import CheckpointAbandoned
from tailrace.observe.hooks import Hook, Observer
from tailrace.spark.active_runs import claim, finish_ended, release
from tailrace.spark.backfill import Backfill
from tailrace.spark.batches import BatchRunner, Sink
from tailrace.spark.handler_selection import SelectedHandlers, select_handlers
from tailrace.spark.offsets.checkpoint import Checkpoint, PipelineState, check_same, partition_of
from tailrace.spark.offsets.resume import Resumption, next_number, resumption
from tailrace.spark.offsets.start_offsets import Since, Until, ends_at, start_offsets_after, start_offsets_of
from tailrace.spark.offsets.store import ClusterState, SparkOffsetStore
from tailrace.spark.reports import BackfillReport, OnProgress, Standing, shown
from tailrace.spark.session.kafka_options import check_source, check_source_options, source_options
from tailrace.spark.streaming import SparkQuery, Stage, Trigger, begin_stream
from tailrace.spark.worker.rows import result_type
from tailrace.spark.worker.shipment import Shipment, pack, place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkPipeline", "check_run"]

Wanted: TypeAlias = Callable[..., object] | str


class SparkPipeline:
    """Runs handlers of an app on Spark, for the app's group, while no member of it is live.

    Where the group stands is where it begins, and what it has done it commits, so that the live app goes on exactly
    there, and comes from there. One pipeline at a time for a group.

    Args:
        app: the app, or where to import it, such as ``"shop:billing"``.
        spark: a session with Spark's Kafka connector, such as ``spark_session()`` gives.
        checkpoint: a folder of its own, on any file system that Spark knows; ``backfill`` without a sink needs none.

    Raises:
        ConfigurationError: the session or the app is of a kind that cannot be used.
    """

    def __init__(self, app: App | str, spark: SparkSession, checkpoint: str | None = None) -> None:
        if type(spark).__module__.startswith("pyspark.sql.connect") or not hasattr(spark, "_jsc"):
            raise ConfigurationError(
                "a Spark Connect session has no way to the checkpoint and the listener that a pipeline needs"
                " - run the driver in the cluster, with a session of its own"
            )
        self.app = load_app(app) if isinstance(app, str) else app
        self._place = app if isinstance(app, str) else place_of(app)
        self._spark = spark
        self._checkpoint = None if checkpoint is None else Checkpoint(spark, str(checkpoint))
        self._outline = settings_of(self.app)
        _check_delivery(self.app)
        config = resolve(self.app.options)
        self._observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)

    def __repr__(self) -> str:
        where = "" if self._checkpoint is None else f" checkpoint={self._checkpoint.place}"
        return f"<SparkPipeline of {self.app!r}{where}>"

    def start(  # noqa: PLR0913 - what bounds it
        self,
        handler: Wanted,
        *,
        trigger: Trigger = None,
        max_records_per_batch: int = 200_000,
        sink: Sink | None = None,
        parallelism: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> SparkQuery:
        """Handle what is there and what comes, in micro-batches; the group is committed after each.

        Args:
            handler: the decorated function, or its name. Handlers of its group that share a topic with it run too.
            trigger: when a micro-batch is begun: ``"5 seconds"``, ``"available_now"``, or by the names of Spark's own
                ``trigger``; by default when the one before is through.
            max_records_per_batch: so many at most are handled again when the driver is killed; a
                ``maxOffsetsPerTrigger`` among the options says it instead.
            sink: is given a DataFrame of what handlers returned, with ``topic``, ``partition`` and ``offset`` of the
                record, and the batch's number.
            parallelism: so many tasks instead of one for each partition, with the handler's order kept.
            options: more options of Spark's Kafka source, such as ``maxOffsetsPerTrigger``.

        Raises:
            ConfigurationError: the handler is unknown, cannot be sent to workers, or the checkpoint is another's.
            ConsumerStateError: a query or a backfill of this group reads the same topics in this process.
            GroupNotEmptyError: the group has live members; they are named.
            OffsetOutOfRangeError: where the group stands was removed, and ``auto_offset_reset="none"``.
            CorruptCheckpointError: the checkpoint cannot be read, and the group has no committed offsets.
            UnknownTopicError: a topic does not exist, or none matches.
            TailraceError: no broker answers, or we may not.
        """
        if self._checkpoint is None:
            raise ConfigurationError("a stream needs a folder for Spark's checkpoint - say SparkPipeline(checkpoint=)")
        _check_at_least_one("max_records_per_batch", max_records_per_batch)
        chosen, batches, source = self._prepared(handler, sink, parallelism, options)
        if "maxoffsetspertrigger" not in map(str.lower, source):
            source["maxOffsetsPerTrigger"] = str(max_records_per_batch)
        state = self._checkpoint.load(chosen.group_id, chosen.name)
        config = self._config_of(chosen)
        store = SparkOffsetStore(config, chosen.group_id, self._observer)
        run = None
        try:
            seen = self._look(store, chosen, state)
            run = claim(f"<SparkQuery {chosen.name} group={chosen.group_id}>", chosen.group_id, seen)
            _check_some(chosen, seen)
            if chosen.patterns:
                # Which others take what a pattern matches shows only now.
                _, batches, _ = self._prepared(handler, sink, parallelism, options, seen.topics)
            goes = self._resumption(self._checkpoint, state, seen)
            state.note(seen.cluster_id, seen.topics)
            start_offsets = start_offsets_of(store, seen, config, self._observer, stands=goes.stands)
            if not goes.is_same:
                self._count_on(state, seen)
            batches = batches.beginning_at(start_offsets.done)
            stage = Stage(
                self._spark,
                store,
                batches,
                self._checkpoint,
                state,
                seen,
                start_offsets,
                goes,
                config,
                self._observer,
                run,
            )
            return begin_stream(stage, source, trigger)
        except BaseException:
            store.close()
            if run is not None:
                release(run)
            raise

    def backfill(  # noqa: PLR0913 - what bounds it
        self,
        handler: Wanted,
        *,
        since: Since = None,
        until: Until = "now",
        max_records_per_batch: int = 200_000,
        sink: Sink | None = None,
        parallelism: int | None = None,
        options: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> BackfillReport:
        """Handle what is there, from where the group stands, in bounded batches; the group is committed after each.

        Args:
            handler: as ``start`` has it.
            since: where to begin in partitions of which the group has committed nothing: ``"earliest"``, a time, or
                offsets; by ``auto_offset_reset`` when nothing is said. Where it has, it goes on.
            until: where to end: at what is there now, at a time, or at offsets; of partitions that these do not name
                nothing is handled, but where they begin is committed, too.
            max_records_per_batch: so many at most are handled again when the driver is killed.
            sink: as ``start`` has it; needs a checkpoint.
            parallelism: as ``start`` has it.
            options: as ``start`` has it.
            on_progress: told after each batch; by default a terminal shows it, with ``tailrace[cli]``.

        Raises:
            ConfigurationError: the handler is unknown, cannot be sent to workers, or the checkpoint is another's.
            ConsumerStateError: a query or a backfill of this group reads the same topics in this process.
            GroupNotEmptyError: the group has live members, or one joins; they are named.
            CommitFailedError: somebody else has moved the group meanwhile.
            HandlerFailedError: a handler failed for good, and nothing says what else to do.
            OffsetOutOfRangeError: where the group stands was removed, and ``auto_offset_reset="none"``.
            TailraceError: no broker answers, or we may not.
        """
        _check_at_least_one("max_records_per_batch", max_records_per_batch)
        if sink is not None and self._checkpoint is None:
            raise ConfigurationError(
                "sink= needs a folder in which batches are numbered - say SparkPipeline(checkpoint=)"
            )
        chosen, batches, source = self._prepared(handler, sink, parallelism, options)
        state = None
        if self._checkpoint is not None:
            state = self._checkpoint.load(chosen.group_id, chosen.name)
        config = self._config_of(chosen)
        with (
            SparkOffsetStore(config, chosen.group_id, self._observer) as store,
            shown(f"{chosen.name} on Spark", on_progress) as tell,
            contextlib.ExitStack() as ending,
        ):
            seen = self._look(store, chosen, state)
            name = f"a backfill of {chosen.name} for group {chosen.group_id!r}"
            ending.callback(release, claim(name, chosen.group_id, seen))
            if chosen.patterns:
                _, batches, _ = self._prepared(handler, sink, parallelism, options, seen.topics)
            if state is not None:
                state.note(seen.cluster_id, seen.topics)
                self._count_on(state, seen)
            start_offsets = start_offsets_of(store, seen, config, self._observer, since=since)
            run = Backfill(
                self._spark,
                store,
                batches,
                source,
                self._checkpoint,
                state,
                max_records_per_batch,
                lambda before, at: start_offsets_after(store, before, at, config, self._observer),
            )
            return run.run(start_offsets, ends_at(store, start_offsets, until), tell)

    def handoff(  # noqa: PLR0913 - a backfill's own
        self,
        handler: Wanted,
        *,
        since: Since = None,
        max_lag: int = 10_000,
        max_rounds: int = 10,
        max_records_per_batch: int = 200_000,
        sink: Sink | None = None,
        parallelism: int | None = None,
        options: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> Standing:
        """Backfill to the end, and again what came meanwhile, until so little is left that the live app may take over.

        Args:
            handler: as ``backfill`` has it, like what is not named here.
            since: as ``backfill`` has it.
            max_lag: so few records left are the live app's.
            max_rounds: so often at most, as records may come faster than Spark handles them.
            max_records_per_batch: as ``backfill`` has it.
            sink: as ``backfill`` has it.
            parallelism: as ``backfill`` has it.
            options: as ``backfill`` has it.
            on_progress: as ``backfill`` has it.

        Returns:
            Where the group stands: ``lag`` says whether it came to the end.

        Raises:
            TailraceError: as ``backfill`` does.
        """
        standing = None
        for _ in range(max_rounds):
            self.backfill(
                handler,
                since=since,
                max_records_per_batch=max_records_per_batch,
                sink=sink,
                parallelism=parallelism,
                options=options,
                on_progress=on_progress,
            )
            standing = self.standing(handler)
            # A partition that was added meanwhile is begun by the next round, and is no lag before that.
            if standing.lag <= max_lag and standing.ends.keys() <= standing.committed.keys():
                break
        return standing or self.standing(handler)

    def standing(self, handler: Wanted) -> Standing:
        """Where the handler's group stands, against the ends of its topics.

        Raises:
            ConfigurationError: the handler is unknown.
            TailraceError: no broker answers, or we may not.
        """
        chosen = select_handlers(self.app, handler, self._config.group_id)
        with SparkOffsetStore(self._config_of(chosen), chosen.group_id, self._observer) as store:
            partitions = store.partitions(chosen.topics, chosen.patterns)
            committed, logs = store.committed(partitions), store.logs(partitions)
            return Standing(
                chosen.group_id,
                {one: committed[one].offset for one in partitions if one in committed},
                {one: log.end for one, log in logs.items()},
                store.members(),
            )

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _config(self) -> ConsumerConfig:
        """As the app is configured now: source, workers and group go by the same."""
        return resolve(self.app.options)

    def _prepared(
        self,
        handler: Wanted,
        sink: Sink | None,
        parallelism: int | None,
        options: Mapping[str, str] | None,
        there: Iterable[str] = (),
    ) -> tuple[SelectedHandlers, BatchRunner, dict[str, str]]:
        """Check what can be wrong without asking a broker."""
        chosen, shipment, source = _checked(
            self.app,
            self._place,
            handler,
            has_sink=sink is not None,
            parallelism=parallelism,
            options=options,
            there=there,
        )
        if chosen.keeps_order and str(self._spark.conf.get("spark.speculation", "false")).lower() == "true":
            raise ConfigurationError(
                "spark.speculation runs a task twice at once, and the handler keeps an order"
                ' - say order_by="none", or switch it off'
            )
        check_source(self._spark, source)
        kind = None if sink is None else result_type(chosen.handlers)
        return chosen, BatchRunner(chosen, shipment, kind, sink, parallelism), source

    def _config_of(self, chosen: SelectedHandlers) -> ConsumerConfig:
        """As a member of the handler's group has it."""
        return resolve({**self.app.options, "group_id": chosen.group_id})

    def _look(self, store: SparkOffsetStore, chosen: SelectedHandlers, state: PipelineState | None) -> ClusterState:
        finish_ended(chosen.group_id)
        store.check_idle()
        store.make_topics(chosen.handlers, self._outline.defaults)
        seen = store.look(chosen.topics, chosen.patterns)
        if state is not None and self._checkpoint is not None:
            check_same(self._checkpoint.place, state, seen.cluster_id, seen.topics)
        return seen

    def _resumption(self, checkpoint: Checkpoint, state: PipelineState, seen: ClusterState) -> Resumption:
        """Decide whether Spark's checkpoint continues; one that cannot be read is left for the group's offsets."""
        try:
            return resumption(state, checkpoint.written(state.generation), seen)
        except CorruptCheckpointError as error:
            # Only the checkpoint knew where a forgotten group stood: any other offset loses or repeats records.
            if any(partition_of(one) in seen.logs.keys() - seen.found.keys() for one in state.start):
                raise CorruptCheckpointError(
                    f"{error}; group {state.group_id!r} has none: set them by `tailrace offsets reset` first"
                ) from error
            self._observer.emit(CheckpointAbandoned(state.group_id, str(error)))
            return Resumption(False)

    def _count_on(self, state: PipelineState, seen: ClusterState) -> None:
        """Give batches numbers that none had before, as far as the checkpoint or the group knows."""
        assert self._checkpoint is not None
        known = [state.next_batch_id]
        if state.generation and (last := self._checkpoint.last_begun(state.generation)) is not None:
            known.append(state.first_batch_id + last + 1)
        state.next_batch_id = next_number(known, (found.said.user_text for found in seen.found.values()))


def check_run(app: App, place: str, handler: Wanted, *, parallelism: int | None = None) -> None:
    """Check what can be wrong before Spark is started, which takes half a minute.

    Raises:
        ConfigurationError: the handler is unknown or cannot be sent to workers, or an option is wrong.
    """
    _check_delivery(app)
    _checked(app, place, handler, parallelism=parallelism)


def _check_delivery(app: App) -> None:
    if settings_of(app).is_exactly_once:
        raise ConfigurationError(
            "delivery='exactly_once' is one of transactions that hold the offsets, and Spark keeps its own"
            " - say 'at_least_once', and have effects keyed by topic, partition and offset"
        )


def _checked(  # noqa: PLR0913 - all that depends on no session
    app: App,
    place: str | None,
    handler: Wanted,
    *,
    has_sink: bool = False,
    parallelism: int | None = None,
    options: Mapping[str, str] | None = None,
    there: Iterable[str] = (),
) -> tuple[SelectedHandlers, Shipment, dict[str, str]]:
    """Return the handlers, the app as workers get it, and the options of Spark's Kafka source."""
    config, outline = resolve(app.options), settings_of(app)
    planned(app, config.group_id, outline.defaults, outline.overrides)
    chosen = select_handlers(app, handler, config.group_id, there)
    _check_at_least_one("parallelism", 1 if parallelism is None else parallelism)
    check_source_options(options or {}, keeps_order=chosen.keeps_order)
    return chosen, pack(app, place, chosen, config, has_sink=has_sink), source_options(config, options or {})


def _check_some(chosen: SelectedHandlers, seen: ClusterState) -> None:
    if not seen.logs:
        said = " nor ".join(repr(one.handler.pattern.pattern) for one in chosen.patterns if one.handler.pattern)
        why = f"no topic matches {said} - patterns are read once, at the start"
        raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)


def _check_at_least_one(name: str, number: int) -> None:
    if number < 1:
        raise ConfigurationError(f"{name}={number} will not do: at least 1")
