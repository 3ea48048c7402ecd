"""Connection to a cluster for administration."""

from __future__ import annotations

from collections.abc import AsyncIterator

from typing_extensions import Unpack

from tailrace.config import ConsumerOptions, hide_secrets, resolve
from tailrace.context_managers import asynccontextmanager
from tailrace.net.cluster import Cluster

__all__ = ["reached"]


@asynccontextmanager
async def reached(**options: Unpack[ConsumerOptions]) -> AsyncIterator[Cluster]:
    """Connect to a cluster for the duration of a context. The options are those of ``Consumer``.

    Raises:
        ConfigurationError: an option is missing or invalid.
        AuthenticationError: TLS or SASL failed.
        UnsupportedVersionError: the brokers are too old.
        BrokerConnectionError: no broker answered.
    """
    options = hide_secrets(options)
    cluster = Cluster(resolve(options))
    try:
        await cluster.bootstrap()
        yield cluster
    finally:
        cluster.close()
