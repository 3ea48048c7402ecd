"""What every consumer has, whatever it reads: put together in the order in which one part needs the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable

from penstock.config import ConsumerConfig
from penstock.consumer.asking import Asking
from penstock.consumer.beginnings import Beginnings
from penstock.consumer.chunk import Chunk
from penstock.consumer.fetcher import Fetcher, name_of_lane
from penstock.consumer.gaps import Gaps
from penstock.consumer.map_watch import MapWatch
from penstock.consumer.picture import Picture
from penstock.consumer.policy import Policy
from penstock.consumer.reader import Reader
from penstock.consumer.seeking import Seeking
from penstock.consumer.times import now_ms, start_by_policy
from penstock.core.buffer import Buffer
from penstock.core.positions import Positions
from penstock.net.cluster import Cluster
from penstock.observe.hooks import Observer

__all__ = ["Rooms"]

_numbers = itertools.count(1)


class Rooms:
    """The parts that stand for a consumer's life.

    Args:
        shared: a cluster of several consumers, in place of one of its own.
        whole: topics that ``auto_offset_reset`` does not speak of.
        on_picture: called when the cluster may look different.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        observer: Observer,
        shared: Cluster | None,
        whole: Container[str],
        on_picture: Callable[[], None],
    ) -> None:
        self.config, self.observer = config, observer
        self.cluster, self.is_shared = shared or Cluster(config, observer), shared is not None
        self.policy = Policy.of_option(config.begins_at, whole)
        self.positions = Positions()
        self.buffer: Buffer[Chunk] = Buffer(config.max_buffered_bytes)
        self.picture = Picture(self.cluster, on_picture)
        self.reader = Reader(
            self.positions,
            self.buffer,
            MapWatch(observer, max_bytes=config.offset_metadata_max_bytes, writer=config.client_id),
            is_acked_by_hand=config.ack == "manual",
            max_queued_records=config.max_queued_records,
            on_room=self._room_made,
            gaps=None if config.allow_offset_gaps else Gaps(),
        )
        self.beginnings = Beginnings(
            config, self.cluster, self.positions, self.reader, self.picture, observer, self.positions_changed
        )
        self._members: list[str] = []
        self._name = self._new_name()
        self.fetcher = Fetcher(
            config,
            self.cluster,
            self.positions,
            self.buffer,
            self.reader,
            self.picture,
            observer,
            self.policy,
            self.beginnings.wake,
            self._name if self.is_shared else "",
        )
        timeout_s = config.default_api_timeout_ms / 1000
        self.asking = Asking(
            self.cluster, timeout_s, lambda: int(self.config.isolation_level == "read_committed"), now_ms
        )
        self.seeking = Seeking(self.positions, self.reader, self.beginnings, self.positions_changed, timeout_s)

    def new_member(self) -> str:
        """A name for the connections of another membership."""
        self._members.append(self._new_name())
        return self._members[-1]

    def _new_name(self) -> str:
        """Of its own in this process."""
        return f"{self.config.client_id}-{next(_numbers)}"

    def watch(self, topics: Iterable[str] | None) -> None:
        """Keep what is read in the picture; None keeps all topics there are."""
        self.cluster.watch(self, topics)

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Take other options from now on."""
        self.config = config
        self.policy.reset = start_by_policy(config.begins_at)
        self.buffer.max_bytes = config.max_buffered_bytes
        self.reader.max_queued_records = config.max_queued_records
        self.fetcher.reconfigure(config)
        self.beginnings.reconfigure(config)
        self.positions_changed()

    def close(self) -> None:
        """Close all connections; of a cluster that is shared those that are this consumer's alone."""
        if not self.is_shared:
            self.cluster.close()
            return
        self.cluster.unwatch(self)
        for member in self._members:
            self.cluster.unwatch((member, "group"))
        for name in (*self._members, *(name_of_lane(self._name, n) for n in range(self.config.num_fetchers))):
            self.cluster.forget_member(name)

    # ---- who has to know what ----------------------------------------------------------------------------------

    def positions_changed(self) -> None:
        """A partition came, went, or has another position."""
        self.fetcher.wake()
        self.beginnings.wake()
        self.reader.look_again()

    def picture_changed(self) -> None:
        """Somebody else may lead what is read."""
        self.fetcher.wake()
        self.beginnings.wake()

    def _room_made(self) -> None:
        self.fetcher.room_made()
