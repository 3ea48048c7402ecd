"""Certificates that rotate while a consumer runs: the files are read again for the next connection."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path, PurePath

import confluent_kafka
import pytest
import trustme
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tailrace import Consumer
from tailrace.embedded.settings import _pkcs8, listener_security
from tailrace.errors import AuthenticationError
from tailrace.net.cluster import Cluster
from tailrace.observe.events import ConnectionOpened, TlsFilesRefused
from tailrace.testing import KafkaServer
from tests.support.event_recorder import EventRecorder
from tests.support.net.security_setups import SSL, by, reached
from tests.support.witness import Witness


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


class Authorities:
    """Files of a broker and of a client, whose certificates authorities issue one after another.

    Attributes:
        broker: settings of the broker; their files have other names after each change, so that a broker reads them.
        client: options of the client, whose files are replaced by others of the same names.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._version = 0
        self._key = ""
        self.broker: dict[str, str] = {}
        names = {"ssl_cafile": "authorities", "ssl_certfile": "client", "ssl_keyfile": "key"}
        self.client = {option: str(folder / f"{name}.pem") for option, name in names.items()}

    def trust(self, *authorities: trustme.CA) -> None:
        """Trust certificates of these authorities only."""
        blobs = [one.cert_pem for one in authorities]
        self._write(self.client["ssl_cafile"], *blobs)
        self._write_for_broker("ssl.truststore.location", *blobs)

    def issue(self, authority: trustme.CA, lifetime_s: float = 3_600) -> dt.datetime:
        """Replace the certificates of the broker and of the client, and return the end of the new ones' lifetime."""
        end = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(seconds=lifetime_s)
        broker = authority.issue_cert("localhost", "127.0.0.1", not_after=end)
        client = authority.issue_cert("alice@example.org", not_after=end)
        self._write_for_broker(
            "ssl.keystore.location", trustme.Blob(_pkcs8(broker.private_key_pem.bytes())), *broker.cert_chain_pems
        )
        self._write(self.client["ssl_certfile"], *client.cert_chain_pems)
        self._write(self.client["ssl_keyfile"], client.private_key_pem)
        return end

    def cut_key(self) -> None:
        """Write the first half of the client's key only."""
        key = Path(self.client["ssl_keyfile"])
        self._key = key.read_text()
        key.write_text(self._key[: len(self._key) // 2])

    def complete_key(self) -> None:
        """Write the whole key again."""
        Path(self.client["ssl_keyfile"]).write_text(self._key)

    def _write_for_broker(self, setting: str, *blobs: trustme.Blob) -> None:
        self._version += 1
        self.broker[setting] = str(self._folder / f"{self._version}.pem")
        self._write(self.broker[setting], *blobs)

    def _write(self, path: str, *blobs: trustme.Blob) -> None:
        new = self._folder / "new"
        new.write_bytes(b"".join(blob.bytes() for blob in blobs))
        new.replace(path)


async def changed(server: KafkaServer, files: Authorities) -> None:
    """Let the broker read the new files, and wait until it has."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.node.ports.internal}"})
    settings = {f"listener.name.client.{name}": value for name, value in files.broker.items()}
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    (done,) = admin.incremental_alter_configs([ConfigResource("broker", "1", incremental_configs=changes)]).values()
    await asyncio.to_thread(done.result, 30)
    async with asyncio.timeout(30):
        while True:
            (described,) = admin.describe_configs([ConfigResource("broker", "1")]).values()
            found = await asyncio.to_thread(described.result, 30)
            if all(name in found and found[name].value == value for name, value in settings.items()):
                return


@pytest.mark.slow
async def test_no_record_is_lost_while_authorities_rotate_under_load(name, tmp_path):
    """A consumer reads on while authority and certificates are replaced by others, and the former ones expire.

    Each commit and heartbeat opens a connection, on which both sides would refuse an expired certificate.
    """
    former, new = trustme.CA(), trustme.CA()
    files = Authorities(tmp_path)
    files.trust(former)
    files.issue(former)
    events, found, sent = EventRecorder(), [], 0
    with KafkaServer(security="MTLS", config={**files.broker, "ssl.allow.dn.changes": True}) as server:
        server.create_topic(name)
        witness = Witness(f"127.0.0.1:{server.node.ports.internal}")
        end = files.issue(former, 20)
        await changed(server, files)
        options = {**server.client_options, **files.client, "auto_offset_reset": "earliest", "hooks": [events]}
        recycled = {"connections_max_idle_ms": 1, "heartbeat_interval_ms": 100, "auto_commit_interval_ms": 100}

        async with Consumer(name, **options, **recycled, group_id=name) as consumer:

            async def read_on_for(seconds: float) -> None:
                nonlocal sent
                until = asyncio.get_running_loop().time() + seconds
                while asyncio.get_running_loop().time() < until:
                    await asyncio.to_thread(witness.produce, name, [b"%d" % (sent + n) for n in range(10)])
                    sent += 10
                    while len(found) < sent:
                        found.append(int((await asyncio.wait_for(consumer.getone(), 30)).value))

            await read_on_for(1)
            files.trust(former, new)
            await changed(server, files)
            await read_on_for(1)
            files.issue(new)
            await changed(server, files)
            await read_on_for(1)
            files.cut_key()
            await read_on_for(1)
            files.complete_key()
            files.trust(new)
            await changed(server, files)
            await read_on_for((end - dt.datetime.now(dt.UTC)).total_seconds())
            opened = len(events.of(ConnectionOpened))
            await read_on_for(1)
            opened = len(events.of(ConnectionOpened)) - opened

    assert found == list(range(sent))
    assert opened > 5
    assert {one.reason.partition("(")[0] for one in events.of(TlsFilesRefused)} == {"cannot load the TLS files "}


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
