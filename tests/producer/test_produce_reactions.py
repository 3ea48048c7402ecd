"""Reactions of the producer to error codes of Produce."""

from __future__ import annotations

import pytest

from tailrace.error_codes import RETRIABLE, ErrorCode
from tailrace.errors import PublishError, PublishTooLargeError
from tailrace.producer.accumulator import ProduceReaction, publish_error, reaction_to
from tailrace.producer.transaction_machine import MustAbort, ProducerFenced, TransactionFailed
from tailrace.producer.transaction_reactions import TransactionRequestKind, event_of

HEALING = {ProduceReaction.STORED, ProduceReaction.RETRY, ProduceReaction.LOOK_UP}


@pytest.mark.parametrize(
    ("code", "reaction"),
    [
        (ErrorCode.NONE, ProduceReaction.STORED),
        (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ProduceReaction.STORED),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ProduceReaction.LOOK_UP),
        (ErrorCode.LEADER_NOT_AVAILABLE, ProduceReaction.LOOK_UP),
        (ErrorCode.REPLICA_NOT_AVAILABLE, ProduceReaction.LOOK_UP),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ProduceReaction.LOOK_UP),
        (ErrorCode.KAFKA_STORAGE_ERROR, ProduceReaction.LOOK_UP),
        (ErrorCode.FENCED_LEADER_EPOCH, ProduceReaction.LOOK_UP),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, ProduceReaction.LOOK_UP),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ProduceReaction.RETRY),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ProduceReaction.RETRY),
        (ErrorCode.REQUEST_TIMED_OUT, ProduceReaction.RETRY),
        (ErrorCode.CORRUPT_MESSAGE, ProduceReaction.RETRY),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ProduceReaction.RETRY),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ProduceReaction.WAIT_FOR_EARLIER),
        (ErrorCode.UNKNOWN_PRODUCER_ID, ProduceReaction.RENEW_EPOCH),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ProduceReaction.RENEW_EPOCH),
        (ErrorCode.MESSAGE_TOO_LARGE, ProduceReaction.ISOLATE),
        (ErrorCode.INVALID_RECORD, ProduceReaction.ISOLATE),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ProduceReaction.FAIL),
        (999, ProduceReaction.FAIL),
    ],
)
def test_reactions_to_codes_of_produce(code, reaction):
    """Each code that Produce may return has the listed reaction."""
    assert reaction_to(code) is reaction


def test_retriable_codes_are_retried():
    """No code that Kafka defines as retriable fails a record."""
    lost = {ProduceReaction.FAIL}

    assert [code for code in RETRIABLE if reaction_to(code) in lost] == []


@pytest.mark.parametrize("code", [code for code in (*ErrorCode, 999) if reaction_to(code) not in HEALING])
def test_other_error_codes_end_the_transaction(code):
    """In a transaction each code that forbids sending the batch again has an event."""
    assert isinstance(event_of(code, TransactionRequestKind.PRODUCE), MustAbort | ProducerFenced | TransactionFailed)


def test_a_refusal_names_the_topic_and_the_reason():
    """A refused record raises an error with topic and reason, PublishTooLargeError if the record is too large."""
    too_large = publish_error("orders", ErrorCode.MESSAGE_TOO_LARGE)
    too_long = publish_error("orders", ErrorCode.RECORD_LIST_TOO_LARGE)
    refused = publish_error("orders", ErrorCode.INVALID_RECORD, "no key")

    assert type(too_large) is PublishTooLargeError
    assert "orders: larger than the topic allows (MESSAGE_TOO_LARGE" in str(too_large)
    assert isinstance(too_long, PublishTooLargeError)
    assert too_long.setting == "segment.bytes"
    assert type(refused) is PublishError
    assert "orders: no key (INVALID_RECORD" in str(refused)
