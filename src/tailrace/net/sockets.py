"""Options of sockets: keepalive, and a receive buffer of a given size.

The buffer has to be set before the two sides agree on TCP's windows: set later, a small one brings the sender to a
stand (a segment never fits) and a large one is never used. asyncio has no place for that.
"""

from __future__ import annotations

import asyncio
import socket

__all__ = ["connected_socket", "keep_alive"]

_IDLE_S, _INTERVAL_S, _PROBES = 30, 10, 3
"""A peer that is gone is noticed within a minute; the system's own defaults are two hours."""


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the system probe an idle connection, so that one whose peer is gone is closed."""
    made = transport.get_extra_info("socket")
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS has another name for the first, and some systems have none of them.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), _IDLE_S),
        (("TCP_KEEPINTVL",), _INTERVAL_S),
        (("TCP_KEEPCNT",), _PROBES),
    ):
        for name in names:
            if (option := getattr(socket, name, None)) is not None:
                made.setsockopt(socket.IPPROTO_TCP, option, value)
                break


async def connected_socket(
    host: str, port: int, *, receive_buffer_bytes: int, local_addr: tuple[str, int] | None
) -> socket.socket:
    """Connect to one of the addresses of ``host``, tried in the system's order.

    Raises:
        OSError: as the last address failed, or nobody knows the name.
    """
    loop = asyncio.get_running_loop()
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        made = socket.socket(family, kind, protocol)
        try:
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            if local_addr is not None:
                _bind(made, local_addr)
            await loop.sock_connect(made, address)
        except OSError as error:
            made.close()
            failure = error
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise failure


def _bind(made: socket.socket, local_addr: tuple[str, int]) -> None:
    try:
        made.bind(local_addr)
    except OSError as error:
        raise OSError(
            error.errno, f"error while attempting to bind on address {local_addr}: {error.strerror}"
        ) from None
