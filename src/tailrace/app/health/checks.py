"""Health of an app: its liveness and readiness, derived from checks.

A check has the status ``failed`` only if a restart of the process can help: after a fatal error, while the event loop
is blocked, and if a handler does not return. A restart does not help against unreachable brokers, a rebalance, records
that fail for good, batches that cannot be read, or lag, and would interrupt the group once more; the status is
``degraded`` at most in these cases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tailrace.observe.events import (
    AssignmentFaultFound,
    AssignmentFaultResolved,
    ConnectionOpened,
    CoordinatorFound,
    CoordinatorLost,
    Event,
    GroupJoined,
    MetadataRefreshFailed,
    PartitionsAssigned,
    RebalanceStarted,
)

__all__ = ["Check", "ConsumerEvents", "Health", "Status", "Vitals", "examine"]

# ---- state of an app's groups and of the cluster, derived from the events of the app's consumers ---------------------


class ConsumerEvents:
    """Hook that tracks first assignments, rebalances and the reachability of the cluster.

    Attributes:
        assigned: ``asyncio.Event`` that is set when each group has had its first assignment, which may be empty.
    """

    def __init__(self, group_ids: Iterable[str]) -> None:
        self._unassigned_groups = set(group_ids)
        self._rebalancing: set[str] = set()
        self._assignment_faults: dict[str, str] = {}
        """Fault of the assignment of each group that has one."""
        self.assigned = asyncio.Event()
        self._unreachable = ""
        self._lost_coordinators: dict[str, str] = {}
        """Reason of each lost coordinator, by group. A lost coordinator is the first sign of a broker that hangs."""

    @property
    def broker_error(self) -> str:
        """Reason why the cluster or a group's coordinator is unreachable; empty while they are reachable."""
        if self._unreachable or not self._lost_coordinators:
            return self._unreachable
        group_id, reason = next(iter(self._lost_coordinators.items()))
        return f"the coordinator of group {group_id!r} is lost: {reason}"

    @property
    def is_rebalancing(self) -> bool:
        """True while a group rebalances."""
        return bool(self._rebalancing)

    @property
    def assignment_fault(self) -> str:
        """Fault of a group's assignment; empty if there is none."""
        return next((f"group {one!r}: {fault}" for one, fault in self._assignment_faults.items()), "")

    def on_event(self, event: Event) -> None:
        """Update the state from an event of a consumer."""
        match event:
            case PartitionsAssigned(group_id=group_id):
                self._unassigned_groups.discard(group_id)
                if not self._unassigned_groups:
                    self.assigned.set()
            case RebalanceStarted(group_id=group_id):
                self._rebalancing.add(group_id)
            case GroupJoined(group_id=group_id):
                self._rebalancing.discard(group_id)
            case AssignmentFaultFound() | AssignmentFaultResolved():
                self._note_fault(event)
            case MetadataRefreshFailed(reason=reason):
                self._unreachable = reason
            case ConnectionOpened():
                self._unreachable = ""
            case CoordinatorLost(group_id=group_id, reason=reason):
                self._lost_coordinators[group_id] = reason
            case CoordinatorFound(group_id=group_id):
                self._lost_coordinators.pop(group_id, None)
            case _:
                pass

    def _note_fault(self, event: AssignmentFaultFound | AssignmentFaultResolved) -> None:
        if isinstance(event, AssignmentFaultFound):
            self._assignment_faults[event.group_id] = event.reason
        else:
            self._assignment_faults.pop(event.group_id, None)


# ---- health of an app: its liveness and readiness, derived from checks -----------------------------------------------

Status: TypeAlias = Literal["starting", "ok", "degraded", "stopping", "failed"]

_WORST_FIRST: tuple[Status, ...] = ("failed", "stopping", "starting", "degraded", "ok")


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check; ``detail`` explains the status."""

    name: str
    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """All checks, and the worst status among them: failed, stopping, starting, degraded or ok, from worst to best."""

    status: Status
    checks: tuple[Check, ...] = ()

    @classmethod
    def of(cls, checks: Iterable[Check]) -> Health:
        """Return the health that results from ``checks``."""
        found = tuple(checks)
        return cls(next((status for status in _WORST_FIRST if any(c.status == status for c in found)), "ok"), found)

    @property
    def is_live(self) -> bool:
        """False if a restart of the process is necessary."""
        return self.status != "failed"

    @property
    def is_ready(self) -> bool:
        """True if the app has started and is neither stopping nor failed; it may be degraded."""
        return self.status in {"ok", "degraded"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """State of an app at one moment."""

    is_started: bool
    """True if ``start`` has finished: the cluster has answered and the topics exist."""
    was_assigned: bool
    """True if each group has had its first assignment, which may contain no partition."""
    max_poll_interval_s: float
    """Maximum time in seconds for which a handler may run."""
    is_ending: bool = False
    """True if the app is stopping or has stopped."""
    fatal_error: str = ""
    """Error that ended the app."""
    loop_blocked_s: float = 0.0
    """Seconds for which the event loop has been blocked, from the watchdog; 0 if it is not blocked."""
    slowest_handler: str = ""
    """Name of the handler whose current call has been running longest; empty if no handler runs."""
    slowest_handler_s: float = 0.0
    """Seconds for which this call has been running."""
    overdue_handlers: tuple[str, ...] = ()
    """Names of handlers that still run after their ``timeout_ms``."""
    broker_error: str = ""
    """Reason why the cluster or a group's coordinator is unreachable; empty while they are reachable."""
    start_delays: str = ""
    """Sentence about partitions that are not read, because their start offset is unknown; empty without any."""
    is_rebalancing: bool = False
    assignment_fault: str = ""
    """Fault of a group's assignment, such as partitions without an owner; empty if there is none."""
    waiting: int = 0
    """Number of records that failed for good and block their lanes until another attempt or write succeeds."""
    unreadable: tuple[str, ...] = ()
    """Descriptions of partitions that wait at a batch that cannot be read."""
    stalled_s: float = 0.0
    """Seconds without a commit although delivered records wait for one; 0 below the limit of ``StallWatch``."""


def examine(vitals: Vitals, *, require_broker: bool = True) -> Health:
    """Return the health of an app.

    With ``require_broker=False``, an app is ready even before it has reached a broker and has had its first assignment.
    """
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
    return Check("app", "stopping", "no more records are handled") if vitals.is_ending else Check("app", "ok")


def _loop(vitals: Vitals) -> Check:
    if vitals.loop_blocked_s > 0:
        return Check("loop", "failed", f"blocked for {vitals.loop_blocked_s:.1f} s")
    return Check("loop", "ok")


def _handlers(vitals: Vitals) -> Check:
    if vitals.slowest_handler_s <= vitals.max_poll_interval_s:
        if vitals.overdue_handlers:
            names = ", ".join(vitals.overdue_handlers)
            return Check("handlers", "degraded", f"still running after timeout_ms: {names}")
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
    if vitals.start_delays:
        return Check("brokers", "degraded", vitals.start_delays)
    if not vitals.is_started:
        return Check("brokers", "starting" if require_broker else "ok", "not reached yet")
    return Check("brokers", "ok")


def _group(vitals: Vitals, *, require_broker: bool) -> Check:
    if not vitals.was_assigned:
        status: Status = "starting" if require_broker else "ok"
        return Check("group", status, vitals.assignment_fault or "waits for its first assignment")
    if vitals.assignment_fault:
        return Check("group", "degraded", vitals.assignment_fault)
    if vitals.is_rebalancing:
        return Check("group", "ok", "rebalancing")
    return Check("group", "ok")


def _records(vitals: Vitals) -> Check:
    if vitals.stalled_s:
        return Check("records", "degraded", f"no transaction could be committed for {vitals.stalled_s:.0f} s")
    details = []
    if vitals.unreadable:
        others = len(vitals.unreadable) - 1
        details.append(vitals.unreadable[0] + (f" (and {others} more)" if others else ""))
    if vitals.waiting:
        details.append(
            f"records that failed for good, block their lanes and are retried at intervals: {vitals.waiting}"
        )
    return Check("records", "degraded" if details else "ok", "; ".join(details))
