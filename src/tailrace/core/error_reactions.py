"""Table of reactions to broker error codes, used for group members, producers and fetches.

Pure: no clock, IO or logging.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from tailrace.error_codes import TRANSIENT

__all__ = ["ReactionTable"]

RequestT = TypeVar("RequestT", bound=StrEnum)
ReactionT = TypeVar("ReactionT", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class ReactionTable(Generic[RequestT, ReactionT]):
    """Reactions by error code and request; an entry for one request overrides the general entry."""

    general: Mapping[int, ReactionT]
    """Reactions to codes in the answer to any request."""
    retriable: ReactionT
    """Reaction to ``TRANSIENT`` codes without an entry."""
    final: ReactionT
    """Reaction to all other codes without an entry."""
    by_request: Mapping[RequestT, Mapping[int, ReactionT]] = field(default_factory=dict)
    """Reactions to codes in the answers to one kind of request."""
    final_by_request: Mapping[RequestT, ReactionT] = field(default_factory=dict)
    """Reactions that replace ``final`` for one kind of request."""

    def reaction_to(
        self, code: int, request: RequestT | None = None, overrides: Mapping[int, ReactionT] | None = None
    ) -> ReactionT:
        """Return the reaction to ``code`` in the answer to ``request``; ``overrides`` replace entries of the table."""
        for_request = {} if request is None else self.by_request.get(request, {})
        for reactions in (overrides or {}, for_request, self.general):
            if code in reactions:
                return reactions[code]
        final = self.final if request is None else self.final_by_request.get(request, self.final)
        return self.retriable if code in TRANSIENT else final
