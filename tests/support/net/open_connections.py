"""Connections, brokers and clusters that a test opens, closed with its ``async with`` block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from tailrace.config import ConsumerConfig, resolve, split_address
from tailrace.net.broker import Broker
from tailrace.net.cluster import Cluster
from tailrace.net.connection import Connection
from tailrace.net.dialer import Dialer
from tailrace.observe.hooks import Observer
from tailrace.protocol.groups import OffsetFetchRequest
from tailrace.protocol.metadata import BrokerMetadata, FindCoordinatorRequest
from tailrace.testing import KafkaServer
from tests.support.event_recorder import EventRecorder


def configured(address: str, **options: Any) -> ConsumerConfig:
    """Return options for the listener at ``address``, without the environment."""
    return resolve({"bootstrap_servers": address, **options}, {})


@asynccontextmanager
async def dialled(address: str, **options: Any) -> AsyncIterator[Connection]:
    """Open a connection."""
    connection = await Dialer(configured(address, **options)).dial(*split_address(address))
    try:
        yield connection
    finally:
        connection.close()
        await _let_transports_go()


@asynccontextmanager
async def broker_at(address: str, *, events: EventRecorder | None = None, **options: Any) -> AsyncIterator[Broker]:
    """Return a Broker without a cluster, not connected."""
    host, port = split_address(address)
    observer = Observer([events] if events is not None else [])
    broker = Broker.from_metadata(BrokerMetadata(1, host, port), configured(address, **options), observer)
    try:
        yield broker
    finally:
        broker.close()
        await _let_transports_go()


@asynccontextmanager
async def cluster_at(address: str, *, events: EventRecorder | None = None, **options: Any) -> AsyncIterator[Cluster]:
    """Return a Cluster that is not bootstrapped."""
    cluster = Cluster(configured(address, **options), Observer([events] if events is not None else []))
    try:
        yield cluster
    finally:
        cluster.close()
        await _let_transports_go()


def local_address(connection: Connection) -> tuple[str, int]:
    """Return the local host and port of a connection."""
    host, port, *_ = connection.frames.transport.get_extra_info("sockname")
    return host, port


async def coordinated(broker: Broker, group: str) -> None:
    """Wait until the only broker coordinates the group; a new broker creates the offsets topic first."""
    async with asyncio.timeout(60):
        while (await broker.send(FindCoordinatorRequest(group))).error_code:  # noqa: ASYNC110 - a request each time
            await asyncio.sleep(0.05)
        while (await broker.send(OffsetFetchRequest(group, None))).error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def wait_for_coordinators(server: KafkaServer) -> None:
    """Wait until a new broker coordinates groups, which would have to repeat their first requests before."""

    async def wait() -> None:
        async with broker_at(f"127.0.0.1:{server.node.ports.internal}") as broker:
            await broker.connect()
            for group in "abcd":  # one for each partition of the offsets topic
                await coordinated(broker, group)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, wait()).result()


async def _let_transports_go() -> None:
    # An aborted transport closes its socket in the next loop iteration, one with TLS in the one after it.
    for _ in range(3):
        await asyncio.sleep(0)
