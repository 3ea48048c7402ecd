"""Interface through which App's transactions commit a consumer's offsets; internal to tailrace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from tailrace.consumer.consumer import Consumer
from tailrace.consumer.offsets.requests import committed_offsets
from tailrace.consumer.runtime import ConsumerRuntime
from tailrace.core.delivery.positions import Position
from tailrace.core.group_requests import Identity
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["MemberView"]


class MemberView:
    """Group identity and positions of a started consumer."""

    def __init__(self, consumer: Consumer) -> None:
        runtime = consumer._started  # noqa: SLF001 - same package
        assert runtime.config.group_id is not None
        self._runtime: ConsumerRuntime = runtime
        self.group_id: str = runtime.config.group_id

    @property
    def identity(self) -> Identity | None:
        """Identity to commit with; None while the consumer belongs to no generation of the group."""
        membership = self._runtime.membership
        return None if membership is None else membership.commit_identity()

    def next_offsets(self) -> Mapping[TopicPartition, int | None]:
        """Return the next offset to deliver of each assigned partition; None while the partition's start is unknown."""
        return {position.partition: position.delivered for position in self._runtime.positions}

    def uncommitted_starts(self) -> list[Position]:
        """Return the positions for which no offset was committed since their partition was assigned, sought or reset.

        Positions without a start offset and partitions that are about to be revoked are left out.
        """
        return [
            one
            for one in self._runtime.positions
            if one.has_stale_commit and one.progress is not None and one.is_fetchable and not one.is_halted
        ]

    def advanced_positions(self) -> list[Position]:
        """Return the positions beyond the committed offset, even if only control records were skipped since then.

        The positions of ``uncommitted_starts`` and partitions that are about to be revoked are left out.
        """
        return [
            one
            for one in self._runtime.positions
            if not one.has_stale_commit and one.is_fetchable and not one.is_halted
            if one.delivered is not None and one.delivered > max(one.commit_base, one.committed or 0)
        ]

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` whenever a position may have moved."""
        self._runtime.reader.on_change = on_change

    def is_ours(self, position: Position) -> bool:
        """Return True if ``position`` belongs to the current assignment of its partition."""
        return self._runtime.positions.get(position.partition) is position

    async def committed_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets; wait until no open transaction can change them.

        Raises:
            BrokerError: the broker refused the request.
            BrokerConnectionError: no coordinator answered in time.
        """
        cluster = self._runtime.cluster
        return await cluster.retrying(
            partial(committed_offsets, cluster, self.group_id, list(partitions)),
            timeout_s=self._runtime.config.default_api_timeout_ms / 1000,
            what=f"reading the committed offsets of group {self.group_id!r}",
        )

    def read_again(self, position: Position, at: OffsetAndMetadata) -> None:
        """Read from a committed offset on, without records that the offset map lists as finished.

        If the topic was recreated after the partition was last fetched, ignore the offset and read the new topic.
        """
        self._runtime.start_positions.read_again(position, at)
