"""Broker in a container, used if Docker runs and Java or the broker's jars are not available."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

__all__ = ["ContainerBroker"]

_LOCAL_HOSTS = {"localhost", "127.0.0.1"}


class ContainerBroker:
    """Broker in the default image of testcontainers; it cannot be paused or killed."""

    def __init__(self) -> None:
        self._container: Any = None

    @staticmethod
    def is_possible() -> bool:
        """Return True if Docker runs and testcontainers is installed."""
        docker = shutil.which("docker")
        if docker is None:
            return False
        try:
            import testcontainers.community.kafka  # noqa: F401, PLC0415 - an extra
        except ImportError:
            return False
        try:
            subprocess.run([docker, "info"], capture_output=True, timeout=10, check=True)  # noqa: S603 - no shell
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def start(self) -> str:
        """Start the broker and return its bootstrap servers."""
        from testcontainers.community.kafka import KafkaContainer  # noqa: PLC0415 - an extra

        self._container = KafkaContainer().with_kraft()
        if self._container.get_docker_client().host() in _LOCAL_HOSTS:
            # Docker publishes ports on all interfaces by default, and the broker has no authentication.
            self._container.ports = dict.fromkeys(self._container.ports, ("127.0.0.1", None))
        self._container.start()
        return str(self._container.get_bootstrap_server())

    def stop(self) -> None:
        """Stop the broker."""
        if self._container is not None:
            self._container.stop()
