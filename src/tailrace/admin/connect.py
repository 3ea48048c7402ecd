"""Connection of tools to a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from typing_extensions import Unpack

from tailrace.config import ConsumerOptions, resolve
from tailrace.net.cluster import Cluster

__all__ = ["reached"]


@asynccontextmanager
async def reached(**options: Unpack[ConsumerOptions]) -> AsyncIterator[Cluster]:
    """Connect to the cluster for the duration of a context; options are those of a Consumer.

    Raises:
        ConfigurationError: an option is missing or invalid.
        AuthenticationError: TLS or SASL failed.
        BrokerConnectionError: no broker answered.
    """
    cluster = Cluster(resolve(options))
    try:
        await cluster.bootstrap()
        yield cluster
    finally:
        cluster.close()
