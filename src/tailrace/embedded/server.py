"""Embedded Kafka broker for the duration of a ``with`` block."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailrace.embedded import jars
from tailrace.embedded.cluster import EmbeddedCluster
from tailrace.embedded.node import BrokerNode
from tailrace.embedded.settings import Security

__all__ = ["EmbeddedServer"]


class EmbeddedServer(EmbeddedCluster):
    """Single Kafka broker, started and stopped by ``with`` or ``async with``.

    Args:
        port: port of the client listener; None for any free port.

    The other options are documented in ``EmbeddedCluster``.
    """

    def __init__(  # noqa: PLR0913 - options of a test's broker
        self,
        *,
        security: Security = "PLAINTEXT",
        tls: bool = False,
        config: Mapping[str, str | float] | None = None,
        version: str = jars.KAFKA_VERSION,
        advertise: Callable[[int, int], int] | None = None,
        progress: jars.Progress | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__(
            1, security=security, tls=tls, config=config, version=version, advertise=advertise, progress=progress
        )
        self._port = port

    @property
    def node(self) -> BrokerNode:
        """Broker process.

        Raises:
            KafkaServerError: this object has not started the broker, or uses an external broker or a container.
        """
        return self._started_nodes[0]

    def stop(self) -> None:
        """Stop the broker (SIGTERM) and keep its data; ``restart`` starts it again."""
        self.node.stop()

    def kill(self) -> None:
        """Kill the broker (SIGKILL) and keep its data; ``restart`` starts it again."""
        self.node.kill()

    def pause(self) -> None:
        """Pause the broker (SIGSTOP): its sockets stay open, but it answers no requests."""
        self.node.pause()

    def resume(self) -> None:
        """Resume the broker (SIGCONT)."""
        self.node.resume()

    def restart(self, node: BrokerNode | None = None) -> None:
        """Stop the broker if it runs, start it on the same port with its data, and wait until it is ready.

        ``node`` can be omitted, because there is only one broker.
        """
        super().restart(node or self.node)
