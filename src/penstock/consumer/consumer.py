"""Consumer: what users import, call and read from."""

from __future__ import annotations

import asyncio
import contextlib
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self, cast, overload

from typing_extensions import Unpack

from penstock.config import ConsumerConfig, ConsumerOptions, check_names, resolve
from penstock.consumer.arguments import ToCommit, check_offset, checked_partitions, checked_subscription, with_metadata
from penstock.consumer.engine import Engine
from penstock.consumer.hands import Taker
from penstock.consumer.not_started import NotStarted
from penstock.consumer.offsets import committed_offsets
from penstock.consumer.ownership import in_callback
from penstock.consumer.reader import Reader
from penstock.consumer.supervisor import Supervisor
from penstock.core.offset_map import decode
from penstock.core.positions import Position
from penstock.errors import ConfigurationError, ConsumerStateError, RequestTimedOutError
from penstock.observe.hooks import Hook, Observer
from penstock.records import OffsetAndMetadata, Record, TopicPartition

__all__ = ["Consumer", "ConsumerStatistics", "hand_over", "read_too"]


class ConsumerStatistics(NamedTuple):
    """What a consumer holds right now."""

    queued_records: int
    """Decoded and not handed out; at most ``max_queued_records``."""
    buffered_bytes: int
    """Fetched and not decoded."""
    reserved_bytes: int
    """Kept free for fetches under way; with what is buffered at most ``max_buffered_bytes``."""
    ignored_maps: int
    """Commits found at takeovers with metadata that are not ours, or cannot be read; see ``OffsetMapIgnored``."""


class Consumer:
    """Reads records from Kafka topics, as a member of a group or by itself.

    ``async with Consumer("orders", bootstrap_servers="localhost:9092", group_id="billing") as orders`` starts and
    stops it; ``async for record in orders`` reads. A record is done when the next one is asked for: raising, ``break``,
    cancellation and ``stop()`` leave the one in hand unacknowledged, so it is delivered again (at-least-once). With
    ``ack="manual"`` each is done when ``ack(record)`` says so, in any order and from any task.

    Args:
        topics: names of the topics to read.
        pattern: or a regular expression: all topics whose whole name it matches, those made later too. The broker
            reads it, as RE2, where ``group_protocol`` is "consumer"; elsewhere Python does.
        options: see ``ConsumerOptions``; those not given come from ``PENSTOCK_…`` variables, then from defaults.

    Raises:
        ConfigurationError: an option is unknown, mistyped, or contradicts another.
    """

    def __init__(
        self, *topics: str, pattern: str | re.Pattern[str] | None = None, **options: Unpack[ConsumerOptions]
    ) -> None:
        self._optional: frozenset[str] = frozenset()
        self._options = dict(options)
        check_names(self._options)
        config = resolve(self._options)
        self._topics, self._pattern = checked_subscription(topics, pattern, config.group_protocol)
        self._config: ConsumerConfig | None = None
        self._engine: Engine | None = None
        self._supervisor: Supervisor | None = None
        self._reader: Reader | NotStarted = NotStarted()
        self._is_stopped = False

    def __repr__(self) -> str:
        state = "stopped" if self._is_stopped else "new" if self._engine is None else "started"
        if self._engine is not None and self._engine.failure is not None:
            state = f"failed: {self._engine.failure}"
        group = self._config.group_id if self._config is not None else self._options.get("group_id")
        return f"<Consumer {self._what} group={group} {state}>"

    @property
    def _what(self) -> str:
        return ", ".join(sorted(self._topics)) if self._pattern is None else f"of /{self._pattern.pattern}/"

    def __del__(self) -> None:
        supervisor = getattr(self, "_supervisor", None)
        if supervisor is not None and not self._is_stopped:
            warnings.warn(f"{self!r} was never stopped - use `async with`", ResourceWarning, source=self, stacklevel=1)

    # ---- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reach the cluster, see that the topics exist, and begin to join the group.

        Raises:
            ConfigurationError: an option is missing or wrong.
            ConsumerStateError: it was started or stopped before.
            BrokerConnectionError: no broker answers within ``start_timeout_ms``.
            AuthenticationError: the brokers refuse us.
            UnsupportedVersionError: the brokers are too old.
            UnknownTopicError: a topic does not exist.
        """
        if self._is_stopped:
            raise ConsumerStateError("this consumer was stopped - make a new one")
        if self._supervisor is not None:
            raise ConsumerStateError("this consumer is started already")
        self._config = resolve(self._options)
        observer = Observer(cast("tuple[Hook, ...]", self._config.hooks), client_id=self._config.client_id)
        engine = Engine(self._config, self._topics, self._pattern, self, observer, self._optional)
        self._supervisor = Supervisor(engine.run, f"penstock consumer {self._what}")
        self._engine = engine
        try:
            await self._supervisor.start()
        except BaseException:
            self._is_stopped = True
            raise
        self._reader = engine.reader

    async def stop(self, *, commit: bool = True) -> None:
        """Commit what is done, leave the group, close all connections; within ``stop_timeout_ms``, cluster up or down.

        Args:
            commit: False leaves out the last automatic commit; what was not committed yet is delivered again.

        Raises:
            ConsumerStateError: it is called from a rebalance callback, which has to end first.
        """
        if in_callback.get():
            raise ConsumerStateError("stop() in a rebalance callback would wait for itself - let another task call it")
        self._is_stopped = True
        if self._supervisor is None or self._config is None or self._engine is None:
            return
        reader = self._engine.reader
        if not commit and self._engine.committer is not None:
            self._engine.committer.end()
        reader.close(ConsumerStateError("this consumer was stopped - make a new one"))
        await self._supervisor.stop(self._config.stop_timeout_ms / 1000)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- reading -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        self._check_readable()
        return self

    async def __anext__(self) -> Record:
        reader = self._reader
        for record in reader.slice:
            reader.hand = record
            return record
        try:
            return await reader.next_record()
        except ConsumerStateError:
            if self._is_stopped:
                raise StopAsyncIteration from None
            raise

    @overload
    async def getone(self, *, timeout_ms: None = None) -> Record: ...

    @overload
    async def getone(self, *, timeout_ms: int) -> Record | None: ...

    async def getone(self, *, timeout_ms: int | None = None) -> Record | None:
        """The next record; the one before is done.

        Args:
            timeout_ms: how long to wait; for ever when nothing is said.

        Returns:
            The record, or None when none came in time.

        Raises:
            ConsumerStateError: not started, stopped, or two tasks read at once.
            PenstockError: whatever has happened in the background and ends the reading.
        """
        self._check_readable()
        reader = self._reader
        for record in reader.slice:
            reader.hand = record
            return record
        if timeout_ms is None:
            return await reader.next_record()
        waiting = asyncio.timeout(timeout_ms / 1000)
        try:
            async with waiting:
                return await reader.next_record()
        except TimeoutError:
            if not waiting.expired():
                raise
            return None

    async def getmany(self, *, max_records: int | None = None, timeout_ms: int | None = None) -> list[Record]:
        """At least one record, and at most ``max_records`` of those that are there; the batch before is done.

        Args:
            max_records: ``max_queued_records`` when nothing is said.
            timeout_ms: how long to wait for the first; for ever when nothing is said, 0 takes what is there.

        Returns:
            The records, in order within each partition; an empty list when none came in time.

        Raises:
            ConsumerStateError: not started, stopped, or two tasks read at once.
            PenstockError: whatever has happened in the background and ends the reading.
        """
        self._check_readable()
        count = self._started.config.max_queued_records if max_records is None else max_records
        if count < 1:
            raise ConfigurationError(f"max_records={max_records} will not do: it has to be at least 1")
        waiting = asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000)
        try:
            async with waiting:
                return await self._reader.next_records(count)
        except TimeoutError:
            if not waiting.expired():
                raise
            return []

    def ack(self, record: Record) -> bool:
        """Say that a record in hand is done without asking for the next one.

        In a batch, what came before it in its partition is done too. With ``ack="manual"`` it alone is done, in any
        order: the commit follows the lowest record that is not, and says which behind it are. ``record`` is the object
        that was handed out, and no copy.

        Returns:
            False when the record is not in hand any more: its partition went, or it was done already.

        Raises:
            ConsumerStateError: not started.
        """
        return not self._is_stopped and self._started.reader.acknowledge(record)

    # ---- offsets -----------------------------------------------------------------------------------------------

    async def commit(self, offsets: ToCommit | None = None) -> None:
        """Commit now: what was handed out, including what is in hand; or ``offsets``, each the next one to read.

        Partitions instead of offsets: what was handed out of these alone.

        With ``ack="manual"``, what is acknowledged, up to the lowest record that is not. A text that goes with an
        offset stays as long as that offset does.

        Raises:
            ConsumerStateError: not started, stopped, or without a group.
            ConfigurationError: one of ``offsets`` is none.
            CommitFailedError: the group has gone on without this consumer, or nobody answered in time.
            BrokerError: the broker does not allow it.
            PenstockError: what has ended this consumer; it has nothing to commit any more.
        """
        engine = self._started
        if engine.committer is None:
            raise ConsumerStateError("commit() needs a group_id - there is no group to commit for")
        if engine.failure is not None:
            raise engine.failure
        timeout_s = engine.config.default_api_timeout_ms / 1000
        if isinstance(offsets, Mapping):
            await engine.committer.commit_these(with_metadata(offsets), timeout_s=timeout_s)
            return
        partitions = None if offsets is None else checked_partitions(offsets)
        if engine.config.ack == "auto":
            engine.reader.finish_all() if partitions is None else engine.reader.finish_of(partitions)
        await engine.committer.commit_done(partitions, timeout_s=timeout_s)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, as the broker says; a partition without a commit is absent.

        Raises:
            ConsumerStateError: not started, stopped, or without a group.
            BrokerError: the broker does not allow it.
            BrokerConnectionError: nobody answers in time.
        """
        engine = self._started
        group_id = engine.config.group_id
        if group_id is None:
            raise ConsumerStateError("committed() needs a group_id - there is no group that commits")
        found = await engine.cluster.retrying(
            partial(committed_offsets, engine.cluster, group_id, list(partitions)),
            timeout_s=engine.config.default_api_timeout_ms / 1000,
            what=f"reading the committed offsets of group {group_id!r}",
        )
        return {at: one._replace(metadata=decode(one.metadata, one.offset).user_text) for at, one in found.items()}

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be handed out.

        Raises:
            ConsumerStateError: not started, stopped, or the partition is not assigned.
            RequestTimedOutError: it could not be found out where to begin within ``default_api_timeout_ms``.
        """
        engine = self._started
        engine.reader.sync()
        position = self._assigned(partition)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(engine.config.default_api_timeout_ms / 1000):
                await engine.beginnings.found(position)
        if position.delivered is None:
            raise RequestTimedOutError(f"no position of {partition} yet - its leader does not say where the log begins")
        return position.delivered

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read from ``offset`` on; what was fetched of the partition is dropped.

        Raises:
            ConsumerStateError: not started, stopped, or the partition is not assigned.
            ConfigurationError: it is no offset.
        """
        engine = self._started
        position = self._assigned(partition)
        check_offset(offset)
        engine.reader.drop([partition])
        position.begin(offset)
        engine.positions_changed()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are this consumer's now."""
        return self._started.positions.partitions

    def subscription(self) -> frozenset[str]:
        """The topics it reads; with a pattern, those that match it now."""
        return self._topics if self._pattern is None or self._engine is None else self._engine.subscription

    def highwater(self, partition: TopicPartition) -> int | None:
        """The end of the partition as the last fetch told it; None before the first."""
        position = self._started.positions.get(partition)
        return position.high_watermark if position is not None else None

    # ---- flow --------------------------------------------------------------------------------------------------

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of ``partitions`` (all that are assigned, when none is named) until they are resumed."""
        engine = self._started
        engine.reader.pause(partitions or engine.positions.partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with ``partitions`` (all that are paused, when none is named)."""
        engine = self._started
        for position in engine.positions.of(partitions or engine.positions.partitions):
            position.is_paused = False
        engine.positions_changed()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(position.partition for position in self._started.positions if position.is_paused)

    def statistics(self) -> ConsumerStatistics:
        """What it holds right now."""
        engine = self._started
        reader, buffer = engine.reader, engine.buffer
        return ConsumerStatistics(reader.queued_records, buffer.held_bytes, buffer.reserved_bytes, reader.maps.ignored)

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> Engine:
        if self._engine is None:
            raise ConsumerStateError(NotStarted.advice)
        if self._is_stopped:
            raise ConsumerStateError("this consumer was stopped - make a new one")
        return self._engine

    def _assigned(self, partition: TopicPartition) -> Position:
        position = self._started.positions.get(partition)
        if position is None:
            owned = ", ".join(sorted(map(str, self._started.positions.partitions))) or "none"
            raise ConsumerStateError(f"{partition} is not assigned to this consumer (assigned now: {owned})")
        return position

    def _check_readable(self) -> None:
        _ = self._started
        if in_callback.get():
            raise ConsumerStateError("a rebalance callback cannot read: the records come when it is done")


def read_too(consumer: Consumer, topics: Iterable[str]) -> None:
    """Have a consumer that names its topics read these too, from when they are there on; before it is started."""
    if consumer._pattern is None:  # noqa: SLF001 - this room's own
        consumer._optional = frozenset(topics) - consumer._topics  # noqa: SLF001
        consumer._topics |= consumer._optional  # noqa: SLF001


def hand_over(consumer: Consumer, taker: Taker) -> tuple[Reader, int]:
    """Have ``taker`` read from a started consumer instead of its user: the reader, and how much may be queued."""
    engine = consumer._started  # noqa: SLF001 - this room's own
    if engine.config.ack != "auto":
        raise ConfigurationError("ack='manual' is for Consumer - a handler's record is done when the handler returns")
    engine.reader.hand_over_to(taker)
    return engine.reader, engine.config.max_queued_records
