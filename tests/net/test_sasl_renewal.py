"""Renewal of SASL sessions (KIP-368)."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace.errors import AuthenticationError, BrokerConnectionError, NodeNotConnectedError, RequestTimedOutError
from tailrace.net.broker import Channel, ChannelKey
from tailrace.net.connection import Connection
from tailrace.observe.events import ConnectionLost
from tailrace.protocol.handshake import SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from tailrace.testing import unsecured_token
from tests.support.event_recorder import EventRecorder
from tests.support.net.open_connections import broker_at, dialled, local_address
from tests.support.net.security_setups import LIFETIME_S, OAUTH, SCRAM_256, by

NOTHING = MetadataRequest(())
TOKENS_LAST_S = 2.0


def options(server, **more):
    found = {**server.client_options, **more}
    return found.pop("bootstrap_servers"), found


async def session_over() -> None:
    """Sleep until the session has expired."""
    await asyncio.sleep(LIFETIME_S + 0.1)


async def ask_for_ever(connection: Connection) -> None:
    """Send requests one after another."""
    while True:
        await connection.send(NOTHING, 30)


@by(SCRAM_256)
async def test_a_session_is_renewed_in_time(secured, name):
    """A connection renews its SASL session before it expires, and no request fails."""
    address, found = options(secured, client_id=name)
    async with dialled(address, **found) as connection:
        local = local_address(connection)
        for _ in range(2):
            await session_over()
            await asyncio.gather(*(connection.send(NOTHING, 30) for _ in range(10)))

        assert connection.is_open
        assert local_address(connection) == local

    handshakes = secured.proxy.requests(SaslHandshakeRequest, client_id=name)
    assert len({frame.connection for frame in handshakes}) == 1
    # One more if a request comes so late that the next one is due.
    assert 1 + 2 <= len(handshakes) <= 1 + 2 * 2


@by(SCRAM_256)
async def test_a_session_that_is_not_renewed_ends(secured):
    """The broker closes a connection whose session is not renewed."""
    _, found = options(secured)
    address = f"127.0.0.1:{secured.node.ports.client}"
    began = time.monotonic()
    async with dialled(address, **found) as connection:
        connection.finish_opening(None, None)
        with pytest.raises(BrokerConnectionError, match="the broker closed the connection"):
            await asyncio.wait_for(ask_for_ever(connection), 30)

    assert time.monotonic() - began > LIFETIME_S


@by(SCRAM_256)
async def test_an_expired_session_is_renewed_before_a_request(secured):
    """The first request after the session has expired renews it and succeeds."""
    address, found = options(secured)
    async with dialled(address, **found) as connection:
        await session_over()

        assert await connection.send(NOTHING, 30)


@by(SCRAM_256)
async def test_pending_requests_survive_a_renewal(secured):
    """A response that arrives after a renewal was sent still matches its request."""
    address, found = options(secured)
    async with dialled(address, **found) as connection:
        with secured.proxy.hold_answer(FindCoordinatorRequest) as held:
            waiting = asyncio.create_task(connection.send(FindCoordinatorRequest("slow"), 30))
            await held.wait_applied()
            await session_over()
            behind = [asyncio.create_task(connection.send(NOTHING, 30)) for _ in range(3)]
            await asyncio.sleep(0)
            held.release()
            assert (await waiting).key == "slow"
            assert all([(await one).brokers for one in behind])


@by(SCRAM_256)
async def test_a_canceled_renewal_closes_the_connection(secured):
    """A canceled renewal closes the connection, and the broker object opens another one."""
    events = EventRecorder()
    address, found = options(secured)
    async with broker_at(address, events=events, **found) as broker:
        await broker.connect()
        connection = await broker.connection_for(ChannelKey(Channel.MAIN))
        await session_over()
        with secured.proxy.hold_answer(SaslAuthenticateRequest) as held:
            asking = asyncio.create_task(connection.send(NOTHING, 30))
            await held.wait_applied()
            others = asyncio.create_task(connection.send(NOTHING, 30))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            with pytest.raises(NodeNotConnectedError, match="the SASL session renewal was interrupted"):
                await others

        assert not connection.is_open
        assert await broker.send(NOTHING)
    (lost,) = events.of(ConnectionLost)
    assert "the SASL session renewal was interrupted" in lost.reason


@by(SCRAM_256)
async def test_a_renewal_counts_towards_the_timeout_of_its_request(secured):
    """A renewal without a response fails at the timeout of the request that waits for it."""
    address, found = options(secured)
    async with dialled(address, **found) as connection:
        await session_over()
        message = r"SASL session was not renewed within 0\.5 s"
        with secured.proxy.hold_answer(SaslAuthenticateRequest), pytest.raises(RequestTimedOutError, match=message):
            await connection.send(NOTHING, 0.5)

        assert not connection.is_open


@by(OAUTH)
async def test_each_renewal_requests_a_new_token(secured):
    """The token provider is called for each renewal, before the session of the former token expires."""
    given: list[str] = []

    async def token() -> str:
        given.append(unsecured_token(lifetime_s=TOKENS_LAST_S))
        return given[-1]

    address, found = options(secured, sasl_oauth_token_provider=token)
    async with dialled(address, **found) as connection:
        for _ in range(2):
            await asyncio.sleep(0.95 * TOKENS_LAST_S)
            await connection.send(NOTHING, 30)

        assert connection.is_open
    assert len(set(given)) == len(given) == 3


@pytest.mark.parametrize("then", ["refused", "no token"])
@by(OAUTH)
async def test_a_renewal_that_is_refused_ends_the_connection(secured, then):
    """A refused renewal raises an error that names the broker, and the connection is closed."""
    given: list[str] = []

    async def token() -> str:
        given.append(unsecured_token(lifetime_s=TOKENS_LAST_S))
        if len(given) == 1:
            return given[-1]
        if then == "refused":
            return "no.token.at-all"
        raise LookupError("the identity provider is down")

    kind, message = {
        "refused": (AuthenticationError, "OAUTHBEARER: the broker refused the token"),
        "no token": (BrokerConnectionError, "sasl_oauth_token_provider raised"),
    }[then]
    address, found = options(secured, sasl_oauth_token_provider=token)
    async with dialled(address, **found) as connection:
        reasons = []
        connection.on_lost = reasons.append
        await asyncio.sleep(TOKENS_LAST_S)
        with pytest.raises(kind, match=message) as caught:
            await connection.send(NOTHING, 30)

        assert type(caught.value) is kind
        assert [caught.value] == reasons
        with pytest.raises(NodeNotConnectedError):
            await connection.send(NOTHING, 5)
