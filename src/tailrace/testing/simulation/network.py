"""Network between simulated processes and brokers: TCP with latency, loss of connections, and partitions.

Bytes of a direction arrive in order. Between two hosts that cannot reach each other, bytes wait as TCP would repeat
them, and arrive after the network has healed; a new connection waits, too.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Protocol

from tailrace.testing.simulation.loop import SimulatedLoop, current_process

__all__ = ["FAST", "Listener", "Network", "Peer", "ServerTransport"]

SIMULATION = "simulation"
"""Name of the host of code outside of all processes."""
FAST = (0.0002, 0.002)
"""Shortest and longest latency in a data center, in seconds."""
_APART_S = 1e-6
"""Time between two arrivals; timers of the same time are called in any order."""


class Peer(Protocol):
    """Server's end of a connection."""

    def received(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        ...

    def lost(self) -> None:
        """Note that the client has closed or lost the connection."""
        ...


Listener = Callable[["ServerTransport"], Peer]
"""Function that accepts a connection."""


class _Direction:
    """Bytes on their way from one end of a connection to the other."""

    def __init__(self, network: Network, source: str, target: str, deliver: Callable[[bytes | None], None]) -> None:
        self._network, self.source, self.target = network, source, target
        self._deliver, self._last_at = deliver, 0.0
        self._waiting: deque[tuple[bytes | None, Context]] = deque()
        self.bytes_on_way = 0

    def send(self, data: bytes | None, context: Context) -> None:
        """Deliver bytes after the latency, or the end of the connection for None."""
        network = self._network
        chunks = [data]
        if data is not None and len(data) > 1 and network.chance.random() < network.splitting:
            at = network.chance.randrange(1, len(data))
            chunks = [data[:at], data[at:]]
        for chunk in chunks:
            self.bytes_on_way += len(chunk or b"")
            self._last_at = max(self._last_at + _APART_S, network.loop.time() + network.latency_s())
            network.loop.call_at(self._last_at, self._arrive, chunk, context, context=context)

    def _arrive(self, data: bytes | None, context: Context) -> None:
        if self._waiting or self._network.is_cut(self.source, self.target):
            self._waiting.append((data, context))
            return
        self.bytes_on_way -= len(data or b"")
        self._deliver(data)

    def heal(self) -> None:
        """Deliver the bytes that have waited for the network."""
        waiting, self._waiting = self._waiting, deque()
        for data, context in waiting:
            self._last_at = max(self._last_at + _APART_S, self._network.loop.time() + self._network.latency_s())
            self._network.loop.call_at(self._last_at, self._arrive, data, context, context=context)


class ServerTransport:
    """Server's access to a connection."""

    def __init__(self, connection: _SimulatedConnection) -> None:
        self._connection = connection

    def write(self, data: bytes | bytearray) -> None:
        """Send bytes to the client."""
        if not self._connection.is_lost:
            self._connection.to_client.send(bytes(data), self._connection.context)

    def abort(self) -> None:
        """Reset the connection."""
        self._connection.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))


class _SimulatedConnection:
    """Both ends of a connection, and the bytes in both directions."""

    def __init__(self, network: Network, client: str, server: str, context: Context) -> None:
        self.network, self.client, self.server, self.context = network, client, server, context
        self.to_client = _Direction(network, server, client, self._arrive_at_client)
        self.to_server = _Direction(network, client, server, self._arrive_at_server)
        self.transport: _Transport | None = None
        self.peer: Peer | None = None
        self.is_lost = False

    def _arrive_at_client(self, data: bytes | None) -> None:
        if self.transport is not None and not self.is_lost and data is not None:
            self.transport.feed(data)

    def _arrive_at_server(self, data: bytes | None) -> None:
        if self.peer is None:
            return
        if data is None:
            peer, self.peer = self.peer, None
            peer.lost()
        else:
            self.peer.received(data)

    def lose(self, error: Exception | None) -> None:
        """End the connection for both ends at once, if it is open."""
        if self.is_lost:
            return
        self.is_lost = True
        self.network.connections.pop(self, None)
        if self.peer is not None:
            peer, self.peer = self.peer, None
            peer.lost()
        if self.transport is not None:
            self.transport.end(error)


class _Transport(asyncio.Transport):
    """Client's end of a connection."""

    def __init__(self, connection: _SimulatedConnection, sock: socket.socket, protocol: Any) -> None:  # noqa: ANN401
        super().__init__({"socket": sock})
        self._connection, self._sock, self._protocol = connection, sock, protocol
        self._is_closing = False

    def write(self, data: Any) -> None:  # noqa: ANN401 - bytes or a buffer
        if not self._is_closing:
            self._connection.to_server.send(bytes(data), self._connection.network.context)

    def get_write_buffer_size(self) -> int:
        return self._connection.to_server.bytes_on_way

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self._is_closing:
            return
        self._connection.to_server.send(None, self._connection.network.context)
        self._connection.is_lost = True
        self._connection.network.connections.pop(self._connection, None)
        self.end(None)

    def end(self, error: Exception | None) -> None:
        """Tell the protocol that the connection has ended."""
        if self._is_closing:
            return
        self._is_closing = True
        self._sock.close()
        self._connection.network.loop.call_soon(self._protocol.connection_lost, error, context=self._connection.context)

    def feed(self, data: bytes) -> None:
        """Pass bytes to the protocol as reads of a socket do."""
        while data and not self._is_closing:
            buffer = self._protocol.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            data = data[count:]
            self._protocol.buffer_updated(count)


class Network:
    """Hosts, listeners and connections.

    Attributes:
        chance: source of chance for latency and splitting.
        latency: shortest and longest latency of a direction, in seconds.
        splitting: probability that a write arrives in two parts.
        connections: open connections.
        context: context of the simulation itself, to which servers belong.
    """

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.loop = loop
        self.chance = random.Random(f"{seed} network")  # noqa: S311 - not for secrets
        self.latency = FAST
        self.splitting = 0.05
        self.connections: dict[_SimulatedConnection, None] = {}
        self.context = copy_context()
        self._listeners: dict[tuple[str, int], tuple[str, Listener]] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._targets: dict[socket.socket, tuple[str, Listener]] = {}
        self._healed = asyncio.Event()
        loop.network = self

    def latency_s(self) -> float:
        """Return a latency in seconds."""
        return self.chance.uniform(*self.latency)

    # ---- faults ------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Let no bytes arrive from one host at another, and back unless ``one_way``."""
        self._cuts.add((source, target))
        if not one_way:
            self._cuts.add((target, source))

    def heal(self) -> None:
        """Let all hosts reach each other again; bytes that have waited arrive."""
        self._cuts.clear()
        for connection in [*self.connections]:
            connection.to_client.heal()
            connection.to_server.heal()
        healed, self._healed = self._healed, asyncio.Event()
        healed.set()

    def is_cut(self, source: str, target: str) -> bool:
        """Return True if no bytes arrive from ``source`` at ``target``."""
        return (source, target) in self._cuts

    def reset(self, host: str) -> int:
        """Reset all connections of a host, and return their number."""
        mine = [one for one in self.connections if host in {one.client, one.server}]
        for connection in mine:
            connection.lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        return len(mine)

    # ---- servers -----------------------------------------------------------------------------------------------

    def listen(self, host: str, address: tuple[str, int], listener: Listener) -> None:
        """Accept connections to an address."""
        self._listeners[address] = (host, listener)

    def close(self, address: tuple[str, int]) -> None:
        """Refuse connections to an address."""
        self._listeners.pop(address, None)

    # ---- interface of the loop ---------------------------------------------------------------------------------

    def addresses_of(self, host: str, port: int) -> list[Any]:
        """Return an address for each host name."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def connect(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """Wait until a listener has accepted, as long as the network is cut.

        Raises:
            ConnectionRefusedError: nothing listens at the address.
        """
        await asyncio.sleep(self.latency_s() * 2)
        client = _current_host()
        while address in self._listeners and (
            self.is_cut(client, self._listeners[address][0]) or self.is_cut(self._listeners[address][0], client)
        ):
            await self._healed.wait()
        if address not in self._listeners:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        self._targets[sock] = self._listeners[address]

    def open(self, sock: socket.socket, protocol: Any) -> tuple[asyncio.Transport, Any]:  # noqa: ANN401
        """Return the transport of a connected socket, and its protocol."""
        server, listener = self._targets.pop(sock)
        connection = _SimulatedConnection(self, _current_host(), server, copy_context())
        connection.transport = _Transport(connection, sock, protocol)
        connection.peer = self.context.copy().run(listener, ServerTransport(connection))
        self.connections[connection] = None
        protocol.connection_made(connection.transport)
        return connection.transport, protocol


def _current_host() -> str:
    process = current_process.get()
    return SIMULATION if process is None else process.name
