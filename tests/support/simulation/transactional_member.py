"""Transactional producers for unit tests and simulations."""

from __future__ import annotations

from tailrace.producer.transaction_machine import TransactionMachine, TransactionSettings
from tailrace.records import TopicPartition

NOW = 1_000.0
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def member(**changes: float) -> TransactionMachine:
    """Return a machine whose pauses have no jitter."""
    given = {
        "transaction_timeout_s": 60.0,
        "request_timeout_s": 20.0,
        "abort_s": 5.0,
        "retry_first_s": 0.1,
        "retry_longest_s": 1.0,
        **changes,
    }
    return TransactionMachine(TransactionSettings("me", **given), lambda: 0.5)
