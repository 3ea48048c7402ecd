"""Health of one consumer, derived from its events."""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.consumer.monitoring.status import ConsumerHealth
from tailrace.errors import TailraceError
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
from tailrace.records import TopicPartition

__all__ = ["HealthTracker", "describe_delays"]


def describe_delays(delays: Mapping[TopicPartition, str]) -> str:
    """Return a sentence about partitions without a start offset; an empty text if there are none."""
    for partition, reason in sorted(delays.items()):
        others = f" ({len(delays) - 1} more partitions wait, too)" if len(delays) > 1 else ""
        return f"{partition} is not read, because its start offset is unknown{others}: {reason}"
    return ""


class HealthTracker:
    """Hook that receives every event of one consumer and keeps the consumer's latest state."""

    def __init__(self) -> None:
        self._unreachable_reason = self._coordinator_lost_reason = self._assignment_fault = ""
        self._was_assigned = self._is_rebalancing = False

    def on_event(self, event: Event) -> None:
        """Update the state."""
        match event:
            case PartitionsAssigned():
                self._was_assigned, self._is_rebalancing = True, False
            case RebalanceStarted():
                self._is_rebalancing = True
            case GroupJoined():
                self._is_rebalancing = False
            case AssignmentFaultFound(reason=reason):
                self._assignment_fault = reason
            case AssignmentFaultResolved():
                self._assignment_fault = ""
            case MetadataRefreshFailed(reason=reason):
                self._unreachable_reason = reason
            case ConnectionOpened():
                self._unreachable_reason = ""
            case CoordinatorLost(reason=reason):
                self._coordinator_lost_reason = reason
            case CoordinatorFound():
                self._coordinator_lost_reason = ""
            case _:
                pass

    def health(
        self,
        failure: TailraceError | None,
        partitions: int,
        heartbeat_age_s: float | None,
        delays: Mapping[TopicPartition, str],
        *,
        is_member: bool,
    ) -> ConsumerHealth:
        """Return the consumer's health; ``delays`` are partitions without a start offset, with the reason."""
        if failure is not None:
            return ConsumerHealth(status="failed", detail=str(failure))
        trouble = self._trouble or self._assignment_fault
        if is_member and not self._was_assigned:
            return ConsumerHealth(status="starting", detail=trouble or "joining the group")
        rebalancing = "the group is rebalancing" if is_member and self._is_rebalancing else ""
        detail = trouble or rebalancing or describe_delays(delays)
        return ConsumerHealth(
            status="degraded" if detail else "ok",
            detail=detail,
            partitions=partitions,
            heartbeat_age_s=heartbeat_age_s,
        )

    @property
    def _trouble(self) -> str:
        if self._unreachable_reason or not self._coordinator_lost_reason:
            return self._unreachable_reason
        return f"group coordinator lost: {self._coordinator_lost_reason}"
