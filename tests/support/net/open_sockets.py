"""Sockets of this process as seen by the operating system."""

from __future__ import annotations

import psutil


class Sockets:
    """Established connections from this process to a port since the creation of this object."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._before = self._all()

    def now(self) -> set[tuple[str, int]]:
        """Return the local addresses of the open connections."""
        return self._all() - self._before

    def _all(self) -> set[tuple[str, int]]:
        return {
            (one.laddr.ip, one.laddr.port)
            for one in psutil.Process().net_connections("tcp")
            if one.raddr and one.raddr.port == self._port and one.status == psutil.CONN_ESTABLISHED
        }
