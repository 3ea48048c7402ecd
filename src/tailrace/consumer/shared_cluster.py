"""One cluster for several consumers of a process: they share its picture and the connections that nobody waits on.

Rule of this file: fetches and the group's requests may be held by a broker for long, so each consumer has its own
connections for them; everything else goes over the cluster's.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, cast

from typing_extensions import Unpack

from tailrace.config import ConsumerOptions, check_names, resolve
from tailrace.errors import ConsumerStateError
from tailrace.net.cluster import Cluster
from tailrace.observe.hooks import Hook, Observer

__all__ = ["SharedCluster", "opened"]


class SharedCluster:
    """A cluster to give to consumers: ``async with SharedCluster(bootstrap_servers=…) as cluster``.

    ``Consumer("orders", cluster=cluster)`` takes the cluster's options where it says nothing else, and leaves it open
    when it stops. What is about the cluster itself is as the cluster says, whatever a consumer does: its addresses,
    security, connections, retries, the age of its picture, ``exclude_internal_topics``.

    Args:
        options: those of a Consumer that are about the cluster and its security.

    Raises:
        ConfigurationError: an option is unknown, mistyped, or contradicts another.
    """

    def __init__(self, **options: Unpack[ConsumerOptions]) -> None:
        self.options: dict[str, Any] = dict(options)
        check_names(self.options)
        resolve(self.options)
        self._cluster: Cluster | None = None
        self._is_stopped = False

    async def start(self) -> None:
        """Reach the cluster.

        Raises:
            ConsumerStateError: it was started or stopped before.
            BrokerConnectionError: no broker answers within ``start_timeout_ms``.
            AuthenticationError: the brokers refuse us.
        """
        if self._cluster is not None or self._is_stopped:
            raise ConsumerStateError("this cluster was started already - make a new one")
        config = resolve(self.options)
        cluster = Cluster(config, Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id))
        try:
            timeout_s = config.start_timeout_ms / 1000
            await cluster.reach(timeout_s)
        except BaseException:
            cluster.close()
            raise
        self._cluster = cluster

    async def stop(self) -> None:
        """Close all connections; consumers that still use it are to be stopped before."""
        self._is_stopped = True
        if self._cluster is not None:
            self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def opened(shared: SharedCluster) -> Cluster:
    """The cluster itself.

    Raises:
        ConsumerStateError: it is not started, or was stopped.
    """
    cluster = shared._cluster  # noqa: SLF001 - this file's own
    if cluster is None or shared._is_stopped:  # noqa: SLF001
        raise ConsumerStateError("the shared cluster is not started, or was stopped - use `async with` around all")
    return cluster
