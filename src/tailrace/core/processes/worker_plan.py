"""Plan of worker processes: their number, their partitions, and pauses before restarts.

A death is any end of a worker that was not requested. A death soon after the start suggests that the next start will
fail, too, so the pauses grow. Once a worker has run for a while, its next pause is the first one again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.core.backoff import Backoff
from tailrace.errors import AuthenticationError, BrokerConnectionError, BrokerError, ConfigurationError
from tailrace.records import TopicPartition

__all__ = [
    "RESTARTS",
    "WELL_AFTER_S",
    "Restarts",
    "assign_in_turn",
    "check_count",
    "check_transactional_id",
    "is_outage",
    "member_name",
    "workers_for",
]

RESTARTS = Backoff(0.2, 30.0)
WELL_AFTER_S = 60.0
"""Run time after which a death is not counted together with earlier deaths."""

_UNWELL = 2


@dataclass(slots=True)
class Restarts:
    """Consecutive deaths of one worker, and the pauses before its restarts."""

    backoff: Backoff = RESTARTS
    well_after_s: float = WELL_AFTER_S
    _deaths: int = field(default=0, init=False)
    _started_at: float | None = field(default=None, init=False)

    def started(self, now: float) -> None:
        """Note that the worker was started."""
        self._started_at = now

    def died(self, now: float, chance: float) -> float:
        """Note a death and return the pause before the restart."""
        self._deaths = self.deaths(now) + 1
        self._started_at = None
        return self.backoff.pause_s(self._deaths, chance)

    def deaths(self, now: float) -> int:
        """Return the number of consecutive deaths soon after a start."""
        has_run_well = self._started_at is not None and now - self._started_at >= self.well_after_s
        return 0 if has_run_well else self._deaths

    def is_unwell(self, now: float) -> bool:
        """Return True if the worker keeps dying; a single death does not count."""
        return self.deaths(now) >= _UNWELL


def is_outage(error: Exception | None) -> bool:
    """Return True if brokers are unreachable or temporarily unable to answer, so that waiting may help."""
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, BrokerConnectionError) and not isinstance(error, AuthenticationError)


def check_count(name: str, count: object, *, or_none: bool = False) -> None:
    """Check that ``count`` is a positive integer, or None with ``or_none``.

    Raises:
        ConfigurationError: ``count`` is neither.
    """
    if or_none and count is None:
        return
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigurationError(f"{name} must be a positive integer, not {count!r}")


def member_name(given: str | None, workers: int, life: str) -> str:
    """Return the template of the workers' ``group_instance_id``: ``given``, or a template that contains ``life``.

    Raises:
        ConfigurationError: all workers would get the same name.
    """
    if given is None:
        return f"{{hostname}}-{life}-{{worker}}"
    if workers > 1 and "{worker}" not in given and "{pid}" not in given:
        raise ConfigurationError(
            f"group_instance_id={given!r} is the same in all {workers} workers, so they would fence each other"
            " - add {worker} to it"
        )
    return given


def check_transactional_id(given: str | None, workers: int) -> None:
    """Check that each worker gets a ``transactional_id`` of its own.

    Raises:
        ConfigurationError: all workers would get the same id.
    """
    if given is not None and workers > 1 and not any(one in given for one in ("{worker}", "{pid}", "{instance}")):
        raise ConfigurationError(
            f"transactional_id={given!r} is the same in all {workers} workers, so they would fence each other"
            " - add {worker} to it"
        )


def workers_for(partitions: int, workers: int, per_worker: int | None) -> int:
    """Return the number of workers for ``partitions`` partitions: at least one, and at most one per partition."""
    wanted = workers if per_worker is None else math.ceil(partitions / per_worker)
    return max(1, min(wanted, partitions))


def assign_in_turn(partitions: Iterable[TopicPartition], workers: int) -> list[tuple[TopicPartition, ...]]:
    """Return the partitions of each worker, assigned in turn, so that no worker has two more than another."""
    in_order = sorted(partitions)
    return [tuple(in_order[number::workers]) for number in range(workers)]
