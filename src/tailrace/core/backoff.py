"""Exponential backoff with jitter (KIP-580). Pure: no clock, IO or logging."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]

_FACTOR = 2
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between attempts, in seconds; each is twice as long as the previous one, up to a limit."""

    first_s: float
    """Pause after the first failure, before jitter."""
    longest_s: float
    """Limit of the pauses, before jitter."""

    @classmethod
    def of_ms(cls, first_ms: int, longest_ms: int) -> Backoff:
        """Return the backoff for two options in milliseconds; the limit is raised to the first pause if it is below."""
        return cls(first_ms / 1000, max(first_ms, longest_ms) / 1000)

    def pause_s(self, failures: int, chance: float) -> float:
        """Return the pause after a number of consecutive failures; zero failures count as one.

        ``chance`` is a random number in [0, 1). It makes the pause up to a fifth longer or shorter, so that clients
        that failed together do not retry together.
        """
        doublings = min(max(failures, 1) - 1, 32)
        pause = min(self.first_s * float(_FACTOR**doublings), self.longest_s)
        return pause * (1 - _JITTER + 2 * _JITTER * chance)
