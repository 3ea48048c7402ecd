"""Transactional producer (KIP-98, KIP-447)."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Self, TypeVar, assert_never
from uuid import UUID

from msgspec.structs import replace

from tailrace.awaitables import AutoResetEvent
from tailrace.config import ConsumerConfig, ProducerConfig, producer_config
from tailrace.context_managers import asynccontextmanager
from tailrace.core.group_requests import Identity
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    ConfigurationError,
    ConsumerStateError,
    MalformedMessageError,
    NodeNotConnectedError,
    PublishError,
    TailraceError,
    TopicRecreatedError,
    UnsupportedVersionError,
)
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.net.cluster import Cluster
from tailrace.net.connection import Connection
from tailrace.net.offsets import partitions_of_recreated_topics
from tailrace.observe.statistics import ProducerStatistics
from tailrace.producer.accumulator import TransactionAccumulator
from tailrace.producer.publisher import OutgoingRecord, Published
from tailrace.producer.runtime import (
    DEFAULT_LOOKUP_S,
    PartitionResolver,
    ProducerRuntime,
    content_of,
    new_cluster,
    new_observer,
    settings_of,
)
from tailrace.producer.sender import RecordSender
from tailrace.producer.transaction_machine import (
    AbortTransaction,
    AddPartitions,
    AdmitPartitions,
    BeginTransaction,
    CallCanceled,
    ChooseVersion,
    CommitTransaction,
    CompletePendingWork,
    CoordinatorMoved,
    CoordinatorRequest,
    DeliverRecords,
    DiscardRecords,
    Effect,
    GenerationRefused,
    GroupOffsets,
    LookUpCoordinator,
    MustAbort,
    OffsetsAdded,
    OffsetsStored,
    PartitionsAdded,
    ProducerId,
    ProducerIdReceived,
    ProducerState,
    RecordsSettled,
    ReportError,
    SendAddOffsets,
    SendAddPartitions,
    SendEnd,
    SendInit,
    SendOffsets,
    TransactionEnded,
    TransactionEvent,
    TransactionFailed,
    TransactionMachine,
    TransactionSettings,
    TryAgain,
    Unanswered,
    transaction_over_error,
    user_aborted_error,
)
from tailrace.producer.transaction_reactions import TransactionRequestKind, event_of, worst_of
from tailrace.protocol.groups import CommitOffset, CommitResult
from tailrace.protocol.message import NO_TOPIC_ID, Request
from tailrace.protocol.metadata import FindCoordinatorRequest
from tailrace.protocol.transactions import (
    TRANSACTIONS,
    AddedPartition,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    PartitionToAdd,
    TxnOffsetCommitRequest,
    transaction_version,
)
from tailrace.records import OffsetAndMetadata, TopicPartition
from tailrace.values import robust_repr

__all__ = ["ABORT_S", "TransactionRequests", "TransactionalProducer", "transaction_settings"]

# ---- requests of a transactional producer to coordinators ------------------------------------------------------------

ResponseT = TypeVar("ResponseT")

_TRANSACTION = 1
"""Key type of FindCoordinator for a transactional id."""
_TRANSACTIONS = ChannelKey(Channel.MAIN, "transactions")
"""Connections for these requests only, so that they do not wait for the responses to Produce requests."""
_INCREASES_EPOCH = 3
"""First version of InitProducerId that contains a producer id whose epoch the broker is to increase (KIP-360)."""


_STORES_BY_ID = 6
"""First version of TxnOffsetCommit with topic ids, which the coordinator compares (KIP-1319)."""


class TransactionRequests:
    """Requests of one transactional producer to coordinators: each is sent once, and its outcome is an event.

    A request that could not be sent has had no effect (``CoordinatorMoved``). A request that was sent but not answered
    may have had an effect, or may still have one (``Unanswered``).

    Args:
        cluster: brokers.
        settings: settings of the producer.
    """

    def __init__(self, cluster: Cluster, settings: TransactionSettings) -> None:
        self._cluster, self._settings = cluster, settings
        self._id = settings.transactional_id
        self._coordinator_id: int | None = None

    @property
    def transaction_version(self) -> int:
        """Version of transactions that the cluster has finalized, as far as the brokers connected to so far know."""
        newest = self._cluster.newest_versions
        return 1 if newest is None else transaction_version(newest)

    async def send(self, request: CoordinatorRequest) -> TransactionEvent:
        """Send a request once, and return its outcome as an event."""
        deadline = asyncio.get_running_loop().time() + request.timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                connection = await (await self._coordinator_of(request)).connection_for(_TRANSACTIONS)
            if isinstance(request, SendInit):
                _check_version(connection)
        except TimeoutError:
            return CoordinatorMoved("the coordinator could not be found and connected to in time")
        except TailraceError as error:
            return _event_before_sending(error)
        try:
            return await self._outcome(request, _DeadlineConnection(connection, deadline))
        except TailraceError as error:
            return _event_after_sending(error)

    def forget_coordinator(self, effect: LookUpCoordinator) -> None:
        """Forget the coordinator of a request, so that the next request looks it up again."""
        if isinstance(effect.request, SendOffsets):
            self._cluster.forget_coordinator(effect.request.offsets.group_id, effect.reason)
        else:
            self._coordinator_id = None

    async def _coordinator_of(self, request: CoordinatorRequest) -> Broker:
        if isinstance(request, SendOffsets):
            return await self._cluster.coordinator(request.offsets.group_id)
        if self._coordinator_id is None:
            found = await self._cluster.find_coordinator(FindCoordinatorRequest(self._id, _TRANSACTION))
            self._coordinator_id = found.id
        try:
            return self._cluster.broker(self._coordinator_id)
        except NodeNotConnectedError:
            await self._cluster.refresh()
            return self._cluster.broker(self._coordinator_id)

    async def _outcome(self, request: CoordinatorRequest, connection: _DeadlineConnection) -> TransactionEvent:
        producer = request.producer
        match request:
            case SendInit():
                timeout_ms = round(self._settings.transaction_timeout_s * 1000)
                answer = await connection.send(InitProducerIdRequest(self._id, timeout_ms, *producer))
                received = ProducerIdReceived(ProducerId(answer.producer_id, answer.producer_epoch))
                return event_of(answer.error_code, TransactionRequestKind.INIT) or received
            case SendAddPartitions(partitions=partitions):
                to_add = tuple(PartitionToAdd(*one) for one in partitions)
                added = await connection.send(AddPartitionsToTxnRequest(self._id, *producer, to_add))
                failure = _worst_failure(partitions, added.partitions, TransactionRequestKind.ADD_PARTITIONS)
                return failure or PartitionsAdded()
            case SendAddOffsets(group_id=group_id):
                code = (await connection.send(AddOffsetsToTxnRequest(self._id, *producer, group_id))).error_code
                return event_of(code, TransactionRequestKind.ADD_OFFSETS, f"group {group_id!r}") or OffsetsAdded()
            case SendOffsets():
                return await self._store_offsets(request, connection)
            case SendEnd(is_commit=is_commit, version=version):
                ended = await connection.send(EndTxnRequest(self._id, *producer, is_commit, version))
                following = ProducerId(ended.producer_id, ended.producer_epoch)
                return event_of(ended.error_code, TransactionRequestKind.END) or TransactionEnded(following)
            case _:
                assert_never(request)

    async def _store_offsets(self, request: SendOffsets, connection: _DeadlineConnection) -> TransactionEvent:
        group_offsets, identity = request.offsets, request.offsets.identity
        to_store = TxnOffsetCommitRequest(
            self._id,
            group_offsets.group_id,
            *request.producer,
            group_offsets.offsets,
            generation_id=identity.generation,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
            transaction_version=request.version,
        )
        names = {one.topic_id: one.topic for one in group_offsets.offsets}
        answer = await connection.send(to_store)
        results = [replace(one, topic=one.topic or names.get(one.topic_id, "")) for one in answer.partitions]
        topic_ids = {TopicPartition(one.topic, one.partition): one.topic_id for one in group_offsets.offsets}
        failure = _worst_failure(list(topic_ids), results, TransactionRequestKind.COMMIT_OFFSETS)
        is_id_unknown = any(one.error_code == ErrorCode.UNKNOWN_TOPIC_ID for one in results)
        if failure is not None and not is_id_unknown:
            return failure
        if failure is None and connection.version_of(to_store) >= _STORES_BY_ID:
            return OffsetsStored()
        # Before version 6, TxnOffsetCommit contains no topic ids, so they are compared afterwards. If this broker
        # learns of a deletion of the topic only later, it then also removes the pending offsets. From version 6 on,
        # this tells a topic that was recreated from one that the coordinator does not know yet.
        if recreated := await partitions_of_recreated_topics(connection.send, topic_ids):
            return MustAbort(TopicRecreatedError(recreated))
        return failure or OffsetsStored()


class _DeadlineConnection:
    """Connection that sends several requests with a common deadline."""

    def __init__(self, connection: Connection, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    async def send(self, request: Request[ResponseT]) -> ResponseT:
        return await self._connection.send(request, self._deadline - asyncio.get_running_loop().time())

    def version_of(self, request: Request[ResponseT]) -> int:
        """Return the version in which ``send`` sends a request."""
        return self._connection.broker_versions.version_of(request.api, request.newest_version, request.oldest_version)


def _worst_failure(
    partitions: Sequence[TopicPartition], results: Iterable[AddedPartition | CommitResult], kind: TransactionRequestKind
) -> TransactionEvent | None:
    codes = {TopicPartition(one.topic, one.partition): one.error_code for one in results}
    events = [
        event_of(codes[one], kind, str(one)) if one in codes else TryAgain(f"the response to {kind} lacks {one}")
        for one in partitions
    ]
    return worst_of(event for event in events if event is not None)


def _check_version(connection: Connection) -> None:
    """Check that the coordinator can increase the epoch of a producer id (KIP-360), as after some aborts.

    Raises:
        UnsupportedVersionError: the coordinator is older than Apache Kafka 2.5.
    """
    version = connection.broker_versions.version_of(InitProducerIdRequest.api)
    if version < _INCREASES_EPOCH:
        raise UnsupportedVersionError(
            f"InitProducerId: transactions require version {_INCREASES_EPOCH}, and {connection.address} supports only"
            f" version {version} - upgrade the broker to Apache Kafka 2.5 or newer"
        )


def _event_before_sending(error: TailraceError) -> TransactionEvent:
    match error:
        case AuthenticationError() | UnsupportedVersionError() | ConfigurationError():
            return TransactionFailed(error)
        case BrokerError():
            return event_of(error.code, TransactionRequestKind.FIND) or TryAgain(str(error))
        case _:
            return CoordinatorMoved(str(error))


def _event_after_sending(error: TailraceError) -> TransactionEvent:
    match error:
        case BrokerConnectionError() | MalformedMessageError() if not isinstance(error, AuthenticationError):
            return Unanswered(str(error))
        case _:
            return TransactionFailed(error)


# ---- settings of a transactional producer, derived from its options --------------------------------------------------

ABORT_S = 5.0
"""Maximum time in seconds for an abort that the user did not call."""


def transaction_settings(config: ProducerConfig) -> TransactionSettings:
    """Return the settings of the producer, derived from its options.

    Raises:
        ConfigurationError: the options have no transactional id.
    """
    transactional_id, timeout_s = config.transactional_id, config.transaction_timeout_ms / 1000
    if transactional_id is None:
        raise ConfigurationError("transactional_id is missing - give each process a name of its own")
    return TransactionSettings(
        transactional_id,
        transaction_timeout_s=timeout_s,
        # A third of the transaction's timeout leaves time to ask another broker.
        request_timeout_s=min(config.request_timeout_ms / 1000, timeout_s / 3),
        abort_s=min(ABORT_S, config.max_block_ms / 1000 or ABORT_S, timeout_s),
        retry_first_s=config.retry_backoff_ms / 1000,
        retry_longest_s=config.retry_backoff_max_ms / 1000,
    )


# ---- transactional producer (KIP-98, KIP-447) ------------------------------------------------------------------------

_LINGER_S = 0.005
"""Seconds for which a batch waits for more records; a commit sends all batches at once."""

_NOT_STARTED = "this producer is not started - use it in an `async with`"

_NO_OFFSETS: Mapping[TopicPartition, OffsetAndMetadata] = MappingProxyType({})
_NO_IDS: Mapping[TopicPartition, UUID] = MappingProxyType({})
_NO_MEMBER = Identity()


class TransactionalProducer:
    """Publishes in transactions until the end of an ``async with``, which aborts a transaction that is still open.

    Only one transaction is open at a time. Several tasks may call ``send`` at once; these calls must have returned
    before ``commit`` is called. Records are sent to the brokers before ``commit``, in batches.

    Args:
        config: options of the producer; or of a consumer, whose brokers, security, timeouts and group it uses.
        options: options to change, among them ``transactional_id``, a name that this process uses at each start, and
            that no other process uses. ``start`` fences an earlier producer with the same name, and the broker aborts
            the open transaction of the earlier producer.

    Attributes:
        creates_topics: True to let brokers create missing topics.
        sender: sender of the records, from the start on.
        shared_cluster: started cluster to use; None for a cluster of its own.

    Raises:
        ConfigurationError: an option is invalid.
    """

    def __init__(self, config: ConsumerConfig | ProducerConfig, **options: object) -> None:
        self._config: ProducerConfig = producer_config(config, **options)
        self._group_id = config.group_id if isinstance(config, ConsumerConfig) else None
        self._settings = transaction_settings(self._config)
        timeout_s = self._settings.transaction_timeout_s
        self._max_wait_s = min(self._config.max_block_ms / 1000 or DEFAULT_LOOKUP_S, timeout_s)
        limits = settings_of(self._config)
        delivery_timeout_s = min(limits.delivery_timeout_s, self._max_wait_s)
        self._limits = dataclasses.replace(
            limits, linger_s=limits.linger_s or _LINGER_S, delivery_timeout_s=delivery_timeout_s
        )
        self._machine = TransactionMachine(self._settings, random.random)
        self._records = TransactionAccumulator(self._limits, content_of(self._config), random.random)
        self._lock = asyncio.Lock()
        self._calls = 0
        """Number of calls that hold ``_lock`` or wait for it."""
        self._progress = AutoResetEvent()
        self._needs_action = AutoResetEvent()
        """Set when ``_event_of_records`` has an event that must be handled."""
        self._current_identity: Callable[[], Identity | None] = lambda: None
        self._running: ProducerRuntime | None = None
        self.sender: RecordSender
        self._was_started = False
        self.creates_topics: bool = False
        self.shared_cluster: Cluster | None = None
        self._is_cause_unreported = False
        """True if ``_act_on_records`` got an error that no call has raised yet."""

    @robust_repr
    def __repr__(self) -> str:
        return f"<TransactionalProducer {self._machine!r} {'not ' if self._running is None else ''}running>"

    @property
    def state(self) -> ProducerState:
        """State of the producer."""
        return self._machine.state

    @property
    def running(self) -> ProducerRuntime:
        """Parts of the started producer."""
        return self._started()

    def statistics(self) -> ProducerStatistics | None:
        """Return the statistics of the started producer, even if it has failed; None if it is not started."""
        return None if self._running is None else self._running.sender.statistics()

    @property
    def error(self) -> TailraceError | None:
        """Error after which the producer cannot be used any more; None if it can be used."""
        return self._machine.error

    @property
    def has_timed_out(self) -> bool:
        """True if this producer was fenced, and the broker may have done so because of the transaction timeout."""
        return self._machine.has_timed_out

    @property
    def is_in_doubt(self) -> bool:
        """True if a commit was sent and not answered; call ``commit`` again to learn its outcome."""
        return self._machine.is_in_doubt

    # ---- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reach the brokers and request a producer id, which fences earlier producers with the same transactional id.

        Raises:
            ConsumerStateError: the producer was started before.
            BrokerConnectionError: no broker answers in ``start_timeout_ms``.
            UnsupportedVersionError: the brokers are older than Apache Kafka 2.5.
            PublishError: the brokers refuse a producer id, or give none within ``start_timeout_ms``.
        """
        if self._was_started:
            raise ConsumerStateError("this producer was started before - create another producer")
        self._was_started = True
        within_s = self._config.start_timeout_ms / 1000
        cluster = self.shared_cluster or new_cluster(self._config)
        try:
            if self.shared_cluster is None:
                await cluster.reach(within_s)
            await cluster.check(TRANSACTIONS)
        except BaseException:
            if self.shared_cluster is None:
                cluster.close()
            raise
        sender = RecordSender(cluster, self._records, self._limits, self._settings.transactional_id)
        sender.on_progress = self._note_progress
        self.sender = sender
        self._requests = TransactionRequests(cluster, self._settings)
        resolver = PartitionResolver(cluster, None, self._config.partitioner, creates_topics=self.creates_topics)
        if self.shared_cluster is not None:
            sender.observer = resolver.observer = new_observer(self._config)
        self._running = ProducerRuntime(cluster, sender, resolver, self._max_wait_s, self._act_on_records)
        self._running.owns_cluster = self.shared_cluster is None
        try:
            async with self._exclusive():
                await self._handle(CompletePendingWork(within_s))
        except BaseException:
            await self._end()
            raise

    async def close(self, timeout_s: float | None = None) -> None:
        """Abort an open transaction and close the connections.

        The abort takes at most ``timeout_s`` seconds; if None, the option ``stop_timeout_ms`` applies.
        """
        if self._running is None:
            return
        within_s = self._config.stop_timeout_ms / 1000 if timeout_s is None else timeout_s
        ending: dict[ProducerState, TransactionEvent] = {
            ProducerState.IN_TRANSACTION: AbortTransaction(within_s),
            ProducerState.ABORTING: AbortTransaction(within_s),
            ProducerState.COMMITTING: CompletePendingWork(within_s),
        }
        try:
            # If a transaction cannot be ended now, the broker ends it after transaction_timeout_ms.
            with contextlib.suppress(TailraceError):
                async with self._exclusive(within_s):
                    if (event := ending.get(self._machine.state)) is not None:
                        await self._handle(event)
        finally:
            await self._end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(None if error is None else min(ABORT_S, self._config.stop_timeout_ms / 1000))

    # ---- transactions ------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin a transaction, after completing unfinished work of the previous one.

        Raises:
            ConsumerStateError: a transaction is open, or the producer is not started.
            ProducerFencedError: another process has the same transactional id.
            PublishError: unfinished work was not completed in time; or the previous transaction was aborted, and no
                call has raised the reason yet.
        """
        async with self._exclusive():
            running = self._started()
            if self._is_cause_unreported:
                self._check(CommitTransaction)
            while self._machine.state is not ProducerState.READY:
                await self._handle(CompletePendingWork(self._max_wait_s))
            # Java's producer decides here, too: the finalized version may change between two transactions.
            await self._handle(ChooseVersion(self._requests.transaction_version, self._max_wait_s))
            await self._handle(BeginTransaction())
            self._records.begin()
            running.sender.transaction_version = self._machine.version

    async def send(self, record: OutgoingRecord) -> asyncio.Future[Published]:
        """Add one record to the transaction and return the future of its partition and offset.

        The call waits while
        ``buffer_memory`` of records are undelivered. A record that cannot be stored aborts the transaction;
        ``commit`` raises the reason.

        Raises:
            ConsumerStateError: no transaction is open, or it is being committed.
            ProducerFencedError: another process has the same transactional id.
            PublishError: the topic or partition does not exist, the record cannot be encoded, or the transaction was
                aborted.
        """
        running = self._check_open()
        topic_partition = running.resolver.resolve_known(record.topic, record.key, record.partition)
        if topic_partition is None:
            topic_partition = await running.resolve(record.topic, record.key, record.partition)
            self._check_open()
        future: asyncio.Future[Published] = running.loop.create_future()
        now = running.loop.time()
        until = now + min(self._config.max_block_ms / 1000, self._max_wait_s)
        await running.sender.append(topic_partition, record, future, now + self._max_wait_s, until)
        return future

    def send_now(self, record: OutgoingRecord) -> asyncio.Future[Published] | None:
        """Add a record as ``send`` does; return None if a wait is necessary, or if ``send`` raises an error.

        The caller awaits ``yield_to_batch`` of the sender if ``is_batch_due``.
        """
        running, machine = self._running, self._machine
        if running is None or machine.error is not None or machine.state is not ProducerState.IN_TRANSACTION:
            return None
        topic_partition = running.resolver.resolve_known(record.topic, record.key, record.partition)
        if topic_partition is None:
            return None
        return running.sender.append_now(topic_partition, record, self._max_wait_s)

    async def check(self, topic: str, partition: int | None = None) -> None:
        """Check that a topic or partition exists, without sending a record.

        Raises:
            ConsumerStateError: the producer is not started.
            PublishError: the topic or partition does not exist.
        """
        if self._running is None:
            raise ConsumerStateError(_NOT_STARTED)
        if self._running.resolver.resolve_known(topic, None, partition) is None:
            await self._running.resolve(topic, None, partition)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] = _NO_OFFSETS,
        identity: Identity = _NO_MEMBER,
        group_id: str | None = None,
        topic_ids: Mapping[TopicPartition, UUID] = _NO_IDS,
        current_identity: Callable[[], Identity | None] = lambda: None,
    ) -> None:
        """Commit the records of the transaction and, with them, ``offsets`` of the group.

        If the outcome of a commit is unknown (``is_in_doubt``), another call repeats that commit with the same offsets.

        Args:
            offsets: next offset to read in each partition whose records this transaction has processed.
            identity: member of the group that commits; the coordinator refuses the commit if the member is not in the
                current generation.
            group_id: id of the group; None for ``group_id`` of the config.
            topic_ids: ids of the topics that the records were read from, as far as the ids are known.
            current_identity: called if the coordinator refuses the commit because the group has rebalanced; returns the
                identity with which to repeat the commit, or None if the member no longer owns all partitions of
                ``offsets``.

        Raises:
            ConsumerStateError: no transaction is open.
            CommitFailedError: the group has rebalanced without this member, or a topic was recreated; the transaction
                was aborted.
            FencedMemberError: another member has the same ``group_instance_id``; the transaction was aborted.
            ProducerFencedError: another process has the same transactional id.
            PublishError: the transaction was aborted because a record was refused or the commit took too long; or the
                outcome is unknown.
        """
        async with self._exclusive():
            self._check(CommitTransaction)
            group_offsets = self._group_offsets(offsets, identity, group_id, topic_ids)
            self._current_identity = current_identity
            await self._handle(CommitTransaction(group_offsets, self._max_wait_s))

    async def abort(self) -> None:
        """Abort the transaction; do nothing if it was aborted already.

        Raises:
            ConsumerStateError: the outcome of a commit is unknown.
            PublishError: the abort was not acknowledged in time. Readers of committed records do not see the records in
                this case, either.
        """
        async with self._exclusive():
            self._is_cause_unreported = False
            if not self._machine.is_over:
                await self._handle(AbortTransaction(self._max_wait_s))

    # ---- calls -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _exclusive(self, within_s: float | None = None) -> AsyncIterator[None]:
        """Wait for the call in progress, and make later calls wait until the ``async with`` block ends.

        Raises:
            PublishError: the call in progress did not finish within ``within_s`` seconds. The default is long enough
                for any call.
        """
        # The call in progress may abort the transaction after its own timeout.
        within_s = self._max_wait_s + self._settings.abort_s if within_s is None else within_s
        self._calls += 1
        try:
            try:
                async with asyncio.timeout(within_s):
                    await self._lock.acquire()
            except TimeoutError:
                raise PublishError(
                    f"the previous call of this producer did not finish within {within_s:.1f} s"
                ) from None
            try:
                yield
            finally:
                self._lock.release()
        finally:
            self._calls -= 1
            self._note_progress()

    def _check(self, event: type[TransactionEvent]) -> None:
        """Raise an error if the event is not allowed in the current state."""
        self._started()
        machine = self._machine
        if machine.allows(event):
            return
        if machine.aborted_by is not None:
            self._is_cause_unreported = False
            raise transaction_over_error(machine.aborted_by)
        raise ConsumerStateError(f"this producer is {machine.state}{_ADVICE.get(machine.state, '')}")

    def _check_open(self) -> ProducerRuntime:
        running = self._started()
        if self._machine.state is not ProducerState.IN_TRANSACTION:
            self._check(AddPartitions)
            # A commit has settled all records, and may have ended the transaction on the brokers.
            raise ConsumerStateError("the transaction is being committed - publish in the next one")
        return running

    def _started(self) -> ProducerRuntime:
        if self._running is None:
            raise ConsumerStateError(_NOT_STARTED)
        if self._machine.error is not None:
            raise copy.copy(self._machine.error)
        return self._running

    # ---- state machine -----------------------------------------------------------------------------------------

    async def _handle(self, event: TransactionEvent) -> None:
        """Handle an event, perform all effects that follow, and raise the error if one of them reports an error."""
        self._check(type(event))
        loop, machine = asyncio.get_running_loop(), self._machine
        reported: TailraceError | None = None
        try:
            machine.receive(event, loop.time())
            while True:
                for effect in machine.effects():
                    if isinstance(effect, ReportError):
                        reported = effect.error
                    elif isinstance(effect, LookUpCoordinator):
                        self._requests.forget_coordinator(effect)
                    else:
                        machine.receive(await self._perform(effect), loop.time())
                if (at := machine.next_deadline()) is None:
                    break
                await asyncio.sleep(at - loop.time())
                machine.handle_timer(loop.time())
        except BaseException:
            machine.receive(CallCanceled(), loop.time())
            raise
        finally:
            if machine.error is not None and self._running is not None:
                await self._running.sender.discard(machine.error)
        if reported is not None:
            raise copy.copy(reported)

    async def _perform(self, effect: Effect) -> TransactionEvent:
        assert self._running is not None
        sender = self._running.sender
        match effect:
            case DeliverRecords(timeout_s=timeout_s):
                self._records.finish()
                sender.wake()
                return await self._wait_until_delivered(timeout_s)
            case DiscardRecords(timeout_s=timeout_s):
                self._running.resolver.change_partition()
                await sender.discard(self._machine.aborted_by or user_aborted_error(), timeout_s)
                return RecordsSettled(self._records.needs_new_epoch)
            case LookUpCoordinator() | ReportError():
                raise AssertionError(f"{effect} is not a request")
        outcome = PartitionsAdded() if isinstance(effect, AdmitPartitions) else await self._requests.send(effect)
        if isinstance(effect, SendAddPartitions | AdmitPartitions) and isinstance(outcome, PartitionsAdded):
            self._records.add_partitions(effect.partitions)
            sender.wake()
        elif isinstance(outcome, ProducerIdReceived | TransactionEnded) and outcome.producer.id >= 0:
            self._records.adopt(outcome.producer)
        elif isinstance(outcome, GenerationRefused):
            return replace(outcome, current=self._current_identity())
        return outcome

    async def _wait_until_delivered(self, timeout_s: float) -> TransactionEvent:
        assert self._running is not None
        until = self._running.loop.time() + timeout_s
        while (event := self._event_of_records()) is None:
            if self._running.sender.is_empty:
                return RecordsSettled(self._records.needs_new_epoch)
            if self._running.loop.time() >= until:
                return TryAgain("records are not acknowledged")
            await self._progress.wait(until)
        return event

    def _event_of_records(self) -> TransactionEvent | None:
        """Return the event of a failed record, a failed sender or new partitions; None if there is none."""
        if self._records.failure is not None:
            return self._records.failure
        if self._running is not None and (error := self._running.sender.end_cause) is not None:
            return TransactionFailed(error)
        new = self._records.new_partitions
        return AddPartitions(new, self._max_wait_s) if new else None

    def _note_progress(self) -> None:
        self._progress.set()
        if self._event_of_records() is not None:
            self._needs_action.set()

    async def _act_on_records(self) -> None:
        """Add partitions, or abort after a failure, while a transaction is open and no call is in progress."""
        while True:
            await self._needs_action.wait()
            event = self._event_of_records()
            # Do not wait for a call in progress: it handles the event itself, or wakes this task at its end. Waiting
            # would delay the next call.
            if event is None or self._calls or self._machine.state is not ProducerState.IN_TRANSACTION:
                continue
            async with self._lock:
                try:
                    await self._handle(event)
                except TailraceError:
                    # The next call raises the error.
                    self._is_cause_unreported = True

    def _group_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        identity: Identity,
        group_id: str | None,
        topic_ids: Mapping[TopicPartition, UUID],
    ) -> GroupOffsets | None:
        if not offsets:
            return None
        group_id = group_id or self._group_id
        if group_id is None:
            raise ConfigurationError(
                "group_id is missing - set it in the config, or pass it to commit() with the offsets"
            )
        entries = (
            CommitOffset(
                *topic_partition,
                one.offset,
                -1 if one.leader_epoch is None else one.leader_epoch,
                one.metadata,
                topic_ids.get(topic_partition, NO_TOPIC_ID),
            )
            for topic_partition, one in offsets.items()
        )
        return GroupOffsets(group_id, identity, tuple(entries))

    async def _end(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.end()


_ADVICE: Mapping[ProducerState, str] = {
    ProducerState.READY: ", no transaction is open - call begin() first",
    ProducerState.IN_TRANSACTION: " - call commit() or abort() first",
    ProducerState.COMMITTING: (
        ", and a commit that was sent cannot be undone - call commit() again to find out its outcome"
    ),
    ProducerState.ABORTING: " - call abort() again, or begin()",
    ProducerState.UNINITIALIZED: ", no transaction is open - call begin() first",
}
