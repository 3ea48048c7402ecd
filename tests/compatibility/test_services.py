"""The compatibility suite on a broker that offers only the versions of a service."""

from __future__ import annotations

import pytest

from tailrace.config import resolve
from tailrace.errors import BrokerConnectionError
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.protocol.metadata import BrokerMetadata, MetadataRequest
from tailrace.protocol.records import ProduceRequest
from tests.support.compatibility.capabilities import assert_results, examine, expected_results
from tests.support.compatibility.services import SERVICES, running_service


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SERVICES)
async def test_each_capability_works_or_is_refused(name):
    """Tailrace sends no version that the service does not offer, and refuses what the service lacks."""
    service = SERVICES[name]
    with running_service(service) as (cluster, proxy):
        outcomes = await examine(cluster)
        published = {frame.version for frame in proxy.requests(ProduceRequest)}

    assert proxy.refused == []
    assert published <= {service.ranges[ProduceRequest.api.key][1]}
    assert_results(outcomes, expected_results(service.refused))


@pytest.mark.slow
async def test_the_proxy_closes_the_connection_on_other_versions():
    """A request in a version that the service does not offer closes the connection and is recorded."""
    with running_service(SERVICES["Redpanda"]) as (cluster, proxy):
        host, _, port = cluster.address.rpartition(":")
        config = resolve({"bootstrap_servers": cluster.address}, {})
        broker = Broker.from_metadata(BrokerMetadata(-1, host, int(port)), config)
        await broker.connect()
        connection = await broker.connection_for(ChannelKey(Channel.MAIN))
        with pytest.raises(BrokerConnectionError):
            await connection.send(MetadataRequest(()), 5, version=9)
        broker.close()

    assert proxy.refused == [(3, 9)]
