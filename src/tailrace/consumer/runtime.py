"""Runtime of a consumer: its components, lifecycle, subscription, and assignment without a group.

If an error ends a consumer, polling calls raise the error, and finished records are committed if possible.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import anyio

from tailrace.awaitables import AutoResetEvent
from tailrace.config import ConsumerConfig, check_names, resolve
from tailrace.consumer.arguments import checked_subscription
from tailrace.consumer.delivery.buffer import FetchBuffer
from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.delivery.unreadable_batches import OnCorruptBatch, UnreadableBatches
from tailrace.consumer.fetch.end_offsets import EndOffsetRefresher
from tailrace.consumer.fetch.fetcher import Fetcher, connection_name
from tailrace.consumer.group.assignment import AssignmentReconciler, in_callback
from tailrace.consumer.group.membership import ConsumerMembership
from tailrace.consumer.monitoring.metrics import ConsumerMetrics
from tailrace.consumer.monitoring.status import (
    ConsumerHealth,
    HealthTracker,
    checksum_in_use,
    decoder_in_use,
    partition_statistics,
)
from tailrace.consumer.offsets.committer import Committer
from tailrace.consumer.offsets.queries import TOPIC_GRACE_S, OffsetQueries, check_topics
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.manual_assignment import ManualAssignment
from tailrace.consumer.positions.offset_resetter import OffsetResetter
from tailrace.consumer.positions.partition_spec import PartitionSpec, StartPolicy
from tailrace.consumer.positions.seek import Seek
from tailrace.consumer.positions.start_positions import StartPositions, now_ms, start_by_policy
from tailrace.consumer.shared_cluster import SharedCluster, open_cluster_of
from tailrace.consumer.supervisor import Supervisor, as_tailrace_error
from tailrace.consumer.topic_patterns import BrokerPattern, TopicPattern, TopicPredicate
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.core.group_requests import Identity
from tailrace.core.metrics import MetricName
from tailrace.errors import ConsumerStateError, RequestTimedOutError, TailraceError
from tailrace.net.cluster import Cluster
from tailrace.observe.events import ConsumerFailed, ConsumerStarted, ConsumerStopped
from tailrace.observe.hooks import Hook, Observer
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.records import AnyRecord, TopicPartition

__all__ = [
    "Components",
    "ConsumerLifecycle",
    "ConsumerRuntime",
    "StandaloneAssignment",
    "SubscriptionState",
    "UnstartedReader",
]

# ---- assignment of all partitions of the subscribed topics to a consumer without a group -----------------------------


class StandaloneAssignment:
    """Assigns all partitions of the subscribed topics, including partitions created later."""

    def __init__(
        self,
        parts: ConsumerParts,
        reader: Reader,
        start_positions: StartPositions,
        topics: frozenset[str],
        pattern: re.Pattern[str] | TopicPredicate | None,
    ) -> None:
        self._parts, self._start_positions, self._cluster = parts, start_positions, parts.cluster
        self._positions, self._reader = parts.positions, reader
        self.topics, self._pattern = topics, pattern

    def resubscribe(self, topics: frozenset[str], pattern: re.Pattern[str] | TopicPredicate | None) -> None:
        """Change the subscription; the positions of topics that stay subscribed are kept."""
        self.topics, self._pattern = topics, pattern
        self.metadata_changed()
        unsubscribed = {one for one in self._positions.partitions if one.topic not in self.topics}
        self._reader.drop(unsubscribed)
        self._positions.remove(unsubscribed)
        self._parts.changed()

    def metadata_changed(self) -> None:
        """Assign partitions that are new in the cluster's metadata."""
        topology = self._cluster.topology
        if self._pattern is not None:
            self.topics = topology.matching(self._pattern)
        existing = (
            TopicPartition(name, partition)
            for name in sorted(self.topics & topology.topics.keys())
            for partition in sorted(topology.topics[name].partitions)
        )
        for position in self._positions.add(existing):
            start = self._start_positions.policy.start_of_subscribed(position.partition, topology)
            self._start_positions.set_start(position, start)
            position.is_fetchable = True
        self._parts.changed()


# ---- components of a consumer that do not depend on its subscription -------------------------------------------------

_numbers = itertools.count(1)


class Components:
    """Components that exist from the start of a consumer to its end.

    Args:
        config: options of the consumer.
        observer: receives events.
        shared: cluster shared with other consumers; None to open a cluster for this consumer only.
        own_topics: topics to which the group itself publishes records; see ``StartPolicy``.
        on_metadata: called when the cluster metadata may have changed.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        observer: Observer,
        shared: Cluster | None,
        own_topics: Container[str],
        on_metadata: Callable[[], None],
    ) -> None:
        self.is_shared = shared is not None
        self.parts = parts = ConsumerParts(config, observer, shared or Cluster(config, observer), on_metadata)
        self.cluster, self.positions, self.observer = parts.cluster, parts.positions, observer
        self.buffer: FetchBuffer[BufferedBatch] = FetchBuffer(config.max_buffered_bytes)
        self.reader = Reader(parts, self.buffer, self._note_room)
        self.policy = StartPolicy(start_by_policy(config.begins_at), own_topics)
        self.start_positions = StartPositions(parts, self.reader, self.policy)
        self.offset_resetter = OffsetResetter(parts, self.reader, self.start_positions)
        self._member_names: list[str] = []
        self._name = self._new_name()
        """Name of this consumer's fetch connections on a shared cluster."""
        self.fetcher = Fetcher(
            parts, self.buffer, self.reader, self.start_positions, self._name if self.is_shared else ""
        )
        self.end_offsets = EndOffsetRefresher(parts, self.fetcher.in_flight)
        self.offset_queries = OffsetQueries(parts)
        self.seek = Seek(parts, self.offset_resetter)

    @property
    def config(self) -> ConsumerConfig:
        """Current options."""
        return self.parts.config

    def new_member_name(self) -> str:
        """Return a new name for the connections of a membership; ``close`` closes these connections."""
        self._member_names.append(self._new_name())
        return self._member_names[-1]

    def _new_name(self) -> str:
        """Return a name that is unique in this process."""
        return f"{self.config.client_id}-{next(_numbers)}"

    def watch(self, topics: Iterable[str] | None) -> None:
        """Keep the metadata of ``topics`` up to date, or of all topics of the cluster if ``topics`` is None."""
        self.cluster.watch(self, topics)

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Apply changed options."""
        self.parts.config = config
        self.policy.reset = start_by_policy(config.begins_at)
        self.buffer.max_bytes = config.max_buffered_bytes
        self.parts.changed()

    def close(self) -> None:
        """Close all connections; on a shared cluster, close only the connections that belong to this consumer."""
        if not self.is_shared:
            self.cluster.close()
            return
        self.cluster.unwatch(self)
        for member in self._member_names:
            self.cluster.unwatch((member, "group"))
        for number in range(self.config.num_fetchers):
            for is_for_added in (False, True):
                self.cluster.forget_member(connection_name(self._name, number, is_for_added=is_for_added))
        for name in self._member_names:
            self.cluster.forget_member(name)

    def _note_room(self) -> None:
        self.fetcher.note_room()


# ---- start, run and end of a consumer --------------------------------------------------------------------------------


class ConsumerRuntime:
    """Runs the components of a consumer, from its start until it is stopped or fails.

    Attributes:
        subscription: subscription or manual assignment.
        failure: error that has ended the consumer; None without an error.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - a consumer's arguments
        self,
        config: ConsumerConfig,
        topics: frozenset[str],
        pattern: TopicPattern | None,
        consumer: object,
        observer: Observer,
        optional_topics: frozenset[str] = frozenset(),
        shared: Cluster | None = None,
        own_topics: Container[str] = frozenset(),
    ) -> None:
        clock = asyncio.get_running_loop().time
        self._health = HealthTracker()
        self._metrics = ConsumerMetrics(config.metric_group_prefix, config.client_id, config.group_id, clock)
        self._observer = observer.with_hooks(self._health, self._metrics)
        self.failure: TailraceError | None = None
        self._is_started = False
        self._components = components = Components(config, self._observer, shared, own_topics, self._metadata_changed)
        self.subscription = SubscriptionState(components, consumer, topics, pattern, optional_topics, self.fail)
        self.cluster, self.positions, self.reader = components.cluster, components.positions, components.reader
        self.parts, self.start_positions, self.offset_queries, self.seek = (
            components.parts,
            components.start_positions,
            components.offset_queries,
            components.seek,
        )

    @property
    def config(self) -> ConsumerConfig:
        """Current options."""
        return self._components.config

    @property
    def membership(self) -> ConsumerMembership | None:
        """Current membership of the group; None if there is none."""
        return self.subscription.membership

    @property
    def committer(self) -> Committer | None:
        """Committer of the group's offsets; None without a group."""
        return self.subscription.committer

    # ---- lifecycle ---------------------------------------------------------------------------------------------

    async def run(self, supervisor: Supervisor) -> None:
        """Start the consumer, run until ``supervisor.stopping`` is set or an error occurs, and close it."""
        config, loop = self.config, asyncio.get_running_loop()
        deadline = loop.time() + config.start_timeout_ms / 1000
        try:
            await self._open()
            self._observer.emit(
                ConsumerStarted(config.client_id, config.group_id, tuple(sorted(self.subscription.topics)))
            )
            await self._run_until(supervisor, deadline)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a defect of tailrace must not look like a clean end
            self.fail(as_tailrace_error(error))
        finally:
            self._components.close()
            await asyncio.sleep(0)  # asyncio closes the sockets in the next iteration of the event loop
            self.reader.close(self.failure or ConsumerStateError(_STOPPED))
            self._observer.emit(ConsumerStopped(config.client_id, config.group_id))
        if self.failure is not None:
            raise self.failure

    async def _open(self) -> None:
        timeout_s = self.config.start_timeout_ms / 1000
        self.subscription.watch()
        if self._components.is_shared:
            await self.cluster.retrying(self.cluster.refresh, timeout_s=timeout_s, what="refreshing metadata")
        else:
            await self.cluster.reach(timeout_s)
        await self.subscription.check_topics_exist(timeout_s)

    async def _run_until(self, supervisor: Supervisor, ready_by: float) -> None:
        self.subscription.metadata_changed()
        components, stopping = self._components, supervisor.stopping
        background = [
            components.parts.metadata_refresher.run_refreshes,
            components.fetcher.run_fetches,
            components.offset_resetter.run_resets,
            components.end_offsets.run_refreshes,
        ]
        if self.committer is not None:
            background.append(self.committer.run_commits)
        async with anyio.create_task_group() as tasks:
            for run in background:
                tasks.start_soon(self._run_background, run, stopping)
            tasks.start_soon(self._end_memberships, stopping, tasks.cancel_scope)
            tasks.start_soon(self._report_ready, supervisor, ready_by)
            await self._run_memberships(stopping)
            tasks.cancel_scope.cancel()

    async def _report_ready(self, supervisor: Supervisor, ready_by: float) -> None:
        """Let ``start`` return when records that are written from then on are read; at ``ready_by`` at the latest."""
        await self.wait_for_starts(max(0.0, ready_by - asyncio.get_running_loop().time()))
        self._is_started = True
        supervisor.ready.set()

    async def wait_for_starts(self, timeout_s: float) -> None:
        """Wait until the start of each assigned partition that begins at the end of its log is known.

        Records that are written from then on are read. The wait ends after ``timeout_s`` and ``start_timeout_ms`` at
        the latest; ``StartOffsetDelayed`` tells the partitions whose leader has not answered.

        A member also commits these starts, if commits are automatic, so that the records are read even if it dies.
        """
        timeout_s, committer = min(timeout_s, self.config.start_timeout_ms / 1000), self.committer
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        waiting = [one for one in self.positions if one.reset_to is not None and one.reset_to.depends_on_end]
        await self._components.offset_resetter.wait_until_found(waiting, timeout_s)
        if committer is None or self.membership is None or not self.config.commits_automatically:
            return
        starts = [one.partition for one in self.positions if one.is_new_start]
        if starts and self._components.policy.reset.depends_on_end and loop.time() < deadline:
            await committer.commit_automatically(starts, timeout_s=deadline - loop.time(), will_retry=True)

    async def _run_background(self, run: Callable[[], Awaitable[None]], stopping: asyncio.Event) -> None:
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - raised by the next polling call
            # The user gets the error at once; finished records are still committed, and the member leaves the group.
            self.fail(as_tailrace_error(error))
            stopping.set()

    async def _end_memberships(self, stopping: asyncio.Event, scope: anyio.CancelScope) -> None:
        """End the membership when ``stopping`` is set, and cancel ``scope`` after ``stop_timeout_ms``."""
        await stopping.wait()
        self.subscription.stop()
        await asyncio.sleep(self.config.stop_timeout_ms / 1000)
        scope.cancel()

    async def _run_memberships(self, stopping: asyncio.Event) -> None:
        """Run one membership of the group after another, as the subscription changes, until the consumer ends."""
        while True:
            await self.subscription.run_membership()
            if self.failure is not None or stopping.is_set():
                break
            await self.subscription.membership_changed.wait()
        await self.subscription.commit_manual_assignment()

    def fail(self, error: TailraceError) -> None:
        """End the consumer with an error, unless it has failed before.

        Emit an event; polling calls raise the error from now on.
        """
        if self.failure is None:
            self.failure = error
            # An error before the start is complete is raised by start().
            self._observer.emit(ConsumerFailed(str(error), error if self._is_started else None))
            self.reader.close(error)
            self.subscription.first_assignment_done.set()

    async def wait_for_first_assignment(self, timeout_ms: int) -> None:
        """Wait for the group's first assignment, which may be empty, and for its start offsets.

        Raises:
            ConsumerStateError: nothing is subscribed or assigned, or the consumer was stopped.
            RequestTimedOutError: there is no assignment within ``timeout_ms``.
            TailraceError: the error that has ended the consumer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                await self.subscription.first_assignment_done.wait()
        except TimeoutError:
            # A reported error, such as a missing permission, explains more than a timeout.
            self.reader.raise_failure()
            raise RequestTimedOutError(
                f"group {self.config.group_id!r} has not completed an assignment within {timeout_ms} ms - check that"
                " its coordinator answers, and that no other member delays the rebalance"
            ) from None
        if self.failure is not None:
            raise self.failure
        if self.reader.is_over():
            self.reader.raise_failure()
        if self.subscription.is_empty:
            raise ConsumerStateError("this consumer reads nothing - subscribe() or assign() first")
        await self.wait_for_starts(max(0.0, deadline - loop.time()))

    def _metadata_changed(self) -> None:
        self.subscription.metadata_changed()

    # ---- state -------------------------------------------------------------------------------------------------

    def health(self) -> ConsumerHealth:
        """Return the consumer's health."""
        membership = self.membership
        age_s = None if membership is None else membership.heartbeat_age_s
        return self._health.health(
            self.failure, len(self.positions), age_s, self.start_delays, is_member=membership is not None
        )

    @property
    def start_delays(self) -> Mapping[TopicPartition, str]:
        """Partitions whose start offset has been unknown for long, with the reason."""
        return self._components.offset_resetter.delays

    def metrics(self) -> dict[MetricName, float]:
        """Return the current value of each metric, and let end offsets be refreshed for the next call."""
        self._components.end_offsets.note_reading()
        return self._metrics.snapshot(self.positions)

    def statistics(self, unfinished: Iterable[AnyRecord] = ()) -> ConsumerStatistics:
        """Return the statistics, and let end offsets be refreshed for the next call.

        Args:
            unfinished: records that the handlers of a sink were called with and have not finished.
        """
        self._components.end_offsets.note_reading()
        reader, buffer, metrics, membership = self.reader, self._components.buffer, self._metrics, self.membership

        def next_timestamp(partition: TopicPartition) -> int | None:
            buffered = buffer.head(partition)
            return None if buffered is None else buffered.next_timestamp

        return ConsumerStatistics(
            client_id=self.config.client_id,
            group_id=self.config.group_id,
            queued_records=reader.queued_records,
            buffered_bytes=buffer.held_bytes,
            reserved_bytes=buffer.reserved_bytes,
            ignored_maps=reader.maps.ignored,
            partitions=partition_statistics(
                self.positions, chain(unfinished, reader.delivery.unacknowledged_records), next_timestamp, now_ms()
            ),
            fetched_records=metrics.fetched_records,
            fetched_bytes=metrics.fetched_bytes,
            fetches=metrics.fetch_durations.durations,
            commits=metrics.commit_durations.durations,
            failed_commits=metrics.failed_commits,
            rebalances=metrics.rebalance_durations.durations,
            heartbeat_age_s=None if membership is None else membership.heartbeat_age_s,
            skipped_batches=0 if reader.unreadable_batches is None else reader.unreadable_batches.skipped,
            decoder=decoder_in_use(),
            checksum=checksum_in_use(),
        )

    def handle_unreadable_batches(self, policy: OnCorruptBatch) -> None:
        """Let a sink's partitions wait at batches that cannot be read, or skip these batches."""
        self.reader.unreadable_batches = UnreadableBatches(policy, self.parts, self._components.buffer)

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Apply changed options."""
        self._components.reconfigure(config)

    @property
    def topology(self) -> ClusterMetadata:
        """Latest cluster metadata."""
        return self._components.cluster.topology

    def refresh_metadata(self) -> None:
        """Request a refresh of the cluster metadata, without waiting for it."""
        self._components.parts.metadata_refresher.ask()


# ---- lifecycle of a Consumer: new, started, stopped. A consumer is started and stopped once --------------------------

_STOPPED = "this consumer was stopped - create a new one"


class UnstartedReader:
    """Reader of a consumer that is not started; every call raises ConsumerStateError."""

    advice = "this consumer is not started - use `async with Consumer(...)`, or await start() first"

    def __init__(self) -> None:
        self.remaining: Iterator[AnyRecord] = iter(())

    async def next_record(self) -> AnyRecord:
        """Raise ConsumerStateError."""
        raise ConsumerStateError(self.advice)


class ConsumerLifecycle:
    """Lifecycle of one consumer.

    Args:
        topics: names of the topics to subscribe to.
        pattern: pattern of topic names, in place of ``topics``.
        cluster: cluster shared with other consumers; None to open a cluster for this consumer only.
        options: the user's options, without those from the environment and without defaults.

    Attributes:
        topics: names of the subscribed topics.
        pattern: pattern of topic names; None if ``topics`` are subscribed.
        optional_topics: subset of ``topics`` that need not exist at the start.
        own_topics: topics to which the group itself publishes records. Without a committed offset, they are read from
            their first record on, whatever ``auto_offset_reset`` is.
        config: current options; None before the start.
        runtime: runtime of the started consumer, also after it was stopped; None before the start.

    Raises:
        ConfigurationError: an option is unknown, mistyped, or contradicts another.
    """

    def __init__(
        self,
        topics: tuple[str, ...],
        pattern: str | re.Pattern[str] | None,
        cluster: SharedCluster | None,
        options: Mapping[str, Any],
    ) -> None:
        self._cluster = cluster
        self._options = dict(options) if cluster is None else {**cluster.options, **options}
        check_names(self._options)
        config = resolve(self._options)
        self.topics, self.pattern = checked_subscription(topics, pattern, config.group_protocol, may_be_none=True)
        self.optional_topics: frozenset[str] = frozenset()
        self.own_topics: Container[str] = frozenset()
        self.config: ConsumerConfig | None = None
        self.runtime: ConsumerRuntime | None = None
        self._is_stopped = False
        self._consumer: object = None
        self._supervisor: Supervisor | None = None

    def __str__(self) -> str:
        state = "stopped" if self._is_stopped else "new" if self.runtime is None else "started"
        if self.runtime is not None and self.runtime.failure is not None:
            state = f"failed: {self.runtime.failure}"
        group = self.config.group_id if self.config is not None else self._options.get("group_id")
        return f"{self._description} group={group} {state}"

    @property
    def _description(self) -> str:
        if self.pattern is not None:
            return f"of /{self.pattern.pattern}/"
        return ", ".join(sorted(self.topics)) or "of nothing"

    @property
    def supervisor(self) -> Supervisor | None:
        """Supervisor of the running consumer; None before the start."""
        return self._supervisor

    @property
    def is_unstopped(self) -> bool:
        """True if the consumer was started and never stopped."""
        return self._supervisor is not None and not self._is_stopped

    def has_stopped(self) -> bool:
        """Return True once ``stop`` was called or the start failed."""
        return self._is_stopped

    @property
    def started(self) -> ConsumerRuntime:
        """Runtime of the started consumer; after ``stop`` was called, only rebalance callbacks get it, for commits.

        Raises:
            ConsumerStateError: the consumer is not started, or was stopped.
        """
        if self.runtime is None:
            raise ConsumerStateError(UnstartedReader.advice)
        if self._is_stopped and not (in_callback(self._consumer) and self._is_running):
            raise ConsumerStateError(_STOPPED)
        if self._supervisor is not None:
            self._supervisor.check_loop("this consumer")
        return self.runtime

    @property
    def _is_running(self) -> bool:
        return self._supervisor is not None and not self._supervisor.is_over

    async def start(self, consumer: object) -> ConsumerRuntime:
        """Start the consumer and return its runtime; ``consumer`` is passed to callbacks.

        Raises:
            ConsumerStateError: the consumer was started or stopped before.
            TailraceError: the start failed; see ``Consumer.start``.
        """
        if self._is_stopped:
            raise ConsumerStateError(_STOPPED)
        if self._supervisor is not None:
            raise ConsumerStateError("this consumer is already started")
        self._consumer = consumer
        config = self.config = resolve(self._options)
        observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        shared = None if self._cluster is None else open_cluster_of(self._cluster)
        runtime = ConsumerRuntime(
            config, self.topics, self.pattern, consumer, observer, self.optional_topics, shared, self.own_topics
        )
        self._supervisor = Supervisor(runtime.run, f"tailrace consumer {self._description}")
        self.runtime = runtime
        try:
            await self._supervisor.start()
        except BaseException:
            self._is_stopped = True
            raise
        return runtime

    async def stop(self, *, commit: bool) -> None:
        """Stop the consumer within ``stop_timeout_ms``; if ``commit`` is False, send no more automatic commits.

        Raises:
            ConsumerStateError: a rebalance callback called ``stop``, which would wait for that callback to return.
        """
        if in_callback(self._consumer):
            raise ConsumerStateError(
                "a rebalance callback cannot await stop(), which waits for the callback - call it in another task"
            )
        if self._supervisor is not None:
            try:
                self._supervisor.check_loop("this consumer")
            except ConsumerStateError:
                if self._is_running:
                    raise
                self._is_stopped = True  # Its loop has ended, and the consumer with it.
                return
        self._is_stopped = True
        if self._supervisor is None or self.config is None or self.runtime is None:
            return
        if not commit and self.runtime.committer is not None:
            self.runtime.committer.end()
        self.runtime.reader.close(ConsumerStateError(_STOPPED))
        self.runtime.subscription.first_assignment_done.set()
        await self._supervisor.stop(self.config.stop_timeout_ms / 1000)


# ---- subscription of a consumer --------------------------------------------------------------------------------------


class SubscriptionState:
    """Current subscription or manual assignment, with its membership and committer.

    Args:
        consumer: the consumer, passed to the user's callbacks.
        topics: topics to subscribe to at the start.
        pattern: pattern of topic names, in place of ``topics``.
        optional_topics: subset of ``topics`` that need not exist at the start.
        on_failure: called with the error that ends the membership.

    Attributes:
        topics: subscribed topics, or topics of the manual assignment; empty with a pattern.
        committer: commits the group's offsets; None without a group.
        membership: current membership of the group; None if there is none.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - a consumer's arguments
        self,
        components: Components,
        consumer: object,
        topics: frozenset[str],
        pattern: TopicPattern | None,
        optional_topics: frozenset[str],
        on_failure: Callable[[TailraceError], None],
    ) -> None:
        self._components, self._cluster, self._consumer = components, components.cluster, consumer
        self.topics, self._pattern, self._optional_topics = topics, pattern, optional_topics
        self._on_failure = on_failure
        self.committer = self._new_committer() if components.config.group_id is not None else None
        self.membership: ConsumerMembership | None = None
        self._standalone: StandaloneAssignment | None = None
        self._is_first = True
        """True before the first membership."""
        self._is_manual = False
        """True if the partitions were assigned by ``assign``."""
        self._manual_assignment = ManualAssignment(
            components.parts,
            components.reader,
            components.offset_queries,
            components.offset_resetter,
            self.committer,
        )
        self.membership_changed = AutoResetEvent()
        """Set when a new membership should run, or the consumer stops."""
        self._membership_ended = asyncio.Event()
        self.first_assignment_done = asyncio.Event()
        """Cleared when a membership is created; set after its first assignment, at its end, and on failure and stop."""
        self.first_assignment_done.set()
        if topics or pattern is not None:
            self._subscribe_to(topics, pattern)

    def _new_committer(self) -> Committer:
        components = self._components
        return Committer(
            components.parts,
            components.reader,
            components.start_positions.read_recreated,
            self._commit_identity,
            self._handle_commit_error,
        )

    def _subscribe_to(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Begin to read topics, as a member of the group or without a group."""
        self.topics, self._pattern = topics, pattern
        components = self._components
        if self.committer is not None:
            self.membership = self._new_membership(self.committer)
        else:
            assert not isinstance(pattern, BrokerPattern), "a broker resolves patterns only for a group"
            self._standalone = StandaloneAssignment(
                components.parts, components.reader, components.start_positions, topics, pattern
            )

    def _new_membership(self, committer: Committer) -> ConsumerMembership:
        components = self._components
        reconciler = AssignmentReconciler(
            components.parts,
            components.reader,
            components.offset_resetter,
            committer,
            self._consumer,
        )
        reconciler.resets_offsets = components.config.reset_offset_on_start and self._is_first
        self._is_first = False
        self.first_assignment_done.clear()
        reconciler.on_taken_over = self.first_assignment_done.set
        return ConsumerMembership(
            components.parts,
            reconciler,
            components.new_member_name(),
            (self.topics, self._pattern),
            self._on_failure,
        )

    # ---- lifecycle ---------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Keep the metadata of the initial topics up to date."""
        self._components.watch(self.topics if self._pattern is None else None)

    async def check_topics_exist(self, timeout_s: float) -> None:
        """Check that the initial topics exist.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        await self._check_topics(self.topics - self._optional_topics, self._pattern, timeout_s)

    async def _check_topics(self, topics: frozenset[str], pattern: TopicPattern | None, timeout_s: float) -> None:
        """Check that topics exist, and report them, or all topics if there is a pattern, to the start policy.

        The policy compares them with later metadata to detect added partitions and recreated topics.
        """
        await self._cluster.retrying(
            partial(check_topics, self._cluster, topics),
            timeout_s=min(timeout_s, TOPIC_GRACE_S),
            what="looking for the topics",
        )
        found = self._cluster.topology.topics
        self._components.policy.note_topics(
            found if pattern is not None else {name: found[name] for name in topics if name in found}
        )

    async def run_membership(self) -> None:
        """Run the current membership until it ends; return at once if there is none."""
        if self.membership is None:
            return
        try:
            await self.membership.run_membership()
        finally:
            self.membership = None
            self._membership_ended.set()
            self.first_assignment_done.set()

    def stop(self) -> None:
        """Stop the membership, and wake the task that waits for ``membership_changed``."""
        if self.membership is not None:
            self.membership.stop()
        self.membership_changed.set()

    async def commit_manual_assignment(self) -> None:
        """Commit the finished records of partitions assigned by ``assign``, if commits are automatic."""
        config = self._components.config
        if self._is_manual and self.committer is not None and config.commits_automatically:
            await self.committer.commit_automatically(timeout_s=config.stop_timeout_ms / 2000, will_retry=False)

    # ---- changes by the user -----------------------------------------------------------------------------------

    async def subscribe(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Replace the subscription by topics, or by the topics that match a pattern.

        Raises:
            ConsumerStateError: partitions are assigned by ``assign``.
            UnknownTopicError: a topic does not exist; the subscription is unchanged.
        """
        if self._is_manual:
            raise ConsumerStateError("partitions are assigned by assign() - unsubscribe() first, then subscribe()")
        await self._watch_topics(topics, pattern)
        self._optional_topics = frozenset()
        # A pattern that the broker resolves is fixed for the lifetime of a membership.
        needs_new_membership = isinstance(pattern, BrokerPattern) or isinstance(self._pattern, BrokerPattern)
        if self.membership is not None and needs_new_membership:
            await self.unsubscribe()
            self._components.watch(None if pattern is not None else topics)
        if self.membership is not None:
            self.topics, self._pattern = topics, pattern
            # Stop delivering other topics now: the rebalance that revokes their partitions may take seconds.
            self._components.reader.subscribe(_predicate_of(topics, pattern))
            self.membership.resubscribe(topics, pattern)
        elif self._standalone is not None:
            assert not isinstance(pattern, BrokerPattern)
            self.topics, self._pattern = topics, pattern
            self._standalone.resubscribe(topics, pattern)
        else:
            self._subscribe_to(topics, pattern)
            self.metadata_changed()
            self.membership_changed.set()

    async def _watch_topics(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Check that topics exist and keep their metadata up to date; on an error, keep watching the former topics."""
        token, wanted = object(), None if pattern is not None else topics
        timeout_s = self._components.config.default_api_timeout_ms / 1000
        self._cluster.watch(token, wanted)
        try:
            # Refresh for a pattern, too, because the metadata may lack topics that match the pattern.
            await self._cluster.retrying(self._cluster.refresh, timeout_s=timeout_s, what="looking for the topics")
            await self._check_topics(topics, pattern, timeout_s)
            self._components.watch(wanted)
        finally:
            self._cluster.unwatch(token)

    async def unsubscribe(self) -> None:
        """Leave the group or drop the assignment; with automatic commits, commit finished records before.

        Raises:
            TailraceError: an error has ended the consumer.
        """
        if self.membership is not None:
            self._membership_ended.clear()
            self.membership.stop()
            await self._membership_ended.wait()
        # ``is_over`` raises the error that has ended the consumer, if there is one.
        if self._components.reader.is_over():
            return
        if self._is_manual:
            await self._manual_assignment.commit_finished()
            self._is_manual = False
        self.topics, self._pattern, self._standalone = frozenset(), None, None
        self._manual_assignment.clear()
        self._components.reader.subscribe(None)
        self._components.watch(())

    async def assign(self, specs: Sequence[PartitionSpec]) -> None:
        """Replace the assignment by these partitions, without a group membership.

        Raises:
            ConsumerStateError: the consumer is subscribed to topics.
            UnknownTopicError: a topic or a partition does not exist; the assignment is unchanged.
            BrokerError: the committed offsets may not be read; the assignment is unchanged.
            BrokerConnectionError: the committed offsets could not be read in time; the assignment is unchanged.
        """
        if self.membership is not None or self._standalone is not None:
            raise ConsumerStateError("this consumer is subscribed to topics - unsubscribe() first, then assign()")
        chosen = await self._manual_assignment.resolve(specs)
        if not chosen and not self._is_manual:
            return
        await self._manual_assignment.commit_finished()
        committed = await self._manual_assignment.committed_starts(chosen)
        self.topics = frozenset(partition.topic for partition in chosen)
        self._components.watch(self.topics)
        self._is_manual = True
        await self._manual_assignment.replace(chosen, committed)

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if nothing is subscribed to or assigned."""
        return self.membership is None and self._standalone is None and not self._is_manual

    @property
    def subscription(self) -> frozenset[str]:
        """Topics of the subscription; empty with a manual assignment.

        With a pattern that the broker resolves, these are the topics of the assigned partitions.
        """
        if self._standalone is not None:
            return self._standalone.topics
        if self.membership is None:
            return frozenset()
        owned = {partition.topic for partition in self._components.positions.partitions}
        return self.membership.topics or frozenset(owned)

    def metadata_changed(self) -> None:
        """Handle new cluster metadata: topics, partitions and leaders may have changed."""
        if self._standalone is not None:
            self._standalone.metadata_changed()
        if self.membership is not None:
            self.membership.metadata_changed()
        self._components.parts.changed()

    def _commit_identity(self) -> Identity | None:
        if self.membership is not None:
            return self.membership.commit_identity()
        # A manual assignment commits without a member id (a "simple" consumer).
        return Identity() if self._is_manual else None

    def _handle_commit_error(self, code: int, identity: Identity) -> bool:
        """Handle the error code of a commit sent as ``identity``; return True if ``identity`` is still current."""
        if self.membership is not None:
            return self.membership.handle_commit_error(code, identity)
        # The identity of a manual assignment never changes. False means that the membership has ended since.
        return self._is_manual


def _predicate_of(topics: frozenset[str], pattern: TopicPattern | None) -> Callable[[str], object]:
    if pattern is None:
        return topics.__contains__
    assert not isinstance(pattern, BrokerPattern), "subscribe() replaces the membership for such a pattern"
    return pattern.fullmatch
