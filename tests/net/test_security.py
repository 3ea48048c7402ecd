"""Security setups with real brokers: each one connects, each mistake has a clear error, and no secret is shown."""

from __future__ import annotations

import logging

import pytest
import trustme

from tailrace import App, Consumer, GroupMember, SharedCluster, admin
from tailrace.errors import AuthenticationError, BrokerConnectionError, ConfigurationError
from tailrace.net.dialer import Dialer
from tailrace.observe.events import ConnectionOpened
from tailrace.protocol.groups import OffsetFetchRequest
from tailrace.protocol.metadata import FindCoordinatorRequest
from tests.support.event_recorder import EventRecorder
from tests.support.net.open_connections import broker_at, cluster_at, configured
from tests.support.net.peers import Peer, closed_port, silent
from tests.support.net.secrets_shown import shown_by
from tests.support.net.security_setups import (
    MTLS,
    OAUTH,
    PASSWORD,
    PLAIN,
    SCRAM_256,
    SCRAM_512_TLS,
    SSL,
    WRONG,
    by,
    holds_a_secret,
    reached,
    refusal,
)


async def no_token() -> str:
    return f"not.a.token-{WRONG}"


# ---- accepted ------------------------------------------------------------------------------------------------------


@by(SSL, MTLS, PLAIN, SCRAM_256, SCRAM_512_TLS, OAUTH)
async def test_each_security_setup_works(secured, caplog, name):
    """With ``client_options``, all connections are authenticated, and no secret is shown."""
    caplog.set_level(logging.DEBUG)
    events = EventRecorder()

    async with reached(secured, events=events) as cluster:
        await cluster.bootstrap()
        coordinator = await cluster.retrying(lambda: cluster.coordinator(name), timeout_s=60, what="a coordinator")
        await coordinator.connect()
        await cluster.retrying(
            lambda: coordinator.send(OffsetFetchRequest(name, None)), timeout_s=60, what="committed offsets"
        )
        await cluster.retrying(  # a session may end on the way
            lambda: coordinator.send(FindCoordinatorRequest(name), owner="m"), timeout_s=60, what="an answer"
        )
        shown = [repr(each) for each in (cluster, coordinator, cluster.config, Dialer(cluster.config))]

    channels = {event.channel for event in events.of(ConnectionOpened)}
    assert channels >= {"main", "offsets"}
    assert PASSWORD not in "\n".join([caplog.text, *shown, *map(repr, events.events)])
    assert "eyJ" not in caplog.text  # how a token begins


# ---- refused -------------------------------------------------------------------------------------------------------

SASL = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "alice", "sasl_plain_password": WRONG}


@pytest.mark.parametrize(
    ("secured", "changed", "kind", "message"),
    [
        (
            SSL,
            {"ssl_cafile": None},
            AuthenticationError,
            "the certificate is not trusted: unable to get local issuer certificate - set ssl_cafile",
        ),
        (
            SSL,
            {"security_protocol": "PLAINTEXT"},
            BrokerConnectionError,
            "the listener uses TLS - set security_protocol='SSL' (or 'SASL_SSL')",
        ),
        (
            SSL,
            {"security_protocol": "SASL_SSL", **SASL},
            AuthenticationError,
            "the broker does not support PLAIN - the listener does not use SASL",
        ),
        (
            SSL,
            {"security_protocol": "SASL_PLAINTEXT", **SASL},
            BrokerConnectionError,
            "the listener uses TLS - set security_protocol='SSL' (or 'SASL_SSL')",
        ),
        (
            MTLS,
            {"ssl_certfile": None, "ssl_keyfile": None},
            AuthenticationError,
            "if it requires a client certificate, set ssl_certfile and ssl_keyfile",
        ),
        (
            PLAIN,
            {"sasl_plain_password": WRONG},
            AuthenticationError,
            "PLAIN: Authentication failed: Invalid username or password - check user name, password",
        ),
        (PLAIN, {"sasl_plain_username": "bob"}, AuthenticationError, "PLAIN: Authentication failed"),
        (
            PLAIN,
            {"sasl_mechanism": "SCRAM-SHA-512"},
            AuthenticationError,
            "the broker does not support SCRAM-SHA-512 - set sasl_mechanism to one of: PLAIN",
        ),
        (
            PLAIN,
            {"security_protocol": "PLAINTEXT"},
            BrokerConnectionError,
            "the broker closed the connection - if the listener requires SASL, set security_protocol",
        ),
        (
            PLAIN,
            {"security_protocol": "SASL_SSL"},
            BrokerConnectionError,
            "use security_protocol='PLAINTEXT' (or 'SASL_PLAINTEXT'), or the port of the TLS listener",
        ),
        (SCRAM_256, {"sasl_plain_password": WRONG}, AuthenticationError, "SCRAM-SHA-256: Authentication failed"),
        (SCRAM_256, {"sasl_plain_username": "b,o=b"}, AuthenticationError, "SCRAM-SHA-256: Authentication failed"),
        (SCRAM_512_TLS, {"sasl_plain_password": WRONG}, AuthenticationError, "SCRAM-SHA-512: Authentication failed"),
        (
            SCRAM_512_TLS,
            {"security_protocol": "SSL"},
            BrokerConnectionError,
            "the broker closed the connection - if the listener requires SASL, set security_protocol",
        ),
        (
            OAUTH,
            {"sasl_oauth_token_provider": no_token},
            AuthenticationError,
            'OAUTHBEARER: the broker refused the token: {"status":"invalid_token"}',
        ),
    ],
    indirect=["secured"],
    ids=[
        "TLS, authority not trusted",
        "TLS, asked in plain text",
        "TLS without SASL, asked for SASL",
        "TLS without SASL, asked for SASL in plain text",
        "mutual TLS, no certificate",
        "PLAIN, wrong password",
        "PLAIN, wrong user",
        "PLAIN, wrong mechanism",
        "PLAIN, no SASL",
        "PLAIN, asked for TLS",
        "SCRAM, wrong password",
        "SCRAM, wrong user",
        "SCRAM over TLS, wrong password",
        "SCRAM over TLS, no SASL",
        "OAUTHBEARER, wrong token",
    ],
)
async def test_each_mistake_has_a_clear_error(secured, changed, kind, message, caplog):
    """Each mistake raises a typed error with advice, in time and without a secret."""
    caplog.set_level(logging.DEBUG)
    events = EventRecorder()

    error = await refusal(secured, events=events, **changed)

    assert type(error) is kind
    assert secured.bootstrap_servers in str(error)
    assert message in str(error)
    assert not [one for one in (caplog.text, *map(repr, events.events), *shown_by(error)) if holds_a_secret(one)]


@by(PLAIN)
async def test_a_permanent_error_takes_precedence(secured):
    """If several addresses fail, an authentication error is raised before a transient one."""
    with closed_port() as dead:
        addresses = f"{dead},{secured.bootstrap_servers}"
        error = await refusal(secured, bootstrap_servers=addresses, sasl_plain_password=WRONG)

    assert type(error) is AuthenticationError
    assert "connection refused" not in str(error)


@by(PLAIN)
async def test_an_authentication_error_is_kept_during_the_backoff(secured):
    """Requests during the backoff raise the authentication error, so that callers do not retry."""
    pauses = {"reconnect_backoff_ms": 60_000, "reconnect_backoff_max_ms": 60_000}
    options = {**secured.client_options, "sasl_plain_password": WRONG, **pauses}
    async with broker_at(options.pop("bootstrap_servers"), **options) as broker:
        with pytest.raises(AuthenticationError):
            await broker.connect()
        with pytest.raises(AuthenticationError, match=r"Invalid username or password .*1 attempts, next in"):
            await broker.send(FindCoordinatorRequest("any"))


@pytest.mark.parametrize("security", ["SASL_PLAINTEXT", "SASL_SSL", "SSL"])
async def test_tls_or_sasl_with_a_plain_listener_raises(kafka, direct, security):
    """TLS or SASL with a plain listener raises an error that names the missing TLS or SASL."""
    error = await refusal(kafka, bootstrap_servers=direct, security_protocol=security, **SASL)

    message = "the listener does not use SASL" if security == "SASL_PLAINTEXT" else "security_protocol='PLAINTEXT'"
    assert message in str(error)
    assert not any(map(holds_a_secret, shown_by(error)))


@by(MTLS)
async def test_an_untrusted_client_certificate_is_refused(secured, tmp_path):
    """A client certificate of another authority raises a clear error."""
    stranger = trustme.CA().issue_cert("alice@example.org")
    stranger.private_key_pem.write_to_path(tmp_path / "key.pem")
    stranger.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")

    files = {"ssl_certfile": str(tmp_path / "certificate.pem"), "ssl_keyfile": str(tmp_path / "key.pem")}
    error = await refusal(secured, **files)

    assert type(error) is AuthenticationError
    assert "the broker ended TLS" in str(error)


async def test_a_certificate_of_another_host_is_refused(tmp_path):
    """A certificate of another host is refused unless ``ssl_check_hostname`` is False."""
    import ssl  # noqa: PLC0415 - the one use

    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("kafka.example").configure_cert(context)
    options = {"security_protocol": "SSL", "ssl_cafile": str(tmp_path / "authority.pem")}

    async with Peer(silent, tls=context) as peer:
        with pytest.raises(
            AuthenticationError,
            match=r"the certificate is for another host: .* \(see the broker's advertised.listeners\)$",
        ):
            async with cluster_at(peer.address, **options) as cluster:
                await cluster.bootstrap()
        unchecked = configured(
            peer.address, ssl_check_hostname=False, socket_connection_setup_timeout_ms=300, **options
        )
        with pytest.raises(BrokerConnectionError, match="no connection within"):
            await Dialer(unchecked).dial("127.0.0.1", peer.port)


# ---- local variables of tracebacks ---------------------------------------------------------------------------------


async def start_consumer(options) -> None:
    async with Consumer("any", **options):
        pass


async def run_app(options) -> None:
    app = App(group_id="any", **options)
    app.handler("any")(accept)
    await app.run()


async def accept(value: bytes) -> None:
    pass


async def start_member(options) -> None:
    await GroupMember(IdleRole(), **options).start()


class IdleRole:
    """Role of a member without work."""

    protocol_type = "any"

    def protocols(self):
        return [("any", b"")]

    def assign(self, _leader_id, _protocol, members):
        return dict.fromkeys(members, b"")

    def on_joined(self, _generation) -> None:
        pass


async def start_shared(options) -> None:
    async with SharedCluster(**options):
        pass


async def administer(options) -> None:
    async with admin.reached(**options):
        pass


@pytest.mark.parametrize("start", [start_consumer, run_app, start_member, start_shared, administer])
@pytest.mark.parametrize(
    ("secured", "wrong"),
    [
        (PLAIN, {"sasl_plain_password": WRONG}),
        (SCRAM_256, {"sasl_plain_password": WRONG}),
        (OAUTH, {"sasl_oauth_token_provider": no_token}),
    ],
    indirect=["secured"],
    ids=["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"],
)
async def test_no_frame_of_a_refused_login_shows_a_secret(secured, wrong, start):
    """Wherever options are passed, a refused login shows no secret in local variables, of other packages neither."""
    with pytest.raises(AuthenticationError) as caught:
        await start({**secured.client_options, "start_timeout_ms": 15_000, **wrong})

    assert not [one for one in shown_by(caught.value) if holds_a_secret(one)]


@pytest.mark.parametrize("start", [start_consumer, run_app, start_member, start_shared, administer])
async def test_no_frame_of_an_invalid_tls_file_shows_the_password(start, tmp_path):
    """A wrong ``ssl_password`` is in no local variable of the error's frames."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued = trustme.CA().issue_cert("alice@example.org")
    issued.cert_chain_pems[0].write_to_path(certificate)
    key.write_bytes(_encrypted(issued.private_key_pem.bytes()))
    files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key), "ssl_password": WRONG}

    with pytest.raises(ConfigurationError, match=r"key\.pem") as caught:
        await start({"bootstrap_servers": "localhost:1", "security_protocol": "SSL", **files})

    assert not [one for one in shown_by(caught.value) if holds_a_secret(one)]


# ---- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["missing", "not PEM", "encrypted key, no password", "encrypted key, wrong password"])
def test_invalid_tls_files_raise(tmp_path, wrong, capfd):
    """An invalid TLS file raises ConfigurationError with its name, without a prompt for a password."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued = trustme.CA().issue_cert("alice@example.org")
    issued.cert_chain_pems[0].write_to_path(certificate)
    if wrong == "not PEM":
        key.write_text("no key at all")
    elif wrong != "missing":
        key.write_bytes(_encrypted(issued.private_key_pem.bytes()))
    password = {"ssl_password": WRONG} if wrong.endswith("wrong password") else {}

    files = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key), **password}
    with pytest.raises(
        ConfigurationError, match=r"key\.pem.* - use files in PEM format, and set ssl_password"
    ) as caught:
        Dialer(configured("localhost", security_protocol="SSL", **files))

    assert not any(map(holds_a_secret, shown_by(caught.value)))
    assert capfd.readouterr() == ("", "")


def _encrypted(private_key: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - the one use

    key = serialization.load_pem_private_key(private_key, None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    )
