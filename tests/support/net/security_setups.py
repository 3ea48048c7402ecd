"""Security setups of a broker, with options that connect and options that do not."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pytest

from tailrace.errors import TailraceError
from tailrace.testing import KafkaServer
from tests.support.net.open_connections import cluster_at

PASSWORD, WRONG = "alice-secret", "not-the-s3cret"


class Way(NamedTuple):
    """Security setup of a broker."""

    security: str
    tls: bool = False
    config: tuple[tuple[str, object], ...] = ()
    proxied: bool = False

    def __str__(self) -> str:
        return f"{self.security} over TLS" if self.tls else self.security


SSL, MTLS, PLAIN, OAUTH = Way("SSL"), Way("MTLS"), Way("PLAIN"), Way("OAUTHBEARER")
LIFETIME_S = 1.2
"""Lifetime of a session of SCRAM_256 (KIP-368); a broker does not renew sessions younger than a second.

After the end the broker refuses all requests but a renewal, so tests send requests early, or after the end.
"""
SCRAM_256 = Way("SCRAM-SHA-256", config=(("connections.max.reauth.ms", int(LIFETIME_S * 1000)),), proxied=True)
SCRAM_512_TLS = Way("SCRAM-SHA-512", tls=True)


def by(*ways: Way) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("secured", ways, indirect=True, ids=str)


def reached(server: KafkaServer, **changed: Any):
    """Connect a cluster with the valid options, apart from the given changes."""
    options = {**server.client_options, "socket_connection_setup_timeout_ms": 60_000, **changed}
    return cluster_at(options.pop("bootstrap_servers"), **options)


async def refusal(server: KafkaServer, **changed: Any) -> TailraceError:
    """Return the error of connecting with wrong options, and assert that it is raised before the timeout."""
    began = time.monotonic()
    with pytest.raises(TailraceError) as caught:
        async with reached(server, **changed) as cluster:
            await cluster.bootstrap()
    assert time.monotonic() - began < 20
    return caught.value


def holds_a_secret(text: str) -> bool:
    return PASSWORD in text or WRONG in text
