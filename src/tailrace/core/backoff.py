"""How long to wait before trying again: exponentially longer, up to a limit, with jitter (KIP-580)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]

_FACTOR = 2
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts, in seconds."""

    first_s: float
    longest_s: float

    @classmethod
    def of_ms(cls, first_ms: int, longest_ms: int) -> Backoff:
        """As the options give them."""
        return cls(first_ms / 1000, max(first_ms, longest_ms) / 1000)

    def pause_s(self, failures: int, chance: float) -> float:
        """The pause after so many failures in a row (at least one).

        ``chance`` in [0, 1) spreads clients that failed together: a fifth up or down.
        """
        doublings = min(max(failures, 1) - 1, 32)
        pause = min(self.first_s * float(_FACTOR**doublings), self.longest_s)
        return pause * (1 - _JITTER + 2 * _JITTER * chance)
