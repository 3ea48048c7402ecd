"""What a transaction asks of brokers: one question, one request (for batches one to each leader), one event.

Rule of this file: nothing here raises to a transaction. An answer's error code is the event that
``core.producer.error_reactions`` makes of it. What fails before the request is on its way was not done (``Moved``);
what fails after that may have been done, or may yet be (``Unanswered``).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar, assert_never

from tailrace.core.producer.error_reactions import TransactionRequestKind, event_of, worst_of
from tailrace.core.producer.events import (
    BatchesAnswered,
    Ended,
    LookUpAgain,
    Moved,
    MustAbort,
    OffsetsAdded,
    OffsetsStored,
    PartitionsAdded,
    ProducerBatch,
    ProducerId,
    ProducerIdGiven,
    Question,
    SendAddOffsets,
    SendAddPartitions,
    SendBatches,
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
from tailrace.net.topic_ids import with_other_ids
from tailrace.protocol.committed_offsets import CommitResult
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import FindCoordinatorRequest
from tailrace.protocol.produce import ProducedPartition, ProduceRequest, RecordsToProduce
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
"""The kind of coordinator."""
_ALL_REPLICAS = -1

_numbers = itertools.count(1)


class TransactionRequests:
    """Asks on behalf of one transactional producer.

    Args:
        cluster: whose brokers are asked.
        settings: what the options say.
        content: gives the bytes of a batch.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: TransactionSettings,
        content: Callable[[ProducerId, ProducerBatch], memoryview],
    ) -> None:
        self._cluster, self._settings, self._content = cluster, settings, content
        self._id = settings.transactional_id
        # What coordinators are asked does not wait behind batches that replicas have to fetch first.
        name = f"{self._id}-{next(_numbers)}"
        self._asking = ChannelKey(Channel.MAIN, f"transactions of {name}")
        self._writing = ChannelKey(Channel.MAIN, f"records of {name}")
        self._used: set[Broker] = set()
        self._coordinator_id: int | None = None
        self._are_leaders_known = True

    async def outcome(self, question: Question) -> TransactionEvent:
        """Ask, and say what came of it."""
        deadline = asyncio.get_running_loop().time() + question.timeout_s
        if isinstance(question, SendBatches):
            return await self._write(question, deadline)
        try:
            connection = await self._connected(self._in_charge_of(question), self._asking, deadline)
        except TailraceError as error:
            return _not_sent(error)
        try:
            return await self._ask(question, _TransientConnection(connection, deadline))
        except TailraceError as error:
            return _not_answered(error)

    def look_up_again(self, effect: LookUpAgain) -> None:
        """Who was in charge of it is so no more, or does not answer."""
        match effect.asked:
            case SendBatches():
                self._are_leaders_known = False
            case SendOffsets(offsets=offsets):
                self._cluster.forget_coordinator(offsets.group_id, effect.reason)
            case _:
                self._coordinator_id = None

    def close(self) -> None:
        """Close the connections."""
        for broker in self._used:
            broker.forget(self._asking.member)
            broker.forget(self._writing.member)
        self._used.clear()

    # ---- who is in charge --------------------------------------------------------------------------------------

    async def _in_charge_of(self, question: Question) -> Broker:
        if isinstance(question, SendOffsets):
            return await self._cluster.coordinator(question.offsets.group_id)
        if self._coordinator_id is None:
            request = FindCoordinatorRequest(self._id, _TRANSACTION)
            try:
                answer = await self._cluster.send_to_any(request)
            except BrokerConnectionError:
                # Who has nothing to write would never hear where the brokers have gone.
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

    async def _connected(self, finding: Awaitable[Broker], key: ChannelKey, deadline: float) -> Connection:
        try:
            async with asyncio.timeout_at(deadline):
                broker = await finding
                self._used.add(broker)
                return await broker.connection_for(key)
        except TimeoutError:
            raise NodeNotConnectedError("nobody in charge could be found and connected to in time") from None

    # ---- what is asked of coordinators -------------------------------------------------------------------------

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
                return trouble or PartitionsAdded(frozenset(partitions))
            case SendAddOffsets(group_id=group_id):
                code = (await connection.send(AddOffsetsToTxnRequest(self._id, *who, group_id))).error_code
                return event_of(code, TransactionRequestKind.ADD_OFFSETS, f"group {group_id!r}") or OffsetsAdded()
            case SendOffsets():
                return await self._store(question, connection)
            case SendEnd(is_commit=is_commit):
                code = (await connection.send(EndTxnRequest(self._id, *who, is_commit))).error_code
                return event_of(code, TransactionRequestKind.END) or Ended()
            case SendBatches():
                raise AssertionError("batches go to leaders")
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
        # TxnOffsetCommit names topics. The ids are compared after it: a deletion that this broker has not seen by now
        # removes offsets that wait for the transaction's end, too, so no recreated topic goes unnoticed.
        if others := await with_other_ids(connection.send, topic_ids):
            return MustAbort(TopicRecreatedError(others))
        return OffsetsStored()

    # ---- what is asked of leaders ------------------------------------------------------------------------------

    async def _write(self, question: SendBatches, deadline: float) -> BatchesAnswered:
        if not self._are_leaders_known:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._cluster.refresh()
            except (TailraceError, TimeoutError) as error:
                return BatchesAnswered(frozenset(), (Moved(f"nobody says who leads now: {error}"),))
            self._are_leaders_known = True
        by_leader: defaultdict[int, list[ProducerBatch]] = defaultdict(list)
        for batch in question.batches:
            leadership = self._cluster.topology.leader(batch.partition)
            by_leader[-1 if leadership is None else leadership.leader_id].append(batch)
        async with asyncio.TaskGroup() as tasks:
            writing = [
                tasks.create_task(self._write_to(leader, batches, question.producer, deadline))
                for leader, batches in by_leader.items()
            ]
        answers = [task.result() for task in writing]
        return BatchesAnswered(
            frozenset().union(*(one.written for one in answers)),
            tuple(trouble for one in answers for trouble in one.troubles),
        )

    async def _write_to(
        self, leader: int, batches: Sequence[ProducerBatch], producer: ProducerId, deadline: float
    ) -> BatchesAnswered:
        try:
            connection = await self._connected(self._led_by(leader, batches), self._writing, deadline)
        except TailraceError as error:
            return BatchesAnswered(frozenset(), (_not_sent(error),))
        request = ProduceRequest(
            self._id,
            _ALL_REPLICAS,
            round(self._settings.request_timeout_s * 1000),
            tuple(RecordsToProduce(*batch.partition, self._content(producer, batch)) for batch in batches),
        )
        try:
            answer = await _TransientConnection(connection, deadline).send(request)
        except TailraceError as error:
            return BatchesAnswered(frozenset(), (_not_answered(error),))
        return self._read({TopicPartition(one.topic, one.partition): one for one in answer.partitions}, batches)

    async def _led_by(self, leader: int, batches: Sequence[ProducerBatch]) -> Broker:
        if leader < 0:
            raise NodeNotConnectedError(f"{', '.join(str(one.partition) for one in batches)}: no leader now")
        return self._cluster.broker(leader)

    def _read(
        self, answers: Mapping[TopicPartition, ProducedPartition], batches: Sequence[ProducerBatch]
    ) -> BatchesAnswered:
        written, troubles = set(), []
        for partition in (batch.partition for batch in batches):
            answer = answers.get(partition)
            if answer is None:
                troubles.append(_no_word_of(partition, TransactionRequestKind.PRODUCE))
                continue
            detail = f"{partition} ({answer.error_message})" if answer.error_message else str(partition)
            if (trouble := event_of(answer.error_code, TransactionRequestKind.PRODUCE, detail)) is None:
                written.add(partition)
            else:
                troubles.append(trouble)
            if answer.current_leader.leader_id >= 0:
                self._cluster.learn_leader(
                    partition, answer.current_leader.leader_id, answer.current_leader.leader_epoch
                )
        return BatchesAnswered(frozenset(written), tuple(troubles))


class _TransientConnection:
    """A connection, for as long as one question may take."""

    def __init__(self, connection: Connection, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    async def send(self, request: Request[ResponseT]) -> ResponseT:
        return await self._connection.send(request, self._deadline - asyncio.get_running_loop().time())


def _worst(
    asked: Sequence[TopicPartition], answered: Iterable[AddedPartition | CommitResult], what: TransactionRequestKind
) -> TransactionEvent | None:
    codes = {TopicPartition(one.topic, one.partition): one.error_code for one in answered}
    troubles = [event_of(codes[one], what, str(one)) if one in codes else _no_word_of(one, what) for one in asked]
    return worst_of(one for one in troubles if one is not None)


def _no_word_of(partition: TopicPartition, asked: TransactionRequestKind) -> TransactionEvent:
    return TryAgain(f"no word of {partition} in the answer to {asked}")


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
