"""Socket options: keepalive and the size of the receive buffer.

The size of the receive buffer must be set before ``connect``, which negotiates the window scale of TCP. If the size is
set later, a small buffer stalls the sender, because no segment fits, and a large buffer is not used.
``connected_socket`` exists because asyncio's ``create_connection`` cannot set options of a socket before it connects.
"""

from __future__ import annotations

import asyncio
import socket

__all__ = ["connected_socket", "keep_alive"]

_IDLE_S, _INTERVAL_S, _PROBES = 30, 10, 3
"""Keepalive settings that detect a dead peer after 60 seconds; Linux's defaults take more than two hours."""


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keepalive, so that a connection to a dead peer is closed."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # macOS has another name for the first option, and some systems lack some of these options.
    for names, value in (
        (("TCP_KEEPIDLE", "TCP_KEEPALIVE"), _IDLE_S),
        (("TCP_KEEPINTVL",), _INTERVAL_S),
        (("TCP_KEEPCNT",), _PROBES),
    ):
        for name in names:
            if (option := getattr(socket, name, None)) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
                break


async def connected_socket(
    host: str, port: int, *, receive_buffer_bytes: int, local_addr: tuple[str, int] | None
) -> socket.socket:
    """Connect to ``host``, trying its addresses one after the other, and return the non-blocking socket.

    Raises:
        OSError: the name cannot be resolved; or all addresses failed, and the last one failed with this error.
    """
    loop = asyncio.get_running_loop()
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            if local_addr is not None:
                _bind(sock, local_addr)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


def _bind(sock: socket.socket, local_addr: tuple[str, int]) -> None:
    try:
        sock.bind(local_addr)
    except OSError as error:
        # The dialer recognizes the error by these words, which asyncio's create_connection uses, too.
        raise OSError(
            error.errno, f"error while attempting to bind on address {local_addr}: {error.strerror}"
        ) from None
