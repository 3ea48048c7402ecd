"""Addresses of hosts, and connected sockets with options: keepalive and the size of the receive buffer.

The size of the receive buffer must be set before ``connect``, which negotiates the window scale of TCP. If the size is
set later, a small buffer stalls the sender, because no segment fits, and a large buffer is not used.
``connected_socket`` exists because asyncio's ``create_connection`` cannot set options of a socket before it connects,
and does not report which address of a name it has used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import socket
from asyncio.staggered import staggered_race
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

__all__ = ["SocketAddress", "connected_socket", "keep_alive", "resolved"]

_STAGGER_S = 0.25
"""Time in seconds after which the next address is tried, too."""

_IDLE_S, _INTERVAL_S, _PROBES = 30, 10, 3
"""Keepalive settings that detect a dead peer after 60 seconds; Linux's defaults take more than two hours."""


class SocketAddress(NamedTuple):
    """Address of one socket of a host."""

    family: int
    sockaddr: tuple[Any, ...]


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


async def resolved(host: str, port: int) -> list[SocketAddress]:
    """Return the addresses of ``host``, with IPv6 and IPv4 addresses in turn (RFC 8305).

    Raises:
        OSError: the name cannot be resolved.
    """
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(host)
        if found.version == 4:
            return [SocketAddress(socket.AF_INET, (host, port))]
        if "%" not in host:
            return [SocketAddress(socket.AF_INET6, (host, port, 0, 0))]
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    by_family: dict[int, list[SocketAddress]] = {}
    for family, _, _, _, address in entries:
        by_family.setdefault(family, []).append(SocketAddress(family, address))
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_family.values()))
    return list(dict.fromkeys(one for one in in_turn if one is not None))


async def connected_socket(
    addresses: Sequence[SocketAddress], *, receive_buffer_bytes: int | None, local_addr: tuple[str, int] | None
) -> tuple[socket.socket, SocketAddress]:
    """Connect to the first of ``addresses`` that accepts, and return the non-blocking socket and the address.

    The next address is tried when an address fails, or after a quarter of a second (RFC 8305).

    Raises:
        OSError: all addresses failed.
    """
    sockets: list[socket.socket] = []
    attempts = [partial(_connect, one, receive_buffer_bytes, local_addr, sockets) for one in addresses]
    chosen: socket.socket | None = None
    try:
        chosen, number, errors = await staggered_race(attempts, _STAGGER_S)
    finally:
        for one in sockets:
            if one is not chosen:
                one.close()
    if chosen is not None and number is not None:
        return chosen, addresses[number]
    failures = {str(error): error for error in errors if error is not None}
    if len(failures) == 1:
        raise next(iter(failures.values()))
    raise OSError(f"Multiple exceptions: {', '.join(failures)}")


async def _connect(
    address: SocketAddress,
    receive_buffer_bytes: int | None,
    local_addr: tuple[str, int] | None,
    sockets: list[socket.socket],
) -> socket.socket:
    """Connect to ``address``, and add the socket to ``sockets``, which the caller closes."""
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    sockets.append(sock)
    sock.setblocking(False)
    if receive_buffer_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    if local_addr is not None:
        _bind(sock, local_addr)
    await asyncio.get_running_loop().sock_connect(sock, address.sockaddr)
    return sock


def _bind(sock: socket.socket, local_addr: tuple[str, int]) -> None:
    try:
        sock.bind(local_addr)
    except OSError as error:
        # The dialer recognizes the error by these words, which asyncio uses, too.
        raise OSError(
            error.errno, f"error while attempting to bind on address {local_addr}: {error.strerror}"
        ) from None
