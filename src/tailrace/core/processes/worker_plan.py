"""Several processes for one job: how many, which partitions each, and when one that died is started again.

Rule of this file: pure. A death is any end that nobody asked for. One that comes soon after the start is taken for a
sign that the next start will end likewise, so the pauses grow; a worker that has run well begins with the first pause.
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
    "check_count",
    "check_transactional_id",
    "deal",
    "is_outage",
    "member_name",
    "workers_for",
]

RESTARTS = Backoff(0.2, 30.0)
WELL_AFTER_S = 60.0
"""Who has run for so long does not die of what the last one died of."""

_UNWELL = 2


@dataclass(slots=True)
class Restarts:
    """How one worker has fared, and how long to wait before it is started again."""

    backoff: Backoff = RESTARTS
    well_after_s: float = WELL_AFTER_S
    _deaths: int = field(default=0, init=False)
    _started_at: float | None = field(default=None, init=False)

    def started(self, now: float) -> None:
        """It runs."""
        self._started_at = now

    def died(self, now: float, chance: float) -> float:
        """It has ended, and nobody asked for it; gives the pause before it is started again."""
        self._deaths = self.deaths(now) + 1
        self._started_at = None
        return self.backoff.pause_s(self._deaths, chance)

    def deaths(self, now: float) -> int:
        """How often in a row it has died soon after its start."""
        has_run_well = self._started_at is not None and now - self._started_at >= self.well_after_s
        return 0 if has_run_well else self._deaths

    def is_unwell(self, now: float) -> bool:
        """Whether it dies again and again; one death is none's fault."""
        return self.deaths(now) >= _UNWELL


def is_outage(error: Exception | None) -> bool:
    """Whether brokers are away, or cannot say now: that ends by itself, and is waited for."""
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, BrokerConnectionError) and not isinstance(error, AuthenticationError)


def check_count(name: str, count: object, *, or_none: bool = False) -> None:
    """Refuse what is no number of things.

    Raises:
        ConfigurationError: it is not a whole number of at least one.
    """
    if or_none and count is None:
        return
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigurationError(f"{name}={count!r} will not do: it has to be a whole number, 1 or more")


def member_name(given: str | None, workers: int, life: str) -> str:
    """The ``group_instance_id`` of workers, as a template: the one that is given, or one that is theirs for ``life``.

    Raises:
        ConfigurationError: the given one is the same for all.
    """
    if given is None:
        return f"{{hostname}}-{life}-{{worker}}"
    if workers > 1 and "{worker}" not in given and "{pid}" not in given:
        raise ConfigurationError(
            f"group_instance_id={given!r} is the same in each of {workers} workers, and each would put another out of"
            " the group - put {worker} into it"
        )
    return given


def check_transactional_id(given: str | None, workers: int) -> None:
    """Refuse a ``transactional_id`` that is the same for all workers.

    Raises:
        ConfigurationError: it is.
    """
    if given is not None and workers > 1 and not any(one in given for one in ("{worker}", "{pid}", "{instance}")):
        raise ConfigurationError(
            f"transactional_id={given!r} is the same in each of {workers} workers, and each would put an end to another"
            " - put {worker} into it"
        )


def workers_for(partitions: int, workers: int, per_worker: int | None) -> int:
    """How many workers so many partitions get: never one without a partition, and always one at least."""
    wanted = workers if per_worker is None else math.ceil(partitions / per_worker)
    return max(1, min(wanted, partitions))


def deal(partitions: Iterable[TopicPartition], workers: int) -> list[tuple[TopicPartition, ...]]:
    """The partitions of each worker: in turn, so that no two differ by more than one."""
    in_order = sorted(partitions)
    return [tuple(in_order[number::workers]) for number in range(workers)]
