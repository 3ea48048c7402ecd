"""What topics are called: KIP-848 assigns by topic id, users and offsets know names.

The cluster's picture may be older than an assignment, so a topic may have no name yet. One question is out at a time;
what had no name when it was asked for is asked for again after a pause that grows, or when the picture is newer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

from tailrace.core.backoff import Backoff
from tailrace.core.group.effects import NameTopics

__all__ = ["TopicNames"]


class TopicNames:
    """The names that are known, and the question that is out for the others.

    Args:
        backoff: the pauses between questions.
        chance: gives a number in [0, 1) for jitter.
    """

    def __init__(self, backoff: Backoff, chance: Callable[[], float]) -> None:
        self._backoff, self._chance = backoff, chance
        self.known: dict[UUID, str] = {}
        self.asked: NameTopics | None = None
        """The question that is out."""
        self.next_at: float | None = None
        """When to ask again for what had no name; None for nothing."""
        self._nameless: frozenset[UUID] = frozenset()
        self._failures = 0

    def ask(self, wanted: frozenset[UUID]) -> NameTopics | None:
        """What to ask now, if anything: something unknown is wanted, and was not just asked for in vain."""
        unknown = wanted - self.known.keys()
        if self.asked is not None or not unknown - self._nameless:
            return None
        self.asked = NameTopics(unknown)
        return self.asked

    def ask_again(self, wanted: frozenset[UUID]) -> NameTopics | None:
        """The same, also for what had no name."""
        self.next_at, self._nameless = None, frozenset()
        return self.ask(wanted)

    def answered(self, names: Mapping[UUID, str], now: float) -> None:
        """Some have names now, the others later."""
        assert self.asked is not None
        self.known.update(names)
        self._nameless = self.asked.topic_ids - self.known.keys()
        self._failures = self._failures + 1 if self._nameless else 0
        self.asked = None
        self.next_at = now + self._backoff.pause_s(self._failures, self._chance()) if self._nameless else None

    def failed(self, now: float) -> None:
        """Something was not answered, perhaps this: ask again after a pause."""
        if self.asked is not None:
            self.answered({}, now)

    def stop(self) -> None:
        """Nothing is wanted any more; what is known stays known."""
        self.asked = self.next_at = None
        self._nameless, self._failures = frozenset(), 0
