"""Names of assigned topics: KIP-848 assigns partitions by topic id, but offsets and applications use topic names.

Cluster metadata may be older than an assignment, so a topic id may have no name yet. One request is in flight at a
time; ids without a name are requested again after a growing pause, or when the metadata is refreshed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from tailrace.core.backoff import Backoff
from tailrace.core.group.effects import FindTopicNames

__all__ = ["TopicNames"]


class TopicNames:
    """Known topic names, and the request for missing names.

    Args:
        backoff: pauses between requests.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(self, backoff: Backoff, chance: Callable[[], float]) -> None:
        self._backoff, self._chance = backoff, chance
        self.known: dict[UUID, str] = {}
        self.in_flight: FindTopicNames | None = None
        """Request in flight."""
        self.next_at: float | None = None
        """Time at which to request missing names again; None if no such request is scheduled."""
        self._nameless: frozenset[UUID] = frozenset()
        """Topic ids for which the last answer had no name."""
        self._failures = 0

    def request(self, wanted: frozenset[UUID]) -> FindTopicNames | None:
        """Return a request for the missing names of ``wanted``.

        Return None if no name is missing, if a request is in flight, or if all missing names are requested again later.
        """
        unknown = wanted - self.known.keys()
        if self.in_flight is not None or not unknown - self._nameless:
            return None
        self.in_flight = FindTopicNames(unknown)
        return self.in_flight

    def request_again(self, wanted: frozenset[UUID]) -> FindTopicNames | None:
        """Return a request for the missing names of ``wanted``, including names that were requested in vain."""
        self.next_at, self._nameless = None, frozenset()
        return self.request(wanted)

    def answered(self, names: Mapping[UUID, str], now: float) -> None:
        """Store the names, and schedule another request for names that are still missing."""
        assert self.in_flight is not None
        self.known.update(names)
        self._nameless = self.in_flight.topic_ids - self.known.keys()
        self._failures = self._failures + 1 if self._nameless else 0
        self.in_flight = None
        self.next_at = now + self._backoff.pause_s(self._failures, self._chance()) if self._nameless else None

    def failed(self, now: float) -> None:
        """Schedule another request after a pause, because the request in flight may have failed."""
        if self.in_flight is not None:
            self.answered({}, now)

    def stop(self) -> None:
        """Request no more names; known names are kept."""
        self.in_flight = self.next_at = None
        self._nameless, self._failures = frozenset(), 0
