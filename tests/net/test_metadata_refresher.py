"""Intervals between metadata refreshes."""

from __future__ import annotations

import asyncio
import itertools
import statistics

import pytest

from tailrace.net.metadata_refresher import MetadataRefresher
from tailrace.protocol.metadata import MetadataRequest
from tests.support.consumer_group import until
from tests.support.net.open_connections import cluster_at


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
