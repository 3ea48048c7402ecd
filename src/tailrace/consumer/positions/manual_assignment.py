"""Manual assignment, without group membership; with a ``group_id``, the group only stores offsets.

A valid new assignment replaces the former assignment entirely, and drops all fetched records. An invalid assignment
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.offsets.committer import Committer
from tailrace.consumer.offsets.queries import OffsetQueries
from tailrace.consumer.offsets.requests import committed_offsets
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.offset_resetter import OffsetResetter
from tailrace.consumer.positions.partition_spec import PartitionSpec, RequestedStart
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["ManualAssignment"]


class ManualAssignment:
    """Assigns partitions that the user passes to ``Consumer.assign``."""

    def __init__(
        self,
        parts: ConsumerParts,
        reader: Reader,
        offset_queries: OffsetQueries,
        offset_resetter: OffsetResetter,
        committer: Committer | None,
    ) -> None:
        self._parts, self._config, self._positions, self._reader = parts, parts.config, parts.positions, reader
        self._cluster = parts.cluster
        self._offset_queries, self._offset_resetter = offset_queries, offset_resetter
        self._start_positions, self._committer = offset_resetter.start_positions, committer
        self._is_first = True

    async def resolve(self, specs: Iterable[PartitionSpec]) -> dict[TopicPartition, RequestedStart]:
        """Return the partitions of ``specs``, each with its requested start; the last spec of a partition wins.

        Raises:
            UnknownTopicError: a topic or a partition does not exist.
        """
        wanted = list(specs)
        there = await self._offset_queries.partitions_of({spec.topic for spec in wanted})
        found: dict[TopicPartition, RequestedStart] = {}
        for spec in wanted:
            numbers = there.get(spec.topic, []) if spec.partition is None else [spec.partition]
            for number in numbers:
                found[TopicPartition(spec.topic, number)] = spec.start
        await self._offset_queries.check_partitions(found)
        return found

    async def commit_finished(self) -> None:
        """Commit the finished records of the current assignment, if the consumer commits automatically."""
        if self._committer is not None and self._config.commits_automatically:
            await self._committer.commit_automatically(timeout_s=self._timeout_s, will_retry=False)

    async def committed_starts(
        self, chosen: Mapping[TopicPartition, RequestedStart]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of the partitions in ``chosen`` that have no requested start.

        A partition without a committed offset is absent from the result. The result is empty without a group, and for
        the first assignment with ``reset_offset_on_start``.

        Raises:
            BrokerError: the coordinator refuses to return the committed offsets.
            BrokerConnectionError: the committed offsets could not be read in time.
        """
        without_start = [one for one, begin in chosen.items() if begin is None]
        return {} if self._resets_offsets else await self._committed(without_start)

    async def replace(
        self, chosen: dict[TopicPartition, RequestedStart], committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Replace the assignment by ``chosen``.

        Each partition is read from its requested start, otherwise from its committed offset, otherwise from the start
        point of ``auto_offset_reset``.

        With ``reset_offset_on_start``, commit the start offsets of the first assignment.
        """
        resets_offsets = self._resets_offsets
        self.clear()
        for position in self._positions.add(chosen):
            requested, offset = chosen[position.partition], committed.get(position.partition)
            self._start_positions.set_start(position, self._start_positions.policy.start_of_assigned(requested, offset))
            position.is_fetchable = True
        self._parts.changed()
        if resets_offsets and chosen and self._committer is not None:
            await self._offset_resetter.wait_until_found(self._positions.of(chosen), self._timeout_s, skip_delayed=True)
            await self._committer.commit_automatically(timeout_s=self._timeout_s, will_retry=True)
        self._is_first = self._is_first and not chosen

    def clear(self) -> None:
        """Drop the assignment."""
        before = self._positions.partitions
        self._reader.drop(before)
        self._positions.remove(before)
        self._parts.changed()

    async def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        if self._config.group_id is None or not partitions:
            return {}
        return await self._cluster.retrying(
            partial(committed_offsets, self._cluster, self._config.group_id, partitions),
            timeout_s=self._timeout_s,
            what=f"reading the committed offsets of group {self._config.group_id!r}",
        )

    @property
    def _resets_offsets(self) -> bool:
        return self._is_first and self._config.reset_offset_on_start

    @property
    def _timeout_s(self) -> float:
        return self._config.default_api_timeout_ms / 1000
