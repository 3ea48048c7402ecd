"""The picture of the cluster, kept fresh: refreshed when it is old, and when somebody found it to be wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.core.backoff import Backoff
from tailrace.errors import AuthenticationError, BrokerConnectionError
from tailrace.net.cluster import Cluster

__all__ = ["MetadataRefresher"]


class MetadataRefresher:
    """Asks the cluster what it looks like, on behalf of everybody; one coroutine, so nobody hammers the brokers."""

    def __init__(self, cluster: Cluster, on_change: Callable[[], None]) -> None:
        self._cluster = cluster
        self._on_change = on_change
        self._max_age_s = cluster.config.metadata_max_age_ms / 1000
        self._backoff = Backoff.of_ms(cluster.config.retry_backoff_ms, cluster.config.retry_backoff_max_ms)
        self._quiet_s = 2 * cluster.config.retry_backoff_max_ms / 1000
        self._wanted = AutoResetEvent()

    def ask(self) -> None:
        """It is wrong or lacks something: refresh it soon."""
        self._wanted.set()

    async def run_refreshes(self) -> None:
        """Refresh it for ever.

        Raises:
            AuthenticationError: the brokers do not know us any more.
        """
        loop, in_a_row, quiet_at = asyncio.get_running_loop(), 0, 0.0
        while True:
            due_at = loop.time() + max(0.0, self._max_age_s - self._cluster.age_s)
            await self._wanted.wait(due_at)
            # Wanted again at once: what is missing is not there yet, and asking faster does not make it come. A refresh
            # that is due by its age is not put off.
            if is_wanted := (now := loop.time()) < due_at:
                in_a_row = in_a_row + 1 if now < quiet_at else 0
                if in_a_row:
                    await asyncio.sleep(min(self._pause_s(in_a_row), due_at - now))
            await self._refresh()
            if is_wanted:
                quiet_at = loop.time() + self._quiet_s
            self._on_change()

    async def _refresh(self) -> None:
        failures = 0
        while True:
            try:
                await self._cluster.refresh()
            except AuthenticationError:
                raise
            except BrokerConnectionError:
                # Told by the cluster already; the brokers may be back after the pause.
                failures += 1
                await asyncio.sleep(self._pause_s(failures))
            else:
                return

    def _pause_s(self, times: int) -> float:
        return self._backoff.pause_s(times, random.random())  # noqa: S311
