"""The picture of the cluster, kept fresh: refreshed when it is old, and when somebody found it to be wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from penstock.consumer.wake import Wake
from penstock.core.backoff import Backoff
from penstock.errors import AuthenticationError, BrokerConnectionError
from penstock.net.cluster import Cluster

__all__ = ["Picture"]


class Picture:
    """Asks the cluster what it looks like, on behalf of everybody; one coroutine, so nobody hammers the brokers."""

    def __init__(self, cluster: Cluster, on_change: Callable[[], None]) -> None:
        self._cluster = cluster
        self._on_change = on_change
        self._max_age_s = cluster.config.metadata_max_age_ms / 1000
        self._backoff = Backoff.of_ms(cluster.config.retry_backoff_ms, cluster.config.retry_backoff_max_ms)
        self._quiet_s = 2 * cluster.config.retry_backoff_max_ms / 1000
        self._wanted = Wake()

    def ask(self) -> None:
        """It is wrong or lacks something: refresh it soon."""
        self._wanted.set()

    async def run_refreshes(self) -> None:
        """Refresh it for ever.

        Raises:
            AuthenticationError: the brokers do not know us any more.
        """
        loop, in_a_row = asyncio.get_running_loop(), 0
        while True:
            fresh_until = loop.time() + self._quiet_s
            await self._wanted.wait(loop.time() + max(0.0, self._max_age_s - self._cluster.age_s))
            # Wanted again at once: what is missing is not there yet, and asking faster does not make it come.
            in_a_row = in_a_row + 1 if loop.time() < fresh_until else 0
            if in_a_row:
                await asyncio.sleep(self._backoff.pause_s(in_a_row, random.random()))  # noqa: S311
            try:
                await self._cluster.refresh()
            except AuthenticationError:
                raise
            except BrokerConnectionError:
                # Told by the cluster already; the brokers may be back after the pause.
                self._wanted.set()
                continue
            self._on_change()
