"""Simulated cluster: brokers that answer over the simulated network, and the faults that one induces."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple

from tailrace.batches.batch_writer import BatchWriter
from tailrace.protocol.message import Api, read_request_header
from tailrace.protocol.records import ProduceRequest
from tailrace.testing.simulation.broker_state import APIS, BrokerState
from tailrace.testing.simulation.loop import Process, SimulatedLoop
from tailrace.testing.simulation.network import Network, ServerTransport

__all__ = ["SimulatedCluster"]

_APIS: dict[int, Api[Any]] = {api.key: api for api in APIS}
_LENGTH = 4


class SimulatedCluster:
    """Kafka brokers in virtual time.

    Args:
        loop: loop in which the brokers and their clients run.
        brokers: number of brokers.
        seed: determines latencies, elections and ids.

    Attributes:
        state: what the brokers store.
        network: network between brokers and clients, with its faults.
        requests: number of requests by name of the API.
    """

    def __init__(self, loop: SimulatedLoop, brokers: int = 3, *, seed: int = 0) -> None:
        self.loop, self.network = loop, Network(loop, seed)
        addresses = {one: (f"10.0.0.{one}", 9092) for one in range(1, brokers + 1)}
        self.state = BrokerState(addresses, seed, self._answer)
        self.requests: dict[str, int] = {}
        self._frozen: dict[int, deque[_ServerConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._processes = 0
        for broker_id in addresses:
            self._listen(broker_id)

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all brokers."""
        return ",".join(f"{host}:{port}" for host, port in self.state.addresses.values())

    @property
    def now(self) -> float:
        """Virtual time in seconds."""
        return self.loop.time()

    def process(self, name: str | None = None) -> Process:
        """Return a new process, whose tasks can be frozen and killed."""
        self._processes += 1
        return Process(self.loop, name or f"client-{self._processes}")

    def produce(self, topic: str, partition: int, *values: bytes, key: bytes | None = None) -> int:
        """Append records in one batch, acknowledged by all replicas; return the offset of the first."""
        writer = BatchWriter(1 << 30, is_transactional=False)
        for value in values:
            writer.append(key, value, (), int(self.loop.wall_clock() * 1000))
        base = self.state.append(topic, partition, writer.encode(-1, -1, -1), self.now)
        self._schedule()
        return base

    # ---- faults ------------------------------------------------------------------------------------------------

    def kill(self, broker_id: int) -> None:
        """Kill a broker: its connections are reset, and nothing listens at its address."""
        self.network.close(self.state.addresses[broker_id])
        self.network.reset(_host(broker_id))
        self.state.kill(broker_id, self.now)
        self._schedule()

    def restart(self, broker_id: int) -> None:
        """Start a killed broker again."""
        self.state.restart(broker_id, self.now)
        self._listen(broker_id)
        self._schedule()

    def is_broker_frozen(self, broker_id: int) -> bool:
        """Return True between ``freeze`` and ``thaw``."""
        return broker_id in self._frozen

    def move_coordinator(self, group_id: str) -> None:
        """Let another broker coordinate a group; members find it after NOT_COORDINATOR."""
        self.state.move_coordinator(group_id, self.now)
        self._schedule()

    def freeze(self, broker_id: int) -> None:
        """Let a broker answer nothing; its connections stay open."""
        self._frozen[broker_id] = deque()

    def thaw(self, broker_id: int) -> None:
        """Let a frozen broker answer all that it has received meanwhile."""
        for connection in self._frozen.pop(broker_id):
            connection.next_request()

    def move_leader(self, topic: str, partition: int, *, lost: int = 0) -> None:
        """Elect another leader; with ``lost``, it lacks that many of the last records (an unclean election)."""
        log = self.state.topics[topic].partitions[partition]
        self.state.move_leader(topic, partition, truncate_to=log.end - lost if lost else None)
        self.state.settle(self.now)
        self._schedule()

    # ---- requests ----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due at the brokers."""
        self._timer = None
        self.state.tick(self.now)
        self._schedule()

    def is_frozen(self, connection: _ServerConnection) -> bool:
        """Return True, and note the connection, if its broker is frozen."""
        waiting = self._frozen.get(connection.broker_id)
        if waiting is not None and connection not in waiting:
            waiting.append(connection)
        return waiting is not None

    def receive(self, connection: _ServerConnection, token: _HeldRequest, request: object) -> None:
        """Pass a request to the brokers' state."""
        self.requests[token.api.name] = self.requests.get(token.api.name, 0) + 1
        self.state.receive(connection.broker_id, token, request, self.now)
        self._schedule()

    def _answer(self, token: _HeldRequest, response: Any) -> None:  # noqa: ANN401 - of any API
        token.connection.answer(token, response)

    def _listen(self, broker_id: int) -> None:
        self.network.listen(
            _host(broker_id),
            self.state.addresses[broker_id],
            lambda transport: _ServerConnection(self, broker_id, transport),
        )

    def _schedule(self) -> None:
        at = self.state.next_at()
        if self._timer is not None:
            if at == self._timer.when():
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self.loop.call_at(max(at, self.now), self.tick, context=self.network.context)


class _HeldRequest(NamedTuple):
    """Request that waits for its answer."""

    connection: _ServerConnection
    api: Api[Any]
    version: int
    correlation_id: int


class _ServerConnection:
    """Connection at a broker, which answers one request after the other."""

    def __init__(self, cluster: SimulatedCluster, broker_id: int, transport: ServerTransport) -> None:
        self._cluster, self.broker_id, self._transport = cluster, broker_id, transport
        self._buffer = bytearray()
        self._is_busy = self._is_lost = False

    def received(self, data: bytes) -> None:
        """Take bytes of requests."""
        self._buffer += data
        self.next_request()

    def lost(self) -> None:
        """Answer nothing more."""
        self._is_lost = True

    def next_request(self) -> None:
        """Handle the next request, unless one is being handled, it has not arrived, or the broker is frozen."""
        while not self._is_busy and not self._is_lost and len(self._buffer) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._buffer[:_LENGTH], "big")
            if len(self._buffer) < end or self._cluster.is_frozen(self):
                return
            frame = bytes(self._buffer[_LENGTH:end])
            del self._buffer[:end]
            self._handle(memoryview(frame))

    def _handle(self, frame: memoryview) -> None:
        header = read_request_header(frame)
        api = _APIS.get(header.api_key)
        if api is None or header.version not in api.versions:
            self._transport.abort()
            return
        request = api.decode_request(frame, header.version)
        self._is_busy = not (isinstance(request, ProduceRequest) and not request.acks)
        self._cluster.receive(self, _HeldRequest(self, api, header.version, header.correlation_id), request)

    def answer(self, token: _HeldRequest, response: Any) -> None:  # noqa: ANN401 - of any API
        """Send an answer, and go on with the next request."""
        if self._is_lost:
            return
        self._is_busy = False
        self._transport.write(token.api.encode_response(response, token.version, correlation_id=token.correlation_id))
        self._cluster.loop.call_soon(self.next_request, context=self._cluster.network.context)


def _host(broker_id: int) -> str:
    return f"broker-{broker_id}"
