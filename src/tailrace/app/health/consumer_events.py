"""State of an app's groups and of the cluster, derived from the events of the app's consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

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

__all__ = ["ConsumerEvents"]


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
