"""Reactions of a producer to the error code of one partition in the answer to Produce."""

from __future__ import annotations

from enum import StrEnum

from tailrace.core.error_reactions import ReactionTable
from tailrace.error_codes import ErrorCode
from tailrace.errors import PublishError, PublishTooLargeError, broker_error

__all__ = ["ProduceReaction", "reaction_to", "refusal"]


class ProduceReaction(StrEnum):
    """Treatment of a batch after its answer."""

    STORED = "stored"
    RETRY = "send it again after a backoff"
    LOOK_UP = "find the leader, then send it again"
    WAIT_FOR_EARLIER = "send it again after the batches before it"
    RENEW = "send it again under another producer epoch"
    ISOLATE = "find the refused records, and send the others again"
    FAIL = "fail its records"


_REACTIONS: ReactionTable[ProduceReaction, ProduceReaction] = ReactionTable(
    {
        ErrorCode.NONE: ProduceReaction.STORED,
        # The broker remembers the last five batches only, and so has no offset for an older batch.
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER: ProduceReaction.STORED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ProduceReaction.LOOK_UP,
        ErrorCode.LEADER_NOT_AVAILABLE: ProduceReaction.LOOK_UP,
        ErrorCode.NOT_LEADER_OR_FOLLOWER: ProduceReaction.LOOK_UP,
        ErrorCode.REPLICA_NOT_AVAILABLE: ProduceReaction.LOOK_UP,
        ErrorCode.KAFKA_STORAGE_ERROR: ProduceReaction.LOOK_UP,
        ErrorCode.FENCED_LEADER_EPOCH: ProduceReaction.LOOK_UP,
        ErrorCode.UNKNOWN_LEADER_EPOCH: ProduceReaction.LOOK_UP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ProduceReaction.WAIT_FOR_EARLIER,
        # KIP-360: the partition's log no longer contains the producer's earlier records.
        ErrorCode.UNKNOWN_PRODUCER_ID: ProduceReaction.RENEW,
        ErrorCode.INVALID_PRODUCER_EPOCH: ProduceReaction.RENEW,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: ProduceReaction.RENEW,
        ErrorCode.MESSAGE_TOO_LARGE: ProduceReaction.ISOLATE,
        ErrorCode.RECORD_LIST_TOO_LARGE: ProduceReaction.ISOLATE,
        ErrorCode.INVALID_RECORD: ProduceReaction.ISOLATE,
        ErrorCode.INVALID_TIMESTAMP: ProduceReaction.ISOLATE,
        ErrorCode.POLICY_VIOLATION: ProduceReaction.ISOLATE,
    },
    retriable=ProduceReaction.RETRY,
    final=ProduceReaction.FAIL,
)

_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def reaction_to(code: int) -> ProduceReaction:
    """Return the reaction to an error code."""
    return _REACTIONS.reaction_to(code)


def refusal(topic: str, code: int, detail: str = "") -> PublishError:
    """Return the error of records that the broker refused with ``code``."""
    if code in _TOO_LARGE:
        error = broker_error(code, "larger than the topic allows")
        return PublishTooLargeError(f"{topic}: {error} - max.message.bytes of the topic")
    return PublishError(f"{topic}: {broker_error(code, detail or 'refused by the broker')}")
