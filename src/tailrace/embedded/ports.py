"""Ports for brokers, chosen so that they are still free when a stopped broker comes back."""

from __future__ import annotations

import random
import socket
import sys

from tailrace.errors import KafkaServerError

__all__ = ["free_ports", "is_free"]

# Below the range from which systems take the ports of outgoing connections.
_RANGE = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """As many ports of the loopback address as are asked for, on which nobody listens now.

    Raises:
        KafkaServerError: there are not so many.
    """
    free: list[int] = []
    for port in random.sample(_RANGE, len(_RANGE)):
        if len(free) == count:
            break
        if is_free(port):
            free.append(port)
    if len(free) < count:
        raise KafkaServerError(f"{count} ports are needed, and {_RANGE.start} to {_RANGE.stop} has {len(free)} free")
    return free


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
