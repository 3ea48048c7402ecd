"""Cluster metadata and connections shared by several consumers of a process.

A broker may hold fetches and group requests for a long time, so each consumer has its own connections for these
requests. All other requests use the shared connections.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, cast

from typing_extensions import Unpack

from tailrace.config import ConsumerOptions, check_names, hide_secrets, resolve
from tailrace.errors import ConsumerStateError
from tailrace.net.cluster import Cluster
from tailrace.observe.hooks import Hook, Observer

__all__ = ["SharedCluster"]


class SharedCluster:
    """Cluster shared by several consumers: ``async with SharedCluster(bootstrap_servers=…) as cluster``.

    ``Consumer("orders", cluster=cluster)`` has the cluster's options as defaults, and leaves the cluster open when it
    stops. A consumer may override options of the cluster, except those of the shared connections and metadata:
    addresses, security, connections, retries, age of the metadata, ``exclude_internal_topics``.

    Args:
        options: options of a Consumer.

    Raises:
        ConfigurationError: an option is unknown, mistyped, or contradicts another.
    """

    def __init__(self, **options: Unpack[ConsumerOptions[Any, Any]]) -> None:
        options = hide_secrets(options)
        self.options: dict[str, Any] = dict(options)
        check_names(self.options)
        resolve(self.options)
        self.cluster: Cluster | None = None
        """Connected cluster; None before the start and after the stop. It is internal to tailrace."""
        self._is_stopped = False

    async def start(self) -> None:
        """Connect to the cluster.

        Raises:
            ConsumerStateError: the cluster was started or stopped before.
            BrokerConnectionError: no broker answers within ``start_timeout_ms``.
            AuthenticationError: the brokers refuse the credentials.
        """
        if self.cluster is not None or self._is_stopped:
            raise ConsumerStateError("this cluster was already started or stopped - create a new one")
        config = resolve(self.options)
        cluster = Cluster(config, Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id))
        try:
            timeout_s = config.start_timeout_ms / 1000
            await cluster.reach(timeout_s)
        except BaseException:
            cluster.close()
            raise
        self.cluster = cluster

    async def stop(self) -> None:
        """Close all connections; the consumers and producers that use the cluster must be stopped first."""
        self._is_stopped = True
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
