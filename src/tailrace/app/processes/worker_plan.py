"""Plan of worker processes: their number, their partitions, and the pauses before restarts.

Pure: no clock, IO or logging.

A *death* is an end of a worker process that was not requested. A death soon after the start suggests that the next
start will fail, too, so the pauses before restarts grow. A worker that dies after ``STABLE_AFTER_S`` has the shortest
pause again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailrace.core.backoff import Backoff
from tailrace.errors import AuthenticationError, BrokerConnectionError, BrokerError, ConfigurationError
from tailrace.records import TopicPartition

__all__ = [
    "RESTART_BACKOFF",
    "STABLE_AFTER_S",
    "Restarts",
    "assign_in_turn",
    "check_count",
    "check_transactional_id",
    "instance_id_template",
    "is_outage",
    "workers_for",
]

RESTART_BACKOFF = Backoff(0.2, 30.0)
STABLE_AFTER_S = 60.0
"""Time in seconds since the start after which earlier deaths no longer count."""

_FAILING_DEATHS = 2


@dataclass(slots=True)
class Restarts:
    """Consecutive deaths of one worker soon after its start, and the pauses before its restarts."""

    backoff: Backoff = RESTART_BACKOFF
    stable_after_s: float = STABLE_AFTER_S
    _deaths: int = field(default=0, init=False)
    _started_at: float | None = field(default=None, init=False)

    def note_start(self, now: float) -> None:
        """Note that the worker was started."""
        self._started_at = now

    def note_death(self, now: float, chance: float) -> float:
        """Count a death and return the pause before the restart, in seconds.

        ``chance`` is a random number in [0, 1) for the jitter.
        """
        self._deaths = self.deaths(now) + 1
        self._started_at = None
        return self.backoff.pause_s(self._deaths, chance)

    def deaths(self, now: float) -> int:
        """Return the number of consecutive deaths; 0 once the worker has run for ``stable_after_s``."""
        is_stable = self._started_at is not None and now - self._started_at >= self.stable_after_s
        return 0 if is_stable else self._deaths

    def is_failing(self, now: float) -> bool:
        """Return True if the worker has died at least twice in a row soon after its start."""
        return self.deaths(now) >= _FAILING_DEATHS


def is_outage(error: Exception | None) -> bool:
    """Return True if the brokers are unreachable or temporarily unable to answer."""
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, BrokerConnectionError) and not isinstance(error, AuthenticationError)


def check_count(name: str, count: object, *, or_none: bool = False) -> None:
    """Check that ``count`` is a positive integer; with ``or_none``, None is valid, too.

    Raises:
        ConfigurationError: ``count`` is not valid.
    """
    if or_none and count is None:
        return
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigurationError(f"{name} must be a positive integer, not {count!r}")


def instance_id_template(template: str | None, workers: int, pool_id: str) -> str:
    """Return the template from which each worker makes its ``group_instance_id``.

    Args:
        template: template that the user has set; None if the user has not set the option.
        workers: number of workers.
        pool_id: id of the pool of workers, which makes the default template unique.

    Raises:
        ConfigurationError: all workers would have the same ``group_instance_id``.
    """
    if template is None:
        return f"{{hostname}}-{pool_id}-{{worker}}"
    if workers > 1 and "{worker}" not in template and "{pid}" not in template:
        raise ConfigurationError(
            f"group_instance_id={template!r} is the same in all {workers} workers, so they would fence each other"
            " - add {worker} to it"
        )
    return template


def check_transactional_id(template: str | None, workers: int) -> None:
    """Check that each worker makes another ``transactional_id`` from ``template``; None is valid.

    Raises:
        ConfigurationError: all workers would have the same ``transactional_id``.
    """
    if template is not None and workers > 1 and not any(one in template for one in ("{worker}", "{pid}", "{instance}")):
        raise ConfigurationError(
            f"transactional_id={template!r} is the same in all {workers} workers, so they would fence each other"
            " - add {worker} to it"
        )


def workers_for(partitions: int, workers: int, per_worker: int | None) -> int:
    """Return the number of workers for a number of partitions: at least one, and at most one per partition.

    ``per_worker`` is the number of partitions per worker; if it is None, ``workers`` is the wanted number.
    """
    wanted = workers if per_worker is None else math.ceil(partitions / per_worker)
    return max(1, min(wanted, partitions))


def assign_in_turn(partitions: Iterable[TopicPartition], workers: int) -> list[tuple[TopicPartition, ...]]:
    """Return the partitions of each worker, assigned in turn, so that their numbers differ by at most one."""
    in_order = sorted(partitions)
    return [tuple(in_order[number::workers]) for number in range(workers)]
