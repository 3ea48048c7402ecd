"""Requests on an open connection: each gets its own response or an error in time."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest
from msgspec.structs import replace

from tailrace.errors import (
    BrokerConnectionError,
    MalformedMessageError,
    NodeNotConnectedError,
    RequestTimedOutError,
    TailraceError,
)
from tailrace.net.connection import Connection
from tailrace.protocol.metadata import FindCoordinatorRequest, MetadataRequest, MetadataTopic
from tailrace.protocol.records import FetchPartition, FetchRequest, ListOffsetsPartition, ListOffsetsRequest
from tests.support.net.open_connections import broker_at, dialled, local_address
from tests.support.net.peers import Peer, opens_then

PROBES = ("TCP_KEEPIDLE", "TCP_KEEPALIVE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
NOTHING = MetadataRequest(())


def fetch(topic, *, max_bytes=1 << 20, max_wait_ms=0):
    (found,) = topic.topics
    partition = FetchPartition(
        topic=found.name, topic_id=found.topic_id, partition=0, fetch_offset=0, partition_max_bytes=max_bytes
    )
    return FetchRequest(max_wait_ms, 1, max_bytes, (partition,))


async def described(connection: Connection, topic: str):
    return await connection.send(MetadataRequest((MetadataTopic(topic),)), 10)


def lost_reasons(connection: Connection) -> list[TailraceError]:
    """List that is filled when the connection is lost."""
    reasons: list[TailraceError] = []
    connection.on_lost = reasons.append
    return reasons


async def ended(*tasks: asyncio.Task) -> list[BaseException]:
    """Return the errors of tasks."""
    return [await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 20) for task in tasks]


@pytest.mark.parametrize("options", [{}, {"receive_buffer_bytes": 65_536}], ids=["plain", "own buffer"])
async def test_tcp_keepalive_is_enabled(direct, options):
    """TCP keepalive detects a dead peer within a minute instead of two hours."""
    async with dialled(direct, **options) as connection:
        made = connection.frames.transport.get_extra_info("socket")
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        times = [made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in PROBES if hasattr(socket, name)]
        assert times
        assert all(time <= 60 for time in times)


# ---- pipelining ----------------------------------------------------------------------------------------------------


async def test_a_thousand_pipelined_requests_get_their_own_responses(direct, name):
    """A thousand pipelined requests get their responses in order."""
    done: list[int] = []

    async def ask(connection: Connection, number: int) -> str | None:
        answer = await connection.send(FindCoordinatorRequest(f"{name}-{number}"), 30)
        done.append(number)
        return answer.key

    async with dialled(direct) as connection:
        keys = await asyncio.gather(*(ask(connection, number) for number in range(1_000)))

    assert [f"{name}-{number}" for number in range(1_000)] == keys
    assert list(range(1_000)) == done


async def test_responses_of_different_types_match_their_requests(direct, new_topic):
    """Pipelined requests of different types and versions get their own responses."""
    topic = new_topic(3)
    async with dialled(direct) as connection:
        asked = ListOffsetsRequest(tuple(ListOffsetsPartition(topic, p, -1) for p in range(3)))
        found = await asyncio.gather(
            *(
                request
                for _ in range(50)
                for request in (described(connection, topic), connection.send(asked, 10), connection.send(NOTHING, 10))
            )
        )

    assert [topic] * 50 == [answer.topics[0].name for answer in found[0::3]]
    assert [len(answer.partitions) for answer in found[1::3]] == [3] * 50
    assert [answer.topics for answer in found[2::3]] == [()] * 50


# ---- large responses -----------------------------------------------------------------------------------------------


async def test_a_response_larger_than_the_receive_buffer_arrives(direct, new_topic, witness):
    """A response of five megabytes arrives through a receive buffer of 32 kilobytes, and so do later ones."""
    topic = new_topic()
    witness.produce(topic, [bytes([n]) * 900_000 for n in range(6)])

    async with dialled(direct, receive_buffer_bytes=32_768) as connection:
        request = fetch(await described(connection, topic), max_bytes=5_500_000)
        answer, after = await asyncio.gather(connection.send(request, 30), connection.send(NOTHING, 30))
        size = connection.frames.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    assert size < 100_000  # what the system allocates
    (partition,) = answer.partitions
    assert len(partition.records) > 5_000_000
    assert after.brokers


async def test_records_are_not_copied(direct, new_topic, witness):
    """The records of a fetch response are a view of the received frame."""
    topic = new_topic()
    witness.produce(topic, [b"x" * 500_000])

    async with dialled(direct) as connection:
        answer = await connection.send(fetch(await described(connection, topic)), 10)

    records = answer.partitions[0].records
    assert isinstance(records.obj, bytearray)
    assert len(records) < len(records.obj) < len(records) + 200


# ---- canceled callers and late responses ---------------------------------------------------------------------------


async def test_a_canceled_request_does_not_affect_others(kafka, address, name):
    """The response to a canceled request is ignored, and earlier and later requests get theirs."""
    async with dialled(address) as connection:
        with kafka.proxy.hold_answer(FindCoordinatorRequest) as held:
            first = asyncio.create_task(connection.send(FindCoordinatorRequest(f"{name}-a"), 30))
            second = asyncio.create_task(connection.send(FindCoordinatorRequest(f"{name}-b"), 30))
            await held.wait_applied()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            held.release()
            assert (await second).key == f"{name}-b"
        third = await connection.send(FindCoordinatorRequest(f"{name}-c"), 30)

    assert third.key == f"{name}-c"


async def test_a_timed_out_request_closes_the_connection(kafka, address):
    """A request that times out closes the connection, and all pending requests fail with the timeout."""
    async with dialled(address) as connection:
        reasons = lost_reasons(connection)
        with kafka.proxy.hold_answer(FindCoordinatorRequest):
            late = asyncio.create_task(connection.send(FindCoordinatorRequest("late"), 0.3))
            behind = [asyncio.create_task(connection.send(NOTHING, 30)) for _ in range(3)]
            errors = [error for (error,) in await ended(late, *behind)]

        assert [RequestTimedOutError] * 4 == [type(error) for error in errors]
        assert all(str(error).startswith(f"{address}: no answer to FindCoordinator within 0.") for error in errors)
        assert not connection.is_open
        assert [str(errors[0])] == [str(reason) for reason in reasons]
        with pytest.raises(NodeNotConnectedError, match="no longer connected"):
            await connection.send(NOTHING, 5)


async def test_the_deadline_of_a_canceled_request_stays_in_force(kafka, address):
    """A missing response closes the connection at its deadline, even if its caller was canceled."""
    async with dialled(address) as connection:
        with kafka.proxy.hold_answer(FindCoordinatorRequest):
            gone = asyncio.create_task(connection.send(FindCoordinatorRequest("gone"), 0.5))
            await asyncio.sleep(0)  # the request is in flight
            gone.cancel()
            with pytest.raises(RequestTimedOutError, match="no answer to FindCoordinator"):
                await connection.send(NOTHING, 60)

        assert not connection.is_open


async def test_close_fails_pending_requests(address, kafka):
    """``close`` fails pending requests and does not call ``on_lost``."""
    async with dialled(address) as connection:
        reasons = lost_reasons(connection)
        with kafka.proxy.hold_answer(FindCoordinatorRequest) as held:
            waiting = asyncio.create_task(connection.send(FindCoordinatorRequest("x"), 30))
            await held.wait_applied()
            connection.close()
            ((error,),) = await ended(waiting)

    assert type(error) is NodeNotConnectedError
    assert reasons == []


async def test_a_reset_fails_pending_requests(kafka, address):
    """After a reset, pending requests fail with the reason, and ``on_lost`` is called once."""
    async with dialled(address) as connection:
        reasons = lost_reasons(connection)
        with kafka.proxy.hold_answer(FindCoordinatorRequest) as held:
            waiting = [asyncio.create_task(connection.send(FindCoordinatorRequest(str(n)), 30)) for n in range(3)]
            await held.wait_applied()
            kafka.proxy.reset()
            errors = [error for (error,) in await ended(*waiting)]

        assert [BrokerConnectionError] * 3 == [type(error) for error in errors]
        assert len(reasons) == 1
        assert repr(connection) == f"<Connection {address} closed: {reasons[0]}>"
        with pytest.raises(NodeNotConnectedError):
            await connection.send(NOTHING, 5)


@pytest.mark.parametrize(
    ("garbled", "message"),
    [
        (struct.pack(">ii", 4, 77_777), "unexpected correlation id 77777"),
        (struct.pack(">iih", 6, 2, 0), "a field claims"),
        (struct.pack(">i", -1), "claims -1 bytes"),
    ],
    ids=["answer to nothing", "short answer", "negative length"],
)
async def test_malformed_bytes_close_the_connection(garbled, message):
    """Malformed bytes close the connection, and all pending requests fail."""
    async with Peer(opens_then(lambda *_: garbled)) as peer, dialled(peer.address) as connection:
        reasons = lost_reasons(connection)
        first, behind = (asyncio.create_task(connection.send(NOTHING, 30)) for _ in range(2))
        errors = [error for (error,) in await ended(first, behind)]

    assert [MalformedMessageError] * 2 == [type(error) for error in errors]
    assert all(str(error).startswith(f"{peer.address}: ") for error in errors)
    # The peer answers the second request with the same bytes, whose correlation id is wrong there.
    assert message in str(errors[0])
    assert len(reasons) == 1


# ---- throttling ----------------------------------------------------------------------------------------------------


async def test_throttling_is_obeyed(kafka, address, name):
    """After a response with a throttle time, nothing is sent until it is over (KIP-219)."""
    throttled = kafka.proxy.edit_answer(MetadataRequest, lambda answer: replace(answer, throttle_time_ms=400))
    async with dialled(address, client_id=name) as connection:
        with throttled:
            await connection.send(NOTHING, 10)
        await asyncio.gather(*(connection.send(NOTHING, 10) for _ in range(3)))

    (answered, *_) = kafka.proxy.answers(MetadataRequest, client_id=name)
    (_, *later) = kafka.proxy.requests(MetadataRequest, client_id=name)
    assert [request.at - answered.at >= 0.4 for request in later] == [True] * 3


async def test_a_timeout_while_throttled_keeps_the_connection(kafka, address):
    """A request that times out before it is sent fails alone, and the connection remains open."""
    throttled = kafka.proxy.edit_answer(MetadataRequest, lambda answer: replace(answer, throttle_time_ms=60_000))
    async with dialled(address) as connection:
        with throttled:
            await connection.send(NOTHING, 10)
        began = time.monotonic()
        with pytest.raises(RequestTimedOutError, match=r"not sent within 0\.1 s: the broker throttles this client"):
            await connection.send(NOTHING, 0.1)
        assert 0.1 <= time.monotonic() - began < 20

        assert connection.is_open
        connection._throttled_until = 0  # as if a minute had passed
        assert await connection.send(NOTHING, 10)


# ---- state and events ----------------------------------------------------------------------------------------------


async def test_a_connection_with_a_pending_request_is_not_idle(direct):
    """A connection with a pending request has an idle time of 0."""
    async with Peer(opens_then(lambda *_: None)) as peer, dialled(peer.address) as connection:
        assert connection.is_idle(0)
        waiting = asyncio.create_task(connection.send(NOTHING, 30))
        await asyncio.sleep(0)
        assert not connection.is_idle(0)
        waiting.cancel()
        assert repr(connection) == f"<Connection {peer.address} open>"
        assert local_address(connection)[0] == "127.0.0.1"


async def test_a_canceled_opening_closes_the_connection():
    """A connection whose opening is canceled is closed, as its peer sees."""
    taken, gone = asyncio.Event(), asyncio.Event()

    async def listens(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        taken.set()
        try:
            await reader.read()
        finally:
            gone.set()

    async with Peer(listens) as peer:
        opening = asyncio.create_task(dialled(peer.address).__aenter__())
        await taken.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.wait_for(gone.wait(), 20)

    assert opening.cancelled()


@pytest.mark.parametrize("left_s", [-4.7, 0.0])
async def test_a_request_without_time_left_is_not_sent(address, kafka, left_s):
    """A request whose time limit is over, as after a suspension, is not sent, and the error has no such duration."""
    before = len(kafka.proxy.requests(MetadataRequest))
    async with dialled(address) as connection, broker_at(address) as broker:
        await broker.connect()
        sends = (connection.send(MetadataRequest(()), left_s), broker.send(MetadataRequest(()), timeout_s=left_s))
        for send in sends:
            with pytest.raises(
                RequestTimedOutError, match=r"Metadata was not sent, because its time limit was over"
            ) as caught:
                await send
            assert f"{left_s:.1f} s" not in str(caught.value)
        assert connection.is_open
        assert broker.is_connected()

    assert len(kafka.proxy.requests(MetadataRequest)) == before
