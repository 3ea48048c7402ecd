"""The one question of a transactional producer that is under way, and when it is asked again.

Rule of this file: it knows how often asking came to nothing and until when it is tried; what is asked is for
``core.producer.transactional`` to say.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.core.backoff import Backoff
from tailrace.core.producer.events import Moved, Question, TransactionSettings, TryAgain, Unanswered

__all__ = ["PendingRequest"]


class PendingRequest:
    """What a producer waits for: an answer, or the time to ask again.

    Args:
        settings: what the options say.
        chance: gives a number in [0, 1) for jitter, passed in because chance is not decided here.

    Attributes:
        awaited: the question that is under way; None while there is none.
        trouble: why the last one that came to nothing did.
    """

    def __init__(self, settings: TransactionSettings, chance: Callable[[], float]) -> None:
        self._longest_s, self._chance = settings.request_timeout_s, chance
        self._backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self._soon = Backoff(settings.soon_s, settings.retry_longest_s)
        self._retry_at: float | None = None
        self._deadline = 0.0
        self._failures = 0
        self.awaited: Question | None = None
        self.trouble = "no answer"

    def begin(self, within_s: float, now: float) -> None:
        """The user waits again, for so long at most."""
        self._deadline = now + within_s
        self._failures = 0

    def timeout_s(self, now: float) -> float | None:
        """How long the next question may take; None when it is too late for another, which is then due at once."""
        left_s = min(self._longest_s, self._deadline - now)
        if left_s > 0:
            return left_s
        self._retry_at = now
        return None

    def heard(self) -> None:
        """It was answered, and not in vain."""
        self.awaited = None
        self._failures = 0

    def progressed(self) -> None:
        """A part of it was."""
        self._failures = 0

    def came_to_nothing(self, why: TryAgain | Moved | Unanswered, now: float) -> None:
        """Ask again after a pause that grows."""
        self.awaited = None
        self.trouble = why.reason
        self._failures += 1
        backoff = self._soon if isinstance(why, TryAgain) and why.is_soon else self._backoff
        self._retry_at = now + backoff.pause_s(self._failures, self._chance())

    def forget(self) -> None:
        """Nothing is awaited, nor is anything to be asked again."""
        self.awaited = self._retry_at = None

    @property
    def due_at(self) -> float | None:
        """When it is time to ask again, or too late; None while a question is under way, and when all is done."""
        return None if self._retry_at is None else min(self._retry_at, self._deadline)

    def is_too_late(self, now: float) -> bool:
        """Whether the user has waited long enough."""
        return now >= self._deadline
