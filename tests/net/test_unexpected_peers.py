"""Peers that are no broker, or an incompatible one: connecting fails in time, with advice."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import time

import pytest
import trustme

from tailrace import Consumer
from tailrace.config import split_address
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, RequestTimedOutError, UnsupportedVersionError
from tailrace.net.dialer import Dialer
from tailrace.observe.events import BrokerUnreachable
from tailrace.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.metadata import BrokerMetadata, MetadataRequest, MetadataResponse
from tests.support.event_recorder import EventRecorder
from tests.support.net.open_connections import configured, dialled
from tests.support.net.peers import (
    Peer,
    black_hole,
    closed_port,
    hangs_up,
    offer,
    opens_then,
    resets,
    scripted,
    sends,
    silent,
)

CLOSED = "the broker closed the connection on ApiVersions"
NEWEST = ApiVersionsRequest.api.versions[-1]
ONE_BROKER = MetadataResponse((BrokerMetadata(1, "127.0.0.1", 9092),), ())


async def refusal(address: str, **options: object) -> BrokerConnectionError:
    """Return the error of connecting, and assert that it has the address and is raised before the timeout."""
    began = time.monotonic()
    with pytest.raises(BrokerConnectionError) as caught:
        async with dialled(address, **{"socket_connection_setup_timeout_ms": 60_000, **options}):
            pass
    assert time.monotonic() - began < 20
    assert str(caught.value).startswith(f"{address}: ")
    return caught.value


@pytest.mark.parametrize(
    ("behave", "message"),
    [
        (
            sends(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
            "a web server answered - this is not a Kafka",
        ),
        (sends(b"SSH-2.0-OpenSSH_9.6\r\n"), "an SSH server answered - this is not a Kafka"),
        (sends(b"220 mail.example.org ESMTP\r\n"), "is this a Kafka broker?"),
        (
            sends(b"E\x00\x00\x00\x5cSFATAL\x00C0A000\x00Munsupported frontend protocol 18.4"),
            "a database server answered",
        ),
        (sends(b"\x4a\x00\x00\x00\x0a8.4.3\x00"), "a database server answered, such as PostgreSQL or MySQL - this is"),
        (sends(struct.pack(">i", -5)), "claims -5 bytes - is this a Kafka broker?"),
        (sends(struct.pack(">i", 0x7FFFFFFF)), "claims 2147483647 bytes - is this a Kafka broker?"),
        (sends(struct.pack(">ii", 4, 999)), "unexpected correlation id 999 - is there a Kafka broker"),
        (sends(struct.pack(">ii", 4, 1)), "the peer is not a Kafka broker"),
        (sends(struct.pack(">iih", 11, 1, 0) + b"\xff\xff\xff\xff\x07"), "an array claims 2147483646 elements"),
        (sends(b"\x15\x03\x03\x00\x02\x02\x0a"), "the listener uses TLS - set security_protocol='SSL' (or 'SASL_SSL')"),
        (hangs_up, f"{CLOSED} in version {NEWEST}, and again in version 0 - is there a Kafka broker, and is this a"),
        (resets, "is there a Kafka broker, and is this a listener without TLS?"),
    ],
    ids=[
        "web server",
        "ssh",
        "mail",
        "PostgreSQL",
        "MySQL",
        "negative length",
        "huge length",
        "answer to nothing",
        "empty answer",
        "array of billions",
        "TLS",
        "hangs up",
        "resets",
    ],
)
async def test_another_server_is_recognized(behave, message):
    """A server of another protocol raises an error that says what it may be."""
    async with Peer(behave) as peer:
        assert message in str(await refusal(peer.address))


@pytest.mark.parametrize("security", ["PLAINTEXT", "SSL"])
async def test_a_silent_server_times_out(security):
    """A server that sends nothing raises after ``socket_connection_setup_timeout_ms``, also with TLS."""
    async with Peer(silent) as peer:
        options = {"security_protocol": security, "socket_connection_setup_timeout_ms": 300}
        error = await refusal(peer.address, **options)

    assert isinstance(error, RequestTimedOutError)
    assert "no connection within 0.3 s - the host is down, a firewall drops packets, or the broker hangs" in str(error)


async def test_a_broker_that_hangs_while_signing_in_is_told_from_an_unreachable_one():
    """The error of a broker that answers ApiVersions, but not SaslHandshake, speaks of signing in, not of networks."""
    sasl = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    sasl |= {"sasl_plain_username": "billing", "sasl_plain_password": "s3cret"}
    async with Peer(opens_then(lambda *_: None)) as peer:
        error = await refusal(peer.address, **sasl, socket_connection_setup_timeout_ms=1_000)

    assert isinstance(error, RequestTimedOutError)
    assert "not signed in within 1.0 s - the broker hangs, or a service that it asks does" in str(error)


async def test_an_unfinished_frame_times_out():
    """A server that does not complete its response raises after the same timeout."""
    async with Peer(sends(struct.pack(">ii", 400, 1))) as peer:
        error = await refusal(peer.address, socket_connection_setup_timeout_ms=300)

    assert isinstance(error, RequestTimedOutError)


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue of connections drops packets on Linux only")
async def test_an_address_that_drops_packets_times_out():
    """An address that drops packets raises after ``socket_connection_setup_timeout_ms``."""
    with black_hole() as address:
        error = await refusal(address, socket_connection_setup_timeout_ms=300)

    assert isinstance(error, RequestTimedOutError)


BOTH_WAYS = pytest.mark.parametrize("options", [{}, {"receive_buffer_bytes": 65_536}], ids=["plain", "own buffer"])
"""Sockets are made by asyncio, or by tailrace where they need a buffer of a size."""


@BOTH_WAYS
async def test_a_closed_port_is_refused_at_once(options):
    """A port without a listener raises immediately."""
    with closed_port() as address:
        assert "connection refused - is the broker running" in str(await refusal(address, **options))


@BOTH_WAYS
async def test_an_unknown_host_name_raises(monkeypatch, options):
    """An unknown host name raises an error that mentions the advertised name."""
    resolve_as(monkeypatch, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))

    error = await refusal("kafka.example:9092", **options)

    assert "cannot resolve the host name: Name or service not known - check bootstrap_servers" in str(error)


@BOTH_WAYS
async def test_an_invalid_host_name_raises(options):
    """A host name with an empty part raises BrokerConnectionError."""
    error = await refusal("kafka..example:9092", **options)

    assert "the host name is invalid - check bootstrap_servers" in str(error)


async def test_an_unreachable_host_raises(monkeypatch):
    """An unreachable host raises the system's error, not that of a refused connection."""

    async def unreachable(*_: object, **__: object) -> None:
        raise OSError(113, "Connect call failed ('192.0.2.1', 9092)")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", unreachable)
    error = await refusal("192.0.2.1:9092")

    assert "[Errno 113]" in str(error)
    assert "refused" not in str(error)


async def test_every_address_of_a_name_is_tried_in_turn(monkeypatch):
    """With ``receive_buffer_bytes``, too, an address that refuses is skipped."""
    async with Peer(opens_then(lambda *_: ONE_BROKER)) as peer:
        with closed_port() as refuses:
            resolve_as(monkeypatch, int(refuses.split(":")[1]), peer.port)
            async with dialled(f"kafka.example:{peer.port}", receive_buffer_bytes=65_536) as connection:
                assert await connection.send(MetadataRequest(()), 5) == ONE_BROKER


async def test_every_address_of_a_name_is_tried(monkeypatch):
    """An address that refuses is skipped at once, one that drops packets after 250 ms (RFC 8305)."""
    async with Peer(opens_then(lambda *_: ONE_BROKER)) as peer:
        with closed_port() as refuses, black_hole() as swallows:
            dead, silent_one = (int(one.split(":")[1]) for one in (refuses, swallows))
            resolve_as(monkeypatch, dead, silent_one, peer.port)
            async with dialled(f"kafka.example:{peer.port}") as connection:
                answer = await connection.send(MetadataRequest(()), 5)

    assert answer == ONE_BROKER


FAULTS = {
    "hangs up": hangs_up,
    "resets": resets,
    "hangs": silent,
    "web server": sends(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "part of a frame": sends(struct.pack(">ii", 400, 1)),
}


@BOTH_WAYS
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_an_address_that_accepts_and_then_fails_is_skipped(monkeypatch, fault, options):
    """If an address accepts the connection and then fails, the next one of the name is tried (KIP-302)."""
    async with Peer(fault) as broken, Peer(opens_then(lambda *_: ONE_BROKER)) as peer:
        resolve_as(monkeypatch, broken.port, peer.port)
        timeout_ms = 500 if fault in {FAULTS["hangs"], FAULTS["part of a frame"]} else 10_000
        given = {**options, "socket_connection_setup_timeout_ms": timeout_ms}
        async with dialled(f"kafka.example:{peer.port}", **given) as connection:
            assert await connection.send(MetadataRequest(()), 5) == ONE_BROKER


async def test_an_address_whose_tls_fails_is_skipped(monkeypatch, tmp_path):
    """If an address has no TLS, or a certificate for another host, the next address of the name is tried."""
    authority = trustme.CA()
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    contexts = []
    for name in ("other.example", "kafka.example"):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name).configure_cert(context)
        contexts.append(context)
    options = {"security_protocol": "SSL", "ssl_cafile": str(tmp_path / "ca.pem")}
    answers = opens_then(lambda *_: ONE_BROKER)

    async with Peer(hangs_up) as plain, Peer(answers, tls=contexts[0]) as other, Peer(answers, tls=contexts[1]) as peer:
        resolve_as(monkeypatch, plain.port, other.port, peer.port)
        async with dialled("kafka.example:9092", **options) as connection:
            assert await connection.send(MetadataRequest(()), 5) == ONE_BROKER


async def test_an_address_that_has_failed_is_tried_last(monkeypatch):
    """A reconnect begins with an address that has not failed, even if each attempt ends before the next address."""
    async with Peer(silent) as broken, Peer(opens_then(lambda *_: ONE_BROKER)) as peer:
        resolve_as(monkeypatch, broken.port, peer.port)
        dialer = Dialer(configured("kafka.example:9092"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(dialer.dial("kafka.example", 9092), 0.3)
        connection = await asyncio.wait_for(dialer.dial("kafka.example", 9092), 5)
        assert await connection.send(MetadataRequest(()), 5) == ONE_BROKER
        connection.close()


async def test_all_addresses_that_fail_are_reported(monkeypatch):
    """If all addresses fail in different ways, the error names each of them; a temporary failure may be retried."""
    async with Peer(hangs_up) as broken, Peer(silent) as hanging:
        resolve_as(monkeypatch, broken.port, hanging.port)
        error = await refusal("kafka.example:9092", socket_connection_setup_timeout_ms=300)

    assert "the broker closed the connection" in str(error)
    assert "no connection within 0.3 s" in str(error)


def resolve_as(monkeypatch: pytest.MonkeyPatch, *found: int | OSError) -> None:
    """Resolve names to these ports of this host, or raise the error."""

    def getaddrinfo(*_: object, **__: object) -> list[object]:
        if isinstance(found[0], OSError):
            raise found[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


# ---- TLS on one side only ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "behave", [sends(b"HTTP/1.1 400 Bad Request\r\n\r\n"), hangs_up, resets], ids=["web server", "hangs up", "resets"]
)
async def test_tls_to_a_plain_server_raises(behave):
    """TLS to a plain listener raises an error that names the options."""
    async with Peer(behave) as peer:
        error = await refusal(peer.address, security_protocol="SSL")

    assert "use security_protocol='PLAINTEXT' (or 'SASL_PLAINTEXT'), or the port of the TLS listener" in str(error)


async def test_a_web_server_behind_tls_is_recognized(tmp_path):
    """A server of another protocol is recognized over TLS, too."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with Peer(sends(b"HTTP/1.1 400 Bad Request\r\n\r\n"), tls=context) as peer:
        options = {"security_protocol": "SSL", "ssl_cafile": str(tmp_path / "authority.pem")}
        assert "a web server answered" in str(await refusal(peer.address, **options))


# ---- incompatible brokers ------------------------------------------------------------------------------------------


async def test_a_broker_that_is_too_old_is_refused():
    """A broker that is too old raises an error with each missing API, the versions of both sides, and advice."""
    ranges = offer(Metadata=(0, 1), Fetch=(0, 2))
    async with Peer(scripted(lambda *_: ranges)) as peer:
        with pytest.raises(UnsupportedVersionError) as caught:
            async with dialled(peer.address):
                pass

    text = str(caught.value)
    assert text.startswith(
        f"{peer.address}: Metadata: tailrace supports versions 4 to 13, the broker supports 0 to 1; "
    )
    assert "Fetch: " in text
    assert "upgrade the broker" in text


async def test_a_broker_that_is_too_new_is_refused():
    """A broker that supports only newer versions raises the same kind of error."""
    async with Peer(scripted(lambda *_: offer(Fetch=(90, 99)))) as peer:
        with pytest.raises(UnsupportedVersionError, match="the broker supports 90 to 99"):
            async with dialled(peer.address):
                pass


async def test_an_api_for_tools_may_be_missing():
    """A broker without an API for tools is accepted, and requests of this API fail."""
    lacking = ApiVersionsResponse(
        0, tuple(one for one in offer().api_keys if one.api_key != ApiVersionsRequest.api.key)
    )

    async with (
        Peer(scripted(lambda request, _: lacking if isinstance(request, ApiVersionsRequest) else ONE_BROKER)) as peer,
        dialled(peer.address) as connection,
    ):
        with pytest.raises(UnsupportedVersionError, match=r"ApiVersions: .* the broker does not support this API"):
            await connection.send(ApiVersionsRequest(), 5)
        assert await connection.send(MetadataRequest(()), 5) == ONE_BROKER


@pytest.mark.parametrize("newest", [0, 3, None], ids=["up to 0", "up to 3", "says nothing of itself"])
async def test_api_versions_is_repeated_in_a_version_that_the_broker_supports(newest):
    """After error 35, ApiVersions is repeated in a version that the broker supports (KIP-511)."""
    asked = []

    def answer(request, header):
        if not isinstance(request, ApiVersionsRequest):
            return ONE_BROKER
        asked.append(header.version)
        if header.version > (newest or 0):
            known = () if newest is None else offer(ApiVersions=(0, newest)).api_keys
            return ApiVersionsResponse(ErrorCode.UNSUPPORTED_VERSION, known), 0
        return offer(ApiVersions=(0, newest or 0))

    async with Peer(scripted(answer)) as peer, dialled(peer.address) as connection:
        assert await connection.send(MetadataRequest(()), 5) == ONE_BROKER

    assert [5, newest or 0] == asked


@pytest.mark.parametrize(
    "body", [b"\x01\0\x12\0\0\0\2\0\0\0\0", b"\0\0\0\0\0\0\0\0", b""], ids=["as in v3", "v1", "cut off"]
)
async def test_a_refusal_of_api_versions_needs_only_its_error_code(body):
    """Error 35 leads to version 0, however the rest of the response is encoded."""

    def answer(request, header):
        if header.version == 0:
            return offer(ApiVersions=(0, 2))
        refusal = header.correlation_id.to_bytes(4, "big") + ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big") + body
        return len(refusal).to_bytes(4, "big") + refusal

    async with Peer(scripted(answer)) as peer, dialled(peer.address) as connection:
        assert 2 in connection.broker_versions.range_of(ApiVersionsRequest.api)


@pytest.mark.parametrize(
    ("newest", "refuses", "asked"),
    [
        pytest.param(2, lambda version, _: version > 2, [5, 0, 2, 2], id="knows up to version 2"),
        pytest.param(5, lambda _, before: not before, [5, 0, 5, 5], id="was closed by chance"),
        pytest.param(5, lambda version, _: version > 0, [5, 0, 5, 0, 0], id="offers more than it knows"),
    ],
)
async def test_a_broker_that_closes_the_connection_on_api_versions_is_asked_again_in_version_0(newest, refuses, asked):
    """After a reset on ApiVersions, version 0 is sent on a new connection; later ones begin with what is known."""
    versions = []

    def answer(request, header):
        if not isinstance(request, ApiVersionsRequest):
            return ONE_BROKER
        is_refused = refuses(header.version, list(versions))
        versions.append(header.version)
        if is_refused:
            raise ConnectionResetError
        return offer(ApiVersions=(0, newest))

    async with Peer(scripted(answer)) as peer:
        dialer = Dialer(configured(peer.address))
        for _ in range(3):
            connection = await dialer.dial(*split_address(peer.address))
            assert await connection.send(MetadataRequest(()), 5) == ONE_BROKER
            connection.close()

    assert versions == asked


async def test_another_error_of_api_versions_is_raised():
    """Any other error of ApiVersions is raised with its code."""
    async with Peer(scripted(lambda *_: ApiVersionsResponse(42))) as peer:
        with pytest.raises(UnsupportedVersionError, match=r"ApiVersions failed with INVALID_REQUEST \(code 42\) - "):
            async with dialled(peer.address):
                pass


async def test_a_running_consumer_survives_a_server_of_another_protocol(kafka, address, new_topic, witness):
    """While a web server answers at the broker's address, the consumer reports it, and reads on after its end."""
    topic, events = new_topic(), EventRecorder()

    async def web_server(reader, writer) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with Consumer(topic, bootstrap_servers=address, hooks=[events], auto_offset_reset="earliest") as consumer:
        witness.produce(topic, [b"1"])
        assert (await asyncio.wait_for(consumer.getone(), 20)).value == b"1"
        kafka.proxy.refuse()
        server = await asyncio.start_server(web_server, "127.0.0.1", kafka.proxy.port)
        await events.wait_for(BrokerUnreachable, where=lambda one: "a web server answered" in one.reason)
        server.close()
        await server.wait_closed()
        kafka.proxy.restore()
        witness.produce(topic, [b"2"])
        assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"2"
