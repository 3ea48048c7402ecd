"""Options of the consumer protocol: patterns and assignors of the broker; classic options are refused."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from tailrace import ConfigurationError, Consumer, UnsupportedVersionError
from tailrace.protocol.handshake import ApiVersionsRequest
from tailrace.testing import KafkaServer
from tests.support.consumer_group import until


@pytest.mark.slow
async def test_a_topic_created_later_matches_a_pattern(quick, group):
    """A topic created later is read if it matches the pattern, which the broker resolves."""
    first, second = f"{group}-first", f"{group}-second"
    quick.server.create_topic(first)
    quick.server.create_topic(f"{group}-other")
    quick.produce(first, [b"1"])

    async with quick.consumer(pattern=rf"{group}-(first|\pL+nd)", group_id=group, client_id=group) as consumer:
        got = [await consumer.getone(timeout_ms=30_000)]
        quick.server.create_topic(second)
        quick.produce(second, [b"2"])
        got.append(await consumer.getone(timeout_ms=30_000))
        assert consumer.subscription() == {first, second}
        assert {one.topic for one in consumer.assignment()} == {first, second}

    join = quick.heartbeats(group)[0]
    assert [record.value for record in got] == [b"1", b"2"]
    assert join.subscribed_topic_regex == rf"{group}-(first|\pL+nd)"
    assert join.subscribed_topic_names == ()


async def test_a_compiled_pattern_keeps_its_flags(quick, group):
    """A compiled pattern with re.IGNORECASE matches topics regardless of case."""
    quick.server.create_topic(f"{group}-MIXED")
    quick.produce(f"{group}-MIXED", [b"1"])
    pattern = re.compile(f"{group}-mixed", re.IGNORECASE)

    async with quick.consumer(pattern=pattern, group_id=group) as consumer:
        assert (await consumer.getone(timeout_ms=30_000)).value == b"1"


@pytest.mark.parametrize("pattern", ["orders(", "(?=orders)orders", "(a)\\1"])
async def test_a_pattern_that_the_broker_refuses_raises(quick, group, pattern):
    """A pattern that RE2 does not support raises ConfigurationError at the next poll."""
    async with quick.consumer(pattern=pattern, group_id=group) as consumer:
        with pytest.raises(ConfigurationError, match="pattern"):
            await consumer.getone(timeout_ms=30_000)


@pytest.mark.parametrize("assignor", ["range", "uniform"])
async def test_group_remote_assignor_selects_the_brokers_assignor(quick, group, assignor):
    """group_remote_assignor selects the assignor of the broker."""
    topics = [quick.topic(3), quick.topic(3)]
    options = {"group_id": group, "group_remote_assignor": assignor, "client_id": group}

    async with quick.consumer(*topics, **options) as one, quick.consumer(*topics, **options) as other:
        await until(
            lambda: len(one.assignment()) + len(other.assignment()) == 6 and one.assignment() and other.assignment()
        )
        shares = sorted((len(one.assignment()), len(other.assignment())))
        described = quick.admin.describe_consumer_groups([group])[group].result(20)

    assert described.partition_assignor == assignor
    assert described.type.name == "CONSUMER"
    assert quick.heartbeats(group)[0].server_assignor == assignor
    assert shares == {"range": [2, 4], "uniform": [3, 3]}[assignor]


async def test_an_assignor_that_the_broker_lacks_raises(quick, group):
    """An assignor that the broker does not have raises ConfigurationError at the next poll."""
    async with quick.consumer(quick.topic(), group_id=group, group_remote_assignor="magic") as consumer:
        with pytest.raises(ConfigurationError, match="group_remote_assignor"):
            await consumer.getone(timeout_ms=30_000)


@pytest.mark.parametrize(
    "option",
    [{"session_timeout_ms": 10_000}, {"heartbeat_interval_ms": 1_000}, {"partition_assignment_strategy": "range"}],
)
def test_options_of_the_classic_protocol_raise(option):
    """Options of the classic protocol raise in the constructor of a consumer with group_protocol="consumer"."""
    with pytest.raises(ConfigurationError, match=f"{next(iter(option))}.*group_protocol='consumer'"):
        Consumer("orders", group_id="billing", group_protocol="consumer", **option)


def test_group_remote_assignor_needs_the_consumer_protocol():
    """With the classic protocol, group_remote_assignor raises in the constructor."""
    with pytest.raises(ConfigurationError, match="partition_assignment_strategy"):
        Consumer("orders", group_id="billing", group_remote_assignor="range")


async def test_a_broker_with_the_protocol_switched_off_raises(group):
    """If the broker has the consumer protocol switched off, the next poll raises and suggests the classic one."""
    with KafkaServer(config={"group.coordinator.rebalance.protocols": "classic"}) as server:
        server.create_topic(group)
        options = {"bootstrap_servers": server.bootstrap_servers, "group_id": group, "group_protocol": "consumer"}
        async with Consumer(group, **options) as consumer:
            with pytest.raises(UnsupportedVersionError, match="group_protocol='classic'"):
                await consumer.getone(timeout_ms=30_000)


async def test_a_broker_without_the_protocol_raises(quick, group):
    """If the broker is older than the consumer protocol, the start raises and suggests the classic one."""
    topic = quick.topic()

    def older(answer):
        return replace(answer, api_keys=tuple(one for one in answer.api_keys if one.api_key != 68))

    consumer = quick.consumer(topic, group_id=group, client_id=group)
    with (
        quick.proxy.edit_answer(ApiVersionsRequest, older, times=None),
        pytest.raises(UnsupportedVersionError, match=r"\(KIP-848\).* - set group_protocol='classic'"),
    ):
        await consumer.start()

    assert not quick.heartbeats(group)


def test_a_verbose_pattern_raises():
    """A pattern compiled with re.VERBOSE, which brokers do not support, raises in the constructor."""
    with pytest.raises(ConfigurationError, match=r"pattern=.*re\.VERBOSE"):
        Consumer(pattern=re.compile("a b", re.VERBOSE), group_id="billing", group_protocol="consumer")
