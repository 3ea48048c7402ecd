"""The sockets of this process as the system sees them: a witness that knows nothing of tailrace."""

from __future__ import annotations

import psutil


class Sockets:
    """Established connections from this process to a port, opened after this was made."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._before = self._all()

    def now(self) -> set[tuple[str, int]]:
        """The local ends of those there are now."""
        return self._all() - self._before

    def _all(self) -> set[tuple[str, int]]:
        return {
            (one.laddr.ip, one.laddr.port)
            for one in psutil.Process().net_connections("tcp")
            if one.raddr and one.raddr.port == self._port and one.status == psutil.CONN_ESTABLISHED
        }
