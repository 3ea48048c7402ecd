"""Periodic refresh of cluster metadata, and refresh after stale-metadata errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NoReturn

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.core.backoff import Backoff
from tailrace.errors import AuthenticationError, BrokerConnectionError
from tailrace.net.cluster import Cluster

__all__ = ["MetadataRefresher"]


class MetadataRefresher:
    """Refreshes cluster metadata when it is ``metadata_max_age_ms`` old, on request, and if a broker is unreachable.

    Args:
        cluster: cluster whose metadata is refreshed.
        on_refresh: called after each refresh, even if nothing has changed.
    """

    def __init__(self, cluster: Cluster, on_refresh: Callable[[], None]) -> None:
        self._cluster = cluster
        self._on_refresh = on_refresh
        self._max_age_s = cluster.config.metadata_max_age_ms / 1000
        self._backoff = Backoff.of_ms(cluster.config.retry_backoff_ms, cluster.config.retry_backoff_max_ms)
        self._repeat_s = 2 * cluster.config.retry_backoff_max_ms / 1000
        """Time after a requested refresh in which another request counts as a repetition, in seconds."""
        self._requested = AutoResetEvent()

    def ask(self) -> None:
        """Request a refresh, because the metadata is stale or incomplete."""
        self._requested.set()

    async def run_refreshes(self) -> None:
        """Refresh the metadata until canceled; retry after connection errors.

        Raises:
            AuthenticationError, UnsupportedVersionError, ConfigurationError: all brokers failed, and at least one with
                this error.
        """
        stop_watching = self._cluster.watch_staleness(self.ask)
        try:
            await self._refresh_forever()
        finally:
            stop_watching()

    async def _refresh_forever(self) -> NoReturn:
        loop, repetitions, repeated_until = asyncio.get_running_loop(), 0, 0.0
        while True:
            due_at = loop.time() + max(0.0, self._max_age_s - self._cluster.age_s)
            await self._requested.wait(due_at)
            # After a repeated request, the refresh waits for an exponential backoff, because the brokers did not have
            # the requested information yet. A refresh that is due because of the metadata's age is not delayed.
            if is_requested := (now := loop.time()) < due_at:
                repetitions = repetitions + 1 if now < repeated_until else 0
                if repetitions:
                    await asyncio.sleep(min(self._pause_s(repetitions), due_at - now))
            await self._refresh()
            if is_requested:
                repeated_until = loop.time() + self._repeat_s
            self._on_refresh()

    async def _refresh(self) -> None:
        failures = 0
        while True:
            try:
                await self._cluster.refresh()
            except AuthenticationError:
                raise
            except BrokerConnectionError:
                # Cluster.refresh has emitted MetadataRefreshFailed.
                failures += 1
                await asyncio.sleep(self._pause_s(failures))
            else:
                return

    def _pause_s(self, failures: int) -> float:
        return self._backoff.pause_s(failures, random.random())  # noqa: S311
