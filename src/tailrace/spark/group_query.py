"""Streaming queries of the user that run in the group of a handler: their source, and commits of their batches.

Spark reads the topics and writes each batch by a sink of the user's choice. The group's offsets are committed after
Spark has written the batch to its commit log. No access to the JVM is needed, so Spark Connect works, too.

The driver cannot run code before a batch of such a query. It is therefore checked before the start that the checkpoint
and the group have the same offsets; any other start would skip records of the group, or handle records again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, cast

from tailrace.admin.offsets import GroupOffset
from tailrace.app.app import App
from tailrace.config import ConsumerConfig, resolve
from tailrace.errors import ConfigurationError
from tailrace.observe.hooks import Hook, Observer
from tailrace.spark.handler_selection import SelectedHandlers, select_handlers
from tailrace.spark.offsets.checkpoint import PipelineState
from tailrace.spark.offsets.query_log import QueryLog, SparkLogs, folder_of
from tailrace.spark.offsets.ranges import Offsets, spark_json
from tailrace.spark.offsets.start_offsets import StartOffsets, decide_resumption, start_metadata, start_offsets_of
from tailrace.spark.offsets.store import ClusterState, PartitionCommit, SparkOffsetStore
from tailrace.spark.pipeline import HandlerOrName, check_topics_found, load_handler, prepare_group
from tailrace.spark.session import source_options
from tailrace.spark.streaming import SparkQuery, Stage, claim, release

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["group_source", "start_in_group"]

Write: TypeAlias = "Callable[[DataStreamWriter], StreamingQuery]"
"""Function that starts a query, such as ``lambda writer: writer.toTable("fares")``."""

_ADVICE = "use a new folder as checkpoint=, and read the topics with the options of group_source()"


def group_source(app: App | str, handler: HandlerOrName) -> dict[str, str]:
    """Return options of Spark's Kafka source to read a handler's topics from the committed offsets of its group.

    They contain the app's brokers, security and isolation level, passwords included. Partitions without a committed
    offset start by ``auto_offset_reset``, and this offset is committed at once. Spark uses the offsets for a batch
    DataFrame and for the first start of a query; later, the query's checkpoint decides.

    Args:
        app: app, or its import path, such as ``"shop:billing"``.
        handler: decorated function of the handler, or its name.

    Raises:
        ConfigurationError: the handler is unknown, or an option of the app has no counterpart in Java.
        GroupNotEmptyError: the group has live members.
        OffsetOutOfRangeError: a committed offset is not in the log, and ``auto_offset_reset="none"``.
        UnknownTopicError: a topic does not exist, or no topic matches the handler's pattern.
        TailraceError: no broker answers, or an operation is not authorized.
    """
    app, _, selected = load_handler(app, handler)
    config, observer = _config_of(app, selected)
    options = source_options(config, {})
    with SparkOffsetStore(config, selected.group_id, observer) as store:
        cluster_state = _group_state(app, selected, store)
        # Spark reads all records after a committed offset, so offset maps are ignored.
        committed = {
            one: GroupOffset(one, commit.offset, commit.leader_epoch, commit.decoded_metadata.user_text)
            for one, commit in cluster_state.committed.items()
        }
        start_offsets = start_offsets_of(store, replace(cluster_state, committed=committed), config, observer)
        store.commit(start_offsets.commits(start_offsets.uncommitted), start_metadata(), may_go_back=True)
    topics = ",".join(sorted(cluster_state.topic_ids))
    return {**options, "subscribe": topics, "startingOffsets": spark_json(start_offsets.offsets)}


def start_in_group(
    app: App | str, handler: HandlerOrName, rows: DataFrame, checkpoint: str, write: Write
) -> SparkQuery:
    """Start a streaming query over a handler's topics, and commit the offsets of the handler's group after each batch.

    The query may have any transformations, sink and trigger, and further sources. After a restart, it continues at its
    checkpoint, and batches that Spark has finished but that were not committed are committed first. The group must
    have no live members while the query runs: if one joins, the query ends with GroupNotEmptyError.

    Args:
        app: app, or its import path, such as ``"shop:billing"``.
        handler: decorated function of the handler, or its name.
        rows: streaming DataFrame, made from the source with the options of ``group_source`` by ``results``.
        checkpoint: path or URL of the query's checkpoint, on any file system that Spark supports.
        write: function that starts the query, such as ``lambda writer: writer.toTable("fares")``. Its argument is
            ``rows.writeStream`` with the checkpoint.

    Raises:
        ConfigurationError: an argument is invalid, another handler of the group reads the same topics, or the
            checkpoint and the group have different offsets.
        ConsumerStateError: a query or a backfill of this group reads the same topics in this process.
        CorruptCheckpointError: the checkpoint cannot be read.
        GroupNotEmptyError: the group has live members.
        UnknownTopicError: a topic does not exist, or no topic matches the handler's pattern.
        TailraceError: no broker answers, or an operation is not authorized.
    """
    app, _, selected = load_handler(app, handler)
    if not rows.isStreaming:
        raise ConfigurationError("rows must be a streaming DataFrame - read the topics with spark.readStream")
    config, observer = _config_of(app, selected)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(SparkOffsetStore(config, selected.group_id, observer))
        cluster_state = _group_state(app, selected, store)
        # Only the topics that exist show which handlers with patterns share a topic.
        select_handlers(app, handler, resolve(app.options).group_id, cluster_state.topic_ids).check_alone()
        run = claim(f"a query of {selected.name} for group {selected.group_id!r}", selected.group_id, cluster_state)
        stack.callback(release, run)
        log = QueryLog(folder_of(rows.sparkSession, checkpoint), _ADVICE, cluster_state.topic_ids.keys())
        state, spark_logs, start = PipelineState(selected.group_id, selected.name), log.logs(), log.start()
        ends = start if spark_logs.last_committed is None else spark_logs.ends_of(spark_logs.last_committed) or {}
        is_new = spark_logs.last_committed is None and not start
        # The commits of ``group_source`` have no name, so that its commit for a recreated topic differs.
        start_text = start_metadata(hashlib.sha256(log.folder.location.encode()).hexdigest()[:12])
        if not is_new:
            # Before the first commit of a group, a missing commit is no sign of a recreated topic.
            topic_ids = cluster_state.topic_ids if spark_logs.last_committed is None else {}
            state.begin_generation(topic_ids, start, start_text)
            _check_continues(log, state, spark_logs, cluster_state, ends)
        stage = Stage(rows.sparkSession, selected, config, observer, store, cluster_state, state, run)
        query = SparkQuery(
            stage,
            StartOffsets(ends, {}, cluster_state.committed, 0, cluster_state.logs),
            log.last_batch,
            (lambda ends: _check_start(log, cluster_state, selected.name, ends)) if is_new else None,
        )
        if is_new:
            # If the driver dies before its first commit, this text shows that the group was not reset since then.
            kept = {
                one: PartitionCommit(commit.offset, commit.decoded_metadata.offset_map)
                for one, commit in cluster_state.committed.items()
            }
            store.commit(kept, start_text)
        if spark_logs.last_committed is not None:
            query.query_id = spark_logs.query_id
            query.commit_batch(spark_logs.last_committed, ends)
        query.launch(lambda: _started(write, rows, log))
        stack.pop_all()
        return query


def _config_of(app: App, selected: SelectedHandlers) -> tuple[ConsumerConfig, Observer]:
    config = resolve({**app.options, "group_id": selected.group_id})
    return config, Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)


def _group_state(app: App, selected: SelectedHandlers, store: SparkOffsetStore) -> ClusterState:
    cluster_state = prepare_group(app, selected, store)
    check_topics_found(selected, cluster_state)
    return cluster_state


def _started(write: Write, rows: DataFrame, log: QueryLog) -> StreamingQuery:
    """Start a query by ``write`` and return it; stop the query that ``write`` has started if it does not return it."""
    streams = rows.sparkSession.streams
    earlier = {str(one.runId) for one in streams.active}
    query = None
    try:
        query = write(rows.writeStream.option("checkpointLocation", log.folder.location))
    finally:
        if not hasattr(query, "awaitTermination"):
            for one in streams.active:
                # Other threads may start queries at the same time.
                if str(one.runId) not in earlier and str(one.id) == log.query_id:
                    one.stop()
    if not hasattr(query, "awaitTermination"):
        raise ConfigurationError(
            f"write must return the query that it started, not {query!r:.80} - such as lambda writer: writer.start()"
        )
    return query


def _check_continues(
    log: QueryLog, state: PipelineState, spark_logs: SparkLogs, cluster_state: ClusterState, ends: Offsets
) -> None:
    """Check that the group's offsets are those of the checkpoint, or of an earlier batch of its commit log."""
    resumption = decide_resumption(state, spark_logs, cluster_state)
    if not ends or (not resumption.continues and resumption.offsets != ends):
        raise _mismatch_error(log, cluster_state, state.handler, ends)


def _check_start(log: QueryLog, cluster_state: ClusterState, handler: str, ends: Offsets) -> None:
    """Check before the first commit of a new query that it has started at the group's committed offsets."""
    if not ends:
        topics = ", ".join(sorted(cluster_state.topic_ids))
        raise ConfigurationError(
            f"the query reads none of the topics of handler {handler!r}: {topics} - read them with the options of"
            " group_source()"
        )
    start = log.start()
    if any(one in start and commit.offset != start[one] for one, commit in cluster_state.committed.items()):
        raise _mismatch_error(log, cluster_state, handler, start)


def _mismatch_error(log: QueryLog, cluster_state: ClusterState, handler: str, offsets: Offsets) -> ConfigurationError:
    """Return the error for a query whose next offsets are not those of the group."""
    where = f"the query with checkpoint {log.folder.location}"
    for one, offset in sorted(offsets.items()):
        bounds, commit = cluster_state.logs.get(one), cluster_state.committed.get(one)
        if bounds is None or not bounds.begin <= offset <= bounds.end:
            reason = f"reads {one} from offset {offset}, which is not in the log: the topic was recreated or truncated"
        elif commit is None:
            reason = f"reads {one} from offset {offset}, and its group has no offset: it expired, or the topic is new"
        elif commit.offset != offset:
            reason = f"reads {one} from offset {offset}, and its group has committed offset {commit.offset}"
        else:
            continue
        return ConfigurationError(f"{where} {reason} - {_ADVICE}")
    topics = ", ".join(sorted(cluster_state.topic_ids))
    return ConfigurationError(f"{where} does not read the topics of handler {handler!r}: {topics} - {_ADVICE}")
