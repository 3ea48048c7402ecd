"""States of a transactional producer."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ENDING", "OPEN", "OVER", "REQUESTING", "ProducerState"]


class ProducerState(StrEnum):
    """State of a transactional producer."""

    UNINITIALIZED = "uninitialized"
    """The producer has no producer id, or has an epoch that must not be used any more."""
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FENCED = "fenced"
    FAILED = "failed"


OPEN = (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING)
"""States in which records are sent."""

ENDING = (ProducerState.COMMITTING, ProducerState.ABORTING)
"""States in which a transaction is ended."""

REQUESTING = (ProducerState.UNINITIALIZED, *OPEN, ProducerState.ABORTING)
"""States in which a request to a coordinator may be in flight."""

OVER = frozenset({ProducerState.FENCED, ProducerState.FAILED})
"""Final states."""
