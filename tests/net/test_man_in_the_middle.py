"""Malicious servers do not learn the password, and connecting to them ends in time."""

from __future__ import annotations

import base64

import pytest

from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ConfigurationError,
    RequestTimedOutError,
    TailraceError,
)
from tailrace.protocol.handshake import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.support.net.open_connections import dialled
from tests.support.net.peers import Peer, opens_then
from tests.support.net.secrets_shown import shown_by
from tests.support.net.security_setups import PASSWORD, WRONG, holds_a_secret

SALT = base64.b64encode(b"salt").decode()


async def refusal(sasl_answers, mechanism="SCRAM-SHA-256", **options) -> TailraceError:
    """Return the error of a login to a server that sends these responses."""
    answers = iter(sasl_answers)

    def answer(request, _header):
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(0, (mechanism,))
        assert isinstance(request, SaslAuthenticateRequest)
        response = next(answers)
        if callable(response):
            response = response(request.auth_bytes.decode())
        return SaslAuthenticateResponse(0, None, response) if isinstance(response, bytes) else response

    credentials = {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
    asked = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, **credentials, **options}
    async with Peer(opens_then(answer)) as peer:
        with pytest.raises(TailraceError) as caught:
            await dialled(peer.address, **asked).__aenter__()
    assert not any(map(holds_a_secret, shown_by(caught.value)))
    return caught.value


def first(iterations: object = 4096, nonce: str = "more"):
    """Return the first SCRAM message of a server, which continues the client's nonce."""

    def made(client_first: str) -> bytes:
        return f"r={client_first.split('r=')[1]}{nonce},s={SALT},i={iterations}".encode()

    return made


@pytest.mark.parametrize(
    "answers",
    [
        [b"r=another-nonce,s=" + SALT.encode() + b",i=4096"],
        [first(), b"v=" + base64.b64encode(b"not the proof")],
        [first(), b"e=other-error"],
        [first(), b"v=%%%"],
        [first(), b""],
        [b"\xff\xfe"],
        [b"no fields"],
        [b""],
    ],
    ids=[
        "another nonce",
        "wrong proof",
        "error",
        "proof that is no base64",
        "no proof",
        "not UTF-8",
        "no fields",
        "empty",
    ],
)
async def test_a_scram_server_without_the_password_is_refused(answers):
    """A SCRAM server that does not know the password is refused."""
    error = await refusal(answers)

    assert type(error) is AuthenticationError
    assert "SCRAM-SHA-256: the broker's answer has no valid server signature" in str(error)


@pytest.mark.parametrize("iterations", [1, 4_095, 1_000_001, "+2147483647", "4096,i=1", "many", ""])
async def test_extreme_iteration_counts_are_refused(iterations):
    """Too few SCRAM iterations, which would expose the password, are refused, and so are too many."""
    error = await refusal([first(iterations)])

    assert type(error) is AuthenticationError
    asked = str(iterations).rpartition("=")[2]
    assert f"the broker requests {asked} iterations, but only 4096 to 1000000 are accepted" in str(error)


async def test_data_after_plain_is_refused():
    """A PLAIN server that sends data after the login is refused, and no frame of the error shows the password."""
    error = await refusal([b"and now your credit card"], mechanism="PLAIN")

    assert type(error) is AuthenticationError


async def test_the_servers_message_is_part_of_the_error():
    """The error of a login contains the server's message and advice, or the name of another error code."""
    refused = SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, "alice is locked", b"")
    moved = SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, None, b"")

    assert "PLAIN: alice is locked - check user name, password or token" in str(await refusal([refused], "PLAIN"))
    assert "PLAIN: refused (ILLEGAL_SASL_STATE)" in str(await refusal([moved], "PLAIN"))


async def token() -> str:
    return WRONG


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
async def test_a_connection_closed_during_login_is_not_a_refusal(mechanism):
    """A connection closed during the login raises no AuthenticationError, and the error shows no secret."""
    error = await refusal([hang_up], mechanism, sasl_oauth_token_provider=token)

    assert type(error) is BrokerConnectionError


def hang_up(_said: str) -> bytes:
    raise ConnectionResetError


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
async def test_login_counts_towards_the_connection_timeout(mechanism):
    """A login ends after ``socket_connection_setup_timeout_ms``."""
    options = {"sasl_oauth_token_provider": token, "socket_connection_setup_timeout_ms": 300}
    error = await refusal([None], mechanism, **options)

    assert type(error) is RequestTimedOutError


@pytest.mark.parametrize(
    ("mechanism", "options", "message"),
    [
        ("PLAIN", {"sasl_plain_password": f"{PASSWORD}\udc80"}, "sasl_plain_password cannot be encoded as UTF-8"),
        ("SCRAM-SHA-512", {"sasl_plain_username": "al\udc80ice"}, "sasl_plain_username cannot be encoded as UTF-8"),
        ("GSSAPI", {}, "sasl_mechanism='GSSAPI' needs the package gssapi - pip install gssapi"),
    ],
)
async def test_unusable_credentials_are_configuration_errors(mechanism, options, message):
    """Credentials that are not UTF-8, and a mechanism without its package, name the option to change."""
    error = await refusal([], mechanism, **options)

    assert type(error) is ConfigurationError
    assert message in str(error)
