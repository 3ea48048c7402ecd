"""How an app is, in words that an orchestrator acts on: whether to restart it, whether to count on it.

Rule of this file: pure. Only what a restart heals has failed: a fatal error, a loop that stands still, a handler that
does not come back. A broker that is away, a rebalance, a poisoned partition or lag would all be there after a restart,
so they degrade at most; a restart in the middle of them makes things worse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["Check", "Health", "Status", "Vitals", "examine"]

Status: TypeAlias = Literal["starting", "ok", "degraded", "stopping", "failed"]

_WORST_FIRST: tuple[Status, ...] = ("failed", "stopping", "starting", "degraded", "ok")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """How the app is: as its worst check, in the order failed, stopping, starting, degraded, ok."""

    status: Status
    checks: tuple[Check, ...] = ()

    @classmethod
    def of(cls, checks: Iterable[Check]) -> Health:
        """What these checks come to."""
        found = tuple(checks)
        return cls(next((status for status in _WORST_FIRST if any(c.status == status for c in found)), "ok"), found)

    @property
    def is_live(self) -> bool:
        """False when a restart would heal it, and nothing else will."""
        return self.status != "failed"

    @property
    def is_ready(self) -> bool:
        """Whether it works: false before the first assignment, from being told to stop on, and when it has failed."""
        return self.status in {"ok", "degraded"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What an app sees of itself at one moment."""

    is_started: bool
    """Whether ``start`` is through: the cluster answered, the topics exist."""
    was_assigned: bool
    """Whether there was a first assignment, even if of no partition."""
    max_poll_interval_s: float
    is_ending: bool = False
    """Whether it was told to stop, or has stopped."""
    fatal_error: str = ""
    """What has ended the app's work for good."""
    loop_blocked_s: float = 0.0
    """As its watchdog says."""
    slowest_handler: str = ""
    slowest_handler_s: float = 0.0
    """How long the one that began first of those that run has run by now."""
    overdue_handlers: tuple[str, ...] = ()
    """Names of those that still run although their ``timeout_ms`` is over."""
    broker_error: str = ""
    """Why the cluster cannot be talked to just now."""
    is_rebalancing: bool = False
    waiting: int = 0
    """Records that failed for good and wait, with their lane behind them, as nobody takes them."""
    stalled_s: float = 0.0
    """For how long no transaction could be committed although there are records."""


def examine(vitals: Vitals, *, require_broker: bool = True) -> Health:
    """What the vitals come to; without ``require_broker`` an app is ready before it has met a broker or its group."""
    return Health.of(
        (
            _app(vitals),
            _loop(vitals),
            _handlers(vitals),
            _brokers(vitals, require_broker=require_broker),
            _group(vitals, require_broker=require_broker),
            _records(vitals),
        )
    )


def _app(vitals: Vitals) -> Check:
    if vitals.fatal_error:
        return Check("app", "failed", vitals.fatal_error)
    return Check("app", "stopping", "it handles no more") if vitals.is_ending else Check("app", "ok")


def _loop(vitals: Vitals) -> Check:
    if vitals.loop_blocked_s > 0:
        return Check("loop", "failed", f"blocked for {vitals.loop_blocked_s:.1f} s")
    return Check("loop", "ok")


def _handlers(vitals: Vitals) -> Check:
    if vitals.slowest_handler_s <= vitals.max_poll_interval_s:
        if vitals.overdue_handlers:
            names = ", ".join(vitals.overdue_handlers)
            return Check("handlers", "degraded", f"{names}: timeout_ms is over, and the handler goes on")
        return Check("handlers", "ok")
    return Check(
        "handlers",
        "failed",
        f"{vitals.slowest_handler} has run for {vitals.slowest_handler_s:.1f} s,"
        f" longer than max_poll_interval_ms={vitals.max_poll_interval_s * 1000:.0f}",
    )


def _brokers(vitals: Vitals, *, require_broker: bool) -> Check:
    if vitals.broker_error:
        return Check("brokers", "degraded", vitals.broker_error)
    if not vitals.is_started:
        return Check("brokers", "starting" if require_broker else "ok", "not reached yet")
    return Check("brokers", "ok")


def _group(vitals: Vitals, *, require_broker: bool) -> Check:
    if not vitals.was_assigned:
        return Check("group", "starting" if require_broker else "ok", "waits for its first assignment")
    if vitals.is_rebalancing:
        return Check("group", "ok", "rebalancing")
    return Check("group", "ok")


def _records(vitals: Vitals) -> Check:
    if vitals.stalled_s:
        return Check("records", "degraded", f"no transaction could be committed for {vitals.stalled_s:.0f} s")
    if not vitals.waiting:
        return Check("records", "ok")
    detail = f"{vitals.waiting} failed for good and are tried again now and then, what is behind them waits"
    return Check("records", "degraded", detail)
