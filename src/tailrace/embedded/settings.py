"""Configuration of brokers and the matching client options.

Every broker has three listeners on the loopback address:

- CLIENT, for clients, with the security that the user has chosen;
- INTERNAL, for other brokers and for TopicAdmin, without security;
- CONTROLLER, for the quorum of controllers, without security.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from typing_extensions import TypedDict

from tailrace.config.options import SaslMechanism, SecurityProtocol, TokenProvider
from tailrace.errors import ConfigurationError

__all__ = [
    "PASSWORD",
    "USERNAME",
    "ConnectionOptions",
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
"""Credentials of the only user; the same for all SASL mechanisms."""

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
    # Tests choose old timestamps. A topic has its own retention.ms if it needs one.
    "log.retention.ms": "-1",
    "controlled.shutdown.retry.backoff.ms": "200",
    # Sessions are short, because a killed broker can restart only after its session with the controller has expired.
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
"""Settings that ``config`` cannot override."""


class ConnectionOptions(TypedDict, total=False):
    """Consumer options for connecting to an embedded broker; ``ConsumerOptions`` documents them."""

    bootstrap_servers: str
    security_protocol: SecurityProtocol
    sasl_mechanism: SaslMechanism
    sasl_plain_username: str
    sasl_plain_password: str
    sasl_oauth_token_provider: TokenProvider
    ssl_cafile: str
    ssl_certfile: str
    ssl_keyfile: str


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of a broker."""

    client: int
    internal: int
    controller: int
    advertised: int
    """Port that the broker advertises to clients: ``client``, or the port of a proxy."""


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """Security of the client listener."""

    protocol: SecurityProtocol
    broker: Mapping[str, str] = field(default_factory=dict)
    """Settings for ``server.properties``."""
    scram: str | None = None
    """SCRAM mechanism for which the user is created when the data folder is formatted; None for other mechanisms."""
    client: ConnectionOptions = field(default_factory=ConnectionOptions)
    """Options of clients, without ``bootstrap_servers``."""


def server_properties(  # noqa: PLR0913 - the parts of one file
    *,
    node_id: int,
    ports: Ports,
    controllers: Mapping[int, int],
    data: Path,
    security: ListenerSecurity,
    rack: str | None,
    config: Mapping[str, str | float],
) -> str:
    """Return the text of ``server.properties``; ``config`` overrides all other settings.

    ``controllers`` has the controller ports by node id.
    """
    replication_factor = str(min(3, len(controllers)))
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
        "offsets.topic.replication.factor": replication_factor,
        "transaction.state.log.replication.factor": replication_factor,
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": replication_factor,
        "share.coordinator.state.topic.min.isr": "1",
        "default.replication.factor": replication_factor,
        **security.broker,
    }
    if rack is not None:
        settings["broker.rack"] = rack
    settings.update({key: _text(value) for key, value in config.items()})
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def listener_security(security: Security, *, tls: bool, folder: Path) -> ListenerSecurity:
    """Return the settings of brokers and clients for ``security``; for TLS, create certificates in ``folder``."""
    if security == "PLAINTEXT":
        return ListenerSecurity("PLAINTEXT")
    if security == "SSL" or security == "MTLS":  # noqa: PLR1714 - type checkers narrow by ==
        broker, client = _tls(folder, mutual=security == "MTLS")
        return ListenerSecurity("SSL", broker, client=client)
    protocol: SecurityProtocol = "SASL_SSL" if tls else "SASL_PLAINTEXT"
    broker, client = _tls(folder, mutual=False) if tls else ({}, ConnectionOptions())
    return ListenerSecurity(
        protocol,
        {**broker, **_sasl_broker(security)},
        scram=security if security.startswith("SCRAM") else None,
        client={**client, "security_protocol": protocol, "sasl_mechanism": security, **_sasl_client(security)},
    )


def unsecured_token(subject: str = USERNAME, lifetime_s: float = 3600) -> str:
    """Return an unsigned JWT (RFC 7519, section 6), which brokers accept only if they are configured for tests."""
    now = time.time()
    # The broker refuses a token whose time of issue is milliseconds in the future, so subtract a second.
    claims = {"sub": subject, "iat": now - 1, "exp": now + lifetime_s}
    return f"{_base64url({'alg': 'none'})}.{_base64url(claims)}."


def _sasl_broker(mechanism: str) -> dict[str, str]:
    jaas = f"listener.name.client.{mechanism.lower()}.sasl.jaas.config"
    module = "org.apache.kafka.common.security"
    settings = {"sasl.enabled.mechanisms": mechanism}
    if mechanism == "PLAIN":
        settings[jaas] = f'{module}.plain.PlainLoginModule required user_{USERNAME}="{PASSWORD}";'
    elif mechanism == "OAUTHBEARER":
        settings[jaas] = (
            f'{module}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="{USERNAME}";'
        )
    else:
        settings[jaas] = f"{module}.scram.ScramLoginModule required;"
    return settings


def _sasl_client(mechanism: SaslMechanism) -> ConnectionOptions:
    if mechanism == "OAUTHBEARER":

        async def token() -> str:
            return unsecured_token()

        return {"sasl_oauth_token_provider": token}
    return {"sasl_plain_username": USERNAME, "sasl_plain_password": PASSWORD}


def _tls(folder: Path, *, mutual: bool) -> tuple[dict[str, str], ConnectionOptions]:
    """Create certificates in ``folder``, and return the settings of brokers and of clients that use the certificates.

    The client gets a certificate only for ``mutual`` TLS.
    """
    import trustme  # noqa: PLC0415 - an extra

    authority = trustme.CA()
    broker_certificate = authority.issue_cert("localhost", "127.0.0.1")
    folder.mkdir(parents=True, exist_ok=True)
    cafile, keystore = folder / "authority.pem", folder / "broker.pem"
    authority.cert_pem.write_to_path(cafile)
    chain = b"".join(blob.bytes() for blob in broker_certificate.cert_chain_pems)
    keystore.write_bytes(_pkcs8(broker_certificate.private_key_pem.bytes()) + chain)
    broker = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(cafile),
        "ssl.client.auth": "required" if mutual else "none",
    }
    client: ConnectionOptions = {"security_protocol": "SSL", "ssl_cafile": str(cafile)}
    if mutual:
        client_certificate = authority.issue_cert(f"{USERNAME}@example.org")
        certfile, keyfile = folder / "client.pem", folder / "client.key"
        client_certificate.cert_chain_pems[0].write_to_path(certfile)
        client_certificate.private_key_pem.write_to_path(keyfile)
        client.update({"ssl_certfile": str(certfile), "ssl_keyfile": str(keyfile)})
    return broker, client


def _pkcs8(private_key: bytes) -> bytes:
    """Convert a private key to PKCS #8 (RFC 5958), the only format that Kafka's PEM key store reads."""
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
    brokers: int, security: str, *, tls: bool, config: Mapping[str, str | float], racks: Sequence[str] | None
) -> None:
    """Check the options of a cluster.

    Raises:
        ConfigurationError: an option is invalid or contradicts another option.
    """
    if brokers < 1:
        raise ConfigurationError(f"brokers must be at least 1, not {brokers}")
    if security not in get_args(Security):
        raise ConfigurationError(f"security must be one of {', '.join(get_args(Security))}, not {security!r}")
    if tls and security in {"PLAINTEXT", "SSL", "MTLS"}:
        raise ConfigurationError(
            f"tls=True requires a SASL mechanism, not security={security!r} - use 'SSL' for TLS alone"
        )
    if racks is not None and len(racks) != brokers:
        raise ConfigurationError(f"racks must have one entry for each of {brokers} brokers, not {list(racks)}")
    if fixed := sorted(_FIXED & config.keys()):
        raise ConfigurationError(
            f"config must not contain {fixed[0]!r} - tailrace sets listeners and data folders itself"
        )
