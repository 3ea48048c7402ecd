"""Records and a group's offsets published together or not at all (KIP-98, KIP-447).

Rule of this file: what to do next is ``core.producer.transactional``'s to say; here it is done. There is no task behind
it: what a call begins is over when the call returns, and whoever is cancelled leaves what is unfinished to the next
call.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Self, cast
from uuid import UUID

from tailrace.batches.batch_writer import Compression
from tailrace.config import ConsumerConfig
from tailrace.core.group.membership import Identity
from tailrace.core.producer.events import (
    AbortTransaction,
    BatchesAnswered,
    BeginTransaction,
    CommitTransaction,
    EmitTransactionEvent,
    Filled,
    Flush,
    GroupOffsets,
    Interrupted,
    LookUpAgain,
    Settle,
    TransactionEvent,
)
from tailrace.core.producer.states import OPEN, ProducerState
from tailrace.core.producer.transactional import TransactionMachine
from tailrace.errors import (
    BrokerConnectionError,
    ConfigurationError,
    ConsumerStateError,
    MalformedMessageError,
    PublishError,
    TailraceError,
)
from tailrace.net.cluster import Cluster
from tailrace.observe.hooks import Hook, Observer
from tailrace.producer.partitions import PartitionResolver
from tailrace.producer.publisher import check_topic_name
from tailrace.producer.transactional.outbox import Outbox
from tailrace.producer.transactional.requests import TransactionRequests
from tailrace.producer.transactional.settings import A_MOMENT_S, check_options, settings_of
from tailrace.protocol.committed_offsets import CommitOffset
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["TransactionalProducer"]

_FLUSH_BYTES = 1_048_576
"""So much waits before it is written while the transaction is still open."""

_NOTHING: Mapping[TopicPartition, OffsetAndMetadata] = MappingProxyType({})
_NO_IDS: Mapping[TopicPartition, UUID] = MappingProxyType({})
_NOBODY = Identity()


class TransactionalProducer:
    """Publishes in transactions for as long as an ``async with`` lasts; one that is open then is aborted.

    One transaction at a time. ``send`` may be called by several tasks at once; they should be through before
    ``commit`` is called.

    Args:
        config: how to reach the brokers and get in, and how long to try; the rest of it is not looked at.
        transactional_id: the same name whenever this process starts, and no other's. Who starts with it fences
            whoever had it before, and a transaction left open by that one is aborted.
        transaction_timeout_ms: the broker aborts a transaction that is open for longer.
        compression: of the batches.
        max_batch_bytes: records of one partition go together up to this size.
        cluster: brokers to be used together with somebody else; its own if None.

    Raises:
        ConfigurationError: an option will not do.
        BrokerConnectionError: at start, no broker answers in ``start_timeout_ms``.
        UnsupportedVersionError: at start, the brokers are older than Apache Kafka 2.5.
        PublishError: at start, no producer id was given in that time, or none may be.
    """

    def __init__(  # noqa: PLR0913 - options
        self,
        config: ConsumerConfig,
        *,
        transactional_id: str,
        transaction_timeout_ms: int = 60_000,
        compression: Compression = "none",
        max_batch_bytes: int = 262_144,
        cluster: Cluster | None = None,
    ) -> None:
        check_options(transactional_id, transaction_timeout_ms, compression, max_batch_bytes)
        self._config = config
        self._owns_cluster = cluster is None
        observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        self._cluster = cluster or Cluster(config, observer)
        settings = settings_of(config, transactional_id, transaction_timeout_ms)
        self._max_wait_s = min(config.default_api_timeout_ms / 1000, settings.transaction_timeout_s)
        self._member = TransactionMachine(settings, random.random)
        self._outbox = Outbox(max_batch_bytes, compression)
        self._requests = TransactionRequests(self._cluster, settings, self._outbox.content)
        self._resolver = PartitionResolver(self._cluster)
        self._one_at_a_time = asyncio.Lock()
        self._is_running = self._was_started = False

    def __repr__(self) -> str:
        return f"<TransactionalProducer {self._member!r} {'running' if self._is_running else 'not running'}>"

    @property
    def state(self) -> ProducerState:
        """Where it stands."""
        return self._member.state

    @property
    def error(self) -> TailraceError | None:
        """Why it is over; None while it is not."""
        return self._member.error

    @property
    def is_in_doubt(self) -> bool:
        """Whether a commit was sent and not answered: ``commit`` again to find out."""
        return self._member.is_in_doubt

    # ---- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reach the brokers, get a producer id, and so fence whoever had the transactional id before.

        Raises:
            ConsumerStateError: it was started before.
            BrokerConnectionError: no broker answers in ``start_timeout_ms``.
            UnsupportedVersionError: the brokers are older than Apache Kafka 2.5.
            PublishError: no producer id was given in that time, or none may be.
        """
        if self._was_started:
            raise ConsumerStateError("this producer was started before - make another")
        self._is_running = self._was_started = True
        within_s = self._config.start_timeout_ms / 1000
        try:
            if self._owns_cluster:
                await self._cluster.retrying(self._cluster.bootstrap, timeout_s=within_s, what="finding the cluster")
            await self._do(Settle(within_s))
        except BaseException:
            self._end()
            raise

    async def close(self, timeout_s: float | None = None) -> None:
        """Abort what is open, ``stop_timeout_ms`` at most, and close the connections."""
        if not self._is_running:
            return
        within_s = self._config.stop_timeout_ms / 1000 if timeout_s is None else timeout_s
        ending: dict[ProducerState, TransactionEvent] = {
            ProducerState.IN_TRANSACTION: AbortTransaction(within_s),
            ProducerState.ABORTING: AbortTransaction(within_s),
            ProducerState.COMMITTING: Settle(within_s),
        }
        try:
            # What cannot be ended now, the broker ends when transaction_timeout_ms is over; in doubt was told before.
            with contextlib.suppress(TailraceError):
                async with self._turn(within_s):
                    if (event := ending.get(self._member.state)) is not None:
                        self._tell(event)
                        await self._drive()
        finally:
            self._end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(None if error is None else min(A_MOMENT_S, self._config.stop_timeout_ms / 1000))

    # ---- transactions ------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Begin a transaction, after what is unfinished of the one before.

        Raises:
            ConsumerStateError: one is open, or the producer is not started.
            ProducerFencedError: another process has the same transactional id.
            PublishError: what was unfinished could not be finished in time.
        """
        async with self._turn():
            if self._cluster.age_s > self._config.metadata_max_age_ms / 1000:
                # The old picture does until there is a newer one.
                with contextlib.suppress(BrokerConnectionError):
                    await self._cluster.refresh()
            while self._member.state is not ProducerState.READY:
                self._tell(Settle(self._max_wait_s))
                await self._drive()
            self._tell(BeginTransaction())

    async def send(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> TopicPartition:
        """Put a record into the transaction; where it will be.

        It is written when there is enough of it, or with the commit. Without ``partition`` the key decides, as with
        Kafka's own clients.

        Raises:
            ConsumerStateError: no transaction is open.
            ProducerFencedError: another process has the same transactional id.
            PublishError: the topic or partition does not exist, the record cannot be one, or what was sent before
                was refused or not acknowledged in time; if so, the transaction was aborted.
        """
        place = await self._place_of(topic, key, partition)
        self._check(Filled)
        try:
            filled = self._outbox.add(place, key, value, headers, timestamp_ms)
        except MalformedMessageError as error:
            raise PublishError(f"{topic}: {error}") from error
        if filled is not None:
            self._tell(filled)
            self._resolver.move_on(topic)
            if self._outbox.closed_bytes >= _FLUSH_BYTES:
                await self._flush()
        return place

    async def check(self, topic: str, partition: int | None = None) -> None:
        """See that a record would have a place, without sending one.

        Raises:
            PublishError: the topic or partition does not exist.
        """
        await self._place_of(topic, None, partition)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] = _NOTHING,
        identity: Identity = _NOBODY,
        group_id: str | None = None,
        topic_ids: Mapping[TopicPartition, UUID] = _NO_IDS,
    ) -> None:
        """Make all that was sent visible, and commit ``offsets`` for the group, at once.

        Called again when it is in doubt (``is_in_doubt``), it asks once more what was asked then.

        Args:
            offsets: the next ones to read, of what the transaction was made of.
            identity: as which member of the group; one that is not in its present generation is refused.
            group_id: the group; that of the config when nothing is said.
            topic_ids: ids of the topics the records were read from, where they are known.

        Raises:
            ConsumerStateError: no transaction is open.
            CommitFailedError: the group has gone on without this member, or a topic was recreated; the transaction
                was aborted.
            FencedMemberError: another member has taken this one's place; the transaction was aborted.
            ProducerFencedError: another process has the same transactional id.
            PublishError: it was refused or not through in time and was aborted; or it is in doubt.
        """
        async with self._turn():
            self._check(CommitTransaction)
            if self._member.state is ProducerState.IN_TRANSACTION:
                for filled in self._outbox.close_all():
                    self._tell(filled)
            group_offsets = self._group_offsets(offsets, identity, group_id, topic_ids)
            self._tell(CommitTransaction(group_offsets, self._max_wait_s))
            await self._drive()

    async def abort(self) -> None:
        """Take back all that was sent; nothing to do when it was aborted already.

        Raises:
            ConsumerStateError: a commit is in doubt.
            PublishError: the abort was not acknowledged in time; nothing becomes visible all the same.
        """
        async with self._turn():
            if not self._member.is_over:
                self._tell(AbortTransaction(self._max_wait_s))
                await self._drive()

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        async with self._turn():
            # While we waited, another may have written it.
            if self._outbox.closed_bytes >= _FLUSH_BYTES:
                self._tell(Flush(self._max_wait_s))
                await self._drive()
            elif self._member.aborted_by is not None:
                self._check(Flush)

    async def _do(self, event: TransactionEvent) -> None:
        async with self._turn():
            self._tell(event)
            await self._drive()

    @contextlib.asynccontextmanager
    async def _turn(self, within_s: float | None = None) -> AsyncIterator[None]:
        """Wait for the call that is under way."""
        within_s = self._max_wait_s if within_s is None else within_s
        try:
            async with asyncio.timeout(within_s):
                await self._one_at_a_time.acquire()
        except TimeoutError:
            raise PublishError(f"the call before this one was not through within {within_s:.1f} s") from None
        try:
            yield
        finally:
            self._one_at_a_time.release()

    def _check(self, event: type[TransactionEvent]) -> None:
        """Refuse what cannot be done now."""
        member = self._member
        if not self._is_running:
            raise ConsumerStateError("this producer is not running - use it in an `async with`")
        if member.error is not None:
            raise copy.copy(member.error)
        if member.allows(event):
            return
        if member.aborted_by is not None:
            raise PublishError(f"the transaction is over: {member.aborted_by}")
        raise ConsumerStateError(f"this producer is {member.state}{_ADVICE.get(member.state, '')}")

    def _tell(self, event: TransactionEvent) -> None:
        self._check(type(event))
        self._member.receive(event, asyncio.get_running_loop().time())

    async def _drive(self) -> None:
        """Do what the member wants until it wants nothing more, and raise what it has to tell."""
        loop, member = asyncio.get_running_loop(), self._member
        told: TailraceError | None = None
        try:
            while True:
                for effect in member.effects():
                    if isinstance(effect, EmitTransactionEvent):
                        told = effect.error
                    elif isinstance(effect, LookUpAgain):
                        self._requests.look_up_again(effect)
                    else:
                        outcome = await self._requests.outcome(effect)
                        if isinstance(outcome, BatchesAnswered):
                            self._outbox.written(outcome.written)
                        member.receive(outcome, loop.time())
                if (at := member.next_deadline()) is None:
                    break
                await asyncio.sleep(at - loop.time())
                member.handle_timer(loop.time())
        except BaseException:
            member.receive(Interrupted(), loop.time())
            raise
        finally:
            if member.state not in OPEN:
                self._outbox.clear()
                self._resolver.move_on()
        if told is not None:
            raise copy.copy(told)

    async def _place_of(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        check_topic_name(topic)
        if not self._resolver.knows(topic):
            self._check(Filled)
        return await self._resolver.place_of(topic, key, partition)

    def _group_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        identity: Identity,
        group_id: str | None,
        topic_ids: Mapping[TopicPartition, UUID],
    ) -> GroupOffsets | None:
        if not offsets:
            return None
        group_id = group_id or self._config.group_id
        if group_id is None:
            raise ConfigurationError("offsets need a group to be committed for - give group_id")
        entries = (
            CommitOffset(
                *place,
                one.offset,
                -1 if one.leader_epoch is None else one.leader_epoch,
                one.metadata,
                topic_ids.get(place, NO_TOPIC_ID),
            )
            for place, one in offsets.items()
        )
        return GroupOffsets(group_id, identity, tuple(entries))

    def _end(self) -> None:
        self._is_running = False
        self._outbox.clear()
        self._resolver.close()
        self._requests.close()
        if self._owns_cluster:
            self._cluster.close()


_ADVICE: Mapping[ProducerState, str] = {
    ProducerState.READY: ", no transaction is open - begin() one first",
    ProducerState.IN_TRANSACTION: " - commit() it or abort() it first",
    ProducerState.COMMITTING: (
        ", and a commit that was sent cannot be taken back - commit() again to find out what came of it"
    ),
    ProducerState.ABORTING: " - abort() again, or begin() the next transaction",
    ProducerState.UNINITIALISED: ", no transaction is open - begin() one first",
}
