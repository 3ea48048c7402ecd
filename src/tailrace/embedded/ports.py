"""Ports for brokers, from a range in which they are likely to stay free until a stopped broker is restarted."""

from __future__ import annotations

import random
import socket
import sys

from tailrace.errors import KafkaServerError

__all__ = ["free_ports", "is_free"]

_RANGE = range(20_000, 32_000)
"""Ports below the range of ephemeral ports, from which operating systems choose ports of outgoing connections."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` free ports of the loopback address.

    Raises:
        KafkaServerError: there are not enough free ports.
    """
    free: list[int] = []
    for port in random.sample(_RANGE, len(_RANGE)):
        if len(free) == count:
            break
        if is_free(port):
            free.append(port)
    if len(free) < count:
        raise KafkaServerError(
            f"{count} ports are needed, but only {len(free)} of {_RANGE.start} to {_RANGE.stop} are free"
        )
    return free


def is_free(port: int) -> bool:
    """Return True if a process of this user can listen on a port of the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
