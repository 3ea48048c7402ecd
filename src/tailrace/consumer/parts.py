"""Options, cluster, partitions and observer of a consumer, which its parts have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tailrace.config import ConsumerConfig
from tailrace.consumer.partition import AssignedPartitions
from tailrace.net.cluster import Cluster, MetadataRefresher
from tailrace.observe.hooks import Observer

__all__ = ["ConsumerParts"]

_numbers = itertools.count(1)


class ConsumerParts:
    """Objects that the parts of one consumer share.

    Attributes:
        config: current options. ``Consumer.reconfigure`` replaces them, so a part reads an option when it needs it.
        partitions: state of the assigned partitions.
        metadata_refresher: refreshes the cluster metadata, and calls ``on_metadata``.
        names: names of connections that only this consumer uses, even if it shares the cluster with others.
    """

    def __init__(
        self, config: ConsumerConfig, observer: Observer, cluster: Cluster, on_metadata: Callable[[], None]
    ) -> None:
        self.config, self.observer, self.cluster = config, observer, cluster
        self.partitions = AssignedPartitions()
        self.metadata_refresher = MetadataRefresher(cluster, on_metadata)
        self._wakes: list[Callable[[], None]] = []
        self.names: list[str] = []

    @property
    def default_timeout_s(self) -> float:
        """Time limit in seconds of a call of the user, ``default_api_timeout_ms``."""
        return self.config.default_api_timeout_ms / 1000

    def new_name(self) -> str:
        """Return a name for connections that is unique in this process."""
        self.names.append(f"{self.config.client_id}-{next(_numbers)}")
        return self.names[-1]

    def wake_on_change(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` at each ``changed``."""
        self._wakes.append(wake)

    def changed(self) -> None:
        """Wake the parts that act on positions, after a change of the assignment, a position or a leader.

        These are ``OffsetResetter``, which looks up missing start offsets, ``Fetcher``, which fetches from positions,
        and ``Reader``, which delivers buffered records. Each has registered itself by ``wake_on_change``.
        """
        for wake in self._wakes:
            wake()
