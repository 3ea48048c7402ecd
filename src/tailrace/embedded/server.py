"""KafkaServer: one real broker, for as long as a ``with`` block lasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailrace.embedded import jars
from tailrace.embedded.cluster import EmbeddedCluster
from tailrace.embedded.node import BrokerNode
from tailrace.embedded.settings import Security

__all__ = ["EmbeddedServer"]


class EmbeddedServer(EmbeddedCluster):
    """One real broker; ``with`` and ``async with`` start and end it.

    Options are those of KafkaCluster, without ``brokers`` and ``racks``, and ``port``: where it listens; any free port
    when nothing is said.
    """

    def __init__(  # noqa: PLR0913 - options of a test's broker
        self,
        *,
        security: Security = "PLAINTEXT",
        tls: bool = False,
        config: Mapping[str, object] | None = None,
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
        """The broker's process.

        Raises:
            KafkaServerError: it is not started, or somebody else runs it.
        """
        return self._our_nodes[0]

    def stop(self) -> None:
        """End the broker in order; ``restart`` brings it back with its data."""
        self.node.stop()

    def kill(self) -> None:
        """End it as a power cut would (SIGKILL)."""
        self.node.kill()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): its sockets stay open and nothing answers."""
        self.node.pause()

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self.node.resume()

    def restart(self, node: BrokerNode | None = None) -> None:
        """Start it again, on its old port and with its data, and wait until it answers."""
        super().restart(node or self.node)
