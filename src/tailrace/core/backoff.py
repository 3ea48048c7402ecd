"""Exponential backoff with jitter (KIP-580)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]

_FACTOR = 2
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential pauses between attempts, in seconds."""

    first_s: float
    longest_s: float

    @classmethod
    def of_ms(cls, first_ms: int, longest_ms: int) -> Backoff:
        """Return the backoff for two options in milliseconds; the longest pause is at least as long as the first."""
        return cls(first_ms / 1000, max(first_ms, longest_ms) / 1000)

    def pause_s(self, failures: int, chance: float) -> float:
        """Return the pause after ``failures`` failures in a row (at least one).

        ``chance``, a random number in [0, 1), makes the pause up to a fifth longer or shorter, so that clients that
        failed together do not retry together.
        """
        doublings = min(max(failures, 1) - 1, 32)
        pause = min(self.first_s * float(_FACTOR**doublings), self.longest_s)
        return pause * (1 - _JITTER + 2 * _JITTER * chance)
