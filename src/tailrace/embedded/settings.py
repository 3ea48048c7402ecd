"""A broker's configuration: what its ``server.properties`` says, and what a client needs to get in.

Every broker listens three times: CLIENT as the test asks (plain, TLS, SASL), INTERNAL in plain text for the brokers
among themselves and for our own questions, CONTROLLER for the quorum. All on the loopback address.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from tailrace.errors import ConfigurationError

__all__ = [
    "PASSWORD",
    "USERNAME",
    "ListenerSecurity",
    "Ports",
    "Security",
    "check_options",
    "listener_security",
    "server_properties",
    "unsecured_token",
]

Security = Literal["PLAINTEXT", "SSL", "MTLS", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

USERNAME, PASSWORD = "alice", "alice-secret"

_DEFAULTS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "controlled.shutdown.retry.backoff.ms": "200",
    # A killed broker may come back only when the controller has given its last life up.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


_FIXED = frozenset(
    {
        "advertised.listeners",
        "broker.id",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
        "node.id",
        "process.roles",
    }
)
"""What nobody overrides: where a broker listens, whom it knows and where it writes."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where one broker listens, and where it tells clients to go (a proxy may stand in between)."""

    client: int
    internal: int
    controller: int
    advertised: int


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """How clients get in."""

    protocol: str
    broker: Mapping[str, str] = field(default_factory=dict)
    """Lines of ``server.properties``."""
    scram: str | None = None
    """A SCRAM mechanism whose user is made when the storage is formatted."""
    client: Mapping[str, object] = field(default_factory=dict)
    """Consumer options."""


def server_properties(  # noqa: PLR0913 - the parts of one file
    *,
    node_id: int,
    ports: Ports,
    controllers: Mapping[int, int],
    data: Path,
    security: ListenerSecurity,
    rack: str | None,
    config: Mapping[str, object],
) -> str:
    """The text of ``server.properties``; ``config`` overrides what is chosen here."""
    copies = str(min(3, len(controllers)))
    listeners = {"CLIENT": ports.client, "INTERNAL": ports.internal}
    settings = {
        **_DEFAULTS,
        "node.id": str(node_id),
        "process.roles": "broker,controller",
        "listeners": ",".join(
            f"{name}://127.0.0.1:{port}" for name, port in {**listeners, "CONTROLLER": ports.controller}.items()
        ),
        "advertised.listeners": f"CLIENT://127.0.0.1:{ports.advertised},INTERNAL://127.0.0.1:{ports.internal}",
        "listener.security.protocol.map": f"CLIENT:{security.protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items()),
        "log.dirs": str(data),
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": "1",
        "default.replication.factor": copies,
        **security.broker,
    }
    if rack is not None:
        settings["broker.rack"] = rack
    settings.update({key: _text(value) for key, value in config.items()})
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def listener_security(security: Security, *, tls: bool, folder: Path) -> ListenerSecurity:
    """The two sides of ``security``; certificates, where any are needed, are made in ``folder``."""
    if security == "PLAINTEXT":
        return ListenerSecurity("PLAINTEXT")
    if security in {"SSL", "MTLS"}:
        broker, client = _tls(folder, mutual=security == "MTLS")
        return ListenerSecurity("SSL", broker, client=client)
    protocol = "SASL_SSL" if tls else "SASL_PLAINTEXT"
    broker, client = _tls(folder, mutual=False) if tls else ({}, {})
    return ListenerSecurity(
        protocol,
        {**broker, **_sasl_broker(security)},
        scram=security if security.startswith("SCRAM") else None,
        client={**client, "security_protocol": protocol, "sasl_mechanism": security, **_sasl_client(security)},
    )


def unsecured_token(subject: str = USERNAME, lifetime_s: float = 3600) -> str:
    """An OAuth token that only a broker for tests accepts: a JWT without a signature (RFC 7519, section 6)."""
    now = time.time()
    # Made a little earlier: the broker counts whole milliseconds, and takes none that was made after that.
    claims = {"sub": subject, "iat": now - 1, "exp": now + lifetime_s}
    return f"{_base64url({'alg': 'none'})}.{_base64url(claims)}."


def _sasl_broker(mechanism: str) -> dict[str, str]:
    jaas = f"listener.name.client.{mechanism.lower()}.sasl.jaas.config"
    module = "org.apache.kafka.common.security"
    lines = {"sasl.enabled.mechanisms": mechanism}
    if mechanism == "PLAIN":
        lines[jaas] = f'{module}.plain.PlainLoginModule required user_{USERNAME}="{PASSWORD}";'
    elif mechanism == "OAUTHBEARER":
        lines[jaas] = (
            f'{module}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{USERNAME}";'
        )
    else:
        lines[jaas] = f"{module}.scram.ScramLoginModule required;"
    return lines


def _sasl_client(mechanism: str) -> dict[str, object]:
    if mechanism == "OAUTHBEARER":

        async def token() -> str:
            return unsecured_token()

        return {"sasl_oauth_token_provider": token}
    return {"sasl_plain_username": USERNAME, "sasl_plain_password": PASSWORD}


def _tls(folder: Path, *, mutual: bool) -> tuple[dict[str, str], dict[str, object]]:
    """A private authority, a certificate for the broker and, for mutual TLS, one for the client."""
    import trustme  # noqa: PLC0415 - an extra

    authority = trustme.CA()
    of_broker = authority.issue_cert("localhost", "127.0.0.1")
    folder.mkdir(parents=True, exist_ok=True)
    cafile, keystore = folder / "authority.pem", folder / "broker.pem"
    authority.cert_pem.write_to_path(cafile)
    chain = b"".join(blob.bytes() for blob in of_broker.cert_chain_pems)
    keystore.write_bytes(_pkcs8(of_broker.private_key_pem.bytes()) + chain)
    broker = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(cafile),
        "ssl.client.auth": "required" if mutual else "none",
    }
    client: dict[str, object] = {"security_protocol": "SSL", "ssl_cafile": str(cafile)}
    if mutual:
        of_client = authority.issue_cert(f"{USERNAME}@example.org")
        certfile, keyfile = folder / "client.pem", folder / "client.key"
        of_client.cert_chain_pems[0].write_to_path(certfile)
        of_client.private_key_pem.write_to_path(keyfile)
        client |= {"ssl_certfile": str(certfile), "ssl_keyfile": str(keyfile)}
    return broker, client


def _pkcs8(private_key: bytes) -> bytes:
    """The one format of a private key that Kafka's PEM key store reads (RFC 5958)."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra

    key = serialization.load_pem_private_key(private_key, None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _base64url(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_options(
    brokers: int, security: str, *, tls: bool, config: Mapping[str, object], racks: Sequence[str] | None
) -> None:
    """See that options of a cluster go together.

    Raises:
        ConfigurationError: they do not.
    """
    if brokers < 1:
        raise ConfigurationError(f"brokers={brokers} will not do: it has to be at least 1")
    if security not in get_args(Security):
        raise ConfigurationError(
            f"security={security!r} will not do: it has to be one of {', '.join(get_args(Security))}"
        )
    if tls and security in {"PLAINTEXT", "SSL", "MTLS"}:
        raise ConfigurationError(f"tls=True is for a SASL mechanism - security={security!r} says it all; 'SSL' is TLS")
    if racks is not None and len(racks) != brokers:
        raise ConfigurationError(f"racks={list(racks)} will not do: one for each of {brokers} brokers is needed")
    if fixed := sorted(_FIXED & config.keys()):
        raise ConfigurationError(
            f"config: {fixed[0]} is not to be set - tailrace decides where a broker listens and writes"
        )
