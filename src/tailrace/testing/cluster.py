"""The embedded brokers, with a FaultProxy before each where a test wants one."""

from __future__ import annotations

from typing import Any

from tailrace.embedded import cluster, server
from tailrace.testing.proxy import FaultProxy

__all__ = ["KafkaCluster", "KafkaServer"]


class KafkaCluster(cluster.EmbeddedCluster):
    """Several real brokers; with ``proxied=True`` clients are told the addresses of proxies before them.

    Attributes:
        proxies: by the brokers' ids; empty unless ``proxied``.
    """

    def __init__(self, brokers: int = 3, *, proxied: bool = False, **options: Any) -> None:  # noqa: ANN401
        self.proxies: dict[int, FaultProxy] = {}
        if proxied:
            options["advertise"] = self._stand_before
        super().__init__(brokers, **options)

    def _stand_before(self, node_id: int, port: int) -> int:
        if node_id in self.proxies:
            self.proxies[node_id].close()
        proxy = self.proxies[node_id] = FaultProxy("127.0.0.1", port)
        proxy.start()
        return proxy.port

    def close(self) -> None:
        """End the proxies and the brokers, and remove all they wrote."""
        for proxy in self.proxies.values():
            proxy.close()
        self.proxies.clear()
        super().close()


class KafkaServer(server.EmbeddedServer):
    """One real broker; with ``proxied=True`` clients are told the address of ``proxy``."""

    def __init__(self, *, proxied: bool = False, **options: Any) -> None:  # noqa: ANN401 - those of the server
        self._proxy: FaultProxy | None = None
        if proxied:
            options["advertise"] = self._stand_before
        super().__init__(**options)

    @property
    def proxy(self) -> FaultProxy:
        """What stands before the broker."""
        assert self._proxy is not None, "there is a proxy with KafkaServer(proxied=True), once it is started"
        return self._proxy

    def _stand_before(self, _node_id: int, port: int) -> int:
        if self._proxy is not None:
            self._proxy.close()
        self._proxy = FaultProxy("127.0.0.1", port)
        self._proxy.start()
        return self._proxy.port

    def close(self) -> None:
        """End the proxy and the broker, and remove all they wrote."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        super().close()
