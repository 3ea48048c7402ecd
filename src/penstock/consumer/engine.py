"""All of one consumer's rooms, put together and kept running between ``start`` and ``stop``."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Container, Sequence
from functools import partial

import anyio

from penstock.config import ConsumerConfig
from penstock.consumer.asking import TOPIC_GRACE_S, Asking, check_topics
from penstock.consumer.assigning import Assigning
from penstock.consumer.beginnings import Beginnings
from penstock.consumer.chunk import Chunk
from penstock.consumer.committer import Committer
from penstock.consumer.coordinator import Coordinator
from penstock.consumer.fetcher import Fetcher, name_of_lane
from penstock.consumer.gaps import Gaps
from penstock.consumer.map_watch import MapWatch
from penstock.consumer.measuring import Measuring
from penstock.consumer.overview import ConsumerHealth, ConsumerStatistics
from penstock.consumer.ownership import Ownership
from penstock.consumer.patterns import BrokerPattern, TopicPattern
from penstock.consumer.picture import Picture
from penstock.consumer.policy import Policy
from penstock.consumer.pulse import Pulse
from penstock.consumer.reader import Reader
from penstock.consumer.seeking import Seeking
from penstock.consumer.solo import Solo
from penstock.consumer.supervisor import Supervisor
from penstock.consumer.times import now_ms, start_by_policy
from penstock.consumer.wake import Wake
from penstock.core.buffer import Buffer
from penstock.core.commits import Commits
from penstock.core.membership import Identity
from penstock.core.metrics import MetricName
from penstock.core.placing import Wish
from penstock.core.positions import Positions
from penstock.errors import ConsumerStateError, PenstockError
from penstock.net.cluster import Cluster
from penstock.observe.events import ConsumerFailed, ConsumerStarted, ConsumerStopped
from penstock.observe.hooks import Observer

__all__ = ["Engine"]

_numbers = itertools.count(1)


class Engine:
    """What a Consumer starts and stops."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a Consumer knows
        self,
        config: ConsumerConfig,
        topics: frozenset[str],
        pattern: TopicPattern | None,
        consumer: object,
        observer: Observer,
        optional: frozenset[str] = frozenset(),
        shared: Cluster | None = None,
        whole: Container[str] = frozenset(),
    ) -> None:
        self.config, self.topics, self._pattern = config, topics, pattern
        self._pulse = Pulse()
        clock = asyncio.get_running_loop().time
        self._measuring = Measuring(config.metric_group_prefix, config.client_id, config.group_id, clock)
        self._observer = observer = observer.with_hooks(self._pulse, self._measuring)
        self._optional = optional
        """Topics that need not be there yet."""
        self._consumer = consumer
        self.policy = Policy.of_option(config.begins_at, whole)
        self.failure: PenstockError | None = None
        self.cluster = shared or Cluster(config, observer)
        self._is_shared = shared is not None
        self._name = f"{config.client_id}-{next(_numbers)}"
        """Of its own in this process."""
        self._members: list[str] = []
        self.positions = Positions()
        self.buffer: Buffer[Chunk] = Buffer(config.max_buffered_bytes)
        self.picture = Picture(self.cluster, self._picture_changed)
        self.reader = Reader(
            self.positions,
            self.buffer,
            MapWatch(observer, max_bytes=config.offset_metadata_max_bytes, writer=config.client_id),
            is_acked_by_hand=config.ack == "manual",
            max_queued_records=config.max_queued_records,
            on_room=self._room_made,
            gaps=None if config.allow_offset_gaps else Gaps(),
        )
        self.beginnings = Beginnings(
            config, self.cluster, self.positions, self.reader, self.picture, observer, self.positions_changed
        )
        self.fetcher = Fetcher(
            config,
            self.cluster,
            self.positions,
            self.buffer,
            self.reader,
            self.picture,
            observer,
            self.policy,
            self.beginnings.wake,
            self._name if self._is_shared else "",
        )
        self.committer: Committer | None = None
        self.coordinator: Coordinator | None = None
        self._solo: Solo | None = None
        self.is_assigning = False
        """Whether the partitions are of the user's own choice."""
        self._news = Wake()
        self._left = asyncio.Event()
        self.asking = Asking(
            self.cluster,
            config.default_api_timeout_ms / 1000,
            lambda: int(self.config.isolation_level == "read_committed"),
            now_ms,
        )
        self.seeking = Seeking(
            self.positions,
            self.reader,
            self.beginnings,
            self.positions_changed,
            config.default_api_timeout_ms / 1000,
        )
        if config.group_id is not None:
            self._begin_commits(config)
        self.assigning = Assigning(
            config,
            self.cluster,
            self.positions,
            self.reader,
            self.asking,
            self.beginnings,
            self.policy,
            self.committer,
            self.positions_changed,
        )
        if topics or pattern is not None:
            self._follow(topics, pattern)

    def _follow(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Read topics, as a member of the group or by ourselves."""
        self.topics, self._pattern = topics, pattern
        if self.config.group_id is not None:
            self._join(self.config)
        else:
            assert not isinstance(pattern, BrokerPattern), "there is no broker that deals without a group"
            self._solo = Solo(
                self.policy, self.cluster, self.positions, self.reader, topics, pattern, self.positions_changed
            )

    def _begin_commits(self, config: ConsumerConfig) -> None:
        self.committer = Committer(
            config,
            self.cluster,
            Commits(self.positions, max_bytes=config.offset_metadata_max_bytes, writer=config.client_id),
            self.reader,
            self._observer,
            self._committing_as,
            self._commit_refused,
        )

    def _join(self, config: ConsumerConfig) -> None:
        assert self.committer is not None
        ownership = Ownership(
            config,
            self.cluster,
            self.positions,
            self.reader,
            self.committer,
            self._observer,
            self.policy,
            self.beginnings,
            self._consumer,
            self.positions_changed,
        )
        member = f"{config.client_id}-{next(_numbers)}"
        self._members.append(member)
        self.coordinator = Coordinator(
            config, self.cluster, ownership, self.reader, self._observer, member, self.topics, self._pattern, self.fail
        )

    # ---- life --------------------------------------------------------------------------------------------------

    async def run(self, supervisor: Supervisor) -> None:
        """Start, run until asked to stop or until that is impossible, then give everything back."""
        try:
            await self._open()
            self._observer.tell(
                ConsumerStarted(self.config.client_id, self.config.group_id, tuple(sorted(self.topics)))
            )
            supervisor.ready.set()
            await self._run_until(supervisor.stopping)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not look like a clean end
            self.fail(_told(error))
        finally:
            self._let_go()
            await asyncio.sleep(0)  # the sockets are closed in the loop's next turn
            self.reader.close(self.failure or ConsumerStateError("this consumer was stopped - make a new one"))
            self._observer.tell(ConsumerStopped(self.config.client_id, self.config.group_id))
        if self.failure is not None:
            raise self.failure

    async def _open(self) -> None:
        timeout_s = self.config.start_timeout_ms / 1000
        self.cluster.watch(self, self.topics if self._pattern is None else None)
        reach = self.cluster.refresh if self._is_shared else self.cluster.bootstrap
        await self.cluster.retrying(reach, timeout_s=timeout_s, what="reaching the cluster")
        await self._see_topics(self.topics - self._optional, timeout_s)

    def _let_go(self) -> None:
        """Close all connections; of a cluster that is shared those that are this consumer's alone."""
        if not self._is_shared:
            self.cluster.close()
            return
        self.cluster.unwatch(self)
        for member in self._members:
            self.cluster.unwatch((member, "group"))
        for name in (*self._members, *(name_of_lane(self._name, n) for n in range(self.config.num_fetchers))):
            self.cluster.forget_member(name)

    async def _see_topics(self, topics: frozenset[str], timeout_s: float) -> None:
        """See that topics exist, and remember how large they are."""
        await self.cluster.retrying(
            partial(check_topics, self.cluster, topics),
            timeout_s=min(timeout_s, TOPIC_GRACE_S),
            what="looking for the topics",
        )
        self.policy.saw({name: len(topic.partitions) for name, topic in self.cluster.topology.topics.items()})

    async def _run_until(self, stopping: asyncio.Event) -> None:
        self._picture_changed()
        beside = [self.picture.run_refreshes, self.fetcher.run_fetches, self.beginnings.run_resets]
        if self.committer is not None:
            beside.append(self.committer.run_commits)
        async with anyio.create_task_group() as tasks:
            for run in beside:
                tasks.start_soon(self._run_beside, run, stopping)
            tasks.start_soon(self._leave_when, stopping, tasks.cancel_scope)
            await self._be_whatever_is_asked(stopping)
            tasks.cancel_scope.cancel()

    async def _run_beside(self, run: Callable[[], Awaitable[None]], stopping: asyncio.Event) -> None:
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - told to whoever reads
            # The user hears of it at once; what is done is committed all the same, and the group need not miss us.
            self.fail(_told(error))
            stopping.set()

    async def _leave_when(self, stopping: asyncio.Event, everything: anyio.CancelScope) -> None:
        await stopping.wait()
        if self.coordinator is not None:
            self.coordinator.stop()
        self._news.set()
        await asyncio.sleep(self.config.stop_timeout_ms / 1000)
        everything.cancel()

    async def _be_whatever_is_asked(self, stopping: asyncio.Event) -> None:
        """Be a member of the group whenever there is one to be a member of; gives everything back in the end."""
        while True:
            if self.coordinator is not None:
                try:
                    await self.coordinator.run_membership()
                finally:
                    self.coordinator = None
                    self._left.set()
            if self.failure is not None or stopping.is_set():
                break
            await self._news.wait()
        if self.is_assigning and self.committer is not None and self.config.commits_automatically:
            await self.committer.commit_unasked(timeout_s=self.config.stop_timeout_ms / 2000, will_retry=False)

    # ---- what is read, changed by the user ---------------------------------------------------------------------

    async def subscribe(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Read these topics, or what matches the pattern, in place of what was read before.

        Raises:
            ConsumerStateError: the partitions are of the user's own choice.
            UnknownTopicError: a topic does not exist; nothing has changed then.
        """
        if self.is_assigning:
            raise ConsumerStateError("the partitions are assigned by hand - unsubscribe() first, then subscribe()")
        token = object()
        self.cluster.watch(token, None if pattern is not None else topics)
        try:
            # Also for a pattern: what it matches is not in the picture before.
            await self.cluster.retrying(
                self.cluster.refresh, timeout_s=self.config.default_api_timeout_ms / 1000, what="looking for the topics"
            )
            await self._see_topics(topics, self.config.default_api_timeout_ms / 1000)
            self.cluster.watch(self, None if pattern is not None else topics)
        finally:
            self.cluster.unwatch(token)
        self._optional = frozenset()
        is_other_kind = isinstance(pattern, BrokerPattern) or isinstance(self._pattern, BrokerPattern)
        if self.coordinator is not None and is_other_kind:
            await self.unsubscribe()
        if self.coordinator is not None:
            self.topics, self._pattern = topics, pattern
            self.coordinator.resubscribe(topics, pattern)
        elif self._solo is not None:
            assert not isinstance(pattern, BrokerPattern)
            self.topics, self._pattern = topics, pattern
            self._solo.resubscribe(topics, pattern)
        else:
            self._follow(topics, pattern)
            self._picture_changed()
            self._news.set()

    async def unsubscribe(self) -> None:
        """Read nothing: leave the group, or let go what was assigned; what is done is committed.

        Raises:
            PenstockError: what has ended the consumer, before or meanwhile.
        """
        if self.coordinator is not None:
            self._left.clear()
            self.coordinator.stop()
            await self._left.wait()
        if self.failure is not None:
            raise self.failure
        if self.is_assigning:
            await self.assigning.prepare({})
            self.is_assigning = False
        self.topics, self._pattern, self._solo = frozenset(), None, None
        self.assigning.clear()
        self.cluster.watch(self, ())

    async def assign(self, wishes: Sequence[Wish]) -> None:
        """Read these partitions, and nothing else, without being a member of anything.

        Raises:
            ConsumerStateError: topics are subscribed to.
            UnknownTopicError: a topic or a partition does not exist; nothing has changed then.
            BrokerError: the committed offsets may not be read; nothing has changed then.
            BrokerConnectionError: nobody says in time what is committed; nothing has changed then.
        """
        if self.coordinator is not None or self._solo is not None:
            raise ConsumerStateError("this consumer subscribes to topics - unsubscribe() first, then assign()")
        chosen = await self.assigning.find(wishes)
        if not chosen and not self.is_assigning:
            return
        committed = await self.assigning.prepare(chosen)
        self.topics = frozenset(partition.topic for partition in chosen)
        self.cluster.watch(self, self.topics)
        self.is_assigning = True
        await self.assigning.replace(chosen, committed)

    def fail(self, error: PenstockError) -> None:
        """The consumer cannot go on; the next call raises ``error``."""
        if self.failure is None:
            self.failure = error
            self._observer.tell(ConsumerFailed(str(error)))
            self.reader.close(error)

    @property
    def reads_nothing(self) -> bool:
        """Whether nobody has said what to read."""
        return self.coordinator is None and self._solo is None and not self.is_assigning

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are read; with a pattern, those that match it and are ours to read."""
        if self._solo is not None:
            return self._solo.topics
        if self.coordinator is None:
            return frozenset()
        owned = {partition.topic for partition in self.positions.partitions}
        return self.coordinator.topics or frozenset(owned)

    # ---- for those who look ------------------------------------------------------------------------------------

    def health(self) -> ConsumerHealth:
        """How the consumer is."""
        coordinator = self.coordinator
        age_s = None if coordinator is None else coordinator.heartbeat_age_s
        return self._pulse.health(self.failure, len(self.positions), age_s, is_member=coordinator is not None)

    def metrics(self) -> dict[MetricName, float]:
        """What was measured."""
        self.reader.sync()
        return self._measuring.snapshot(self.positions)

    def statistics(self) -> ConsumerStatistics:
        """What is held."""
        reader, buffer = self.reader, self.buffer
        return ConsumerStatistics(reader.queued_records, buffer.held_bytes, buffer.reserved_bytes, reader.maps.ignored)

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Take other options from now on."""
        self.config = config
        self.policy.reset = start_by_policy(config.begins_at)
        self.buffer.max_bytes = config.max_buffered_bytes
        self.reader.max_queued_records = config.max_queued_records
        self.fetcher.reconfigure(config)
        self.beginnings.reconfigure(config)
        self.positions_changed()

    # ---- who has to know what ----------------------------------------------------------------------------------

    def positions_changed(self) -> None:
        """A partition came, went, or has another position."""
        self.fetcher.wake()
        self.beginnings.wake()
        self.reader.look_again()

    def _room_made(self) -> None:
        self.fetcher.wake()

    def _picture_changed(self) -> None:
        if self._solo is not None:
            self._solo.picture_changed()
        if self.coordinator is not None:
            self.coordinator.picture_changed()
        self.fetcher.wake()
        self.beginnings.wake()

    def _committing_as(self) -> Identity | None:
        if self.coordinator is not None:
            return self.coordinator.committing_as()
        # Whoever has a group for nothing but its offsets commits as nobody in particular.
        return Identity() if self.is_assigning else None

    def _commit_refused(self, code: int, identity: Identity) -> bool:
        if self.coordinator is not None:
            return self.coordinator.refused(code, identity)
        return self.is_assigning


def _told(error: BaseException) -> PenstockError:
    """The error to tell: the first of several that came together."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PenstockError):
        return error
    defect = PenstockError(f"a defect in penstock: {type(error).__name__}: {error} - please report it")
    defect.__cause__ = error
    return defect
