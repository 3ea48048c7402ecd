"""Names of assigned topics: a KIP-848 assignment has topic ids, but commits and applications use topic names.

Cluster metadata may be older than an assignment and then lacks the name of a topic id. One request for names is in
flight at a time. Names that the answer lacks are requested again after a pause that grows with each request, or when
the metadata is refreshed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from tailrace.core.backoff import Backoff
from tailrace.core.group.effects import FindTopicNames

__all__ = ["TopicNames"]


class TopicNames:
    """Known topic names by topic id, and the request for missing names.

    Args:
        backoff: pauses between requests.
        chance: returns a number in [0, 1) for jitter.
    """

    def __init__(self, backoff: Backoff, chance: Callable[[], float]) -> None:
        self._backoff, self._chance = backoff, chance
        self.known: dict[UUID, str] = {}
        self.in_flight: FindTopicNames | None = None
        """Request in flight; None if no request is in flight."""
        self.next_at: float | None = None
        """Time of the next request for names that the last answer lacked; None if it lacked none."""
        self._nameless: frozenset[UUID] = frozenset()
        """Topic ids whose names the last answer lacked."""
        self._failures = 0

    def request(self, wanted: frozenset[UUID]) -> FindTopicNames | None:
        """Return a request for the missing names of ``wanted``.

        Return None if no name is missing, if a request is in flight, or if the last answer lacked all missing names.
        """
        unknown = wanted - self.known.keys()
        if self.in_flight is not None or not unknown - self._nameless:
            return None
        self.in_flight = FindTopicNames(unknown)
        return self.in_flight

    def request_again(self, wanted: frozenset[UUID]) -> FindTopicNames | None:
        """Return a request for the missing names of ``wanted``, including names that the last answer lacked."""
        self.next_at, self._nameless = None, frozenset()
        return self.request(wanted)

    def note_answer(self, names: Mapping[UUID, str], now: float) -> None:
        """Store the names of an answer, and schedule another request for names that the answer lacks."""
        assert self.in_flight is not None
        self.known.update(names)
        self._nameless = self.in_flight.topic_ids - self.known.keys()
        self._failures = self._failures + 1 if self._nameless else 0
        self.in_flight = None
        self.next_at = now + self._backoff.pause_s(self._failures, self._chance()) if self._nameless else None

    def note_failure(self, now: float) -> None:
        """Schedule another request after a pause if a request is in flight, because it may have failed."""
        if self.in_flight is not None:
            self.note_answer({}, now)

    def stop(self) -> None:
        """Forget the request in flight and the scheduled request; known names are kept."""
        self.in_flight = self.next_at = None
        self._nameless, self._failures = frozenset(), 0
