"""Token providers that an option names, against a broker that validates signed tokens."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
from types import SimpleNamespace

import azure.identity
import google.auth
import msgspec
import pytest
from google.auth.credentials import Credentials as GoogleCredentials

from tailrace import Consumer
from tailrace.config import resolve
from tailrace.errors import AuthenticationError, BrokerConnectionError, ConfigurationError
from tailrace.net import token_providers
from tailrace.net.security import token_provider
from tailrace.net.token_providers import expiry_of
from tailrace.observe.events import BrokerUnreachable
from tailrace.protocol.handshake import SaslAuthenticateRequest
from tailrace.testing import KafkaServer
from tests.support.commands import COMMAND, environment
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder
from tests.support.net.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, broker_settings, new_key
from tests.support.net.open_connections import dialled
from tests.support.net.secrets_shown import shown_by
from tests.support.net.security_setups import holds_a_secret, refusal
from tests.support.witness import Witness

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@pytest.fixture(scope="module")
def identity_provider():
    provider = IdentityProvider()
    yield provider
    provider.close()


@pytest.fixture(autouse=True)
def restored(request):
    """End the faults of the identity provider with the test."""
    yield
    if "identity_provider" in request.fixturenames:
        request.getfixturevalue("identity_provider").restore()


@pytest.fixture(scope="module")
def validating(identity_provider):
    """Start a broker that validates the signatures of tokens."""
    with pytest.MonkeyPatch.context() as patch:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={identity_provider.url}/jwks"
        patch.setenv("JAVA_TOOL_OPTIONS", allowed)
        with KafkaServer(security="OAUTHBEARER", config=broker_settings(identity_provider), proxied=True) as server:
            yield server


@pytest.fixture
def oidc(identity_provider) -> dict[str, str]:
    """Provide options that get tokens by client credentials."""
    return {
        "sasl_oauth_token_provider": "oidc",
        "sasl_oauthbearer_token_endpoint_url": f"{identity_provider.url}/token",
        "sasl_oauthbearer_client_id": CLIENT_ID,
        "sasl_oauthbearer_client_secret": CLIENT_SECRET,
    }


def configured(**options):
    return resolve({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", **options}, {})


def provider_of(emit=lambda _event: None, **options):
    return token_provider(configured(**options), emit)


def produced_by(server) -> Witness:
    return Witness(f"127.0.0.1:{server.node.ports.internal}")


def opened(server, **changed):
    options = {**server.client_options, **changed}
    return dialled(options.pop("bootstrap_servers"), **options)


# ---- identity providers ----------------------------------------------------------------------------------------------


async def test_client_credentials_sign_in(validating, identity_provider, oidc):
    """``oidc`` gets a token by client credentials that the broker accepts, and connections share the token."""
    validating.create_topic("client-credentials", 3)
    produced_by(validating).produce("client-credentials", [b"a", b"b", b"c"])
    options = {**validating.client_options, **oidc, "sasl_oauthbearer_scope": "kafka.read kafka.write"}
    async with Consumer("client-credentials", **options, group_id="g", auto_offset_reset="earliest") as consumer:
        values = {(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(3)}

    assert values == {b"a", b"b", b"c"}
    ((form, credentials),) = identity_provider.requests
    assert form == {"grant_type": "client_credentials", "scope": "kafka.read kafka.write"}
    assert credentials == f"{CLIENT_ID}:{urllib.parse.quote_plus(CLIENT_SECRET)}"


@pytest.mark.parametrize("passphrase", [None, "not-the-s3cret"])
async def test_a_signed_assertion_signs_in(validating, identity_provider, oidc, tmp_path, passphrase):
    """``oidc`` signs a JWT with a private key, and gets a token for it; a template adds to the JWT."""
    pem, identity_provider.trusted_key = new_key(passphrase and passphrase.encode())
    (tmp_path / "key.pem").write_bytes(pem)
    (tmp_path / "template.json").write_text('{"header": {"kid": "mine"}, "payload": {"tenant": "a"}}')
    del oidc["sasl_oauthbearer_client_secret"]
    oidc |= {
        "sasl_oauthbearer_grant_type": JWT_BEARER,
        "sasl_oauthbearer_assertion_private_key_file": str(tmp_path / "key.pem"),
        "sasl_oauthbearer_assertion_private_key_passphrase": passphrase,
        "sasl_oauthbearer_assertion_jwt_template_file": str(tmp_path / "template.json"),
        "sasl_oauthbearer_assertion_claim_sub": "svc",
    }
    async with opened(validating, **oidc) as connection:
        assert connection.is_open

    ((form, credentials),) = identity_provider.requests
    head, claims = (json.loads(base64.urlsafe_b64decode(p + "==")) for p in form["assertion"].split(".")[:2])
    assert credentials is None
    assert form["grant_type"] == JWT_BEARER
    assert (head["kid"], head["alg"]) == ("mine", "RS256")
    assert claims | {"iss": CLIENT_ID, "sub": "svc", "aud": f"{identity_provider.url}/token", "tenant": "a"} == claims
    assert 0 < claims["exp"] - time.time() <= 300


async def test_an_assertion_is_read_from_a_file_each_time(identity_provider, oidc, tmp_path):
    """The file of the assertion is read for each token request, because another program may renew it."""
    (tmp_path / "assertion").write_text("first\n")
    identity_provider.answer = 200, b'{"access_token": "a.b.c"}'
    provide = provider_of(
        **oidc,
        sasl_oauthbearer_grant_type=JWT_BEARER,
        sasl_oauthbearer_assertion_file=str(tmp_path / "assertion"),
    )
    await provide()
    (tmp_path / "assertion").write_text("second")
    await provide()

    assert [form["assertion"] for form, _ in identity_provider.requests] == ["first", "second"]


async def test_a_token_is_cached_and_renewed_before_it_expires(validating, identity_provider, oidc):
    """A session is renewed with a new token before the former one expires, and no request fails."""
    identity_provider.lifetime_s = 2.0
    topic = "renewed"
    validating.create_topic(topic, 1)
    began = time.monotonic()
    async with Consumer(topic, **{**validating.client_options, **oidc}, auto_offset_reset="earliest") as consumer:
        # Requests of the fetch loop renew the session.
        assert await consumer.getmany(timeout_ms=5_000) == []
    took = time.monotonic() - began

    # The lifetime in a token is of whole seconds, and may be one second shorter.
    assert 3 <= len(identity_provider.requests) <= 2 + took


async def test_concurrent_callers_share_one_token_request(identity_provider, oidc):
    """Callers that need a token at the same time cause one request."""
    provide = provider_of(**oidc)

    assert len(set(await asyncio.gather(*(provide() for _ in range(10))))) == 1
    assert len(identity_provider.requests) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (
            (401, b'{"error": "invalid_client", "error_description": "not-the-s3cret"}'),
            AuthenticationError,
            "401, inva",
        ),
        (
            (400, b"not-the-s3cret"),
            AuthenticationError,
            "refused to issue a token: HTTP status 400 - check the options",
        ),
        ((503, b"not-the-s3cret"), BrokerConnectionError, "no token: HTTP status 503"),
        ((302, b""), BrokerConnectionError, "no token: HTTP status 302"),
        ((200, b"not-the-s3cret"), BrokerConnectionError, "the response has no access_token"),
        ((200, b'{"access_token": 7}'), BrokerConnectionError, "the response has no access_token"),
        ((200, b'{"access_token": "not-the-s3cret", "expires_in": 0}'), BrokerConnectionError, "token that expired"),
    ],
)
async def test_a_refused_token_request_is_a_typed_error(  # noqa: PLR0917 - pytest passes names
    validating, identity_provider, oidc, answer, kind, message
):
    """The error names the endpoint and the status, and neither it nor its frames show the secret or the token."""
    identity_provider.answer = answer

    error = await refusal(validating, **oidc)

    assert type(error) is kind
    assert message in str(error)
    assert not [one for one in shown_by(error) if holds_a_secret(one)]
    assert len(identity_provider.requests) == 1


async def test_an_unreachable_endpoint_is_a_typed_error(validating, oidc):
    oidc["sasl_oauthbearer_token_endpoint_url"] = "http://127.0.0.1:1/token"

    error = await refusal(validating, **oidc)

    assert type(error) is BrokerConnectionError
    assert "http://127.0.0.1:1/token: no token: [Errno" in str(error)
    assert not [one for one in shown_by(error) if holds_a_secret(one)]


async def test_an_endpoint_that_hangs_ends_in_time(validating, identity_provider, oidc):
    """The wait for a token is limited, the error names the provider, and the request is not repeated meanwhile."""
    identity_provider.hangs = True
    for _ in range(2):
        error = await refusal(validating, **oidc, socket_connection_setup_timeout_ms=2_000)
        # Before its own limit, the provider may meet that of the connection, which began to count earlier.
        own, of_connection = r"sasl_oauth_token_provider returned no token", "sasl_oauth_token_provider or the broker"
        assert re.search(rf"{own} within 1\.8 s - can it|not signed in within 2\.0 s - {of_connection}", str(error))
        assert isinstance(error, BrokerConnectionError)


@pytest.mark.parametrize("fault", ["hangs", "fails", "expired"])
async def test_a_running_consumer_survives_faults_of_the_identity_provider(validating, identity_provider, oidc, fault):
    """A consumer whose identity provider fails for longer than a token lasts reads on afterwards."""
    topic = f"survives-{fault}"
    validating.create_topic(topic, 1)
    identity_provider.lifetime_s = 2.0
    options = {**validating.client_options, **oidc, "socket_connection_setup_timeout_ms": 1_000}
    async with Consumer(topic, **options, auto_offset_reset="earliest") as consumer:
        produced_by(validating).produce(topic, [b"1"])
        assert (await asyncio.wait_for(consumer.getone(), 20)).value == b"1"
        match fault:
            case "hangs":
                identity_provider.hangs = True
            case "fails":
                identity_provider.answer = 503, b""
            case "expired":
                identity_provider.answer = 200, b'{"access_token": "a.b.c", "expires_in": -5}'
        assert await consumer.getmany(timeout_ms=4_000) == []
        identity_provider.restore()
        produced_by(validating).produce(topic, [b"2"])
        assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"2"


async def test_a_running_consumer_survives_faults_of_a_function(validating, identity_provider):
    """A consumer whose function raises, hangs or returns an expired token for a while reads on afterwards."""
    topic, fault, events = "survives-function", None, EventRecorder()
    validating.create_topic(topic, 1)
    identity_provider.lifetime_s = 2.0

    async def token() -> str:
        match fault:
            case "raises":
                raise LookupError("no token")
            case "hangs":
                await asyncio.Event().wait()
            case "expired":
                return identity_provider.token(exp=time.time() - 100)
        return identity_provider.token()

    options = {**validating.client_options, "socket_connection_setup_timeout_ms": 2_000, "hooks": [events]}
    options |= {"sasl_oauth_token_provider": token, "auto_offset_reset": "earliest"}
    async with Consumer(topic, **options) as consumer:
        for number, (fault, reason) in enumerate(
            [(None, ""), ("raises", "raised LookupError"), ("hangs", "no token within"), ("expired", "that expired")]
        ):
            if fault is not None:
                await events.wait_for(BrokerUnreachable, where=lambda one, reason=reason: reason in one.reason)
            fault = None  # noqa: PLW2901 - the end of the fault
            produced_by(validating).produce(topic, [b"%d" % number])
            assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"%d" % number


async def test_a_token_for_another_audience_is_refused_by_the_broker(validating, identity_provider):
    """The broker of these tests validates tokens: it refuses a token that is signed, but for another audience."""

    async def token() -> str:
        return identity_provider.token(aud="another")

    assert type(await refusal(validating, sasl_oauth_token_provider=token)) is AuthenticationError


async def test_an_expired_token_of_a_function_is_not_sent(validating, identity_provider):
    """A JWT that has expired is an error that allows a retry; the broker's refusal would end a running consumer."""

    async def token() -> str:
        return identity_provider.token(exp=time.time() - 100)

    error = await refusal(validating, sasl_oauth_token_provider=token)

    assert type(error) is BrokerConnectionError
    assert "returned a token that expired 10" in str(error)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sasl_oauthbearer_token_endpoint_url": None}, "needs sasl_oauthbearer_token_endpoint_url"),
        ({"sasl_oauthbearer_token_endpoint_url": "file:///etc/passwd"}, "needs sasl_oauthbearer_token_endpoint_url"),
        ({"sasl_oauthbearer_client_secret": None}, "sasl_oauthbearer_client_secret - set both"),
        ({"sasl_oauthbearer_grant_type": JWT_BEARER}, "assertion_private_key_file - set one of them"),
        ({"sasl_oauthbearer_grant_type": "password"}, "must be one of 'client_credentials', 'urn:ietf"),
        ({"sasl_oauthbearer_extensions": "tenant"}, "'tenant' is not an extension - write key=value"),
        ({"sasl_oauthbearer_extensions": "auth=x"}, "'auth' is not an extension"),
    ],
)
def test_contradicting_options_are_refused(oidc, changed, message):
    with pytest.raises(ConfigurationError, match=message):
        configured(**{**oidc, **changed})


@pytest.mark.parametrize("content", [b"", b"not a key", b"\xff"])
async def test_a_key_that_cannot_sign_is_a_typed_error(oidc, tmp_path, content):
    """A private key that is half written or no key raises an error that names the file, and not its text."""
    (tmp_path / "key.pem").write_bytes(content)
    provide = provider_of(
        **oidc,
        sasl_oauthbearer_grant_type=JWT_BEARER,
        sasl_oauthbearer_assertion_private_key_file=str(tmp_path / "key.pem"),
    )
    with pytest.raises(ConfigurationError, match=r"sasl_oauthbearer_assertion_private_key_file: .*key\.pem"):
        await provide()


class Clock:
    """Wall clock that a test moves."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def time(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Provide the wall clock of the token providers."""
    moved = Clock()
    monkeypatch.setattr(token_providers, "time", moved)
    return moved


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ((503, b"not-the-s3cret"), "no token: HTTP status 503 - check"),
        ((401, b"not-the-s3cret"), "the identity provider refused to issue a token: HTTP status 401"),
        ((200, b"not-the-s3cret"), "the response has no access_token"),
        ((200, b'{"access_token": "not-the-s3cret", "expires_in": -5}'), "returned a token that expired 5 s ago"),
        ("hangs", "returned no token within 0.1 s - can it reach the identity provider?"),
        ("secret", "HTTP status 401, invalid_client - check the options"),
    ],
    ids=str,
)
async def test_a_valid_token_is_used_when_its_renewal_fails(identity_provider, oidc, clock, fault, reason):
    """While a token is valid, a failed renewal has no effect but one event; after the token's end, it is an error."""
    events = []
    # A renewal is waited for for a quarter of this time.
    provide = provider_of(events.append, **oidc, socket_connection_setup_timeout_ms=400 if fault == "hangs" else 8_000)
    first = await provide()
    match fault:
        case "hangs":
            identity_provider.hangs = True
        case "secret":
            identity_provider.answer = 401, b'{"error": "invalid_client", "error_description": "not-the-s3cret"}'
        case _:
            identity_provider.answer = fault
    clock.ahead_s = 0.85 * 60

    assert [await provide() for _ in range(3)] == [first] * 3
    assert len(set(await asyncio.gather(*(provide() for _ in range(10))))) == 1
    (event,) = events
    assert event.provider == "oidc"
    assert reason in event.reason
    assert not [one for one in (repr(event), *shown_by(event.exception)) if holds_a_secret(one) or first in one]
    await until(lambda: len(identity_provider.requests) == 2)

    clock.ahead_s = 61
    with pytest.raises(TimeoutError if fault == "hangs" else BrokerConnectionError):
        await asyncio.wait_for(provide(), 0.5 if fault == "hangs" else 30)
    assert len(events) == 1

    if fault != "hangs":
        identity_provider.restore()
        assert await provide() != first


async def test_a_renewal_that_fails_is_repeated(identity_provider, oidc, clock):
    """A failed renewal is repeated before the token expires, and its token replaces the former one."""
    provide = provider_of(**oidc)
    first = await provide()
    identity_provider.answer = 503, b""
    clock.ahead_s = 0.85 * 60
    assert await provide() == first
    identity_provider.answer = None
    clock.ahead_s += 10

    assert await provide() != first


async def test_a_renewal_goes_on_in_the_background(identity_provider, oidc, clock):
    """A connection does not wait for a slow identity provider while its token is valid; a later one gets its token."""
    provide = provider_of(**oidc, socket_connection_setup_timeout_ms=400)
    first = await provide()
    identity_provider.hangs = True
    clock.ahead_s = 0.85 * 60
    assert await provide() == first
    await until(lambda: len(identity_provider.requests) == 2)
    identity_provider.restore()
    clock.ahead_s += 5
    async with asyncio.timeout(10):
        while await provide() == first:  # noqa: ASYNC110 - a call each time
            await asyncio.sleep(0.02)

    assert not identity_provider.requests  # the request was sent before the restoration


async def test_a_key_that_is_half_written_ends_no_running_client(identity_provider, oidc, clock, tmp_path):
    """After the first token, a key file that cannot be read is an error that allows a retry."""
    pem, identity_provider.trusted_key = new_key()
    key = tmp_path / "key.pem"
    key.write_bytes(pem)
    oidc |= {
        "sasl_oauthbearer_grant_type": JWT_BEARER,
        "sasl_oauthbearer_assertion_private_key_file": str(key),
    }
    provide = provider_of(**oidc)
    await provide()
    key.write_bytes(pem[:100])
    clock.ahead_s = 61
    with pytest.raises(BrokerConnectionError, match=r"cannot sign with the key in .*key\.pem"):
        await provide()


# ---- functions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["token", "async_token"])
async def test_a_function_is_named(validating, identity_provider, tmp_path, monkeypatch, function):
    """``module:function`` names a plain or an async function, and extensions of the option are sent with its token."""
    (tmp_path / "signin_tokens.py").write_text(
        "import os, threading\n"
        "def token():\n"
        "    assert threading.current_thread() is not threading.main_thread()\n"
        "    return os.environ['TEST_TOKEN']\n"
        "async def async_token():\n"
        "    return os.environ['TEST_TOKEN']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TEST_TOKEN", identity_provider.token())
    name = f"signin_tokens:{function}"
    async with opened(validating, sasl_oauth_token_provider=name, sasl_oauthbearer_extensions="a=b,c=d") as connection:
        assert connection.is_open


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_here:token", "there is no module 'no_such_module_here' - run this where"),
        ("azur:shop", "there is no module 'azur' - did you mean 'azure:NAMESPACE'?"),
        ("json:no_such_function", "json has no function 'no_such_function'"),
        ("os:sep", "os has no function 'sep'"),
    ],
)
def test_a_function_that_does_not_exist_is_a_typed_error(name, message):
    with pytest.raises(ConfigurationError, match=message):
        provider_of(sasl_oauth_token_provider=name)


async def test_a_module_that_cannot_be_imported_is_a_typed_error(tmp_path, monkeypatch):
    (tmp_path / "signin_broken.py").write_text("import no_such_module_here")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match="module 'signin_broken' cannot be imported: ModuleNotFoundError"):
        provider_of(sasl_oauth_token_provider="signin_broken:token")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("aws", "aws:REGION"),
        ("aws:", "aws:REGION"),
        ("aws:EU West", "aws:REGION"),
        ("Azure", "azure:NAMESPACE"),
        ("azur:shop.servicebus.windows.net", "azure:NAMESPACE"),
        ("gcp:x", "gcp"),
        ("oicd", "oidc"),
        ("oidc:https://login.example.org", "oidc"),
        ("a.b", None),
        ("a-b:c", None),
        ("header.x.y", None),
    ],
)
def test_an_unknown_name_is_refused(name, meant):
    """The error lists the valid forms, suggests one, and does not show the value, which may be a token."""
    end = "" if meant is None else f" - did you mean '{meant}'\\?"
    with pytest.raises(ConfigurationError, match=rf"must be 'aws:REGION', .* not the given value{end}$") as caught:
        configured(sasl_oauth_token_provider=name)
    assert not [one for one in shown_by(caught.value) if f"'{name}'" in one]


# ---- cloud services --------------------------------------------------------------------------------------------------


async def test_aws_signs_a_url(monkeypatch):
    """``aws:REGION`` signs the URL that Amazon MSK expects; the signature is that of SigV4, computed by hand."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-s3cret")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    provide = provider_of(sasl_oauth_token_provider="aws:eu-west-1")

    token = await provide()

    assert await provide() is token
    assert "not-the-s3cret" not in repr(provide)
    check_aws_token(token)


def check_aws_token(token) -> None:
    """Check the URL that a token for Amazon MSK contains, and its signature."""
    url = urllib.parse.urlsplit(base64.urlsafe_b64decode(token + "==").decode())
    query = dict(urllib.parse.parse_qsl(url.query))
    assert (url.scheme, url.netloc, url.path) == ("https", "kafka.eu-west-1.amazonaws.com", "/")
    assert query["Action"] == "kafka-cluster:Connect"
    assert query["X-Amz-Expires"] == "900"
    day = query["X-Amz-Date"][:8]
    assert query["X-Amz-Credential"] == f"AKIDEXAMPLE/{day}/eu-west-1/kafka-cluster/aws4_request"
    assert query["X-Amz-Signature"] == sigv4(url, query, "not-the-s3cret", day)


def sigv4(url, query, secret, day) -> str:
    """Return the signature of a presigned URL (AWS Signature Version 4)."""
    signed = {name: value for name, value in query.items() if name not in {"X-Amz-Signature", "User-Agent"}}
    text = urllib.parse.urlencode(sorted(signed.items()), quote_via=urllib.parse.quote, safe="-_.~")
    empty = hashlib.sha256(b"").hexdigest()
    request = "\n".join(["GET", "/", text, f"host:{url.netloc}\n", "host", empty])
    scope = f"{day}/eu-west-1/kafka-cluster/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    to_sign = "\n".join(["AWS4-HMAC-SHA256", query["X-Amz-Date"], scope, digest])
    key = f"AWS4{secret}".encode()
    for part in (day, "eu-west-1", "kafka-cluster", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


async def test_missing_aws_credentials_are_a_typed_error(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    provide = provider_of(sasl_oauth_token_provider="aws:eu-west-1")

    with pytest.raises(BrokerConnectionError, match=r"'aws:eu-west-1': no token, because of .* - set AWS_PROFILE"):
        await provide()


@pytest.mark.parametrize(
    ("target", "scope"),
    [
        ("shop", "https://shop.servicebus.windows.net/.default"),
        ("shop.servicebus.windows.net", "https://shop.servicebus.windows.net/.default"),
        ("shop.servicebus.windows.net:9093", "https://shop.servicebus.windows.net/.default"),
        ("api://1234/.default", "api://1234/.default"),
    ],
)
async def test_azure_requests_the_scope_of_a_namespace(monkeypatch, target, scope):
    """``azure:…`` asks Azure's default credential for the scope, and caches the token by its expiry."""
    asked = []

    class Credential:
        def get_token(self, *scopes):
            asked.append(scopes)
            return SimpleNamespace(token="a.b.c", expires_on=int(time.time()) + 100)

    monkeypatch.setattr(azure.identity, "DefaultAzureCredential", Credential)
    provide = provider_of(sasl_oauth_token_provider=f"azure:{target}")

    assert [await provide(), await provide()] == ["a.b.c"] * 2
    assert asked == [(scope,)]


async def test_gcp_wraps_the_access_token(monkeypatch):
    """``gcp`` sends the access token in the form of Google's own login handlers, which expires with it."""
    expiry = dt.datetime.now(dt.UTC).replace(tzinfo=None, microsecond=0) + dt.timedelta(minutes=5)

    class Credentials(GoogleCredentials):
        service_account_email = "svc@example.org"

        def refresh(self, _request):
            self.token, self.expiry = "ya29.x", expiry

    monkeypatch.setattr(google.auth, "default", lambda **_options: (Credentials(), "project"))
    token = await provider_of(sasl_oauth_token_provider="gcp")()

    head, claims, wrapped = (base64.urlsafe_b64decode(part + "==") for part in token.split("."))
    assert json.loads(head) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    assert wrapped == b"ya29.x"
    found = json.loads(claims)
    assert (found["iss"], found["scope"], found["sub"]) == ("Google", "kafka", "svc@example.org")
    assert found["exp"] == expiry_of(token) == expiry.replace(tzinfo=dt.UTC).timestamp()


@pytest.mark.parametrize(
    ("name", "package"),
    [("aws:eu-west-1", "aws-msk-iam-sasl-signer-python"), ("azure:shop", "azure-identity"), ("gcp", "google-auth")],
)
def test_a_missing_package_is_named(monkeypatch, name, package):
    """The error has the command that installs the package."""

    def not_found(module):
        raise ModuleNotFoundError(module)

    monkeypatch.setattr(token_providers, "find_spec", not_found)
    extra = name.partition(":")[0]
    with pytest.raises(ConfigurationError, match=rf"needs the package {package} - pip install '.\[{extra}\]'"):
        provider_of(sasl_oauth_token_provider=name)


def test_vendors_libraries_are_imported_only_when_they_are_used():
    """A client that uses another mechanism or a function of its own imports none of the libraries."""
    code = (
        "import sys, tailrace, tailrace.net.cluster\n"
        "assert not {'boto3', 'botocore', 'azure', 'google.auth', 'jwt', 'requests', 'cryptography'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_an_abandoned_thread_does_not_keep_the_program_alive():
    """A program ends although a function that blocks forever was called."""
    code = (
        "import asyncio, threading, sys, types\n"
        "from tailrace.net.token_providers import named_provider\n"
        "module = types.ModuleType('hanging'); module.token = threading.Event().wait; sys.modules['hanging'] = module\n"
        "provide = named_provider('hanging:token', None, None)\n"
        "async def main():\n"
        "    try:\n"
        "        await asyncio.wait_for(provide(), 0.1)\n"
        "    except TimeoutError:\n"
        "        print('ended')\n"
        "asyncio.run(main())"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "ended\n"


# ---- environment and commands ----------------------------------------------------------------------------------------


def test_the_environment_names_a_provider():
    found = resolve(
        {},
        {"TAILRACE_SASL_OAUTH_TOKEN_PROVIDER": "aws:eu-west-1", "TAILRACE_SASL_OAUTHBEARER_EXTENSIONS": "a=b,c=d"},
    )
    assert found.sasl_oauth_token_provider == "aws:eu-west-1"
    assert found.sasl_oauthbearer_extensions == ("a=b", "c=d")


@pytest.fixture(scope="module")
def with_group(validating) -> KafkaServer:
    """Create a topic with a record, and a group with a committed offset."""
    validating.create_topic("cli", 1)
    witness = produced_by(validating)
    witness.produce("cli", [b"a"])
    asyncio.run(witness.commit("cli", "cli", 1, ""))
    return validating


COMMANDS = [
    ["doctor"],
    ["lag", "cli"],
    ["groups", "list"],
    ["offsets", "show", "cli"],
    ["tail", "cli", "--from", "earliest", "--max", "1"],
    ["dead-letters", "list", "cli"],
]


@pytest.mark.parametrize("way", ["--set", "environment"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_sign_in(with_group, oidc, tmp_path, command, way):
    """Commands take a named provider from ``--set`` or from the environment."""
    validating = with_group
    settings = {**validating.client_options, **oidc}
    settings.pop("bootstrap_servers")
    (tmp_path / "secret").write_text(settings.pop("sasl_oauthbearer_client_secret"))
    environ = {**os.environ, "TAILRACE_SASL_OAUTHBEARER_CLIENT_SECRET_FILE": str(tmp_path / "secret")}
    more = []
    for name, value in settings.items():
        if way == "--set":
            more += ["--set", f"{name}={value}"]
        else:
            environ[f"TAILRACE_{name.upper()}"] = value
    done = subprocess.run(
        [*COMMAND, *command, "--bootstrap-servers", validating.bootstrap_servers, "--timeout", "60", *more],
        capture_output=True, text=True, check=False, timeout=100, env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def settings_of(name, identity_provider, folder) -> tuple[dict[str, str], dict[str, str]]:
    """Return options and environment variables with which a provider gets tokens from ``identity_provider``."""
    pem, identity_provider.trusted_key = new_key()
    (folder / "key.pem").write_bytes(pem)
    match name.partition(":")[0]:
        case "aws":
            return {}, {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-the-s3cret"}
        case "azure":
            return {}, {"IDENTITY_ENDPOINT": f"{identity_provider.url}/identity", "IDENTITY_HEADER": "not-the-s3cret"}
        case "gcp":
            account = {"type": "service_account", "client_email": "svc@example.org", "private_key": pem.decode()}
            file = folder / "account.json"
            file.write_text(json.dumps({**account, "token_uri": f"{identity_provider.url}/token"}))
            return {}, {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
        case "oidc":
            return {
                "sasl_oauthbearer_token_endpoint_url": f"{identity_provider.url}/token",
                "sasl_oauthbearer_client_id": CLIENT_ID,
                "sasl_oauthbearer_grant_type": JWT_BEARER,
                "sasl_oauthbearer_assertion_private_key_file": str(folder / "key.pem"),
            }, {}
        case _:
            (folder / "signin.py").write_text(f"def token():\n    return {identity_provider.token()!r}\n")
            return {}, {}


@pytest.mark.parametrize("name", ["aws:eu-west-1", "azure:shop", "gcp", "oidc", "signin:token"])
def test_a_command_signs_in_with_each_name(with_group, identity_provider, tmp_path, name):
    """A command gets a token from the vendor's library, and its broker sees the form that the service expects.

    Kafka validates no tokens of Amazon and Google: the proxy replaces them by tokens that the broker accepts.
    """
    sent = []

    def exchange(request):
        sent.append(request.auth_bytes.decode().split("auth=Bearer ")[1].rstrip("\x01"))
        accepted = identity_provider.token() if name.startswith(("aws", "gcp")) else sent[-1]
        return msgspec.structs.replace(request, auth_bytes=f"n,,\x01auth=Bearer {accepted}\x01\x01".encode())

    options, variables = settings_of(name, identity_provider, tmp_path)
    options |= {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    sets = [part for one in options.items() for part in ("--set", "=".join(one))]
    with with_group.proxy.edit_request(SaslAuthenticateRequest, exchange, times=None):
        done = subprocess.run(
            [*COMMAND, "lag", "cli", "--bootstrap-servers", with_group.bootstrap_servers, "--timeout", "60", *sets],
            capture_output=True, text=True, check=False, timeout=100, cwd=tmp_path,
            env={
                **environment(), **variables, "TAILRACE_SASL_OAUTH_TOKEN_PROVIDER": name,
                "TAILRACE_SOCKET_CONNECTION_SETUP_TIMEOUT_MS": "60000",
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    with_group.proxy.restore()

    assert "not-the-s3cret" not in done.stdout + done.stderr
    # The connections of one command share one token; a function is called for each.
    assert len(set(sent)) == 1
    match name.partition(":")[0]:
        case "aws":
            check_aws_token(sent[0])
        case "azure":
            resource = "https://shop.servicebus.windows.net"
            assert identity_provider.requests == [
                ({"api-version": "2019-08-01", "resource": resource}, "not-the-s3cret")
            ]
        case "gcp":
            head, claims, wrapped = (base64.urlsafe_b64decode(part + "==") for part in sent[0].split("."))
            assert json.loads(head)["alg"] == "GOOG_OAUTH2_TOKEN"
            assert json.loads(claims)["sub"] == "svc@example.org"
            assert wrapped.count(b".") == 2
            ((form, _),) = identity_provider.requests
            assert form["grant_type"] == JWT_BEARER
        case "oidc":
            ((form, _),) = identity_provider.requests
            assert form["grant_type"] == JWT_BEARER
