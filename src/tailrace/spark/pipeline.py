"""SparkPipeline: checks the arguments of a run, and creates the objects that run an app's handlers on Spark.

The group's committed offsets are authoritative for the app and for Spark: if a checkpoint has other offsets, the run
starts at the committed offsets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from tailrace.app.app import App, load_app
from tailrace.app.lifecycle import make_plan
from tailrace.app.publish.delays import delays_of
from tailrace.config import ConsumerConfig, resolve
from tailrace.error_codes import ErrorCode
from tailrace.errors import ConfigurationError, CorruptCheckpointError, UnknownTopicError
from tailrace.observe.events import CheckpointAbandoned
from tailrace.observe.hooks import Hook, Observer
from tailrace.spark.backfill import Backfill, BackfillReport, GroupStatus, OnProgress, progress_reporter
from tailrace.spark.batches import BatchRunner, Sink
from tailrace.spark.handler_selection import SelectedHandlers, select_handlers
from tailrace.spark.offsets.checkpoint import Checkpoint, PipelineState, check_matches, partition_of
from tailrace.spark.offsets.ranges import Offsets
from tailrace.spark.offsets.start_offsets import (
    Resumption,
    Since,
    StartOffsets,
    Until,
    decide_resumption,
    ends_at,
    interrupted_batch,
    next_number,
    start_offsets_of,
)
from tailrace.spark.offsets.store import ClusterState, SparkOffsetStore
from tailrace.spark.session import check_source, check_source_options, source_options
from tailrace.spark.sinks import check_sink
from tailrace.spark.streaming import SparkQuery, Stage, Trigger, claim, finish_ended_queries, release, start_stream
from tailrace.spark.worker.rows import RESERVED, result_type
from tailrace.spark.worker.shipment import Shipment, import_path_of, pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "HandlerOrName",
    "SparkPipeline",
    "check_delivery",
    "check_run",
    "check_topics_found",
    "load_handler",
    "prepare_group",
]

_Prepared: TypeAlias = tuple[SelectedHandlers, BatchRunner, dict[str, str]]
HandlerOrName: TypeAlias = Callable[..., object] | str
"""Decorated function of a handler, or its name."""


class SparkPipeline:
    """Runs handlers of an app on Spark in the app's group, while the group has no live members.

    A run starts at the group's committed offsets and commits to the same group, so the app continues where Spark
    stopped, and vice versa. Only one pipeline may run for a group at a time.

    Args:
        app: app, or its import path, such as ``"shop:billing"``.
        spark: session with Spark's Kafka connector, such as one from ``spark_session()``.
        checkpoint: path or URL of a folder for this pipeline only, on any file system that Spark supports. ``start``
            and sinks require a checkpoint.

    Raises:
        ConfigurationError: the session is a Spark Connect session, or the app has ``delivery="exactly_once"``.
    """

    def __init__(self, app: App | str, spark: SparkSession, checkpoint: str | None = None) -> None:
        if type(spark).__module__.startswith("pyspark.sql.connect") or not hasattr(spark, "_jsc"):
            raise ConfigurationError(
                "a Spark Connect session gives no access to the JVM, through which a pipeline reads its checkpoint"
                " - use results() and start_in_group(), or a classic session: SparkSession.builder without remote()"
            )
        self.app = load_app(app) if isinstance(app, str) else app
        self._import_path = app if isinstance(app, str) else import_path_of(app)
        self._spark = spark
        self._checkpoint = None if checkpoint is None else Checkpoint(spark, str(checkpoint))
        check_delivery(self.app)
        config = resolve(self.app.options)
        self._observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)

    def __repr__(self) -> str:
        where = "" if self._checkpoint is None else f" checkpoint={self._checkpoint.location}"
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
        """Start a query that handles existing and new records in batches, and commits the group's offsets after each.

        Args:
            handler: decorated function of the handler, or its name. Other handlers of the same group that share a topic
                with this handler run, too.
            trigger: interval of batches, such as ``"5 seconds"``; ``"available_now"`` to end after the records that
                exist at the start; or a mapping of the arguments of Spark's ``trigger``. By default, a batch starts
                when the previous one has ended.
            max_records_per_batch: maximum number of records in a batch, and thus of records that are handled again
                after a crash. The source option ``maxOffsetsPerTrigger`` overrides it.
            sink: function that writes the results of a batch. Its arguments are a DataFrame of the results, with
                columns for ``topic``, ``partition`` and ``offset`` of the records, and the number of the batch.
            parallelism: number of tasks among which the records are distributed. The order that the handler requires is
                kept. By default, there is one task for each partition.
            options: further options of Spark's Kafka source.

        Raises:
            ConfigurationError: an argument is invalid, the pipeline has no checkpoint, the handler cannot be sent to
                workers, or the checkpoint belongs to another handler, group or cluster.
            ConsumerStateError: a query or a backfill of this group reads the same topics in this process.
            GroupNotEmptyError: the group has live members.
            OffsetOutOfRangeError: a committed offset is not in the log, and ``auto_offset_reset="none"``.
            CorruptCheckpointError: the checkpoint cannot be read, and the group has no committed offsets.
            UnknownTopicError: a topic does not exist, or no topic matches the handler's pattern.
            TailraceError: no broker answers, or an operation is not authorized.
        """
        if self._checkpoint is None:
            raise ConfigurationError("a query needs a checkpoint folder - pass SparkPipeline(checkpoint=...)")
        _check_at_least_one("max_records_per_batch", max_records_per_batch)
        with contextlib.ExitStack() as stack:
            stage = self._open(stack, "a query", partial(self._prepare, handler, sink, parallelism, options))
            if "maxoffsetspertrigger" not in map(str.lower, stage.source):
                stage.source["maxOffsetsPerTrigger"] = str(max_records_per_batch)
            check_topics_found(stage.selected, stage.cluster_state)
            start = self._start_of(stage)
            if start.interrupted is not None and not start.resumption.continues:
                # Spark would not repeat this batch. No further record is read.
                Backfill(stage, max_records_per_batch).run(
                    start.offsets, start.offsets.offsets, lambda _: None, start.interrupted
                )
                topics = stage.selected.topics, stage.selected.patterns
                stage = replace(stage, cluster_state=stage.store.cluster_state(*topics))
                start = self._start_of(stage)
            query = start_stream(stage, self._checkpoint, start.resumption, start.offsets, trigger)
            stack.pop_all()
            return query

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
        """Handle existing records, starting at the committed offsets, in batches, and commit after each batch.

        Args:
            handler: as in ``start``.
            since: start of partitions without a committed offset: ``"earliest"``, a datetime with a time zone,
                milliseconds since 1970, or a mapping of partitions to offsets. By default, ``auto_offset_reset``.
            until: end of the backfill: ``"now"`` for the current ends of the logs, a time as in ``since``, or a mapping
                of partitions to offsets. Partitions that are missing from the mapping are not read; only their start
                offsets are committed.
            max_records_per_batch: maximum number of records in a batch, and thus of records that are handled again
                after a crash.
            sink: as in ``start``; needs a checkpoint.
            parallelism: as in ``start``.
            options: as in ``start``.
            on_progress: function that is called at the start and after each batch. By default, a progress bar is shown
                if stderr is a terminal and ``rich`` is installed (extra ``tailrace[cli]``).

        Raises:
            ConfigurationError: an argument is invalid, the handler cannot be sent to workers, or the checkpoint
                belongs to another handler, group or cluster.
            ConsumerStateError: a query or a backfill of this group reads the same topics in this process.
            GroupNotEmptyError: the group has live members, or a member joins.
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
        with contextlib.ExitStack() as stack:
            stage = self._open(stack, "a backfill", partial(self._prepare, handler, sink, parallelism, options))
            report = stack.enter_context(progress_reporter(f"{stage.selected.name} on Spark", on_progress))
            start = self._start_of(stage, since)
            ends = ends_at(stage.store, start.offsets, until)
            return Backfill(stage, max_records_per_batch).run(start.offsets, ends, report, start.interrupted)

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
        """Backfill to the end of the logs, and repeat this while the lag of the group is more than ``max_lag``.

        Args:
            handler: as in ``backfill``.
            since: as in ``backfill``.
            max_lag: lag of the group, in offsets, at which the live app can take over.
            max_rounds: maximum number of backfills, in case records arrive faster than Spark handles them.
            max_records_per_batch: as in ``backfill``.
            sink: as in ``backfill``.
            parallelism: as in ``backfill``.
            options: as in ``backfill``.
            on_progress: as in ``backfill``.

        Returns:
            Status of the group after the last backfill; its ``lag`` exceeds ``max_lag`` if ``max_rounds`` backfills
            were not enough.

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
            # The lag does not include a new partition until a backfill has committed an offset of it.
            if status.lag <= max_lag and status.ends.keys() <= status.committed.keys():
                break
        return status or self.group_status(handler)

    def group_status(self, handler: HandlerOrName) -> GroupStatus:
        """Return the committed offsets and live members of the handler's group, and the end offsets of its topics.

        Raises:
            ConfigurationError: the handler is unknown.
            TailraceError: no broker answers, or an operation is not authorized.
        """
        selected = select_handlers(self.app, handler, self._config.group_id)
        with SparkOffsetStore(self._config_of(selected), selected.group_id, self._observer) as store:
            partitions = store.partitions(selected.topics, selected.patterns)
            committed, logs = store.committed(partitions), store.logs(partitions)
            return GroupStatus(
                selected.group_id,
                {one: committed[one].offset for one in partitions if one in committed},
                {one: log.end for one, log in logs.items()},
                store.members(),
            )

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _config(self) -> ConsumerConfig:
        """Current configuration of the app."""
        return resolve(self.app.options)

    def _prepare(
        self,
        handler: HandlerOrName,
        sink: Sink | None,
        parallelism: int | None,
        options: Mapping[str, str] | None,
        matched_topics: Iterable[str] = (),
    ) -> _Prepared:
        """Check handlers and options, without requests to brokers.

        Returns:
            Handlers to run, runner of the batches, and options of Spark's Kafka source.
        """
        selected, shipment, source = _check_and_pack(
            self.app,
            self._import_path,
            handler,
            has_sink=sink is not None,
            parallelism=parallelism,
            options=options,
            matched_topics=matched_topics,
        )
        if selected.keeps_order and str(self._spark.conf.get("spark.speculation", "false")).lower() == "true":
            raise ConfigurationError(
                "spark.speculation may run a task twice at once, which breaks the order of the handler's records"
                ' - set spark.speculation=false or order_by="none"'
            )
        check_source(self._spark, source)
        if sink is not None:
            check_sink(sink, self._spark)
        row_type = None if sink is None else result_type(selected.handlers, RESERVED)
        return selected, BatchRunner(selected, shipment, row_type, sink, parallelism), source

    def _config_of(self, selected: SelectedHandlers) -> ConsumerConfig:
        """Return the configuration of the app, with the group id of the handlers."""
        return resolve({**self.app.options, "group_id": selected.group_id})

    def _open(self, stack: contextlib.ExitStack, kind: str, prepare: Callable[..., _Prepared]) -> Stage:
        """Check arguments, group, topics and checkpoint, and register a run; ``stack`` closes it."""
        selected, batch_runner, source = prepare()
        state = PipelineState(selected.group_id, selected.name)
        if self._checkpoint is not None:
            state = self._checkpoint.load(selected.group_id, selected.name)
        config = self._config_of(selected)
        store = stack.enter_context(SparkOffsetStore(config, selected.group_id, self._observer))
        cluster_state = prepare_group(self.app, selected, store)
        if self._checkpoint is not None:
            check_matches(self._checkpoint.location, state, cluster_state.cluster_id, cluster_state.topic_ids)
        name = f"{kind} of {selected.name} for group {selected.group_id!r}"
        run = claim(name, selected.group_id, cluster_state)
        stack.callback(release, run)
        if selected.patterns:
            # Only now is it known which topics a pattern matches, and which handlers share a topic.
            _, batch_runner, _ = prepare(matched_topics=cluster_state.topic_ids)
        return Stage(
            self._spark,
            selected,
            config,
            self._observer,
            store,
            cluster_state,
            state,
            run,
            self._checkpoint,
            batch_runner,
            source,
        )

    def _start_of(self, stage: Stage, since: Since = None) -> _RunStart:
        """Decide where a run starts, and which interrupted batch it repeats.

        An unreadable checkpoint is ignored if the group has committed offsets.

        Raises:
            CorruptCheckpointError: the checkpoint cannot be read, and a partition of it has no committed offset.
        """
        state, cluster_state, spark_logs = stage.state, stage.cluster_state, None
        resumption = Resumption(False)
        if self._checkpoint is not None:
            try:
                spark_logs = self._checkpoint.log(state.generation).logs()
                resumption = decide_resumption(state, spark_logs, cluster_state)
            except CorruptCheckpointError as error:
                self._abandon_checkpoint(state, cluster_state, error)
        offsets = start_offsets_of(
            stage.store, cluster_state, stage.config, self._observer, since=since, overrides=resumption.offsets
        )
        interrupted = interrupted_batch(state, spark_logs, cluster_state, offsets.offsets)
        state.add_ids(cluster_state.cluster_id, cluster_state.topic_ids)
        known = [state.next_batch_id]
        if self._checkpoint is not None and (last := self._checkpoint.log(state.generation).last_planned) is not None:
            known.append(state.first_batch_id + last + 1)
        texts = [commit.decoded_metadata.user_text for commit in cluster_state.committed.values()]
        state.next_batch_id = next_number(known, texts)
        return _RunStart(resumption, offsets, interrupted)

    def _abandon_checkpoint(
        self, state: PipelineState, cluster_state: ClusterState, error: CorruptCheckpointError
    ) -> None:
        # For partitions without a committed offset, only the checkpoint has offsets: any other start would lose or
        # repeat records.
        uncommitted = cluster_state.logs.keys() - cluster_state.committed.keys()
        if any(partition_of(key) in uncommitted for key in state.start):
            raise CorruptCheckpointError(
                f"{error}; group {state.group_id!r} has no committed offsets, so set them with `tailrace offsets"
                " reset` first"
            ) from error
        self._observer.emit(CheckpointAbandoned(state.group_id, str(error), error))


@dataclass(frozen=True)
class _RunStart:
    """Start of a run: use of Spark's checkpoint, offsets, and id and end offsets of the batch to repeat first."""

    resumption: Resumption
    offsets: StartOffsets
    interrupted: tuple[int, Offsets] | None


def load_handler(app: App | str, handler: HandlerOrName) -> tuple[App, str | None, SelectedHandlers]:
    """Return the app, its import path if it has one, and the handler with those that share its topics and group.

    Raises:
        ConfigurationError: the app has invalid declarations or ``delivery="exactly_once"``; the handler is unknown.
    """
    import_path = app if isinstance(app, str) else import_path_of(app)
    app = load_app(app) if isinstance(app, str) else app
    check_delivery(app)
    group_id = resolve(app.options).group_id
    make_plan(app, group_id, app.runtime)  # raises an error for invalid declarations
    return app, import_path, select_handlers(app, handler, group_id)


def prepare_group(app: App, selected: SelectedHandlers, store: SparkOffsetStore) -> ClusterState:
    """Check that the group has no live members, create missing topics, and return the state of cluster and group.

    Raises:
        GroupNotEmptyError: the group has live members.
        UnknownTopicError: a topic does not exist.
        TailraceError: no broker answers, or an operation is not authorized.
    """
    finish_ended_queries(selected.group_id)
    store.check_idle()
    config = app.runtime.config
    handlers = [one.with_defaults(config) for one in selected.handlers]
    group_id = resolve(app.options).group_id
    # Messages that handlers delay are published by the live app, which is a member of its own group.
    if group_id == selected.group_id and (delays := delays_of(config, group_id)) is not None:
        handlers.append(delays.handler(config, handlers))
    store.create_topics(handlers)
    return store.cluster_state(selected.topics, selected.patterns)


def check_run(app: App, import_path: str, handler: HandlerOrName, *, parallelism: int | None = None) -> None:
    """Check handler and options without a Spark session, whose start takes half a minute.

    Raises:
        ConfigurationError: the handler is unknown or cannot be sent to workers, or an option is invalid.
    """
    check_delivery(app)
    _check_and_pack(app, import_path, handler, parallelism=parallelism)


def check_delivery(app: App) -> None:
    """Raise a ConfigurationError if the app commits offsets in transactions."""
    if app.runtime.transactions is not None:
        raise ConfigurationError(
            "delivery='exactly_once' commits offsets in transactions, which Spark does not support"
            " - use 'at_least_once', and make effects idempotent by topic, partition and offset"
        )


def _check_and_pack(  # noqa: PLR0913 - everything that needs no session
    app: App,
    import_path: str | None,
    handler: HandlerOrName,
    *,
    has_sink: bool = False,
    parallelism: int | None = None,
    options: Mapping[str, str] | None = None,
    matched_topics: Iterable[str] = (),
) -> tuple[SelectedHandlers, Shipment, dict[str, str]]:
    """Check handlers and options; return the handlers, the serialized app, and the options of Spark's Kafka source."""
    config = resolve(app.options)
    # The plan is not used, but raises an error for invalid declarations.
    make_plan(app, config.group_id, app.runtime)
    selected = select_handlers(app, handler, config.group_id, matched_topics)
    _check_at_least_one("parallelism", 1 if parallelism is None else parallelism)
    check_source_options(options or {}, keeps_order=selected.keeps_order)
    return selected, pack(app, import_path, selected, config, has_sink=has_sink), source_options(config, options or {})


def check_topics_found(selected: SelectedHandlers, cluster_state: ClusterState) -> None:
    """Raise UnknownTopicError if no topic matches the handler's patterns."""
    if not cluster_state.logs:
        patterns = " or ".join(repr(one.handler.pattern.pattern) for one in selected.patterns if one.handler.pattern)
        detail = f"no topic matches {patterns}; patterns are matched once, at the start"
        raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)


def _check_at_least_one(name: str, number: int) -> None:
    if number < 1:
        raise ConfigurationError(f"{name} must be a positive integer, not {number}")
