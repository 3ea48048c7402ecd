"""Where a transactional producer may stand, and which of these states have what in common."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ASKING", "ENDING", "OPEN", "OVER", "ProducerState"]


class ProducerState(StrEnum):
    """Where a transactional producer stands."""

    UNINITIALISED = "uninitialised"
    """Without a producer id, or with one whose epoch is not to be used any more."""
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FENCED = "fenced"
    FAILED = "failed"


OPEN = (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING)
"""The states in which batches are written."""

ENDING = (ProducerState.COMMITTING, ProducerState.ABORTING)
"""Those in which the coordinator is told how the transaction ends."""

ASKING = (ProducerState.UNINITIALISED, *OPEN, ProducerState.ABORTING)
"""Those in which a broker may be asked something."""

OVER = frozenset({ProducerState.FENCED, ProducerState.FAILED})
"""Those that nothing leads out of."""
