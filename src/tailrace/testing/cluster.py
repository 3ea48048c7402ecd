"""Embedded brokers, optionally behind fault proxies."""

from __future__ import annotations

from typing import Any

from tailrace.embedded import cluster
from tailrace.testing.proxy import FaultProxy

__all__ = ["KafkaCluster", "KafkaServer"]


class KafkaCluster(cluster.EmbeddedCluster):
    """Kafka brokers; with ``proxied=True``, each broker has its own FaultProxy and advertises the proxy's address.

    Attributes:
        proxies: proxies by broker id; empty without ``proxied=True``.
    """

    def __init__(self, brokers: int = 3, *, proxied: bool = False, **options: Any) -> None:  # noqa: ANN401
        self.proxies: dict[int, FaultProxy] = {}
        if proxied:
            options["advertise"] = self._start_proxy
        super().__init__(brokers, **options)

    def _start_proxy(self, node_id: int, port: int) -> int:
        if node_id in self.proxies:
            self.proxies[node_id].close()
        proxy = self.proxies[node_id] = FaultProxy("127.0.0.1", port)
        proxy.start()
        return proxy.port

    def close(self) -> None:
        """Stop the proxies and the brokers, and remove the brokers' files."""
        for proxy in self.proxies.values():
            proxy.close()
        self.proxies.clear()
        super().close()


class KafkaServer(cluster.EmbeddedServer):
    """Single Kafka broker; with ``proxied=True``, the broker has a FaultProxy and advertises the proxy's address."""

    def __init__(self, *, proxied: bool = False, **options: Any) -> None:  # noqa: ANN401 - options of EmbeddedServer
        self._proxy: FaultProxy | None = None
        if proxied:
            options["advertise"] = self._start_proxy
        super().__init__(**options)

    @property
    def proxy(self) -> FaultProxy:
        """Proxy in front of the broker."""
        assert self._proxy is not None, "there is no proxy - use KafkaServer(proxied=True), and start it"
        return self._proxy

    def _start_proxy(self, _node_id: int, port: int) -> int:
        if self._proxy is not None:
            self._proxy.close()
        self._proxy = FaultProxy("127.0.0.1", port)
        self._proxy.start()
        return self._proxy.port

    def close(self) -> None:
        """Stop the proxy and the broker, and remove the broker's files."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        super().close()
