"""Components of a consumer that do not depend on its subscription, created in the order of their dependencies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable

from tailrace.config import ConsumerConfig
from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.offset_gaps import OffsetGaps
from tailrace.consumer.delivery.offset_map_watch import OffsetMapWatch
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.fetch.end_offsets import EndOffsetRefresher
from tailrace.consumer.fetch.fetcher import Fetcher, connection_name
from tailrace.consumer.offsets.queries import OffsetQueries
from tailrace.consumer.positions.offset_resetter import OffsetResetter
from tailrace.consumer.positions.seek import Seek
from tailrace.consumer.positions.start_points import now_ms, start_by_policy
from tailrace.consumer.positions.start_positions import StartPositions
from tailrace.core.delivery.positions import Positions
from tailrace.core.fetch.buffer import FetchBuffer
from tailrace.core.positions.start_policy import StartPolicy
from tailrace.net.cluster import Cluster
from tailrace.net.metadata_refresher import MetadataRefresher
from tailrace.observe.hooks import Observer

__all__ = ["Components"]

_numbers = itertools.count(1)


class Components:
    """Components that exist from the start of a consumer to its end.

    Args:
        config: options of the consumer.
        observer: receives events.
        shared: cluster shared with other consumers; None to open a cluster for this consumer only.
        own_topics: topics to which the group itself publishes records; see ``StartPolicy``.
        on_metadata: called when the cluster metadata may have changed.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        observer: Observer,
        shared: Cluster | None,
        own_topics: Container[str],
        on_metadata: Callable[[], None],
    ) -> None:
        self.config, self.observer = config, observer
        self.cluster, self.is_shared = shared or Cluster(config, observer), shared is not None
        self.positions = Positions()
        self.buffer: FetchBuffer[BufferedBatch] = FetchBuffer(config.max_buffered_bytes)
        self.metadata_refresher = MetadataRefresher(self.cluster, on_metadata)
        self.reader = Reader(
            self.positions,
            self.buffer,
            OffsetMapWatch(observer, max_bytes=config.offset_metadata_max_bytes, writer=config.client_id),
            has_manual_ack=config.ack == "manual",
            max_queued_records=config.max_queued_records,
            max_unacknowledged_records=config.max_unacknowledged_records,
            on_room=self._note_room,
            gaps=None if config.allow_offset_gaps else OffsetGaps(),
        )
        self.policy = StartPolicy(start_by_policy(config.begins_at), own_topics)
        self.start_positions = StartPositions(
            self.cluster, self.positions, self.reader, self.policy, self.positions_changed
        )
        self.offset_resetter = OffsetResetter(
            config, self.cluster, self.positions, self.reader, self.start_positions, self.metadata_refresher, observer
        )
        self._member_names: list[str] = []
        self._name = self._new_name()
        """Name of this consumer's fetch connections on a shared cluster."""
        self.fetcher = Fetcher(
            config,
            self.cluster,
            self.positions,
            self.buffer,
            self.reader,
            self.metadata_refresher,
            observer,
            self.start_positions,
            self.offset_resetter.wake,
            self._name if self.is_shared else "",
        )
        self.end_offsets = EndOffsetRefresher(
            config, self.cluster, self.positions, self.metadata_refresher, self.fetcher.in_flight
        )
        timeout_s = config.default_api_timeout_ms / 1000
        self.offset_queries = OffsetQueries(
            self.cluster, timeout_s, lambda: int(self.config.isolation_level == "read_committed"), now_ms
        )
        self.seek = Seek(self.positions, self.reader, self.start_positions, self.offset_resetter, timeout_s)

    def new_member_name(self) -> str:
        """Return a new name for the connections of a membership; ``close`` closes these connections."""
        self._member_names.append(self._new_name())
        return self._member_names[-1]

    def _new_name(self) -> str:
        """Return a name that is unique in this process."""
        return f"{self.config.client_id}-{next(_numbers)}"

    def watch(self, topics: Iterable[str] | None) -> None:
        """Keep the metadata of ``topics`` up to date, or of all topics of the cluster if ``topics`` is None."""
        self.cluster.watch(self, topics)

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Apply changed options."""
        self.config = config
        self.policy.reset = start_by_policy(config.begins_at)
        self.buffer.max_bytes = config.max_buffered_bytes
        self.reader.max_queued_records = config.max_queued_records
        self.reader.max_unacknowledged_records = config.max_unacknowledged_records
        self.fetcher.reconfigure(config)
        self.end_offsets.reconfigure(config)
        self.offset_resetter.reconfigure(config)
        self.positions_changed()

    def close(self) -> None:
        """Close all connections; on a shared cluster, close only the connections that belong to this consumer."""
        if not self.is_shared:
            self.cluster.close()
            return
        self.cluster.unwatch(self)
        for member in self._member_names:
            self.cluster.unwatch((member, "group"))
        for number in range(self.config.num_fetchers):
            for is_for_added in (False, True):
                self.cluster.forget_member(connection_name(self._name, number, is_for_added=is_for_added))
        for name in self._member_names:
            self.cluster.forget_member(name)

    # ---- notifications -----------------------------------------------------------------------------------------

    def positions_changed(self) -> None:
        """Wake fetches, look-ups of start offsets and reading after a change of the assignment or a position."""
        self.fetcher.wake()
        self.offset_resetter.wake()
        self.reader.recheck()

    def metadata_changed(self) -> None:
        """Wake fetches and look-ups of start offsets, because partitions may have other leaders."""
        self.fetcher.wake()
        self.offset_resetter.wake()

    def _note_room(self) -> None:
        self.fetcher.note_room()
