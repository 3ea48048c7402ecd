"""Transactions (KIP-98): InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit and EndTxn.

The oldest supported versions are those of Apache Kafka 2.5, the first release whose TxnOffsetCommit contains the
generation and member id (KIP-447); InitProducerId also gives an idempotent producer its id, from Kafka 2.1 on.
AddPartitionsToTxn from version 4 on is used only between brokers.

In transactions of version 2 (KIP-890), the leaders and the group coordinator add partitions and groups to the
transaction (Produce from version 12 on, TxnOffsetCommit from version 5 on), and EndTxn from version 5 on raises the
producer epoch. All requests of a transaction must have versions of one kind, whichever versions the broker offers. The
field ``transaction_version`` of these requests, which is not on the wire, chooses the kind.
"""

from __future__ import annotations

from typing import Any

from tailrace.protocol.encoding.fields import NEVER, by_topic, field
from tailrace.protocol.encoding.primitives import int16, int32, int64
from tailrace.protocol.groups import CommitOffset, CommitResult
from tailrace.protocol.handshake import BrokerVersions, Capability, any_version, since_version
from tailrace.protocol.message import NO_TOPIC_ID, ApiMessage, Request
from tailrace.protocol.records import LAST_PRODUCE_IN_FIRST, ProduceRequest

__all__ = [
    "IDEMPOTENCE",
    "PUBLISHING",
    "TRANSACTIONS",
    "TRANSACTION_VERSION",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AddedPartition",
    "EndTxnRequest",
    "EndTxnResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "PartitionToAdd",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "transaction_version",
]

# ---- versions of transactions ----------------------------------------------------------------------------------------

TRANSACTION_VERSION = "transaction.version"
"""Name of the feature whose finalized level is the version of transactions (KIP-1022)."""

_SECOND = 2
_LAST_STORE_IN_FIRST, _LAST_END_IN_FIRST = 4, 4
"""Last versions of TxnOffsetCommit and EndTxn that may be used in a transaction of version 1."""
_LAST_STORE_BY_NAME = 5
"""Last version of TxnOffsetCommit with topic names."""


def transaction_version(versions: BrokerVersions) -> int:
    """Return the version of transactions that a broker's cluster has finalized: 1 or 2.

    The versions that the broker offers are not enough: brokers offer the requests of version 2 while their cluster has
    finalized version 1, and some services offer and refuse them. A proxy may offer fewer versions than its brokers,
    whose features it passes on.
    """
    has_requests = all(one.api in versions and versions.version_of(one.api) > last for one, last in _LAST_IN_FIRST)
    return _SECOND if versions.finalized.get(TRANSACTION_VERSION, 0) >= _SECOND and has_requests else 1


# ---- requests --------------------------------------------------------------------------------------------------------


class InitProducerIdResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16
    producer_id: int64 = -1
    producer_epoch: int16 = -1


class InitProducerIdRequest(Request[InitProducerIdResponse], key=22, versions=(0, 5), flexible_from=2):
    transactional_id: str | None
    transaction_timeout_ms: int32
    producer_id: int64 = field(since=3, default=-1)
    """Producer id whose epoch the broker is to increase (KIP-360); -1 to request an id without this check.

    The broker returns an error if another producer with the same transactional id has a newer epoch.
    """
    producer_epoch: int16 = field(since=3, default=-1)


class PartitionToAdd(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partitions")


class AddedPartition(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partition_index")
    error_code: int16 = field("partition_error_code")


class AddPartitionsToTxnResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    partitions: tuple[AddedPartition, ...] = by_topic("results_by_topic_v3_and_below", "results_by_partition")


class AddPartitionsToTxnRequest(Request[AddPartitionsToTxnResponse], key=24, versions=(1, 3), flexible_from=3):
    transactional_id: str = field("v3_and_below_transactional_id")
    producer_id: int64 = field("v3_and_below_producer_id")
    producer_epoch: int16 = field("v3_and_below_producer_epoch")
    partitions: tuple[PartitionToAdd, ...] = by_topic("v3_and_below_topics", bare=True)


class AddOffsetsToTxnResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16


class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse], key=25, versions=(1, 4), flexible_from=3):
    transactional_id: str
    producer_id: int64
    producer_epoch: int16
    group_id: str


_ENTRY_VERSIONS = ((0, 9), (_LAST_STORE_BY_NAME + 1, 10))
"""Versions of OffsetCommit whose entries TxnOffsetCommit contains."""


class TxnOffsetCommitResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    partitions: tuple[CommitResult, ...] = by_topic(entry_versions=_ENTRY_VERSIONS)


class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse], key=28, versions=(3, 6), flexible_from=3):
    transactional_id: str
    group_id: str
    producer_id: int64
    producer_epoch: int16
    generation_id: int32 = field("generation_id_or_member_epoch", default=-1, kw_only=True)
    """Generation, or member epoch (KIP-848); -1 if the committer is not a member and cannot be fenced (KIP-447)."""
    member_id: str = field(default="", kw_only=True)
    group_instance_id: str | None = field(default=None, kw_only=True)
    partitions: tuple[CommitOffset, ...] = by_topic(entry_versions=_ENTRY_VERSIONS)
    transaction_version: int16 = field(since=NEVER, ignorable=True, default=1, kw_only=True)

    @property
    def newest_version(self) -> int | None:
        """Version 4 for a transaction of version 1; otherwise version 5 if the topic id of a partition is unknown."""
        if self.transaction_version < _SECOND:
            return _LAST_STORE_IN_FIRST
        return _LAST_STORE_BY_NAME if any(one.topic_id == NO_TOPIC_ID for one in self.partitions) else None

    @property
    def oldest_version(self) -> int | None:
        """Version 5, the first that adds the group, for a transaction of version 2; otherwise None."""
        return None if self.transaction_version < _SECOND else _LAST_STORE_IN_FIRST + 1


class EndTxnResponse(ApiMessage):
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    error_code: int16
    producer_id: int64 = field(since=5, ignorable=True, default=-1)
    """Producer id and epoch of the next transaction; -1 before version 5."""
    producer_epoch: int16 = field(since=5, ignorable=True, default=-1)


class EndTxnRequest(Request[EndTxnResponse], key=26, versions=(1, 5), flexible_from=3):
    transactional_id: str
    producer_id: int64
    producer_epoch: int16
    committed: bool
    """True to commit the transaction, False to abort it."""
    transaction_version: int16 = field(since=NEVER, ignorable=True, default=1)

    @property
    def newest_version(self) -> int | None:
        """Version 4 for a transaction of version 1; otherwise None."""
        return _LAST_END_IN_FIRST if self.transaction_version < _SECOND else None

    @property
    def oldest_version(self) -> int | None:
        """Version 5, the first that raises the epoch, for a transaction of version 2; otherwise None."""
        return None if self.transaction_version < _SECOND else _LAST_END_IN_FIRST + 1


_LAST_IN_FIRST: tuple[tuple[type[Request[Any]], int], ...] = (
    (ProduceRequest, LAST_PRODUCE_IN_FIRST),
    (TxnOffsetCommitRequest, _LAST_STORE_IN_FIRST),
    (EndTxnRequest, _LAST_END_IN_FIRST),
)
"""Last version of each request that may be used in a transaction of version 1."""


# ---- what brokers need for publishing --------------------------------------------------------------------------------

PUBLISHING = Capability(
    "publishing",
    any_version(ProduceRequest.api),
    "publish to another cluster, or upgrade the brokers to Apache Kafka 2.1 or newer",
    "publish",
)
IDEMPOTENCE = Capability(
    "idempotent producers (KIP-98)",
    any_version(InitProducerIdRequest.api),
    "accept duplicates (enable_idempotence=None, the default), or enable idempotence on the brokers",
    "idempotence",
)
TRANSACTIONS = Capability(
    "transactions (delivery='exactly_once')",
    any_version(
        ProduceRequest.api,
        AddPartitionsToTxnRequest.api,
        AddOffsetsToTxnRequest.api,
        TxnOffsetCommitRequest.api,
        EndTxnRequest.api,
    )
    # From version 3 on, the broker can increase the epoch of a producer id, which some aborts need (KIP-360).
    | since_version(3, InitProducerIdRequest.api),
    "set delivery='at_least_once', or upgrade the brokers to Apache Kafka 2.5 or newer",
    "transactions",
)
