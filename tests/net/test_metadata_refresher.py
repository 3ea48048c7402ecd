"""Intervals between metadata refreshes."""

from __future__ import annotations

import asyncio
import itertools
import statistics

import pytest
from msgspec.structs import replace

from tailrace.config import split_address
from tailrace.errors import BrokerConnectionError
from tailrace.net.cluster import MetadataRefresher
from tailrace.protocol.metadata import MetadataRequest
from tests.support.consumer_group import until
from tests.support.net.open_connections import cluster_at
from tests.support.net.peers import closed_port


@pytest.mark.parametrize("is_wanted", [False, True], ids=["by age alone", "wanted all the time"])
async def test_metadata_is_refreshed_at_its_age(kafka, group, is_wanted):
    """Metadata are refreshed at metadata_max_age_ms, without the pause between requested refreshes."""
    options = {"client_id": group, "metadata_max_age_ms": 200}
    async with cluster_at(kafka.bootstrap_servers, **options) as cluster:
        await cluster.bootstrap()
        refresher = MetadataRefresher(cluster, lambda: refresher.ask() if is_wanted else None)
        refreshing = asyncio.create_task(refresher.run_refreshes())
        await until(lambda: len(kafka.proxy.requests(MetadataRequest, client_id=group)) > 14, 60)
        refreshing.cancel()
        await asyncio.wait({refreshing})

    times = [frame.at for frame in kafka.proxy.requests(MetadataRequest, client_id=group)]
    between = [after - before for before, after in itertools.pairwise(times[4:])]
    assert statistics.median(between) < 0.6
    # Not more often than the first backoff.
    assert min(between) > 0.05


async def test_metadata_is_refreshed_when_a_broker_cannot_be_reached(kafka):
    """A broker that cannot be reached may have another address, which is looked up at once."""
    with closed_port() as dead:
        host, port = split_address(dead)
        async with cluster_at(kafka.bootstrap_servers) as cluster:
            with kafka.proxy.edit_answer(
                MetadataRequest,
                lambda answer: replace(
                    answer, brokers=tuple(replace(one, host=host, port=port) for one in answer.brokers)
                ),
            ):
                await cluster.bootstrap()
            refreshing = asyncio.create_task(MetadataRefresher(cluster, lambda: None).run_refreshes())
            await asyncio.sleep(0)
            with pytest.raises(BrokerConnectionError):
                await cluster.broker(1).send(MetadataRequest(()))

            await until(lambda: cluster.broker(1).address == kafka.bootstrap_servers)
            refreshing.cancel()
            await asyncio.wait({refreshing})
