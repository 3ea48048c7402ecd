"""The compatibility suite of `scripts/brokers` on the oldest, a middle and the newest release of Apache Kafka."""

from __future__ import annotations

import pytest

from tailrace import App, UnsupportedVersionError
from tailrace.protocol.transactions import TxnOffsetCommitRequest
from tests.support.compatibility.brokers import expected_refusals, running_broker
from tests.support.compatibility.capabilities import Cluster, assert_results, examine, expected_results


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("release", ["2.1", "3.9", "4.4"])
async def test_each_capability_works_or_is_refused(release):
    """A broker has each capability of its release; tailrace refuses the others with UnsupportedVersionError."""
    with running_broker(release) as address:
        outcomes = await examine(Cluster(address, address))

    assert_results(outcomes, expected_results(expected_refusals(release)))


@pytest.mark.slow
async def test_exactly_once_is_refused_at_start(group):
    """App.start raises an error with the next step if the brokers are older than Kafka 2.5."""
    with running_broker("2.4") as address:
        app = App(bootstrap_servers=address, group_id=group, delivery="exactly_once")
        topic = await Cluster(address, address).topic()

        @app.handler(topic)
        async def handle(value: bytes) -> None: ...

        with pytest.raises(UnsupportedVersionError) as caught:
            await app.start()

    newest = TxnOffsetCommitRequest.api.versions[-1]
    assert str(caught.value) == (
        "the broker does not support transactions (delivery='exactly_once'): TxnOffsetCommit: tailrace supports"
        f" versions 3 to {newest}, the broker supports 0 to 2; InitProducerId: required are versions 3 to 5, the broker"
        " supports 0 to 2 - set delivery='at_least_once', or upgrade the brokers to Apache Kafka 2.5 or newer"
    )
