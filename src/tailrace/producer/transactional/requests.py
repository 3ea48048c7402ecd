"""Requests of a transactional producer to coordinators: each is sent once, and its outcome is an event.

``core.producer.error_reactions`` decides which event an error code becomes. A request that fails before it is sent had
no effect (``Moved``). A request that fails later may have taken effect, or may still do so (``Unanswered``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar, assert_never

from tailrace.core.producer.error_reactions import TransactionRequestKind, event_of, worst_of
from tailrace.core.producer.events import (
    Ended,
    LookUpAgain,
    Moved,
    MustAbort,
    OffsetsAdded,
    OffsetsStored,
    PartitionsAdded,
    ProducerId,
    ProducerIdGiven,
    Question,
    SendAddOffsets,
    SendAddPartitions,
    SendEnd,
    SendInit,
    SendOffsets,
    TransactionEvent,
    TransactionFailed,
    TransactionSettings,
    TryAgain,
    Unanswered,
)
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    ConfigurationError,
    MalformedMessageError,
    NodeNotConnectedError,
    TailraceError,
    TopicRecreatedError,
    UnsupportedVersionError,
    broker_error,
)
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.net.cluster import Cluster
from tailrace.net.connection import Connection
from tailrace.net.topic_ids import partitions_of_recreated_topics
from tailrace.protocol.committed_offsets import CommitResult
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import FindCoordinatorRequest
from tailrace.protocol.transactions import (
    AddedPartition,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    PartitionToAdd,
    TxnOffsetCommitRequest,
)
from tailrace.records import TopicPartition

__all__ = ["TransactionRequests"]

ResponseT = TypeVar("ResponseT")

_TRANSACTION = 1
"""Coordinator type of FindCoordinator: transactions."""
_TRANSACTIONS = ChannelKey(Channel.MAIN, "transactions")
"""Connections for these requests only, since brokers answer Produce only after the replicas have fetched."""


class TransactionRequests:
    """Requests of one transactional producer.

    Args:
        cluster: brokers.
        settings: settings of the producer.
    """

    def __init__(self, cluster: Cluster, settings: TransactionSettings) -> None:
        self._cluster, self._settings = cluster, settings
        self._id = settings.transactional_id
        self._coordinator_id: int | None = None

    async def outcome(self, question: Question) -> TransactionEvent:
        """Send a request and return its outcome."""
        deadline = asyncio.get_running_loop().time() + question.timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                connection = await (await self._coordinator_of(question)).connection_for(_TRANSACTIONS)
        except TimeoutError:
            return Moved("the coordinator was not found and connected to in time")
        except TailraceError as error:
            return _not_sent(error)
        try:
            return await self._ask(question, _TransientConnection(connection, deadline))
        except TailraceError as error:
            return _not_answered(error)

    def look_up_again(self, effect: LookUpAgain) -> None:
        """Forget a coordinator that has moved or does not answer."""
        if isinstance(effect.asked, SendOffsets):
            self._cluster.forget_coordinator(effect.asked.offsets.group_id, effect.reason)
        else:
            self._coordinator_id = None

    async def _coordinator_of(self, question: Question) -> Broker:
        if isinstance(question, SendOffsets):
            return await self._cluster.coordinator(question.offsets.group_id)
        if self._coordinator_id is None:
            request = FindCoordinatorRequest(self._id, _TRANSACTION)
            try:
                answer = await self._cluster.send_to_any(request)
            except BrokerConnectionError:
                # All known brokers may have moved since the last refresh.
                await self._cluster.refresh()
                answer = await self._cluster.send_to_any(request)
            if answer.error_code:
                raise broker_error(answer.error_code, answer.error_message or "")
            self._coordinator_id = answer.node_id
        try:
            return self._cluster.broker(self._coordinator_id)
        except NodeNotConnectedError:
            await self._cluster.refresh()
            return self._cluster.broker(self._coordinator_id)

    async def _ask(self, question: Question, connection: _TransientConnection) -> TransactionEvent:
        who = question.producer
        match question:
            case SendInit():
                timeout_ms = round(self._settings.transaction_timeout_s * 1000)
                given = await connection.send(InitProducerIdRequest(self._id, timeout_ms, *who))
                producer = ProducerId(given.producer_id, given.producer_epoch)
                return event_of(given.error_code, TransactionRequestKind.INIT) or ProducerIdGiven(producer)
            case SendAddPartitions(partitions=partitions):
                wanted = tuple(PartitionToAdd(*one) for one in partitions)
                added = await connection.send(AddPartitionsToTxnRequest(self._id, *who, wanted))
                trouble = _worst(partitions, added.partitions, TransactionRequestKind.ADD_PARTITIONS)
                return trouble or PartitionsAdded()
            case SendAddOffsets(group_id=group_id):
                code = (await connection.send(AddOffsetsToTxnRequest(self._id, *who, group_id))).error_code
                return event_of(code, TransactionRequestKind.ADD_OFFSETS, f"group {group_id!r}") or OffsetsAdded()
            case SendOffsets():
                return await self._store(question, connection)
            case SendEnd(is_commit=is_commit):
                code = (await connection.send(EndTxnRequest(self._id, *who, is_commit))).error_code
                return event_of(code, TransactionRequestKind.END) or Ended()
            case _:
                assert_never(question)

    async def _store(self, question: SendOffsets, connection: _TransientConnection) -> TransactionEvent:
        group, me = question.offsets, question.offsets.identity
        answer = await connection.send(
            TxnOffsetCommitRequest(
                self._id,
                group.group_id,
                *question.producer,
                group.offsets,
                generation_id=me.generation,
                member_id=me.member_id,
                group_instance_id=me.instance_id,
            )
        )
        topic_ids = {TopicPartition(one.topic, one.partition): one.topic_id for one in group.offsets}
        trouble = _worst(list(topic_ids), answer.partitions, TransactionRequestKind.COMMIT_OFFSETS)
        if trouble is not None:
            return trouble
        # TxnOffsetCommit names topics only, so the ids are compared afterwards. No recreated topic goes unnoticed: a
        # deletion that this broker has not seen by now also removes offsets that wait for the end of the transaction.
        if others := await partitions_of_recreated_topics(connection.send, topic_ids):
            return MustAbort(TopicRecreatedError(others))
        return OffsetsStored()


class _TransientConnection:
    """Connection with the deadline of one request."""

    def __init__(self, connection: Connection, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    async def send(self, request: Request[ResponseT]) -> ResponseT:
        return await self._connection.send(request, self._deadline - asyncio.get_running_loop().time())


def _worst(
    asked: Sequence[TopicPartition], answered: Iterable[AddedPartition | CommitResult], what: TransactionRequestKind
) -> TransactionEvent | None:
    codes = {TopicPartition(one.topic, one.partition): one.error_code for one in answered}
    troubles = [event_of(codes[one], what, str(one)) if one in codes else _missing(one, what) for one in asked]
    return worst_of(one for one in troubles if one is not None)


def _missing(partition: TopicPartition, asked: TransactionRequestKind) -> TransactionEvent:
    return TryAgain(f"the answer to {asked} lacks {partition}")


def _not_sent(error: TailraceError) -> TransactionEvent:
    match error:
        case AuthenticationError() | UnsupportedVersionError() | ConfigurationError():
            return TransactionFailed(error)
        case BrokerError():
            return event_of(error.code, TransactionRequestKind.FIND) or TryAgain(str(error))
        case _:
            return Moved(str(error))


def _not_answered(error: TailraceError) -> TransactionEvent:
    match error:
        case BrokerConnectionError() | MalformedMessageError() if not isinstance(error, AuthenticationError):
            return Unanswered(str(error))
        case _:
            return TransactionFailed(error)
