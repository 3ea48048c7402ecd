"""SparkPipeline: runs the handlers of an app on Spark; this module checks a run and puts it together.

The group's committed offsets are authoritative for the app and for Spark; a checkpoint that disagrees starts again from
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

from tailrace.app.app import App
from tailrace.app.declare.plan import make_plan
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
from tailrace.spark.offsets.checkpoint import Checkpoint, PipelineState, check_matches, partition_of
from tailrace.spark.offsets.resume import Resumption, next_number, resumption
from tailrace.spark.offsets.start_offsets import Since, Until, ends_at, start_offsets_after, start_offsets_of
from tailrace.spark.offsets.store import ClusterState, SparkOffsetStore
from tailrace.spark.reports import BackfillReport, GroupStatus, OnProgress, progress_reporter
from tailrace.spark.session.kafka_options import check_source, check_source_options, source_options
from tailrace.spark.streaming import SparkQuery, Stage, Trigger, start_stream
from tailrace.spark.worker.rows import result_type
from tailrace.spark.worker.shipment import Shipment, pack, place_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkPipeline", "check_run"]

HandlerOrName: TypeAlias = Callable[..., object] | str
"""Decorated function of a handler, or its name."""


class SparkPipeline:
    """Runs handlers of an app on Spark in the app's group, while the group has no live members.

    A run starts at the group's committed offsets and commits to the same group, so the app continues where Spark
    stopped, and vice versa. Only one pipeline may run for a group at a time.

    Args:
        app: app, or its import path, such as ``"shop:billing"``.
        spark: session with Spark's Kafka connector, such as one from ``spark_session()``.
        checkpoint: folder of this pipeline, on any file system that Spark supports; not required for ``backfill`` and
            ``handoff`` without a sink.

    Raises:
        ConfigurationError: the session is a Spark Connect session, or the app is exactly-once.
    """

    def __init__(self, app: App | str, spark: SparkSession, checkpoint: str | None = None) -> None:
        if type(spark).__module__.startswith("pyspark.sql.connect") or not hasattr(spark, "_jsc"):
            raise ConfigurationError(
                "a Spark Connect session gives no access to the checkpoint and the listener that a pipeline needs"
                " - run the driver in the cluster, with a classic session"
            )
        self.app = load_app(app) if isinstance(app, str) else app
        self._place = app if isinstance(app, str) else place_of(app)
        self._spark = spark
        self._checkpoint = None if checkpoint is None else Checkpoint(spark, str(checkpoint))
        self._settings = settings_of(self.app)
        _check_delivery(self.app)
        config = resolve(self.app.options)
        self._observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)

    def __repr__(self) -> str:
        where = "" if self._checkpoint is None else f" checkpoint={self._checkpoint.place}"
        return f"<SparkPipeline of {self.app!r}{where}>"

    def start(  # noqa: PLR0913 - public options
        self,
        handler: HandlerOrName,
        *,
        trigger: Trigger = None,
        max_records_per_batch: int = 200_000,
        sink: Sink | None = None,
        parallelism: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> SparkQuery:
        """Start to handle existing and new records in micro-batches; each one is followed by a commit of the group.

        Args:
            handler: decorated function or its name. Handlers of its group that share a topic with it run, too.
            trigger: interval of micro-batches, such as ``"5 seconds"``; ``"available_now"`` to end after the records
                that exist at the start; or a mapping of the arguments of Spark's ``trigger``. By default a micro-batch
                starts when the previous one has ended.
            max_records_per_batch: maximum number of records in a batch, and so of records handled again after a crash;
                the source option ``maxOffsetsPerTrigger`` overrides it.
            sink: function called with a DataFrame of the handlers' results, with ``topic``, ``partition`` and
                ``offset`` of the records, and with the number of the batch.
            parallelism: number of tasks; one per partition by default. The handler's order is kept.
            options: further options of Spark's Kafka source.

        Raises:
            ConfigurationError: an argument is invalid, the pipeline has no checkpoint, the handler cannot be sent to
                workers, or the checkpoint is of another handler, group or cluster.
            ConsumerStateError: a query or a backfill of this group reads the same topics in this process.
            GroupNotEmptyError: the group has live members.
            OffsetOutOfRangeError: a committed offset is not in the log, and ``auto_offset_reset="none"``.
            CorruptCheckpointError: the checkpoint cannot be read, and the group has no committed offsets.
            UnknownTopicError: a topic does not exist, or no topic matches.
            TailraceError: no broker answers, or an operation is not authorized.
        """
        if self._checkpoint is None:
            raise ConfigurationError("a stream needs a checkpoint folder - pass SparkPipeline(checkpoint=...)")
        _check_at_least_one("max_records_per_batch", max_records_per_batch)
        chosen, batches, source = self._prepare(handler, sink, parallelism, options)
        if "maxoffsetspertrigger" not in map(str.lower, source):
            source["maxOffsetsPerTrigger"] = str(max_records_per_batch)
        state = self._checkpoint.load(chosen.group_id, chosen.name)
        config = self._config_of(chosen)
        store = SparkOffsetStore(config, chosen.group_id, self._observer)
        run = None
        try:
            seen = self._cluster_state(store, chosen, state)
            run = claim(f"<SparkQuery {chosen.name} group={chosen.group_id}>", chosen.group_id, seen)
            _check_topics_found(chosen, seen)
            if chosen.patterns:
                # The topics that a pattern matches are known only now, and so the handlers that share them.
                _, batches, _ = self._prepare(handler, sink, parallelism, options, seen.topics)
            resumed = self._resumption(self._checkpoint, state, seen)
            state.note(seen.cluster_id, seen.topics)
            start_offsets = start_offsets_of(store, seen, config, self._observer, overrides=resumed.offsets)
            if not resumed.continues:
                self._set_next_number(state, seen)
            batches = batches.beginning_at(start_offsets.done)
            stage = Stage(
                self._spark,
                store,
                batches,
                self._checkpoint,
                state,
                seen,
                start_offsets,
                resumed,
                config,
                self._observer,
                run,
            )
            return start_stream(stage, source, trigger)
        except BaseException:
            store.close()
            if run is not None:
                release(run)
            raise

    def backfill(  # noqa: PLR0913 - public options
        self,
        handler: HandlerOrName,
        *,
        since: Since = None,
        until: Until = "now",
        max_records_per_batch: int = 200_000,
        sink: Sink | None = None,
        parallelism: int | None = None,
        options: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> BackfillReport:
        """Handle existing records from the committed offsets on in bounded batches, committing after each.

        Args:
            handler: as in ``start``.
            since: start of partitions without a committed offset: ``"earliest"``, a time, or offsets;
                ``auto_offset_reset`` by default.
            until: end: the current end of the logs, a time, or offsets. Partitions that the offsets do not name are
                not handled, but their start offsets are committed.
            max_records_per_batch: maximum number of records in a batch, and so of records handled again after a crash.
            sink: as in ``start``; needs a checkpoint.
            parallelism: as in ``start``.
            options: as in ``start``.
            on_progress: function called after each batch; by default a terminal shows a progress bar, with
                ``tailrace[cli]``.

        Raises:
            ConfigurationError: an argument is invalid, the handler cannot be sent to workers, or the checkpoint is of
                another handler, group or cluster.
            ConsumerStateError: a query or a backfill of this group reads the same topics in this process.
            GroupNotEmptyError: the group has live members, or one joins.
            CommitFailedError: the group's offsets were changed by another client.
            HandlerFailedError: a handler failed for good and its options end the run.
            OffsetOutOfRangeError: a committed offset is not in the log, and ``auto_offset_reset="none"``.
            TailraceError: no broker answers, or an operation is not authorized.
        """
        _check_at_least_one("max_records_per_batch", max_records_per_batch)
        if sink is not None and self._checkpoint is None:
            raise ConfigurationError(
                "sink= needs a checkpoint, which numbers the batches - pass SparkPipeline(checkpoint=...)"
            )
        chosen, batches, source = self._prepare(handler, sink, parallelism, options)
        state = None
        if self._checkpoint is not None:
            state = self._checkpoint.load(chosen.group_id, chosen.name)
        config = self._config_of(chosen)
        with (
            SparkOffsetStore(config, chosen.group_id, self._observer) as store,
            progress_reporter(f"{chosen.name} on Spark", on_progress) as report,
            contextlib.ExitStack() as stack,
        ):
            seen = self._cluster_state(store, chosen, state)
            name = f"a backfill of {chosen.name} for group {chosen.group_id!r}"
            stack.callback(release, claim(name, chosen.group_id, seen))
            if chosen.patterns:
                _, batches, _ = self._prepare(handler, sink, parallelism, options, seen.topics)
            if state is not None:
                state.note(seen.cluster_id, seen.topics)
                self._set_next_number(state, seen)
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
            return run.run(start_offsets, ends_at(store, start_offsets, until), report)

    def handoff(  # noqa: PLR0913 - public options
        self,
        handler: HandlerOrName,
        *,
        since: Since = None,
        max_lag: int = 10_000,
        max_rounds: int = 10,
        max_records_per_batch: int = 200_000,
        sink: Sink | None = None,
        parallelism: int | None = None,
        options: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> GroupStatus:
        """Backfill to the end of the logs, and repeat it while the lag of the group is more than ``max_lag`` records.

        Args:
            handler: as in ``backfill``.
            since: as in ``backfill``.
            max_lag: lag in records at which the app can take over.
            max_rounds: maximum number of backfills, because records may arrive faster than Spark handles them.
            max_records_per_batch: as in ``backfill``.
            sink: as in ``backfill``.
            parallelism: as in ``backfill``.
            options: as in ``backfill``.
            on_progress: as in ``backfill``.

        Returns:
            Committed offsets and end offsets; its ``lag`` exceeds ``max_lag`` if ``max_rounds`` were not enough.

        Raises:
            TailraceError: a backfill failed; see ``backfill``.
        """
        status = None
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
            status = self.group_status(handler)
            # A partition that was added meanwhile counts as lag only after a round has committed its start.
            if status.lag <= max_lag and status.ends.keys() <= status.committed.keys():
                break
        return status or self.group_status(handler)

    def group_status(self, handler: HandlerOrName) -> GroupStatus:
        """Return the committed offsets of the handler's group and the end offsets of its topics.

        Raises:
            ConfigurationError: the handler is unknown.
            TailraceError: no broker answers, or an operation is not authorized.
        """
        chosen = select_handlers(self.app, handler, self._config.group_id)
        with SparkOffsetStore(self._config_of(chosen), chosen.group_id, self._observer) as store:
            partitions = store.partitions(chosen.topics, chosen.patterns)
            committed, logs = store.committed(partitions), store.logs(partitions)
            return GroupStatus(
                chosen.group_id,
                {one: committed[one].offset for one in partitions if one in committed},
                {one: log.end for one, log in logs.items()},
                store.members(),
            )

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _config(self) -> ConsumerConfig:
        """Current configuration of the app, for source, workers and group."""
        return resolve(self.app.options)

    def _prepare(
        self,
        handler: HandlerOrName,
        sink: Sink | None,
        parallelism: int | None,
        options: Mapping[str, str] | None,
        matched_topics: Iterable[str] = (),
    ) -> tuple[SelectedHandlers, BatchRunner, dict[str, str]]:
        """Check the handlers and options of a run, without requests to a broker, and return its parts."""
        chosen, shipment, source = _check_and_pack(
            self.app,
            self._place,
            handler,
            has_sink=sink is not None,
            parallelism=parallelism,
            options=options,
            matched_topics=matched_topics,
        )
        if chosen.keeps_order and str(self._spark.conf.get("spark.speculation", "false")).lower() == "true":
            raise ConfigurationError(
                "spark.speculation may run a task twice at once, which breaks the order of the handler's records"
                ' - set spark.speculation=false or order_by="none"'
            )
        check_source(self._spark, source)
        kind = None if sink is None else result_type(chosen.handlers)
        return chosen, BatchRunner(chosen, shipment, kind, sink, parallelism), source

    def _config_of(self, chosen: SelectedHandlers) -> ConsumerConfig:
        """Return the configuration with the handler's group."""
        return resolve({**self.app.options, "group_id": chosen.group_id})

    def _cluster_state(
        self, store: SparkOffsetStore, chosen: SelectedHandlers, state: PipelineState | None
    ) -> ClusterState:
        finish_ended(chosen.group_id)
        store.check_idle()
        store.create_topics(chosen.handlers, self._settings.defaults)
        seen = store.cluster_state(chosen.topics, chosen.patterns)
        if state is not None and self._checkpoint is not None:
            check_matches(self._checkpoint.place, state, seen.cluster_id, seen.topics)
        return seen

    def _resumption(self, checkpoint: Checkpoint, state: PipelineState, seen: ClusterState) -> Resumption:
        """Return the decision about Spark's checkpoint; abandon an unreadable one if the group has offsets.

        Raises:
            CorruptCheckpointError: the checkpoint cannot be read, and the group has no committed offsets.
        """
        try:
            return resumption(state, checkpoint.written(state.generation), seen)
        except CorruptCheckpointError as error:
            # Only the checkpoint has the position of these partitions; a guess would lose or repeat records.
            if any(partition_of(one) in seen.logs.keys() - seen.found.keys() for one in state.start):
                raise CorruptCheckpointError(
                    f"{error}; group {state.group_id!r} has none: set them with `tailrace offsets reset` first"
                ) from error
            self._observer.emit(CheckpointAbandoned(state.group_id, str(error), error))
            return Resumption(False)

    def _set_next_number(self, state: PipelineState, seen: ClusterState) -> None:
        """Make the next batch number higher than those in the checkpoint and in the commit metadata of the group."""
        assert self._checkpoint is not None
        known = [state.next_batch_id]
        if state.generation and (last := self._checkpoint.last_begun(state.generation)) is not None:
            known.append(state.first_batch_id + last + 1)
        state.next_batch_id = next_number(known, (found.decoded_metadata.user_text for found in seen.found.values()))


def check_run(app: App, place: str, handler: HandlerOrName, *, parallelism: int | None = None) -> None:
    """Check handler and options before Spark is started, which takes half a minute.

    Raises:
        ConfigurationError: the handler is unknown or cannot be sent to workers, or an option is wrong.
    """
    _check_delivery(app)
    _check_and_pack(app, place, handler, parallelism=parallelism)


def _check_delivery(app: App) -> None:
    if settings_of(app).is_exactly_once:
        raise ConfigurationError(
            "delivery='exactly_once' commits offsets in transactions, which Spark does not support"
            " - use 'at_least_once', and make effects idempotent by topic, partition and offset"
        )


def _check_and_pack(  # noqa: PLR0913 - everything that needs no session
    app: App,
    place: str | None,
    handler: HandlerOrName,
    *,
    has_sink: bool = False,
    parallelism: int | None = None,
    options: Mapping[str, str] | None = None,
    matched_topics: Iterable[str] = (),
) -> tuple[SelectedHandlers, Shipment, dict[str, str]]:
    """Check a run; return its handlers, the app as it is sent to workers, and the options of Spark's Kafka source."""
    config, settings = resolve(app.options), settings_of(app)
    # Raises for invalid declarations; the workers make plans of their own.
    make_plan(app, config.group_id, settings.defaults, settings.overrides)
    chosen = select_handlers(app, handler, config.group_id, matched_topics)
    _check_at_least_one("parallelism", 1 if parallelism is None else parallelism)
    check_source_options(options or {}, keeps_order=chosen.keeps_order)
    return chosen, pack(app, place, chosen, config, has_sink=has_sink), source_options(config, options or {})


def _check_topics_found(chosen: SelectedHandlers, seen: ClusterState) -> None:
    if not seen.logs:
        patterns = " or ".join(repr(one.handler.pattern.pattern) for one in chosen.patterns if one.handler.pattern)
        why = f"no topic matches {patterns}; patterns are matched once, at the start"
        raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)


def _check_at_least_one(name: str, number: int) -> None:
    if number < 1:
        raise ConfigurationError(f"{name} must be a positive integer, not {number}")
