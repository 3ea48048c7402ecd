"""A cluster for the length of a block, for programs that have none yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from typing_extensions import Unpack

from tailrace.config import ConsumerOptions, resolve
from tailrace.net.cluster import Cluster

__all__ = ["reached"]


@asynccontextmanager
async def reached(**options: Unpack[ConsumerOptions]) -> AsyncIterator[Cluster]:
    """The cluster, and the end of its connections behind the block; options are those of a Consumer.

    Raises:
        ConfigurationError: an option is missing or wrong.
        AuthenticationError: the brokers refuse us.
        BrokerConnectionError: none of them answers.
    """
    cluster = Cluster(resolve(options))
    try:
        await cluster.bootstrap()
        yield cluster
    finally:
        cluster.close()
