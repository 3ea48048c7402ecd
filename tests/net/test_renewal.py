"""SASL sessions that end (KIP-368): a connection renews its own in time, and an end in the middle is an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from opening import broker_at, dialled
from recorder import Recorder
from ways import LIFETIME_S, OAUTH, SCRAM_256, by

from penstock.errors import AuthenticationError, BrokerConnectionError, NodeNotConnectedError, RequestTimedOutError
from penstock.messages import FindCoordinatorRequest, MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from penstock.net.broker import Channel, ChannelKey
from penstock.net.connection import Connection
from penstock.observe.events import ConnectionLost
from penstock.testing import unsecured_token

NOTHING = MetadataRequest(())


def options(server, **more):
    found = {**server.client_options, **more}
    return found.pop("bootstrap_servers"), found


async def ask_until(connection: Connection, over: Callable[[], bool], timeout_s: float = 10) -> None:
    """Ask again and again, each time when the answer is there."""
    give_up_at = time.monotonic() + 20
    while not over():
        assert time.monotonic() < give_up_at
        await connection.send(NOTHING, timeout_s)


@by(SCRAM_256)
async def test_a_session_is_renewed_while_requests_go_on(secured, name):
    """One connection lives past three session lifetimes; each renewal is one handshake, and no request fails."""
    address, found = options(secured, client_id=name)
    async with dialled(address, **found) as connection:
        local, over_at = connection.local_address, time.monotonic() + 3 * LIFETIME_S
        await asyncio.gather(*(ask_until(connection, lambda: time.monotonic() > over_at) for _ in range(4)))

        assert connection.is_open
        assert connection.local_address == local

    handshakes = secured.proxy.requests(SaslHandshakeRequest, client_id=name)
    assert len({frame.connection for frame in handshakes}) == 1
    assert len(handshakes) == 1 + 3


@by(SCRAM_256)
async def test_a_session_that_is_not_renewed_ends(secured):
    """The counter-proof: without renewal the broker closes the connection when the session is over."""
    _, found = options(secured)
    address = f"127.0.0.1:{secured.node.ports.client}"
    async with dialled(address, **found) as connection:
        connection.opened(None, None)
        began = time.monotonic()
        with pytest.raises(BrokerConnectionError, match="the broker closed the connection"):
            await ask_until(connection, lambda: False)

    assert LIFETIME_S * 0.9 < time.monotonic() - began < LIFETIME_S + 2


@by(SCRAM_256)
async def test_a_session_that_ran_out_unused_is_renewed_first(secured):
    """A connection that nobody used for longer than its session lasts takes the next request all the same."""
    address, found = options(secured)
    async with dialled(address, **found) as connection:
        # Not to wait for anything: the passing of the time is what is tested.
        await asyncio.sleep(LIFETIME_S + 0.1)

        assert await connection.send(NOTHING, 5)


@by(SCRAM_256)
async def test_requests_under_way_are_not_disturbed(secured):
    """An answer that comes late is still the answer to its request when a renewal was sent behind it."""
    address, found = options(secured)
    async with dialled(address, **found) as connection:
        with secured.proxy.hold_answer(FindCoordinatorRequest) as held:
            waiting = asyncio.create_task(connection.send(FindCoordinatorRequest("slow"), 20))
            await held.took_place()
            await asyncio.sleep(LIFETIME_S)  # the passing of the time is what is tested
            behind = [asyncio.create_task(connection.send(NOTHING, 20)) for _ in range(3)]
            await asyncio.sleep(0)
            held.release()
            assert (await waiting).only.key == "slow"
            assert all([(await one).brokers for one in behind])


@by(SCRAM_256)
async def test_a_renewal_that_is_cut_in_half_ends_the_connection(secured):
    """Cancelled in the middle of a renewal, the connection is closed; the broker object opens another and goes on."""
    events = Recorder()
    address, found = options(secured)
    async with broker_at(address, events=events, **found) as broker:
        await broker.connect()
        connection = await broker.connection_for(ChannelKey(Channel.MAIN))
        with secured.proxy.hold_answer(SaslAuthenticateRequest) as held:
            asking = asyncio.create_task(ask_until(connection, lambda: False))
            await held.took_place()
            others = asyncio.create_task(connection.send(NOTHING, 10))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            with pytest.raises(NodeNotConnectedError, match="the renewal of its SASL session was cut off"):
                await others

        assert not connection.is_open
        assert await broker.send(NOTHING)
    (lost,) = events.of(ConnectionLost)
    assert "the renewal of its SASL session was cut off" in lost.reason


@by(SCRAM_256)
async def test_a_renewal_that_hangs_ends_with_the_request(secured):
    """A renewal takes no longer than the request before which it stands may take."""
    address, found = options(secured)
    async with dialled(address, **found) as connection:
        told = r"SASL session was not renewed within 0\.5 s"
        with secured.proxy.hold_answer(SaslAuthenticateRequest), pytest.raises(RequestTimedOutError, match=told):
            await ask_until(connection, lambda: False, timeout_s=0.5)

        assert not connection.is_open


@by(OAUTH)
async def test_each_renewal_asks_for_a_new_token(secured):
    """A session lasts as long as its token; the provider is asked for the next before it is over."""
    given: list[str] = []

    async def token() -> str:
        given.append(unsecured_token(lifetime_s=LIFETIME_S))
        return given[-1]

    address, found = options(secured, sasl_oauth_token_provider=token)
    async with dialled(address, **found) as connection:
        await ask_until(connection, lambda: len(given) >= 3)

        assert connection.is_open
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("then", ["refused", "no token"])
@by(OAUTH)
async def test_a_renewal_that_is_refused_ends_the_connection(secured, then):
    """A token that is not taken any more is an error with the broker's name, and the connection is over for all."""
    given: list[str] = []

    async def token() -> str:
        given.append(unsecured_token(lifetime_s=LIFETIME_S))
        if len(given) == 1:
            return given[-1]
        if then == "refused":
            return "no.token.at-all"
        raise LookupError("the identity provider is down")

    kind, told = {
        "refused": (AuthenticationError, "OAUTHBEARER: the broker refused the token"),
        "no token": (BrokerConnectionError, "no token could be had"),
    }[then]
    address, found = options(secured, sasl_oauth_token_provider=token)
    async with dialled(address, **found) as connection:
        reasons = []
        connection.on_lost = reasons.append
        with pytest.raises(kind, match=told) as caught:
            await ask_until(connection, lambda: False)

        assert type(caught.value) is kind
        assert [caught.value] == reasons
        with pytest.raises(NodeNotConnectedError):
            await connection.send(NOTHING, 5)
