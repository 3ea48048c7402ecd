"""Request that a transactional producer waits for, and the time of its next attempt."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.core.backoff import Backoff
from tailrace.core.producer.events import CoordinatorMoved, Effect, TransactionSettings, TryAgain, Unanswered

__all__ = ["PendingRequest"]


class PendingRequest:
    """Attempts of the requests that a call of the user needs, such as ``commit()``, within the time limit of the call.

    One request is attempted at a time.

    Args:
        settings: settings of the producer.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        awaited: effect whose outcome is awaited; None if there is none.
        last_error: reason for which the last failed attempt has failed.
    """

    def __init__(self, settings: TransactionSettings, chance: Callable[[], float]) -> None:
        self._longest_s, self._chance = settings.request_timeout_s, chance
        self._backoff = Backoff(settings.retry_first_s, settings.retry_longest_s)
        self._soon = Backoff(settings.soon_s, settings.retry_longest_s)
        self._retry_at: float | None = None
        self._deadline = 0.0
        self._failures = 0
        self.awaited: Effect | None = None
        self.last_error = "no answer"

    def begin(self, within_s: float, now: float) -> None:
        """Begin a call with a time limit of ``within_s`` seconds."""
        self._deadline = now + within_s
        self._failures = 0

    def timeout_s(self, now: float) -> float | None:
        """Return the timeout of the next request in seconds.

        If the time limit of the call has passed, return None and make the timer due, which then ends the call.
        """
        left_s = min(self._longest_s, self._deadline - now)
        if left_s > 0:
            return left_s
        self._retry_at = now
        return None

    def note_success(self) -> None:
        """Await no outcome, because the request has succeeded, and reset the backoff."""
        self.awaited = None
        self._failures = 0

    def note_failure(self, event: TryAgain | CoordinatorMoved | Unanswered, now: float) -> None:
        """Schedule another attempt with exponential backoff."""
        self.awaited = None
        self.last_error = event.reason
        self._failures += 1
        backoff = self._soon if isinstance(event, TryAgain) and event.is_soon else self._backoff
        self._retry_at = now + backoff.pause_s(self._failures, self._chance())

    def forget(self) -> None:
        """Forget the awaited effect and the scheduled attempt."""
        self.awaited = self._retry_at = None

    @property
    def due_at(self) -> float | None:
        """Time of the next attempt, or of the call's time limit if it is earlier; None if no attempt is scheduled."""
        return None if self._retry_at is None else min(self._retry_at, self._deadline)

    def is_too_late(self, now: float) -> bool:
        """Return True if the time limit of the call has passed."""
        return now >= self._deadline
