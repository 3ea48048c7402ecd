"""What a sink that commits by itself has to know and to change: who we are to the group, and where to read again.

Rule of this file: for this package's own use; a consumer's user has ``commit`` and ``seek``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from tailrace.consumer.consumer import Consumer
from tailrace.consumer.offsets.requests import committed_offsets
from tailrace.consumer.runtime import ConsumerRuntime
from tailrace.core.delivery.positions import Position
from tailrace.core.group.events import Identity
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["MemberView"]


class MemberView:
    """Where a started consumer of a group stands."""

    def __init__(self, consumer: Consumer) -> None:
        engine = consumer._started  # noqa: SLF001 - this room's own
        assert engine.config.group_id is not None
        self._engine: ConsumerRuntime = engine
        self.group_id: str = engine.config.group_id

    @property
    def identity(self) -> Identity | None:
        """As whom to commit; None while the group counts us in no generation."""
        coordinator = self._engine.coordinator
        return None if coordinator is None else coordinator.committing_as()

    def delivered(self) -> Mapping[TopicPartition, int | None]:
        """The next offset to be handed out of each partition that is assigned."""
        return {position.partition: position.delivered for position in self._engine.positions}

    def begun(self) -> list[Position]:
        """Those that are good, and of which the group does not know yet where they have begun."""
        return [
            one
            for one in self._engine.positions
            if one.has_stale_commit and one.progress is not None and one.is_fetchable and not one.is_halted
        ]

    def passed(self) -> list[Position]:
        """Those that stand further than the group knows; where nothing was handed out, markers were passed over."""
        return [
            one
            for one in self._engine.positions
            if not one.has_stale_commit and one.is_fetchable and not one.is_halted
            if one.delivered is not None and one.committed is not None and one.delivered > one.committed
        ]

    def watch(self, told: Callable[[], None]) -> None:
        """Have ``told`` called when a partition may stand elsewhere."""
        self._engine.reader.on_change = told

    def is_ours(self, position: Position) -> bool:
        """Whether a position is still that of its partition, and not of an assignment that is over."""
        return self._engine.positions.get(position.partition) is position

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, when no open transaction may change it any more.

        Raises:
            BrokerError: the broker does not allow it.
            BrokerConnectionError: nobody answers in time.
        """
        cluster = self._engine.cluster
        return await cluster.retrying(
            partial(committed_offsets, cluster, self.group_id, list(partitions)),
            timeout_s=self._engine.config.default_api_timeout_ms / 1000,
            what=f"reading the committed offsets of group {self.group_id!r}",
        )

    def read_again(self, position: Position, at: OffsetAndMetadata) -> None:
        """Read from a committed offset on, without records that the offset map says are finished.

        An offset of a topic's former self is none of the recreated topic, which is read by the reset policy.
        """
        self._engine.start_positions.read_again(position, at)
