"""Consumer: what users import, call and read from."""

from __future__ import annotations

import re
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Self, overload

from typing_extensions import Unpack

from tailrace.config import ConsumerOptions, changed
from tailrace.consumer.arguments import (
    ToCommit,
    checked_count,
    checked_partitions,
    checked_subscription,
    default_start,
    with_metadata,
)
from tailrace.consumer.delivery.batches import Batches
from tailrace.consumer.delivery.poll_timer import or_stop, within, within_timeout
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.delivery.streams import RecordStream, Streams
from tailrace.consumer.group.reconciler import in_callback
from tailrace.consumer.lifecycle import ConsumerLifecycle, UnstartedReader
from tailrace.consumer.monitoring.status import (
    ConsumerHealth,
    ConsumerOffsets,
    ConsumerStatistics,
    Kind,
    Lag,
    offsets_of,
    one_kind,
)
from tailrace.consumer.positions.start_points import Time, start_at_time, start_of
from tailrace.consumer.runtime import ConsumerRuntime
from tailrace.consumer.shared_cluster import SharedCluster
from tailrace.core.delivery.polled_records import PolledRecords
from tailrace.core.metrics import MetricName
from tailrace.core.positions.partition_spec import partition_specs
from tailrace.core.positions.seek import SeekFrom
from tailrace.errors import ConfigurationError, ConsumerStateError
from tailrace.records import OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition

__all__ = ["Consumer"]


class Consumer:
    """Reads records from Kafka topics, as a member of a group or by itself.

    ``async with Consumer("orders", bootstrap_servers="localhost:9092", group_id="billing") as orders`` starts and
    stops it; ``async for record in orders`` reads. A record is done when the next one is asked for: raising, ``break``,
    cancellation and ``stop()`` leave the one in hand unacknowledged, so it is delivered again (at-least-once). With
    ``ack="manual"`` each is done when ``ack(record)`` says so, in any order and from any task.

    Args:
        topics: names of the topics to read; without any, ``subscribe()`` or ``assign()`` say later what to read.
        pattern: or a regular expression: all topics whose whole name it matches, those made later too. The broker
            reads it, as RE2, where ``group_protocol`` is "consumer"; elsewhere Python does.
        cluster: one that several consumers share, in place of a cluster of its own.
        options: See below; those not given come from ``TAILRACE_...`` variables, then from their defaults.

    Options, by default from ``TAILRACE_...`` variables; see ``tailrace.ConsumerOptions`` and docs/options.md:
        bootstrap_servers=(): Addresses of brokers for the first connection, as host:port.
        client_id="tailrace": Name of this client in the brokers' logs, metrics and quotas.
        client_rack="": Rack of this client; records are fetched from the nearest replica (KIP-392).
        metadata_max_age_ms=300_000: Maximum age in milliseconds of cluster metadata before it is refreshed.
        connections_max_idle_ms=540_000: Time in milliseconds after which an unused connection is replaced by a new one.
        local_addr=None: Local address and port of connections; port 0 for any.
        receive_buffer_bytes=None: Size in bytes of the sockets' receive buffers; None for the system's default.
        security_protocol="PLAINTEXT": Protocol used to talk to the brokers.
        sasl_mechanism="PLAIN": Mechanism of SASL authentication.
        sasl_plain_username=None: User name for PLAIN and SCRAM.
        sasl_plain_password=None: Password for PLAIN and SCRAM.
        sasl_oauth_token_provider=None: Async function that returns a token, for OAUTHBEARER.
        sasl_kerberos_service_name="kafka": Service name of the brokers, for GSSAPI.
        sasl_kerberos_domain_name=None: Domain name of the brokers, for GSSAPI; None for each broker's host.
        ssl_cafile=None: Path of the CA certificates to trust, in PEM; None for the system's.
        ssl_certfile=None: Path of the client's certificate chain, in PEM.
        ssl_keyfile=None: Path of the client's private key, in PEM.
        ssl_password=None: Password of the private key.
        ssl_check_hostname=True: Check that the broker's certificate names its host.
        ssl_context=None: TLS context to use instead of the ssl_* files.
        group_id=None: Consumer group to join; None reads without a group.
        group_instance_id=None: Name of a static member, kept over restarts (KIP-345).
        group_protocol="classic": Group protocol: "classic", or "consumer" (KIP-848, Kafka 4.0 and newer).
        partition_assignment_strategy=("cooperative-sticky",): Assignors of the group, most preferred first.
        group_remote_assignor=None: Assignor of the broker, such as "uniform" or "range"; None for its default.
        max_poll_interval_ms=300_000: Maximum time in milliseconds between two reads, and for a member to rejoin.
        session_timeout_ms=45_000: Time in milliseconds without a heartbeat after which a member is removed.
        heartbeat_interval_ms=3_000: Time in milliseconds between heartbeats; at most a third of the session.
        rebalance_drain_ms=30_000: Time in milliseconds a rebalance waits for records in flight to finish.
        rebalance_max_retries=None: Maximum number of retries of joining the group; None for no limit.
        leave_on_stop=None: Leave the group on stop(); by default a dynamic member does, a static one does not.
        post_rebalance_callback=None: Called after a rebalance, before the first fetch; may return start offsets.
        rebalance_listener=None: Object whose on_partitions_assigned, _revoked and _lost are called.
        group_error_reactions=None: Reactions to error codes of group requests, such as {14: "retry"}.
        auto_offset_reset=None: Start position without a committed offset.
        enable_auto_commit=None: Commit finished records periodically; by default True with a group.
        auto_commit_interval_ms=5_000: Time in milliseconds between automatic commits; None for none by time.
        auto_commit_every_records=None: Number of finished records after which they are committed as well.
        ack="auto": "auto" finishes a record when the next is read, "manual" on ack(record).
        reset_offset_on_start=False: Ignore committed offsets once and start at auto_offset_reset.
        offset_commit_callback=None: Called after each commit with (offsets, error); sync or async.
        offset_commit_max_retries=None: Maximum number of retries of a commit; None for as many as its time allows.
        offset_metadata_max_bytes=4_096: Maximum size in bytes of commit metadata; at most the broker's limit.
        on_metadata_too_large="raise": Action if the text of a commit is too long: raise, or "blank" to omit it.
        isolation_level="read_uncommitted": "read_committed" skips records of aborted transactions.
        max_queued_records=2_000: Maximum number of decoded records that are not finished or not delivered.
        max_buffered_bytes=67_108_864: Maximum size in bytes of fetched data that is not decoded.
        fetch_min_bytes=1: Minimum size in bytes of a fetch response, unless fetch_max_wait_ms passes.
        fetch_max_wait_ms=500: Maximum time in milliseconds the broker waits for fetch_min_bytes.
        fetch_max_bytes=52_428_800: Maximum size in bytes of a fetch response.
        max_partition_fetch_bytes=1_048_576: Maximum size in bytes of the data of one partition in a fetch response.
        num_fetchers=1: Number of connections for fetching to each broker.
        max_batch_bytes=None: Maximum size in bytes of a batch; a larger one raises an error.
        max_decompressed_batch_bytes=134_217_728: Maximum size in bytes of a decompressed batch; more raises an error.
        check_crcs=True: Check the CRC-32C checksum of each batch.
        allow_offset_gaps=True: Accept gaps in the offsets; False raises OffsetGapError.
        exclude_internal_topics=True: Exclude Kafka's internal topics from patterns; a topic that is named is read.
        key_deserializer=None: Function that decodes keys; not called for null.
        value_deserializer=None: Function that decodes values; not called for null.
        on_deserialize_error="raise": Action if a record cannot be decoded: raise DecodeError, or "skip" it.
        consumer_timeout_ms=None: Time in milliseconds to wait for a record in a loop or call without its own timeout.
        when_timed_out="raise": Action after consumer_timeout_ms: raise an error, or "stop" a loop.
        start_timeout_ms=20_000: Maximum time in milliseconds to reach the cluster in start().
        stop_timeout_ms=20_000: Maximum time in milliseconds of stop(), even if no broker answers.
        default_api_timeout_ms=60_000: Maximum time in milliseconds of a call such as commit(), retries included.
        request_timeout_ms=40_000: Maximum time in milliseconds to wait for the response to a request.
        socket_connection_setup_timeout_ms=10_000: Maximum time in milliseconds to open a connection.
        reconnect_backoff_ms=50: Time in milliseconds before the first reconnect to a broker.
        reconnect_backoff_max_ms=1_000: Maximum time in milliseconds between reconnects.
        retry_backoff_ms=100: Time in milliseconds before the first retry of a request (KIP-580).
        retry_backoff_max_ms=1_000: Maximum time in milliseconds between retries of a request.
        hooks=(): Objects whose on_event(event) is called with every event.
        metric_group_prefix="consumer": Prefix of the groups in metrics().

    Raises:
        ConfigurationError: an option is unknown, mistyped, or contradicts another.
    """

    def __init__(
        self,
        *topics: str,
        pattern: str | re.Pattern[str] | None = None,
        cluster: SharedCluster | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._life = ConsumerLifecycle(topics, pattern, cluster, options)
        self._reader: Reader | UnstartedReader = UnstartedReader()
        self._polled: PolledRecords | UnstartedReader = UnstartedReader()
        self._streams: Streams | None = None

    def __repr__(self) -> str:
        return f"<Consumer {self._life}>"

    def __del__(self) -> None:
        life = getattr(self, "_life", None)
        if life is not None and life.was_left:
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
        engine = await self._life.start(self)
        self._reader, self._polled = engine.reader, engine.reader.delivery.polled

    async def stop(self, *, commit: bool = True) -> None:
        """Commit what is done, leave the group, close all connections; within ``stop_timeout_ms``, cluster up or down.

        When this is cancelled meanwhile, it ends at once: what was not committed by then is delivered again.

        Args:
            commit: False leaves out the last automatic commit; what was not committed yet is delivered again.

        Raises:
            ConsumerStateError: it is called from a rebalance callback, which has to end first.
        """
        await self._life.stop(commit=commit)

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
        for record in self._polled.slice:
            return record
        return await or_stop(self._reader.next_record, self._life.config, self._life.has_stopped)

    @overload
    async def getone(self, *, timeout_ms: None = None) -> Record: ...

    @overload
    async def getone(self, *, timeout_ms: int) -> Record | None: ...

    async def getone(self, *, timeout_ms: int | None = None) -> Record | None:
        """The next record; the one before is done.

        Args:
            timeout_ms: how long to wait; then None is the answer; 0 does not wait. By default ``consumer_timeout_ms``,
                or for ever.

        Raises:
            ConsumerStateError: not started, stopped, or two tasks read at once.
            ConsumerTimeoutError: no record came within ``consumer_timeout_ms``.
            TailraceError: whatever has happened in the background and ends the reading.
        """
        self._check_readable()
        reader = self._started.reader
        for record in self._polled.slice:
            return record
        if timeout_ms is None:
            return await within_timeout(reader.next_record, self._started.config.consumer_timeout_ms)
        if timeout_ms <= 0:
            return await reader.record_now()
        return await within(reader.next_record, timeout_ms)

    async def getmany(
        self, *, max_records: int | None = None, timeout_ms: int | None = None, min_records: int = 1
    ) -> list[Record]:
        """At least one record, and at most ``max_records`` of those that are there; the batch before is done.

        Args:
            max_records: ``max_queued_records`` when nothing is said. All that are given at once are decoded at once,
                about a millisecond for each thousand, in which nothing else runs.
            timeout_ms: how long to wait; then what is there is the answer, if only an empty list; 0 does not wait. By
                default ``consumer_timeout_ms``, or for ever.
            min_records: wait for so many, or for as many as there is room for.

        Raises:
            ConsumerStateError: not started, stopped, or two tasks read at once.
            ConsumerTimeoutError: no record came within ``consumer_timeout_ms``.
            TailraceError: whatever has happened in the background and ends the reading.
        """
        self._check_readable()
        config, reader = self._started.config, self._started.reader
        count = checked_count(max_records, config.max_queued_records, min_records)
        wanted = reader.next_records if min_records == 1 else partial(reader.next_full, min_records)
        if timeout_ms is None:
            return await within_timeout(partial(wanted, count), config.consumer_timeout_ms)
        if timeout_ms <= 0:
            return await reader.records_now(count)
        found = await within(partial(wanted, count), timeout_ms)
        return found if found is not None else reader.take_now(count) if min_records > 1 else []

    def batches(self, *, max_records: int | None = None, max_wait_ms: int = 0) -> Batches:
        """``async for batch in consumer.batches(...)``: lists of records; each is done when the next is asked for.

        One has at most ``max_records``, and what came within ``max_wait_ms`` of its first record.
        """
        self._check_readable()
        reader = self._started.reader
        count = checked_count(max_records, self._started.config.max_queued_records)
        batch = partial(reader.next_batch, count, max_wait_ms / 1000)
        return Batches(lambda: or_stop(batch, self._life.config, self._life.has_stopped))

    def streams(self) -> AsyncIterator[tuple[TopicPartition, RecordStream]]:
        """``async for partition, stream in consumer.streams()``: an iterator for each partition that becomes ours.

        Each may be read by a task of its own. A record is done when its own stream is asked for the next one, and the
        stream ends when its partition is given back. There is no other way of reading beside it. As long as somebody
        comes to any of the streams, or waits there, ``max_poll_interval_ms`` holds.

        Raises:
            ConsumerStateError: not started, stopped, or somebody reads in another way.
            ConfigurationError: ``ack="manual"``, which is another way of saying what is done.
        """
        self._check_readable()
        engine = self._started
        if engine.config.ack != "auto":
            raise ConfigurationError("ack='manual' is for the other ways of reading: a stream's record has its own ack")
        if self._streams is not None:
            raise ConsumerStateError("streams() was called before - one loop gives all streams")
        streams = Streams(engine.positions, engine.reader, lambda: engine.config)
        engine.reader.hand_over_to(streams, watched=streams)
        self._streams = streams
        return streams

    def ack(self, record: Record) -> bool:
        """Say that a record in hand is done without asking for the next one.

        In a batch, what came before it in its partition is done too. With ``ack="manual"`` it alone is done, in any
        order: the commit follows the lowest record that is not, and says which behind it are. ``record`` is the object
        that was handed out, and no copy. False when it is not in hand any more: its partition went, or it was done.
        """
        if self._life.has_stopped():
            return False
        finisher = self._streams or self._started.reader
        return finisher.acknowledge(record)

    # ---- offsets -----------------------------------------------------------------------------------------------

    async def commit(self, offsets: ToCommit | None = None) -> None:
        """Commit now: what was handed out, including what is in hand; or ``offsets``, each the next one to read.

        Partitions instead of offsets: what was handed out of these alone. In a rebalance callback, and with
        ``streams()``, what is in hand is not included.

        With ``ack="manual"``, what is acknowledged, up to the lowest record that is not. A text that goes with an
        offset stays as long as that offset does.

        Raises:
            ConsumerStateError: not started, stopped, or without a group.
            ConfigurationError: one of ``offsets`` is none.
            CommitFailedError: the group has gone on without this consumer, or nobody answered in time.
            BrokerError: the broker does not allow it.
            TailraceError: what has ended this consumer; it has nothing to commit any more.
        """
        engine = self._started
        if engine.committer is None:
            raise ConsumerStateError("commit() needs a group_id - there is no group to commit for")
        if engine.failure is not None:
            raise engine.failure
        timeout_s = engine.config.default_api_timeout_ms / 1000
        if isinstance(offsets, Mapping):
            await engine.committer.commit_chosen(with_metadata(offsets), timeout_s=timeout_s)
            return
        partitions = None if offsets is None else checked_partitions(offsets)
        # A callback does not know what is in hand: somebody else works on it, or has left it, at a stop.
        if engine.config.ack == "auto" and not in_callback(self):
            engine.reader.delivery.finish() if partitions is None else engine.reader.delivery.finish_of(partitions)
        await engine.committer.commit_finished(partitions, timeout_s=timeout_s)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, as the broker says; a partition without a commit is absent.

        Raises:
            ConsumerStateError: not started, stopped, or without a group.
            BrokerError: the broker does not allow it.
            BrokerConnectionError: nobody answers in time.
        """
        engine = self._started
        if engine.config.group_id is None:
            raise ConsumerStateError("committed() needs a group_id - there is no group that commits")
        return await engine.offset_queries.committed(engine.config.group_id, checked_partitions(partitions))

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be handed out.

        Raises:
            ConsumerStateError: not started, stopped, or the partition is not assigned.
            OffsetOutOfRangeError: ``auto_offset_reset="none"``, and it is out of the log or never was committed.
            RequestTimedOutError: it could not be found out where to begin within ``default_api_timeout_ms``.
        """
        return await self._started.seek.position(partition)

    async def seek(
        self,
        partition: TopicPartition | Iterable[TopicPartition],
        offset: int,
        *,
        whence: SeekFrom = "offset",
        spread: bool = False,
    ) -> dict[TopicPartition, int]:
        """Read on at ``offset``; what was fetched is dropped, what is in hand is not done. Gives where that is.

        With another ``whence``, it is so many records behind the first one ("earliest"), the next one ("current") or
        the last one ("latest"), before it when negative, and never out of the log. With ``spread`` that number is a
        total, dealt out to several partitions.

        Raises:
            ConsumerStateError: not started, stopped, or the partition is not assigned.
            RequestTimedOutError: a leader does not say in time where its log begins and ends.
        """
        among = [partition] if isinstance(partition, TopicPartition) else checked_partitions(partition)
        return await self._started.seek.seek(among, offset, whence, spread=spread)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Read on at the first record there is, of all that are assigned when none is named; gives where that is."""
        return await self.seek(partitions or self.assignment(), 0, whence="earliest")

    async def seek_to_end(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Read on behind the last record there is, of all that are assigned when none is named; gives where that is."""
        return await self.seek(partitions or self.assignment(), 0, whence="latest")

    async def seek_to_time(self, time: Time, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Read on at the first record that is not older than ``time``; at the end where there is none.

        A time is milliseconds since 1970, a datetime with a time zone, or a timedelta: so long ago.
        """
        start, seek = start_at_time(time), self._started.seek
        return await seek.go(dict.fromkeys(partitions or self.assignment(), start))

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition has, assigned or not; UnknownTopicError when there is no such one."""
        return await self._started.offset_queries.beginning_offsets(checked_partitions(partitions))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition will have; see ``beginning_offsets``."""
        return await self._started.offset_queries.end_offsets(checked_partitions(partitions))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, Time]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition that is not older than its time, None where there is none."""
        checked_partitions(times)
        return await self._started.offset_queries.offsets_for_times(
            {one: start_at_time(time) for one, time in times.items()}
        )

    async def lag(self, *partitions: TopicPartition) -> Lag:
        """How many records are there and not handed out, of each partition (all, when none is named) and in sum."""
        end_offsets = await self.end_offsets(partitions or self.assignment())
        positions = await self._started.seek.positions(end_offsets, may_go=not partitions)
        behind = {one: max(0, end_offsets[one] - at) for one, at in positions.items()}
        return Lag(behind, sum(behind.values()))

    @overload
    def offsets(self, kind: None = None) -> ConsumerOffsets: ...

    @overload
    def offsets(self, kind: Kind) -> dict[TopicPartition, int]: ...

    def offsets(self, kind: Kind | None = None) -> ConsumerOffsets | dict[TopicPartition, int]:
        """How far each partition is: handed out ("fetch"), in the log ("highwater"), committed ("commit"), "done"."""
        found = offsets_of(self._started.positions)
        return found if kind is None else one_kind(found, kind)

    # ---- what is read ------------------------------------------------------------------------------------------

    async def assign(self, *what: object, at: object = None, tail: int | None = None) -> None:
        """Read these partitions, as a member of nothing, in place of those of before; nothing at all: read none.

        With a ``group_id`` the group is a store of offsets and nothing more, and must not have members.

        Args:
            what: "topic", ("topic", 0), ("topic", 0, offset), {"topic": 0}, {"topic": [0, 1]}, {("topic", 0): offset},
                and lists of these; in place of an offset, whatever ``at`` may be.
            at: "earliest", "latest", an offset, a datetime, a timedelta (so long ago), or "committed": where the group
                has committed, and else as ``auto_offset_reset`` says. That is the default.
            tail: or so many records before the end of each partition.

        Raises:
            ConsumerStateError: not started, stopped, or topics are subscribed to.
            ConfigurationError: that names no partition, or no place to begin at.
            UnknownTopicError: there is no such partition; nothing has changed then.
        """
        await self._started.subscription.assign(partition_specs(what, default_start(at, tail), start_of))

    async def subscribe(self, *topics: str, pattern: str | re.Pattern[str] | None = None) -> None:
        """Read these topics, or those that match ``pattern``, in place of what was subscribed to before.

        Raises:
            ConsumerStateError: not started, stopped, or partitions are assigned by hand.
            UnknownTopicError: a topic does not exist; nothing has changed then.
        """
        engine = self._started
        names, checked = checked_subscription(topics, pattern, engine.config.group_protocol)
        await engine.subscription.subscribe(names, checked)
        self._life.topics, self._life.pattern = names, checked

    async def unsubscribe(self) -> None:
        """Read nothing: leave the group, or let go of what was assigned; what is done is committed."""
        await self._started.subscription.unsubscribe()
        self._life.topics, self._life.pattern = frozenset(), None

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are this consumer's now."""
        return self._started.positions.partitions

    def subscription(self) -> frozenset[str]:
        """The topics it reads; with a pattern, those that match it now."""
        life = self._life
        return life.topics if life.pattern is None or life.engine is None else life.engine.subscription.subscription

    def highwater(self, partition: TopicPartition) -> int | None:
        """The end of the partition as the last fetch told it; None before the first."""
        position = self._started.positions.get(partition)
        return position.high_watermark if position is not None else None

    # ---- flow --------------------------------------------------------------------------------------------------

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of ``partitions`` (all that are assigned, when none is named) until they are resumed."""
        engine = self._started
        engine.reader.pause(checked_partitions(partitions) or engine.positions.partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with ``partitions`` (all that are paused, when none is named)."""
        engine = self._started
        for position in engine.positions.of(checked_partitions(partitions) or engine.positions.partitions):
            position.is_paused = False
        engine.positions_changed()

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(position.partition for position in self._started.positions if position.is_paused)

    async def reconfigure(self, **options: Unpack[ConsumerOptions]) -> None:
        """Set options anew while it runs, all or none; ConfigurationError for those that stay for its life."""
        config = self._life.config = changed(self._started.config, options)
        self._started.reconfigure(config)

    def health(self) -> ConsumerHealth:
        """How it is, as a member and at all."""
        return self._started.health()

    def metrics(self) -> dict[MetricName, float]:
        """A snapshot of what was measured, under the names that Kafka's own consumer has for it."""
        return self._started.metrics()

    def statistics(self) -> ConsumerStatistics:
        """What it holds right now."""
        return self._started.statistics()

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> ConsumerRuntime:
        return self._life.started

    def _check_readable(self) -> None:
        engine = self._started
        if in_callback(self):
            raise ConsumerStateError("a rebalance callback cannot read: the records come when it is done")
        if engine.failure is not None:
            raise engine.failure
        if engine.subscription.is_nothing:
            raise ConsumerStateError("this consumer reads nothing yet - subscribe() or assign() first")
