"""The last resort: the broker in a container, where Docker answers and no Java or no jars can be had."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

__all__ = ["ContainerBroker"]


class ContainerBroker:
    """One broker of testcontainers, in the image that it chooses; it cannot be paused or killed by us."""

    def __init__(self) -> None:
        self._container: Any = None

    @staticmethod
    def is_possible() -> bool:
        """Whether Docker answers and testcontainers is installed."""
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
        """Start it; gives its bootstrap servers."""
        from testcontainers.community.kafka import KafkaContainer  # noqa: PLC0415 - an extra

        self._container = KafkaContainer().with_kraft()
        self._container.start()
        return str(self._container.get_bootstrap_server())

    def stop(self) -> None:
        """End it."""
        if self._container is not None:
            self._container.stop()
