"""A broker and its connections.

A broker answers the requests of one connection in order. Fetches, heartbeats and other requests therefore use
different connections, so that a heartbeat does not wait until a fetch is answered. A connection is opened when it is
first needed. After a failed attempt to connect, requests fail immediately until an exponential backoff is over.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import anyio

from tailrace.config import ClientConfig
from tailrace.core.backoff import Backoff
from tailrace.core.cluster_metadata import ExpectedBroker
from tailrace.errors import (
    AuthenticationError,
    ConfigurationError,
    NodeNotConnectedError,
    RequestTimedOutError,
    TailraceError,
    UnsupportedVersionError,
    WrongBrokerError,
)
from tailrace.net.connection import Connection, not_sent_error
from tailrace.net.dialer import Dialer
from tailrace.observe.events import BrokerUnreachable, ConnectionLost, ConnectionOpened, WrongBrokerReached
from tailrace.observe.hooks import Observer
from tailrace.protocol.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import BrokerMetadata
from tailrace.protocol.records import FetchRequest

__all__ = ["Broker", "Channel", "ChannelKey"]

ResponseT = TypeVar("ResponseT")


class Channel(StrEnum):
    """Purpose of a connection."""

    MAIN = "main"
    FETCH = "fetch"
    OFFSETS = "offsets"
    GROUP = "group"
    HEARTBEAT = "heartbeat"


class ChannelKey(NamedTuple):
    """Identity of a connection among the connections to one broker."""

    channel: Channel
    owner: str = ""
    """Group member or component that alone uses the connection; empty for a shared connection."""

    def __str__(self) -> str:
        return f"{self.channel}:{self.owner}" if self.owner else str(self.channel)


CHANNEL_OF: dict[type[Request[Any]], Channel] = {
    FetchRequest: Channel.FETCH,
    OffsetCommitRequest: Channel.OFFSETS,
    OffsetFetchRequest: Channel.OFFSETS,
    JoinGroupRequest: Channel.GROUP,
    SyncGroupRequest: Channel.GROUP,
    HeartbeatRequest: Channel.HEARTBEAT,
}
"""Channel of each request type; others use ``Channel.MAIN``, unless ``Broker.send`` is called with another ``key``."""


class Broker:
    """Broker with one connection for each ``ChannelKey``.

    Args:
        node: node id and address.
        dialer: opens the connections.
        observer: receives the events of the connections.
        connects_on_demand: True to open connections when requests need them; False to fail requests until ``connect``
            is called.
        on_unreachable: called when a connection cannot be opened, unless TLS or SASL has failed.

    Attributes:
        id: node id; negative for an address of ``bootstrap_servers``.
        host: name or address.
        port: port of the listener.
        rack: rack of the broker; None if none is configured.
        cluster_id: cluster that each connection must reach, with the node id; None to accept any broker.
    """

    def __init__(
        self,
        node: BrokerMetadata,
        dialer: Dialer,
        observer: Observer,
        *,
        connects_on_demand: bool = False,
        on_unreachable: Callable[[], None] | None = None,
    ) -> None:
        self.id: int = node.node_id
        self.host: str = node.host
        self.port: int = node.port
        self.rack: str | None = node.rack
        self.dialer: Dialer = dialer
        self.observer: Observer = observer
        self.on_unreachable: Callable[[], None] | None = on_unreachable
        self.cluster_id: str | None = None
        self._connections: dict[ChannelKey, _ReplaceableConnection] = {}
        self._may_connect = connects_on_demand

    @classmethod
    def from_metadata(cls, node: BrokerMetadata, config: ClientConfig, observer: Observer | None = None) -> Broker:
        """Return a broker that belongs to no Cluster; ``connect`` must be called before requests are sent."""
        return cls(node, Dialer(config, observer), observer or Observer())

    def __repr__(self) -> str:
        channels = ", ".join(str(key) for key, connection in self._connections.items() if connection.is_open)
        return f"<Broker {self.id} {self.address} [{channels or 'not connected'}]>"

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port}"

    @property
    def expected(self) -> ExpectedBroker | None:
        """Broker that each connection must reach; None to accept any."""
        return None if self.cluster_id is None else ExpectedBroker(self.cluster_id, self.id)

    def is_connected(self, channel: Channel = Channel.MAIN) -> bool:
        """Return True while the shared connection of a channel is open."""
        connection = self._connections.get(ChannelKey(channel))
        return connection is not None and connection.is_open

    async def connect(self, channel: Channel = Channel.MAIN) -> None:
        """Open or reopen the shared connection of a channel, and allow connections to be opened when needed."""
        self._may_connect = True
        await self._connection(ChannelKey(channel)).reopen()

    async def send(
        self,
        request: Request[ResponseT],
        *,
        owner: str = "",
        key: ChannelKey | None = None,
        timeout_s: float | None = None,
    ) -> ResponseT:
        """Send a request over the connection of its channel and return the response.

        Args:
            request: request to send.
            owner: name of connections (``ConsumerParts.new_name``) that one group member uses alone, for its joins,
                syncs and heartbeats; ignored for other types of request.
            key: connection to use instead of the default connection for the request's type. ``GroupRequests`` so sends
                heartbeats of KIP-848 and leaves over the member's own connection for heartbeats.
            timeout_s: maximum time in seconds, including the time to connect; by default ``request_timeout_ms``.

        Raises:
            NodeNotConnectedError: ``connect`` was never called, the broker was closed, or the backoff is not over.
            AuthenticationError: TLS or SASL failed, now or in the attempt before the backoff.
            BrokerConnectionError: the connection could not be opened, or failed before the response.
            RequestTimedOutError: no response came in time.
            UnsupportedVersionError: the broker and tailrace have no version of the request in common.
        """
        timeout_s = self.dialer.config.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        if timeout_s <= 0:
            raise not_sent_error(self.address, request.api.name)
        if key is None:
            channel = CHANNEL_OF.get(type(request), Channel.MAIN)
            key = ChannelKey(channel, owner if channel in {Channel.GROUP, Channel.HEARTBEAT} else "")
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection = await self.connection_for(key, timeout_s)
        return await connection.send(request, deadline - asyncio.get_running_loop().time())

    async def version_for(self, request: Request[Any], *, timeout_s: float) -> int:
        """Return the version in which ``send`` would send ``request``; open the connection if necessary.

        Raises:
            BrokerConnectionError: the connection cannot be opened, or not within ``timeout_s`` seconds.
            UnsupportedVersionError: the broker and tailrace have no version of the request in common.
        """
        connection = await self.connection_for(ChannelKey(CHANNEL_OF.get(type(request), Channel.MAIN)), timeout_s)
        return connection.broker_versions.version_of(request.api, request.newest_version, request.oldest_version)

    async def connection_for(self, key: ChannelKey, timeout_s: float | None = None) -> Connection:
        """Return the connection for ``key``; open it if necessary.

        Raises:
            NodeNotConnectedError: ``connect`` was never called, the broker was closed, or the backoff is not over.
            BrokerConnectionError: the connection cannot be opened, or not within ``timeout_s`` seconds.
        """
        if not self._may_connect:
            raise NodeNotConnectedError(f"broker {self.id} at {self.address} is not connected - await connect() first")
        connection = self._connection(key)
        if (usable := connection.usable()) is not None:
            return usable
        try:
            async with asyncio.timeout(timeout_s):
                return await connection.open()
        except TimeoutError:
            raise RequestTimedOutError(f"{self.address}: no connection within {timeout_s:.1f} s") from None

    def open_connection(self, key: ChannelKey) -> Connection | None:
        """Return the connection for ``key`` if it is open, else None: ``connection_for`` opens it."""
        connection = self._connections.get(key)
        return None if connection is None or not self._may_connect else connection.usable()

    def close_owned(self, owner: str) -> None:
        """Close the connections that ``owner``, a group member or fetch connection, uses alone."""
        for key in [key for key in self._connections if key.owner == owner]:
            self._connections.pop(key).close()

    def close(self) -> None:
        """Close all connections. Pending requests fail, and so do later ones until ``connect`` is called."""
        self._may_connect = False
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, key: ChannelKey) -> _ReplaceableConnection:
        if key not in self._connections:
            self._connections[key] = _ReplaceableConnection(self, key)
        return self._connections[key]


class _ReplaceableConnection:
    """Connection for one ``ChannelKey``, replaced when it is lost or was idle for ``connections_max_idle_ms``."""

    def __init__(self, broker: Broker, key: ChannelKey) -> None:
        config = broker.dialer.config
        self._broker, self._key = broker, key
        self._backoff = Backoff.of_ms(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        self._max_idle_s = config.connections_max_idle_ms / 1000
        self._dial_lock = asyncio.Lock()
        self.current: Connection | None = None
        """Latest connection, which may have ended; None before the first and after a failed attempt to connect."""
        self._failures = 0
        self._retry_at = 0.0
        self._failure: TailraceError = NodeNotConnectedError("not tried yet")
        self._dial_scope = anyio.CancelScope()
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return self.current is not None and self.current.is_open

    def usable(self) -> Connection | None:
        """Return the open connection; None if there is none, or it was idle for too long."""
        found = self.current
        return found if found is not None and found.is_open and not found.is_idle(self._max_idle_s) else None

    async def open(self) -> Connection:
        """Return the open connection, or open one; raise the last error during the backoff."""
        async with self._dial_lock:
            if (usable := self.usable()) is not None:
                return usable
            pause_s = self._retry_at - asyncio.get_running_loop().time()
            if pause_s > 0:
                raise self._failure_during_backoff(pause_s)
            return await self._dial()

    async def reopen(self) -> None:
        """Close the connection if it is open, and open a new one, also during the backoff."""
        async with self._dial_lock:
            await self._dial()

    def close(self) -> None:
        self._is_closed = True
        self._dial_scope.cancel()
        if self.current is not None:
            self.current.close()
            self.current = None

    async def _dial(self) -> Connection:
        if self.current is not None:
            self.current.close()
            self.current = None
        broker, connection = self._broker, None
        self._dial_scope = anyio.CancelScope()
        with self._dial_scope:
            if not self._is_closed:
                try:
                    connection = await broker.dialer.dial(broker.host, broker.port, broker.expected)
                except TailraceError as error:
                    self._on_failure(error)
                    raise
        if connection is None or self._is_closed:
            if connection is not None:
                connection.close()
            raise NodeNotConnectedError(f"{broker.address}: closed before it was connected")
        self._failures = 0
        self.current = connection
        connection.on_lost = self._on_lost
        for request, channel in CHANNEL_OF.items():
            if channel is self._key.channel:
                # Thus the first records and the first commit do not wait for generated code.
                connection.broker_versions.prepare(request.api)
        broker.observer.emit(ConnectionOpened(connection.address, str(self._key)))
        return connection

    def _on_failure(self, error: TailraceError) -> None:
        self._failures += 1
        self._failure = error
        chance = random.random()  # noqa: S311 - not for secrets
        self._retry_at = asyncio.get_running_loop().time() + self._backoff.pause_s(self._failures, chance)
        if isinstance(error, WrongBrokerError):
            self._broker.observer.emit(WrongBrokerReached(self._broker.address, str(error), error))
        elif not isinstance(error, AuthenticationError):
            self._broker.observer.emit(BrokerUnreachable(self._broker.address, str(error), error))
        if not isinstance(error, AuthenticationError) and self._broker.on_unreachable is not None:
            self._broker.on_unreachable()

    def _failure_during_backoff(self, pause_s: float) -> TailraceError:
        # Callers retry after NodeNotConnectedError. A permanent error keeps its class, because a retry would also fail.
        # Another broker at the address is not a reason to try less, but the user must learn of it.
        keeps_class = isinstance(
            self._failure, AuthenticationError | UnsupportedVersionError | ConfigurationError | WrongBrokerError
        )
        error_class = type(self._failure) if keeps_class else NodeNotConnectedError
        return error_class(f"{self._failure} ({self._failures} attempts, next in {pause_s:.1f} s)")

    def _on_lost(self, reason: TailraceError) -> None:
        self._broker.observer.emit(ConnectionLost(self._broker.address, str(self._key), str(reason), reason))
