"""Requests of a transactional producer to coordinators: each is sent once, and its outcome is an event.

``producer.transactional.reactions`` maps error codes to events. A request that could not be sent has had no effect
(``CoordinatorMoved``). A request that was sent but not answered may have had an effect, or may still have one
(``Unanswered``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeVar, assert_never

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
)
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.net.cluster import Cluster
from tailrace.net.connection import Connection
from tailrace.net.topic_ids import partitions_of_recreated_topics
from tailrace.producer.transactional.reactions import TransactionRequestKind, event_of, worst_of
from tailrace.producer.vocabulary import (
    CoordinatorMoved,
    CoordinatorRequest,
    LookUpCoordinator,
    MustAbort,
    OffsetsAdded,
    OffsetsStored,
    PartitionsAdded,
    ProducerId,
    ProducerIdReceived,
    SendAddOffsets,
    SendAddPartitions,
    SendEnd,
    SendInit,
    SendOffsets,
    TransactionEnded,
    TransactionEvent,
    TransactionFailed,
    TransactionSettings,
    TryAgain,
    Unanswered,
)
from tailrace.protocol.groups import CommitResult
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
"""Key type of FindCoordinator for a transactional id."""
_TRANSACTIONS = ChannelKey(Channel.MAIN, "transactions")
"""Connections for these requests only, so that they do not wait for the responses to Produce requests."""


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

    async def send(self, request: CoordinatorRequest) -> TransactionEvent:
        """Send a request once, and return its outcome as an event."""
        deadline = asyncio.get_running_loop().time() + request.timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                connection = await (await self._coordinator_of(request)).connection_for(_TRANSACTIONS)
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
            case SendEnd(is_commit=is_commit):
                code = (await connection.send(EndTxnRequest(self._id, *producer, is_commit))).error_code
                return event_of(code, TransactionRequestKind.END) or TransactionEnded()
            case _:
                assert_never(request)

    async def _store_offsets(self, request: SendOffsets, connection: _DeadlineConnection) -> TransactionEvent:
        group_offsets, identity = request.offsets, request.offsets.identity
        answer = await connection.send(
            TxnOffsetCommitRequest(
                self._id,
                group_offsets.group_id,
                *request.producer,
                group_offsets.offsets,
                generation_id=identity.generation,
                member_id=identity.member_id,
                group_instance_id=identity.instance_id,
            )
        )
        topic_ids = {TopicPartition(one.topic, one.partition): one.topic_id for one in group_offsets.offsets}
        failure = _worst_failure(list(topic_ids), answer.partitions, TransactionRequestKind.COMMIT_OFFSETS)
        if failure is not None:
            return failure
        # TxnOffsetCommit contains no topic ids, so they are compared afterwards. If this broker learns of a deletion of
        # the topic only later, it then also removes the pending offsets.
        if recreated := await partitions_of_recreated_topics(connection.send, topic_ids):
            return MustAbort(TopicRecreatedError(recreated))
        return OffsetsStored()


class _DeadlineConnection:
    """Connection that sends several requests with a common deadline."""

    def __init__(self, connection: Connection, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    async def send(self, request: Request[ResponseT]) -> ResponseT:
        return await self._connection.send(request, self._deadline - asyncio.get_running_loop().time())


def _worst_failure(
    partitions: Sequence[TopicPartition], results: Iterable[AddedPartition | CommitResult], kind: TransactionRequestKind
) -> TransactionEvent | None:
    codes = {TopicPartition(one.topic, one.partition): one.error_code for one in results}
    events = [
        event_of(codes[one], kind, str(one)) if one in codes else TryAgain(f"the response to {kind} lacks {one}")
        for one in partitions
    ]
    return worst_of(event for event in events if event is not None)


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
