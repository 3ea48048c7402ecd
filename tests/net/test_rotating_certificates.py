"""Certificates that rotate while a consumer runs: the files are read again for the next connection."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePath

import confluent_kafka
import pytest
import trustme

from tailrace import Consumer
from tailrace.embedded.settings import listener_security
from tailrace.errors import AuthenticationError
from tailrace.net.cluster import Cluster
from tailrace.observe.events import TlsFilesRefused
from tailrace.testing import KafkaServer
from tests.support.event_recorder import EventRecorder
from tests.support.net.security_setups import SSL, by, reached


def produce(server: KafkaServer, topic: str, first: int, count: int) -> None:
    """Publish numbers from ``first`` on, with the authority that is in the file now."""
    names = {"ssl_cafile": "ca", "ssl_certfile": "certificate", "ssl_keyfile": "key"}
    files = {f"ssl.{names[name]}.location": file for name, file in server.client_options.items() if name in names}
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap_servers, "security.protocol": "ssl", **files}
    )
    for number in range(first, first + count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(30) == 0


@pytest.mark.slow
@pytest.mark.parametrize("security", ["SSL", "MTLS"])
async def test_no_record_is_lost_when_all_certificates_are_replaced(name, security):
    """A running consumer follows its brokers to certificates of another authority, without a restart or a loss."""
    with KafkaServer(security=security) as server:
        server.create_topic(name)
        folder = PurePath(server.client_options["ssl_cafile"]).parent
        found = []
        async with Consumer(name, **server.client_options, group_id=name, auto_offset_reset="earliest") as consumer:

            async def read(count: int) -> None:
                async with asyncio.timeout(60):
                    async for record in consumer:
                        found.append(int(record.value))
                        if len(found) == count:
                            return

            await asyncio.to_thread(produce, server, name, 0, 100)
            await read(100)
            listener_security(security, tls=False, folder=Path(folder))  # writes other files of the same names
            await asyncio.to_thread(server.restart)
            await asyncio.to_thread(produce, server, name, 100, 100)
            await read(200)

    assert found == list(range(200))


@pytest.fixture
def authority(secured: KafkaServer, tmp_path: Path) -> Path:
    """Provide the path of a copy of the broker's authority."""
    copy = tmp_path / "authority.pem"
    copy.write_bytes(Path(secured.client_options["ssl_cafile"]).read_bytes())
    return copy


@by(SSL)
async def test_a_half_written_file_does_not_end_what_worked(secured, authority):
    """While a changed file cannot be loaded, connections use the former one; the reason is reported once."""
    events, good = EventRecorder(), authority.read_bytes()
    async with reached(secured, events=events, ssl_cafile=str(authority)) as cluster:
        await cluster.bootstrap()
        authority.write_bytes(good[:100])
        for _ in range(2):
            await reconnected(cluster)
        refused = events.of(TlsFilesRefused)
        authority.write_bytes(b"\n" + good)
        await reconnected(cluster)

    assert ["authority.pem" in one.reason for one in refused] == [True]
    assert events.of(TlsFilesRefused) == refused


@by(SSL)
async def test_an_authority_that_was_removed_is_no_longer_trusted(secured, authority):
    """A new connection trusts only the authorities that the file has now."""
    async with reached(secured, ssl_cafile=str(authority)) as cluster:
        await cluster.bootstrap()
        trustme.CA().cert_pem.write_to_path(authority)
        with pytest.raises(AuthenticationError, match="the certificate is not trusted"):
            await reconnected(cluster)


async def reconnected(cluster: Cluster) -> None:
    """Open the main connection of the only broker again."""
    await cluster.broker(1).connect()
