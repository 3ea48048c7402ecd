"""Reactions of a producer to the error codes of batches in Produce responses."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tailrace.core.error_reactions import ReactionTable
from tailrace.error_codes import ErrorCode
from tailrace.errors import PublishError, PublishTooLargeError, broker_error

__all__ = ["ProduceReaction", "publish_error", "reaction_to"]


class ProduceReaction(StrEnum):
    """Reaction to the error code of a batch.

    If no earlier batch of the partition is in flight or waiting, WAIT_FOR_EARLIER is treated as RENEW_EPOCH.
    """

    STORED = "report the records as delivered"
    RETRY = "send the batch again after a backoff"
    LOOK_UP = "look up the leader, then send the batch again"
    WAIT_FOR_EARLIER = "send the batch again after the earlier batches of the partition"
    RENEW_EPOCH = "send the batch again with a new producer epoch"
    ISOLATE = "split the batch to find the refused records, fail these, and send the others again"
    FAIL = "fail the records"


_REACTIONS: ReactionTable[ProduceReaction, ProduceReaction] = ReactionTable(
    {
        ErrorCode.NONE: ProduceReaction.STORED,
        # The batch is in the log, but older than the five batches whose offsets the broker remembers, so the response
        # contains no offset.
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
        ErrorCode.UNKNOWN_PRODUCER_ID: ProduceReaction.RENEW_EPOCH,
        ErrorCode.INVALID_PRODUCER_EPOCH: ProduceReaction.RENEW_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: ProduceReaction.RENEW_EPOCH,
        ErrorCode.MESSAGE_TOO_LARGE: ProduceReaction.ISOLATE,
        ErrorCode.RECORD_LIST_TOO_LARGE: ProduceReaction.ISOLATE,
        ErrorCode.INVALID_RECORD: ProduceReaction.ISOLATE,
        ErrorCode.INVALID_TIMESTAMP: ProduceReaction.ISOLATE,
        ErrorCode.POLICY_VIOLATION: ProduceReaction.ISOLATE,
    },
    retriable=ProduceReaction.RETRY,
    final=ProduceReaction.FAIL,
)

_SIZE_LIMITS: Mapping[int, str] = {
    ErrorCode.MESSAGE_TOO_LARGE: "max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "segment.bytes",
}
"""Topic setting that limits the size of a batch, by the error code that the broker returns above the limit."""


def reaction_to(code: int) -> ProduceReaction:
    """Return the reaction to the error code of a batch."""
    return _REACTIONS.reaction_to(code)


def publish_error(topic: str, code: int, detail: str = "") -> PublishError:
    """Return the error of records that the broker refused with ``code``; ``detail`` is the broker's message."""
    if (setting := _SIZE_LIMITS.get(code)) is not None:
        error = broker_error(code, "larger than the topic allows")
        return PublishTooLargeError(
            f"{topic}: {error} - raise {setting} of the topic, or publish smaller records", setting=setting
        )
    return PublishError(f"{topic}: {broker_error(code, detail or 'refused by the broker', permission='WRITE')}")
