"""Start, run and end of a consumer.

If an error ends a consumer, polling calls raise the error, and finished records are committed if possible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from itertools import chain

import anyio

from tailrace.config import ConsumerConfig
from tailrace.consumer.components import Components
from tailrace.consumer.delivery.unreadable_batches import OnCorruptBatch, UnreadableBatches
from tailrace.consumer.group.consumer_membership import ConsumerMembership
from tailrace.consumer.monitoring.health import HealthTracker
from tailrace.consumer.monitoring.implementations import checksum_in_use, decoder_in_use
from tailrace.consumer.monitoring.metrics import ConsumerMetrics
from tailrace.consumer.monitoring.partitions import partition_statistics
from tailrace.consumer.monitoring.status import ConsumerHealth
from tailrace.consumer.offsets.committer import Committer
from tailrace.consumer.positions.start_points import now_ms
from tailrace.consumer.subscription_state import SubscriptionState
from tailrace.consumer.supervisor import Supervisor, as_tailrace_error
from tailrace.consumer.topic_patterns import TopicPattern
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.core.metrics import MetricName
from tailrace.errors import ConsumerStateError, RequestTimedOutError, TailraceError
from tailrace.net.cluster import Cluster
from tailrace.observe.events import ConsumerFailed, ConsumerStarted, ConsumerStopped
from tailrace.observe.hooks import Observer
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.records import AnyRecord, TopicPartition

__all__ = ["ConsumerRuntime"]


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
        self.start_positions, self.offset_queries, self.seek, self.positions_changed = (
            components.start_positions,
            components.offset_queries,
            components.seek,
            components.positions_changed,
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
            self.reader.close(self.failure or ConsumerStateError("this consumer was stopped - create a new one"))
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
            components.metadata_refresher.run_refreshes,
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
        components = self._components
        self.reader.unreadable_batches = UnreadableBatches(
            policy,
            self.positions,
            components.buffer,
            self._observer,
            self.config.group_id,
            components.positions_changed,
        )

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Apply changed options."""
        self._components.reconfigure(config)

    @property
    def topology(self) -> ClusterMetadata:
        """Latest cluster metadata."""
        return self._components.cluster.topology

    def refresh_metadata(self) -> None:
        """Request a refresh of the cluster metadata, without waiting for it."""
        self._components.metadata_refresher.ask()
