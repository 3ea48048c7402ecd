"""Where a transactional producer may stand, and which of these states have what in common."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ASKING", "ENDING", "OPEN", "OVER", "State"]


class State(StrEnum):
    """Where a transactional producer stands."""

    UNINITIALISED = "uninitialised"
    """Without a producer id, or with one whose epoch is not to be used any more."""
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FENCED = "fenced"
    FAILED = "failed"


OPEN = (State.IN_TRANSACTION, State.COMMITTING)
"""The states in which batches are written."""

ENDING = (State.COMMITTING, State.ABORTING)
"""Those in which the coordinator is told how the transaction ends."""

ASKING = (State.UNINITIALISED, *OPEN, State.ABORTING)
"""Those in which a broker may be asked something."""

OVER = frozenset({State.FENCED, State.FAILED})
"""Those that nothing leads out of."""
