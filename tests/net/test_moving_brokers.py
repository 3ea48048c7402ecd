"""Brokers that move to another address with the same id, and IPv6."""

from __future__ import annotations

import asyncio
import re
import socket

from tailrace import Consumer
from tailrace.testing import KafkaServer
from tests.support.commands import tailrace
from tests.support.witness import Witness


async def test_a_consumer_follows_its_broker_from_ipv4_to_ipv6(name):
    """A broker comes back with the same id and another address, of IPv6; the consumer reads on, and loses no record."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as free:
        new_port = free.getsockname()[1]
    new, found = f"[::1]:{new_port}", []
    with KafkaServer() as server:
        server.create_topic(name)
        node, former = server.node, server.bootstrap_servers
        witness = Witness(f"127.0.0.1:{node.ports.internal}")
        options = {"bootstrap_servers": f"{former},{new}", "auto_offset_reset": "earliest", "group_id": name}
        async with Consumer(name, **options) as consumer:

            async def read(count: int) -> None:
                values = [b"%d" % number for number in range(len(found), len(found) + count)]
                await asyncio.to_thread(witness.produce, name, values)
                found.extend([int((await asyncio.wait_for(consumer.getone(), 60)).value) for _ in values])

            await read(10)
            await asyncio.to_thread(node.stop)
            settings = node.folder / "server.properties"
            text = re.sub(rf"CLIENT://127\.0\.0\.1:{node.ports.client}\b", f"CLIENT://{new}", settings.read_text())
            settings.write_text(text)
            await asyncio.to_thread(node.start)
            await read(10)
            lag = await asyncio.to_thread(tailrace, "lag", name, "--bootstrap-servers", new)

    assert found == list(range(20))
    assert lag.returncode == 0, lag.stderr
