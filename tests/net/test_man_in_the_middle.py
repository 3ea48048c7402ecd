"""A server in the middle that plays the broker: it does not learn the password, and nobody waits for it for ever."""

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
    """How logging in ends with a server that takes the mechanism and then answers each step so."""
    answers = iter(sasl_answers)

    def answer(request, _header):
        if isinstance(request, SaslHandshakeRequest):
            return SaslHandshakeResponse(0, (mechanism,))
        assert isinstance(request, SaslAuthenticateRequest)
        said = next(answers)
        if callable(said):
            said = said(request.auth_bytes.decode())
        return SaslAuthenticateResponse(0, None, said) if isinstance(said, bytes) else said

    credentials = {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
    asked = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism, **credentials, **options}
    async with Peer(opens_then(answer)) as peer:
        with pytest.raises(TailraceError) as caught:
            await dialled(peer.address, **asked).__aenter__()
    assert not any(map(holds_a_secret, shown_by(caught.value)))
    return caught.value


def first(iterations: object = 4096, nonce: str = "more"):
    """A server's first message; it goes on with the client's nonce."""

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
async def test_a_server_that_cannot_prove_itself(answers):
    """SCRAM works both ways: a server that does not know the password either is refused, whatever it says."""
    error = await refusal(answers)

    assert type(error) is AuthenticationError
    assert "SCRAM-SHA-256: the broker's answer has no valid server signature" in str(error)


@pytest.mark.parametrize("iterations", [1, 4_095, 1_000_001, "+2147483647", "4096,i=1", "many", ""])
async def test_a_server_that_asks_for_senseless_work(iterations):
    """Too few iterations would give the password away, too many would take a thread for hours; neither is done."""
    error = await refusal([first(iterations)])

    assert type(error) is AuthenticationError
    asked = str(iterations).rpartition("=")[2]
    assert f"the broker requests {asked} iterations, outside 4096 to 1000000" in str(error)


async def test_a_server_that_talks_after_plain():
    """PLAIN has nothing for the server to say but yes or no."""
    error = await refusal([b"and now your credit card"], mechanism="PLAIN")

    assert type(error) is AuthenticationError


async def test_a_server_that_refuses_in_its_own_words():
    """The broker's own reason is told, beside what to do; a reason of another kind carries its name."""
    refused = SaslAuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, "alice is locked", b"")
    moved = SaslAuthenticateResponse(ErrorCode.ILLEGAL_SASL_STATE, None, b"")

    assert "PLAIN: alice is locked - check user name, password or token" in str(await refusal([refused], "PLAIN"))
    assert "PLAIN: refused (ILLEGAL_SASL_STATE)" in str(await refusal([moved], "PLAIN"))


async def token() -> str:
    return WRONG


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
async def test_a_server_that_hangs_up_on_the_secret(mechanism):
    """A connection that ends while the secret is on its way is no refusal, and its error shows no secret either."""
    error = await refusal([hang_up], mechanism, sasl_oauth_token_provider=token)

    assert type(error) is BrokerConnectionError


def hang_up(_said: str) -> bytes:
    raise ConnectionResetError


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
async def test_a_server_that_takes_the_secret_and_says_nothing(mechanism):
    """Logging in counts towards ``socket_connection_setup_timeout_ms``."""
    options = {"sasl_oauth_token_provider": token, "socket_connection_setup_timeout_ms": 300}
    error = await refusal([None], mechanism, **options)

    assert type(error) is RequestTimedOutError


@pytest.mark.parametrize(
    ("mechanism", "options", "told"),
    [
        ("PLAIN", {"sasl_plain_password": f"{PASSWORD}\udc80"}, "sasl_plain_password cannot be encoded as UTF-8"),
        ("SCRAM-SHA-512", {"sasl_plain_username": "al\udc80ice"}, "sasl_plain_username cannot be encoded as UTF-8"),
        ("GSSAPI", {}, "sasl_mechanism='GSSAPI' needs the package gssapi - pip install gssapi"),
    ],
)
async def test_what_cannot_be_said(mechanism, options, told):
    """Credentials that cannot be written, and a mechanism whose package is missing, are told as options to change."""
    error = await refusal([], mechanism, **options)

    assert type(error) is ConfigurationError
    assert told in str(error)
