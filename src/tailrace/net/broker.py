"""One real server, and the several connections to it.

Rule of this file: a broker answers one connection's requests one after the other, so what must not wait for a long
poll or a pending rebalance has a connection of its own. Each is opened when it is first needed; after a failure the
next try waits (exponentially longer), and whoever asks in between is told so at once.
"""

from __future__ import annotations

import asyncio
import random
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import anyio

from tailrace.config import ConsumerConfig
from tailrace.core.backoff import Backoff
from tailrace.errors import (
    AuthenticationError,
    ConfigurationError,
    NodeNotConnectedError,
    RequestTimedOutError,
    TailraceError,
    UnsupportedVersionError,
)
from tailrace.net.connection import Connection
from tailrace.net.dialer import Dialer
from tailrace.observe.events import BrokerUnreachable, ConnectionLost, ConnectionOpened
from tailrace.observe.hooks import Observer
from tailrace.protocol.api_versions import api_of
from tailrace.protocol.classic_group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tailrace.protocol.committed_offsets import OffsetCommitRequest, OffsetFetchRequest
from tailrace.protocol.fetch import FetchRequest
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import BrokerMetadata

__all__ = ["Broker", "Channel", "ChannelKey"]

ResponseT = TypeVar("ResponseT")


class Channel(StrEnum):
    """What a connection is for."""

    MAIN = "main"
    FETCH = "fetch"
    OFFSETS = "offsets"
    GROUP = "group"
    HEARTBEAT = "heartbeat"


class ChannelKey(NamedTuple):
    """One connection: what it is for, and for whom; each member of a group has its own."""

    channel: Channel
    member: str = ""

    def __str__(self) -> str:
        return f"{self.channel}:{self.member}" if self.member else str(self.channel)


CHANNEL_OF: dict[type[Request[Any]], Channel] = {
    FetchRequest: Channel.FETCH,
    OffsetCommitRequest: Channel.OFFSETS,
    OffsetFetchRequest: Channel.OFFSETS,
    JoinGroupRequest: Channel.GROUP,
    SyncGroupRequest: Channel.GROUP,
    LeaveGroupRequest: Channel.GROUP,
    HeartbeatRequest: Channel.HEARTBEAT,
}
"""Which connection a request takes; the main one where nothing is said."""


class Broker:
    """One server of the cluster.

    Attributes:
        id: as the cluster numbers it; negative until that is known (it was found by ``bootstrap_servers``).
        host: a name or an address.
        port: of the listener.
        rack: where it is, if it says so.
    """

    def __init__(
        self,
        node: BrokerMetadata,
        config: ConsumerConfig,
        dialer: Dialer,
        observer: Observer,
        *,
        connects_itself: bool = False,
    ) -> None:
        self.id = node.node_id
        self.host = node.host
        self.port = node.port
        self.rack = node.rack
        self._config, self._dialer, self._observer = config, dialer, observer
        self._connections: dict[ChannelKey, _ReplaceableConnection] = {}
        self._is_open = connects_itself

    @classmethod
    def from_metadata(cls, node: BrokerMetadata, config: ConsumerConfig, observer: Observer | None = None) -> Broker:
        """A broker by itself, outside of any cluster."""
        return cls(node, config, Dialer(config), observer or Observer())

    def __repr__(self) -> str:
        lines = ", ".join(str(key) for key, connection in self._connections.items() if connection.is_open)
        return f"<Broker {self.id} {self.address} [{lines or 'not connected'}]>"

    @property
    def address(self) -> str:
        """Host and port, for people."""
        return f"{self.host}:{self.port}"

    @property
    def connected(self) -> bool:
        """Whether the main connection stands; False as soon as the broker has closed it."""
        return self._stands(ChannelKey(Channel.MAIN))

    @property
    def offsets_channel_connected(self) -> bool:
        """Whether the connection for committing and fetching offsets stands."""
        return self._stands(ChannelKey(Channel.OFFSETS))

    async def connect(self) -> None:
        """Open the main connection, anew if there is one, and allow others to be opened when they are needed.

        Raises:
            BrokerConnectionError: nobody answers.
            UnsupportedVersionError: the broker is too old.
        """
        self._is_open = True
        await self._connection(ChannelKey(Channel.MAIN)).reopen()

    async def connect_offsets_channel(self) -> None:
        """Open the connection for committing and fetching offsets, anew if there is one."""
        self._is_open = True
        await self._connection(ChannelKey(Channel.OFFSETS)).reopen()

    async def send(
        self,
        request: Request[ResponseT],
        *,
        member: str = "",
        key: ChannelKey | None = None,
        timeout_s: float | None = None,
    ) -> ResponseT:
        """Send a request over the connection that its kind takes, and wait for the answer.

        Args:
            request: what to ask.
            member: whose connection it is, for the requests of a group's membership.
            key: another connection than that of its kind.
            timeout_s: how long to wait, for a connection too; ``request_timeout_ms`` when nothing is said.

        Raises:
            NodeNotConnectedError: not connected, and the pause before the next try is not over.
            BrokerConnectionError: connecting failed, or the connection broke.
            RequestTimedOutError: no answer in time.
            UnsupportedVersionError: the broker does not speak this.
        """
        channel = CHANNEL_OF.get(type(request), Channel.MAIN)
        own = channel in {Channel.GROUP, Channel.HEARTBEAT}
        timeout_s = self._config.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection = await self._connection_within(key or ChannelKey(channel, member if own else ""), timeout_s)
        return await connection.send(request, deadline - asyncio.get_running_loop().time())

    async def version_for(self, request: Request[Any], *, timeout_s: float) -> int:
        """Return the version in which ``request`` would be sent over the connection that its kind takes.

        Raises:
            BrokerConnectionError: the connection cannot be opened in time.
            UnsupportedVersionError: the broker does not offer the request.
        """
        channel = CHANNEL_OF.get(type(request), Channel.MAIN)
        connection = await self._connection_within(ChannelKey(channel), timeout_s)
        return connection.offered.version_of(api_of(request), request.newest_version)

    async def _connection_within(self, key: ChannelKey, timeout_s: float) -> Connection:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.connection_for(key)
        except TimeoutError:
            raise RequestTimedOutError(f"{self.address}: no connection within {timeout_s:.1f} s") from None

    async def connection_for(self, key: ChannelKey) -> Connection:
        """The open connection of ``key``: one key, one connection, for as long as the broker object lives.

        Raises:
            NodeNotConnectedError: never connected or closed, or the pause before the next try is not over.
            BrokerConnectionError: it cannot be opened now.
        """
        if not self._is_open:
            raise NodeNotConnectedError(f"broker {self.id} at {self.address} is not connected - await connect() first")
        return await self._connection(key).connection()

    def forget(self, member: str) -> None:
        """Close the connections of one member."""
        for key in [key for key in self._connections if key.member == member]:
            self._connections.pop(key).close()

    def close(self) -> None:
        """Close all connections; requests under way fail, later ones fail at once."""
        self._is_open = False
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _stands(self, key: ChannelKey) -> bool:
        connection = self._connections.get(key)
        return connection is not None and connection.is_open

    def _connection(self, key: ChannelKey) -> _ReplaceableConnection:
        if key not in self._connections:
            self._connections[key] = _ReplaceableConnection(
                key, self.host, self.port, self._config, self._dialer, self._observer
            )
        return self._connections[key]


class _ReplaceableConnection:
    """One connection, replaced when it is lost."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a broker hands on
        self, key: ChannelKey, host: str, port: int, config: ConsumerConfig, dialer: Dialer, observer: Observer
    ) -> None:
        self._key, self._host, self._port = key, host, port
        self._dialer, self._observer = dialer, observer
        self._backoff = Backoff.of_ms(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        self._max_idle_s = config.connections_max_idle_ms / 1000
        self._dialling = asyncio.Lock()
        self._connection: Connection | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._failure: TailraceError = NodeNotConnectedError("not tried yet")
        self._opening = anyio.CancelScope()
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def connection(self) -> Connection:
        if (usable := self._usable()) is not None:
            return usable
        async with self._dialling:
            if (usable := self._usable()) is not None:
                return usable
            pause_s = self._retry_at - asyncio.get_running_loop().time()
            if pause_s > 0:
                raise self._told_again(pause_s)
            return await self._dial()

    async def reopen(self) -> None:
        async with self._dialling:
            await self._dial()

    def close(self) -> None:
        self._is_closed = True
        self._opening.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _usable(self) -> Connection | None:
        held = self._connection
        return held if held is not None and held.is_open and held.idle_s < self._max_idle_s else None

    async def _dial(self) -> Connection:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        connection: Connection | None = None
        self._opening = anyio.CancelScope()
        with self._opening:
            if not self._is_closed:
                try:
                    connection = await self._dialer.dial(self._host, self._port)
                except TailraceError as error:
                    self._note_failure(error)
                    raise
        if connection is None or self._is_closed:
            if connection is not None:
                connection.close()
            raise NodeNotConnectedError(f"{self._host}:{self._port}: closed before it was connected")
        self._failures = 0
        self._connection = connection
        connection.on_lost = self._note_loss
        self._observer.emit(ConnectionOpened(connection.address, str(self._key)))
        return connection

    def _note_failure(self, error: TailraceError) -> None:
        self._failures += 1
        self._failure = error
        chance = random.random()  # noqa: S311 - not for secrets
        self._retry_at = asyncio.get_running_loop().time() + self._backoff.pause_s(self._failures, chance)
        if not isinstance(error, AuthenticationError):
            self._observer.emit(BrokerUnreachable(f"{self._host}:{self._port}", str(error)))

    def _told_again(self, pause_s: float) -> TailraceError:
        # What waiting does not heal keeps its name, or some would wait for it.
        lasting = isinstance(self._failure, AuthenticationError | UnsupportedVersionError | ConfigurationError)
        kind = type(self._failure) if lasting else NodeNotConnectedError
        return kind(f"{self._failure} (tried {self._failures} times, again in {pause_s:.1f} s)")

    def _note_loss(self, reason: TailraceError) -> None:
        self._observer.emit(ConnectionLost(f"{self._host}:{self._port}", str(self._key), str(reason)))
