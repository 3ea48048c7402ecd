"""Runtime of a started consumer: its parts, and the tasks in which they run until it is stopped or fails.

If an error ends a consumer, polling calls raise the error, and finished records are committed if possible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain
from typing import cast

import anyio

from tailrace.config import ConsumerConfig
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.fetch.fetcher import EndOffsetRefresher, Fetcher, connection_name
from tailrace.consumer.group.membership import ConsumerMembership
from tailrace.consumer.monitoring import (
    ConsumerHealth,
    ConsumerMetrics,
    HealthTracker,
    checksum_in_use,
    decoder_in_use,
    partition_statistics,
)
from tailrace.consumer.offsets.queries import OffsetQueries
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.seek import Seek
from tailrace.consumer.positions.start_positions import (
    OffsetResetter,
    StartPolicy,
    StartPositions,
    now_ms,
    start_by_policy,
)
from tailrace.consumer.subscription import SubscribedTopics, Subscription
from tailrace.consumer.supervisor import Supervisor, as_tailrace_error
from tailrace.core.metrics import MetricName
from tailrace.errors import ConsumerStateError, RequestTimedOutError, TailraceError
from tailrace.net.cluster import Cluster
from tailrace.observe.events import ConsumerFailed, ConsumerStarted, ConsumerStopped
from tailrace.observe.hooks import Hook, Observer
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.protocol.handshake import CONSUMER_PROTOCOL
from tailrace.records import AnyRecord, TopicPartition

__all__ = ["STOPPED", "ConsumerRuntime"]

STOPPED = "this consumer was stopped - create a new one"


class ConsumerRuntime:
    """Parts of a started consumer, which run until it is stopped or fails.

    Args:
        config: options at the start.
        consumer: the consumer, passed to the user's callbacks.
        topics: topics to subscribe to.
        shared: cluster shared with other consumers; None to open a cluster for this consumer only.

    Attributes:
        parts: options, cluster and partitions, which all parts share.
        reader: delivers records.
        subscription: subscription or manual assignment.
        committer: commits the group's offsets; None without a group.
        failure: error that has ended the consumer; None without an error.
    """

    def __init__(
        self, config: ConsumerConfig, consumer: object, topics: SubscribedTopics, shared: Cluster | None = None
    ) -> None:
        self._health = HealthTracker()
        self._metrics = ConsumerMetrics(
            config.metric_group_prefix, config.client_id, config.group_id, asyncio.get_running_loop().time
        )
        observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        observer = observer.with_hooks(self._health, self._metrics)
        self.failure: TailraceError | None = None
        self._is_started, self._is_shared = False, shared is not None
        self.parts = parts = ConsumerParts(
            config, observer, shared or Cluster(config, observer), self._metadata_changed
        )
        self.partitions = parts.partitions
        parts.partitions.space.max_bytes = config.max_buffered_bytes
        self.reader = Reader(parts)
        self.start_positions = StartPositions(
            parts, self.reader, StartPolicy(start_by_policy(config.begins_at), topics.own)
        )
        self._offset_resetter = OffsetResetter(parts, self.start_positions)
        self._name = parts.new_name()
        """Name of this consumer's fetch connections on a shared cluster."""
        self._fetcher = Fetcher(parts, self.reader, self.start_positions, self._name if self._is_shared else "")
        self._end_offsets = EndOffsetRefresher(parts, self._fetcher.in_flight)
        self.offset_queries = OffsetQueries(parts)
        self.seek = Seek(parts, self._offset_resetter)
        self.subscription = Subscription(parts, self._offset_resetter, consumer, topics, self.fail)
        self.committer = self.subscription.committer

    @property
    def config(self) -> ConsumerConfig:
        return self.parts.config

    @property
    def membership(self) -> ConsumerMembership | None:
        """Current membership of the group; None if there is none."""
        return self.subscription.membership

    def _metadata_changed(self) -> None:
        self.subscription.metadata_changed()

    def reconfigure(self, config: ConsumerConfig) -> None:
        self.parts.config = config
        self.start_positions.policy.reset = start_by_policy(config.begins_at)
        self.partitions.space.max_bytes = config.max_buffered_bytes
        self.parts.changed()

    # ---- lifecycle ---------------------------------------------------------------------------------------------

    async def run(self, supervisor: Supervisor) -> None:
        """Start the consumer, run until ``supervisor.stopping`` is set or an error occurs, and close it."""
        config, observer, loop = self.config, self.parts.observer, asyncio.get_running_loop()
        deadline = loop.time() + config.start_timeout_ms / 1000
        try:
            await self._connect()
            observer.emit(ConsumerStarted(config.client_id, config.group_id, tuple(sorted(self.subscription.topics))))
            self.subscription.metadata_changed()
            async with anyio.create_task_group() as tasks:
                for run in (
                    self.parts.metadata_refresher.run_refreshes,
                    self._fetcher.run_fetches,
                    self._offset_resetter.run_resets,
                    self._end_offsets.run_refreshes,
                    *([] if self.committer is None else [self.committer.run_commits]),
                ):
                    tasks.start_soon(self._run_background, run, supervisor.stopping)
                tasks.start_soon(self._end_memberships, supervisor.stopping, tasks.cancel_scope)
                tasks.start_soon(self._report_ready, supervisor, deadline)
                await self._run_memberships(supervisor.stopping)
                tasks.cancel_scope.cancel()
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a defect of tailrace must not look like a clean end
            self.fail(as_tailrace_error(error))
        finally:
            self._close_connections()
            await asyncio.sleep(0)  # asyncio closes the sockets in the next iteration of the event loop
            self.reader.close(self.failure or ConsumerStateError(STOPPED))
            observer.emit(ConsumerStopped(config.client_id, config.group_id))
        if self.failure is not None:
            raise self.failure

    async def _connect(self) -> None:
        cluster, timeout_s = self.parts.cluster, self.config.start_timeout_ms / 1000
        cluster.watch(self.parts, self.subscription.watched_topics)
        if self._is_shared:
            await cluster.retrying(cluster.refresh, timeout_s=timeout_s, what="refreshing metadata")
        else:
            await cluster.reach(timeout_s)
        if self.config.group_protocol == "consumer":
            await cluster.check(CONSUMER_PROTOCOL)
        await self.subscription.check_topics_exist(timeout_s)

    def _close_connections(self) -> None:
        """Close all connections; on a shared cluster, close only the connections that belong to this consumer."""
        cluster = self.parts.cluster
        if not self._is_shared:
            cluster.close()
            return
        cluster.unwatch(self.parts)
        for number in range(self.config.num_fetchers):
            for is_for_added in (False, True):
                cluster.close_owned(connection_name(self._name, number, is_for_added=is_for_added))
        for member in self.parts.names:
            cluster.unwatch((member, "group"))
            cluster.close_owned(member)

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
        await self.subscription.commit_manual_assignment(self.config.stop_timeout_ms / 2000)

    def fail(self, error: TailraceError) -> None:
        """End the consumer with an error, unless it has failed before.

        Emit an event; polling calls raise the error from now on.
        """
        if self.failure is None:
            self.failure = error
            # An error before the start is complete is raised by start().
            self.parts.observer.emit(ConsumerFailed(str(error), error if self._is_started else None))
            self.reader.close(error)
            self.subscription.first_assignment_done.set()

    # ---- start offsets -----------------------------------------------------------------------------------------

    async def _report_ready(self, supervisor: Supervisor, ready_by: float) -> None:
        """Let ``start`` return when records that are written from then on are read; at ``ready_by`` at the latest."""
        await self.wait_for_starts(max(0.0, ready_by - asyncio.get_running_loop().time()))
        self._is_started = True
        supervisor.ready.set()

    async def wait_for_starts(self, timeout_s: float | None = None) -> None:
        """Wait until the start of each assigned partition that begins at the end of its log is known.

        Records that are written from then on are read. The wait ends after ``timeout_s`` (``default_api_timeout_ms`` by
        default) and ``start_timeout_ms`` at the latest; ``StartOffsetDelayed`` tells the partitions whose leader has
        not answered.

        A member also commits these starts, if commits are automatic, so that the records are read even if it dies.
        """
        if timeout_s is None:
            timeout_s = self.parts.default_timeout_s
        timeout_s, committer = min(timeout_s, self.config.start_timeout_ms / 1000), self.committer
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        waiting = [one for one in self.partitions if one.reset_to is not None and one.reset_to.depends_on_end]
        await self._offset_resetter.wait_until_found(waiting, timeout_s)
        if committer is None or self.membership is None or not self.config.commits_automatically:
            return
        starts = [one.topic_partition for one in self.partitions if one.is_new_start]
        if starts and self.start_positions.policy.reset.depends_on_end and loop.time() < deadline:
            await committer.commit_automatically(starts, timeout_s=deadline - loop.time(), will_retry=True)

    async def wait_for_first_assignment(self, timeout_ms: int) -> None:
        """Wait for the group's first assignment, which may be empty, and for its start offsets."""
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

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def start_delays(self) -> Mapping[TopicPartition, str]:
        """Partitions whose start offset has been unknown for long, with the reason."""
        return self._offset_resetter.delays

    def health(self) -> ConsumerHealth:
        membership = self.membership
        age_s = None if membership is None else membership.heartbeat_age_s
        return self._health.health(
            self.failure, len(self.partitions), age_s, self.start_delays, is_member=membership is not None
        )

    def metrics(self) -> dict[MetricName, float]:
        """Return the current value of each metric, and let end offsets be refreshed for the next call."""
        self._end_offsets.note_reading()
        return self._metrics.snapshot(self.partitions)

    def statistics(self, unfinished: Iterable[AnyRecord] = ()) -> ConsumerStatistics:
        """Return the statistics, and let end offsets be refreshed for the next call.

        Args:
            unfinished: records that the handlers of a sink were called with and have not finished.
        """
        self._end_offsets.note_reading()
        reader, space, metrics, membership = self.reader, self.partitions.space, self._metrics, self.membership

        def next_timestamp(topic_partition: TopicPartition) -> int | None:
            partition = self.partitions.get(topic_partition)
            return partition.batches[0].next_timestamp if partition is not None and partition.batches else None

        return ConsumerStatistics(
            client_id=self.config.client_id,
            group_id=self.config.group_id,
            queued_records=reader.queued_records,
            buffered_bytes=space.held_bytes,
            reserved_bytes=space.reserved_bytes,
            ignored_maps=reader.maps.ignored,
            partitions=partition_statistics(
                self.partitions, chain(unfinished, reader.delivery.unacknowledged_records), next_timestamp, now_ms()
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
