"""Connections to a broker: channels, lifetime and limits of waits."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import weakref

import pytest

from tailrace.errors import BrokerConnectionError, NodeNotConnectedError, RequestTimedOutError
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.observe.events import BrokerUnreachable, ConnectionLost, ConnectionOpened
from tailrace.observe.hooks import Observer
from tailrace.protocol.groups import (
    CommitOffset,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from tailrace.protocol.metadata import BrokerMetadata, FindCoordinatorRequest, MetadataRequest, MetadataResponse
from tailrace.protocol.records import FetchPartition, FetchRequest, ListOffsetsRequest
from tests.support.event_recorder import EventRecorder
from tests.support.net.open_connections import broker_at, configured, coordinated, local_address
from tests.support.net.open_sockets import Sockets
from tests.support.net.peers import Peer, black_hole, closed_port, opens_then, sends

NOTHING = MetadataRequest(())
MAIN = ChannelKey(Channel.MAIN)
BROKERS = MetadataResponse((BrokerMetadata(1, "127.0.0.1", 9092),), ())
RANGE = JoinGroupProtocol("range", b"")


def long_fetch(kafka, topic, wait_ms=30_000):
    topic_id = kafka._admin.metadata(topic).topics[0].topic_id
    partition = FetchPartition(
        topic=topic, topic_id=topic_id, partition=0, fetch_offset=0, partition_max_bytes=1_000_000
    )
    return FetchRequest(wait_ms, 1, 1_000_000, (partition,))


def commit(group, topic, offset=1):
    return OffsetCommitRequest(group, (CommitOffset(topic, 0, offset),))


# ---- identity ------------------------------------------------------------------------------------------------------


async def test_a_broker_has_id_host_port_and_rack_of_the_metadata(kafka, direct):
    """A broker has the id, host, port and rack of the metadata, and its repr lists the open connections."""
    config = configured(direct)
    broker = Broker.from_metadata(BrokerMetadata(7, "127.0.0.1", kafka.node.ports.client, "rack-a"), config)

    assert (broker.id, broker.host, broker.port, broker.rack) == (7, "127.0.0.1", kafka.node.ports.client, "rack-a")
    assert broker.address == direct
    assert repr(broker) == f"<Broker 7 {direct} [not connected]>"
    await broker.connect()
    await broker.connect(Channel.OFFSETS)
    assert repr(broker) == f"<Broker 7 {direct} [main, offsets]>"
    broker.close()
    assert repr(broker) == f"<Broker 7 {direct} [not connected]>"


# ---- channels ------------------------------------------------------------------------------------------------------


async def test_connecting_again_replaces_the_connection(kafka, direct):
    """``connect`` opens the main connection; a second call replaces it."""
    async with broker_at(direct) as broker:
        sockets = Sockets(kafka.node.ports.client)
        assert not broker.is_connected()
        await broker.connect()
        first = sockets.now()
        await broker.connect()
        second = sockets.now()

        assert broker.is_connected()
        assert (len(first), len(second), first & second) == (1, 1, set())


async def test_offsets_have_a_connection_of_their_own(kafka, address, name, new_topic):
    """Commits and fetches of offsets open their own connection on first use and use no other."""
    topic = new_topic()
    async with broker_at(address, client_id=name) as broker:
        await broker.connect()
        await coordinated(broker, name)
        assert broker.is_connected(Channel.OFFSETS)
        await broker.connect(Channel.OFFSETS)
        assert not (await broker.send(commit(name, topic))).partitions[0].error_code
        await broker.send(NOTHING)

    def connections(*kinds):
        return {one.connection for kind in kinds for one in kafka.proxy.requests(kind, client_id=name)}

    main, own = connections(MetadataRequest, FindCoordinatorRequest), connections(OffsetCommitRequest)
    assert len(main) == len(own) == 1
    assert connections(OffsetFetchRequest).isdisjoint(main | own)  # before it was reconnected


async def test_the_connection_for_offsets_opens_with_its_first_use(direct, name):
    """``is_connected`` of the channel is False before the first commit or fetch of offsets and True after it."""
    async with broker_at(direct) as broker:
        await broker.connect()
        assert not broker.is_connected(Channel.OFFSETS)
        await broker.send(OffsetFetchRequest(name, None))
        assert broker.is_connected(Channel.OFFSETS)


async def test_a_long_fetch_delays_no_other_consumer(kafka, direct, name, new_topic):
    """While a fetch waits for data, commits and other requests are answered."""
    topic = new_topic()
    async with broker_at(direct) as broker:
        await broker.connect()
        await coordinated(broker, name)
        await broker.connection_for(ChannelKey(Channel.FETCH))
        fetching = asyncio.create_task(broker.send(long_fetch(kafka, topic)))
        await asyncio.sleep(0)  # the request is in flight
        began = time.monotonic()
        for offset in range(5):
            await broker.send(commit(name, topic, offset))
            await broker.send(NOTHING)
        took = time.monotonic() - began

        assert not fetching.done()
        assert took < 15
        fetching.cancel()


async def test_each_member_has_its_own_connections(kafka, direct, name):
    """Joins and heartbeats of a member use two connections of its own, closed when the member is forgotten."""
    async with broker_at(direct) as broker:
        await broker.connect()
        await coordinated(broker, name)
        sockets = Sockets(kafka.node.ports.client)
        for member in ("a", "b"):
            await broker.send(HeartbeatRequest(name, 1, "unknown-member"), owner=member)
            await broker.send(JoinGroupRequest(name, 6_000, 6_000, "", "consumer", (RANGE,)), owner=member)
        assert len(sockets.now()) == 4
        broker.close_owned("a")
        await gone(sockets, 2)
        assert await broker.send(HeartbeatRequest(name, 1, "unknown-member"), owner="b")
        assert len(sockets.now()) == 2


async def gone(sockets: Sockets, left: int) -> None:
    """Wait until the system has closed all but ``left`` sockets."""
    async with asyncio.timeout(20):
        while len(sockets.now()) > left:  # noqa: ASYNC110 - the system has no event for it
            await asyncio.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the whole of 127.0.0.0/8")
@pytest.mark.parametrize("own_buffer", [{}, {"receive_buffer_bytes": 65_536}], ids=["plain", "own buffer"])
async def test_every_connection_comes_from_the_local_address(kafka, direct, name, own_buffer):
    """All connections are opened from ``local_addr``."""
    async with broker_at(direct, local_addr=("127.0.0.2", 0), **own_buffer) as broker:
        sockets = Sockets(kafka.node.ports.client)
        await broker.connect()
        await broker.connect(Channel.OFFSETS)
        await broker.send(HeartbeatRequest(name, 1, "unknown-member"), owner="a")
        (local,) = {local_address(await broker.connection_for(MAIN))} & sockets.now()

        assert local[0] == "127.0.0.2"
        assert [host for host, _ in sockets.now()] == ["127.0.0.2"] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the whole of 127.0.0.0/8")
@pytest.mark.parametrize("own_buffer", [{}, {"receive_buffer_bytes": 65_536}], ids=["plain", "own buffer"])
async def test_a_local_port_is_used_by_one_connection(kafka, direct, own_buffer):
    """A fixed local port allows one connection, and a second one raises an error that names local_addr."""
    from socket import create_server  # noqa: PLC0415 - to find a free port

    with create_server(("127.0.0.2", 0)) as probe:
        local = probe.getsockname()
    async with broker_at(direct, local_addr=local, **own_buffer) as broker:
        sockets = Sockets(kafka.node.ports.client)
        await broker.connect()
        assert sockets.now() == {local}
        with pytest.raises(BrokerConnectionError, match=f"{local[1]}.* - local_addr must be an address of this host"):
            await broker.connect(Channel.OFFSETS)

        assert broker.is_connected()


# ---- lifetime ------------------------------------------------------------------------------------------------------


async def test_requests_without_a_connection_fail_at_once(direct):
    """Before ``connect`` and after ``close``, a request fails immediately and opens no connection."""
    async with broker_at(direct) as broker:
        with pytest.raises(NodeNotConnectedError, match=r"is not connected - await connect\(\) first"):
            await broker.send(NOTHING)
        await broker.connect()
        broker.close()
        assert not broker.is_connected()
        with pytest.raises(NodeNotConnectedError):
            await broker.send(NOTHING)
        with pytest.raises(NodeNotConnectedError):
            await broker.connection_for(MAIN)
        await broker.connect()
        assert await broker.send(NOTHING)


async def test_a_broken_connection_is_noticed_without_a_request(kafka, address):
    """``connected`` is False as soon as the peer has closed; the next request reopens the connection."""
    events = EventRecorder()
    async with broker_at(address, events=events) as broker:
        await broker.connect()
        await broker.connect(Channel.OFFSETS)
        kafka.proxy.reset()
        await events.wait_for(ConnectionLost, 2)

        assert not broker.is_connected()
        assert not broker.is_connected(Channel.OFFSETS)
        assert await broker.send(NOTHING)
        assert broker.is_connected()
    opened, lost = events.of(ConnectionOpened), events.of(ConnectionLost)
    assert [event.channel for event in opened] == ["main", "offsets", "main"]
    assert {"main", "offsets"} == {event.channel for event in lost}


async def test_requests_succeed_again_after_a_broker_restart(own_kafka, name):
    """Requests fail immediately while the broker is down and succeed after its restart; commits are kept."""
    own_kafka.create_topic(name)
    events = EventRecorder()
    async with broker_at(own_kafka.bootstrap_servers, events=events, reconnect_backoff_max_ms=50) as broker:
        await broker.connect()
        await coordinated(broker, name)
        await broker.send(commit(name, name, 42))
        await asyncio.to_thread(own_kafka.stop)
        await events.wait_for(ConnectionLost)
        assert not broker.is_connected()
        began = time.monotonic()
        for _ in range(2):  # the second one may fail without an attempt
            with pytest.raises(BrokerConnectionError, match="connection refused"):
                await broker.send(NOTHING)
        assert time.monotonic() - began < 15
        await asyncio.to_thread(own_kafka.restart)
        await until_it_answers(broker)
        await coordinated(broker, name)
        (stored,) = (await broker.send(OffsetFetchRequest(name, None))).partitions

    assert (stored.topic, stored.offset) == (name, 42)


async def until_it_answers(broker: Broker) -> None:
    while True:
        try:
            await broker.send(NOTHING)
        except NodeNotConnectedError:
            await asyncio.sleep(0.02)
        else:
            return


async def test_requests_during_the_backoff_fail_at_once():
    """During the backoff after a failed attempt, requests fail immediately without another attempt."""
    async with (
        Peer(sends(b"HTTP/1.1 400 Bad Request\r\n")) as peer,
        broker_at(peer.address, reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000) as broker,
    ):
        with pytest.raises(BrokerConnectionError):
            await broker.connect()
        errors = await asyncio.gather(*(broker.send(NOTHING) for _ in range(100)), return_exceptions=True)

        assert {NodeNotConnectedError} == {type(error) for error in errors}
        assert all("1 attempts, next in " in str(error) for error in errors)
        assert peer.accepted == 1


async def test_the_backoff_grows():
    """Repeated requests cause no attempt before the backoff is over, and each fails with the reason."""
    events, options = EventRecorder(), {"reconnect_backoff_ms": 100, "reconnect_backoff_max_ms": 60_000}
    async with (
        Peer(sends(b"HTTP/1.1 400 Bad Request\r\n")) as peer,
        broker_at(peer.address, events=events, **options) as broker,
    ):
        began = time.monotonic()
        with pytest.raises(BrokerConnectionError):
            await broker.connect()
        while peer.accepted < 3:
            with pytest.raises(BrokerConnectionError):
                await broker.send(NOTHING)
            await asyncio.sleep(0.02)
        took = time.monotonic() - began

    assert len(events.of(BrokerUnreachable)) == 3
    # 100 and 200 ms, each up to a fifth less.
    assert took > 0.24


async def test_concurrent_requests_open_one_connection():
    """A hundred concurrent requests open one connection."""
    answer = opens_then(lambda *_: BROKERS)
    async with Peer(answer) as peer, broker_at(peer.address) as broker:
        await broker.connect()
        (await broker.connection_for(MAIN)).close()
        await asyncio.gather(*(broker.send(NOTHING) for _ in range(100)))

        assert peer.accepted == 2


async def test_an_idle_connection_is_reopened():
    """A connection unused for ``connections_max_idle_ms`` is replaced, because firewalls drop such ones silently."""
    async with (
        Peer(opens_then(lambda *_: BROKERS)) as peer,
        broker_at(peer.address, connections_max_idle_ms=60_000) as broker,
    ):
        await broker.connect()
        first = await broker.connection_for(MAIN)
        await broker.send(NOTHING)
        assert peer.accepted == 1
        first._used_at -= 61  # as if 61 s had passed
        assert first.is_idle(60)
        await broker.send(NOTHING)

        assert peer.accepted == 2
        assert not first.is_open


# ---- timeouts ------------------------------------------------------------------------------------------------------


async def test_a_request_has_its_own_timeout(kafka, address, name):
    """A commit without a response fails after its own timeout and closes only its own connection."""
    async with broker_at(address) as broker:
        await broker.connect()
        await coordinated(broker, name)
        main = await broker.connection_for(MAIN)
        with kafka.proxy.hold_answer(OffsetCommitRequest):
            waiting = asyncio.create_task(broker.send(commit(name, "t"), timeout_s=0.5))
            assert await broker.send(NOTHING)
            with pytest.raises(RequestTimedOutError, match=r"no answer to OffsetCommit within 0\.\d s"):
                await waiting
        assert not broker.is_connected(Channel.OFFSETS)
        assert main.is_open
        assert not (await broker.send(OffsetFetchRequest(name, None))).error_code


async def test_requests_without_a_timeout_use_request_timeout_ms(kafka, address):
    """Requests without a timeout use ``request_timeout_ms``; their connection is replaced afterwards."""
    events = EventRecorder()
    async with broker_at(address, events=events, request_timeout_ms=300, fetch_max_wait_ms=100) as broker:
        await broker.connect()
        kafka.proxy.black_hole()
        began = time.monotonic()
        with pytest.raises(RequestTimedOutError):
            await broker.send(ListOffsetsRequest(()))
        assert 0.3 <= time.monotonic() - began < 20
        assert "no answer to ListOffsets" in (await events.wait_for(ConnectionLost)).reason
        kafka.proxy.restore()

        assert await broker.send(NOTHING, timeout_s=30)


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue of connections drops packets on Linux only")
async def test_connecting_counts_towards_the_timeout_of_a_request():
    """A request to an address that drops packets fails after its own timeout."""
    with black_hole() as address:
        async with broker_at(address, socket_connection_setup_timeout_ms=60_000) as broker:
            broker._may_connect = True
            began = time.monotonic()
            with pytest.raises(RequestTimedOutError, match=r"no connection within 0\.2 s"):
                await broker.send(NOTHING, timeout_s=0.2)
            assert time.monotonic() - began < 20


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue of connections drops packets on Linux only")
async def test_close_cancels_a_connection_attempt():
    """``close`` during a connection attempt fails the waiting requests immediately."""
    with black_hole() as address:
        async with broker_at(address, socket_connection_setup_timeout_ms=60_000) as broker:
            connecting = asyncio.create_task(broker.connect())
            asking = asyncio.create_task(broker.send(NOTHING))
            await asyncio.sleep(0.01)
            broker.close()
            errors = await asyncio.wait_for(asyncio.gather(connecting, asking, return_exceptions=True), 20)

    assert [NodeNotConnectedError] * 2 == [type(error) for error in errors]


async def test_a_refused_connection_fails_with_advice():
    """A connection to a port without a listener fails immediately with advice and emits one event."""
    events = EventRecorder()
    with closed_port() as address:
        async with broker_at(address, events=events) as broker:
            with pytest.raises(BrokerConnectionError, match="connection refused - is the broker running"):
                await broker.connect()

    (event,) = events.of(BrokerUnreachable)
    assert event.address == address


# ---- memory --------------------------------------------------------------------------------------------------------


async def test_a_closed_broker_is_garbage_collected(direct):
    """A closed broker is garbage collected, since neither its connections nor the loop refer to it."""
    broker = Broker.from_metadata(BrokerMetadata(1, *_host_port(direct)), configured(direct), Observer())
    await broker.connect()
    await broker.send(NOTHING)
    broker.close()
    await asyncio.sleep(0)  # the transport's last turn
    reference = weakref.ref(broker)

    del broker
    gc.collect()

    assert reference() is None


def _host_port(address):
    host, port = address.split(":")
    return host, int(port)
