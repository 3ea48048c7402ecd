"""Bootstrap, metadata, coordinators and retries of a cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import sys
import time

import pytest
from msgspec.structs import replace

from tailrace.config import split_address
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    BrokerConnectionError,
    BrokerError,
    ConfigurationError,
    MalformedMessageError,
    NodeNotConnectedError,
    RequestTimedOutError,
    TailraceError,
    UnknownTopicError,
    broker_error,
)
from tailrace.net.broker import Channel
from tailrace.net.cluster import Cluster
from tailrace.observe.events import (
    ClusterRebootstrapped,
    ConnectionOpened,
    CoordinatorFound,
    CoordinatorLost,
    MetadataRefreshFailed,
)
from tailrace.protocol.metadata import BrokerMetadata, DescribeClusterRequest, FindCoordinatorRequest, MetadataRequest
from tailrace.records import TopicPartition
from tests.support.event_recorder import EventRecorder
from tests.support.net.open_connections import cluster_at
from tests.support.net.open_sockets import Sockets
from tests.support.net.peers import Peer, black_hole, closed_port, hangs_up, opens_then, sends

# ---- finding the cluster -------------------------------------------------------------------------------------------

PATIENT = {"socket_connection_setup_timeout_ms": 60_000, "request_timeout_ms": 90_000}
"""Timeouts far above the time that the reachable addresses need."""


async def found_by(cluster: Cluster) -> float:
    """Bootstrap, and return the time that it took in seconds."""
    began = time.monotonic()
    await cluster.bootstrap()
    assert list(cluster.topology.brokers) == [1]
    assert cluster.topology.cluster_id
    return time.monotonic() - began


async def test_one_reachable_address_of_the_list_is_enough(address):
    """Bootstrapping succeeds with one reachable address at any place in the list."""
    with closed_port() as dead:
        async with cluster_at(f"{dead},{address},{dead}", **PATIENT) as cluster:
            assert await found_by(cluster) < 20


@pytest.mark.skipif(sys.platform != "linux", reason="a full queue of connections drops packets on Linux only")
async def test_an_unreachable_address_delays_the_next_by_a_quarter_of_a_second(address):
    """An unreachable address delays the next one by a quarter of a second, not by its connection timeout."""
    with black_hole() as swallows:
        async with cluster_at(f"{swallows},{address}", **PATIENT) as cluster:
            assert await found_by(cluster) < 20


@pytest.mark.parametrize(
    ("behave", "attempts"),
    [(opens_then(lambda *_: None), 1), (hangs_up, 2), (sends(b"HTTP/1.1 400 Bad Request\r\n"), 1)],
)
async def test_an_address_that_returns_no_metadata_does_not_count(address, behave, attempts):
    """Bootstrapping skips an address that accepts connections and does not return metadata."""
    async with Peer(behave) as peer, cluster_at(f"{peer.address},{address}", **PATIENT) as cluster:
        assert await found_by(cluster) < 20
        assert peer.accepted == attempts


async def test_the_error_lists_each_address_with_its_reason():
    """If no address answers, the error lists each address with its reason."""
    with closed_port() as dead:
        async with (
            Peer(sends(b"HTTP/1.1 400 Bad Request\r\n")) as peer,
            cluster_at(f"{dead},{peer.address},kafka..example:1") as cluster,
        ):
            with pytest.raises(BrokerConnectionError) as caught:
                await cluster.bootstrap()

    text = str(caught.value)
    assert f"{dead}: connection refused" in text
    assert f"{peer.address}: a web server answered" in text
    assert "kafka..example:1: the host name is invalid" in text


async def test_missing_bootstrap_servers_raise():
    """Without bootstrap_servers, the error says how to set the option."""
    async with cluster_at("") as cluster:
        with pytest.raises(ConfigurationError, match=r"bootstrap_servers is missing - pass it.* TAILRACE_BOOTSTRAP"):
            await cluster.bootstrap()


async def test_bootstrapping_leaves_no_connection(kafka, direct):
    """The bootstrap connection is closed, and brokers are connected on first use."""
    async with cluster_at(direct) as cluster:
        sockets = Sockets(kafka.node.ports.client)
        await cluster.bootstrap()
        await asyncio.sleep(0)

        assert sockets.now() == set()


# ---- metadata ------------------------------------------------------------------------------------------------------


def asked(kafka, kind, name):
    return kafka.proxy.requests(kind, client_id=name)


async def test_concurrent_refreshes_share_one_request(kafka, address, name):
    """Twenty concurrent refreshes send one request."""
    async with cluster_at(address, client_id=name) as cluster:
        await cluster.bootstrap()
        await asyncio.gather(*(cluster.refresh() for _ in range(20)))

    assert len(asked(kafka, MetadataRequest, name)) == 1 + 1


async def test_refreshes_are_spaced(kafka, address, name):
    """Refreshes are at least ``retry_backoff_ms`` apart."""
    async with cluster_at(address, client_id=name, retry_backoff_ms=150) as cluster:
        await cluster.bootstrap()
        for _ in range(3):
            await cluster.refresh()

    times = [frame.at for frame in asked(kafka, MetadataRequest, name)]
    assert len(times) == 4
    assert [later - earlier >= 0.14 for earlier, later in itertools.pairwise(times)] == [True] * 3


async def test_concurrent_refreshes_share_a_failure():
    """If no broker answers, concurrent refreshes try each address once, and all raise the reason."""
    async with Peer(sends(b"HTTP/1.1 400 Bad Request\r\n")) as peer, cluster_at(peer.address) as cluster:
        errors = await asyncio.gather(*(cluster.refresh() for _ in range(20)), return_exceptions=True)

        assert peer.accepted == 1
    assert {BrokerConnectionError} == {type(error) for error in errors}
    assert len(set(map(id, errors))) == 20  # no traceback continues in another caller's error
    assert {str(error).split(":")[0] for error in errors} == {"no broker answers"}


async def test_a_canceled_refresh_does_not_cancel_others(kafka, address, name):
    """If the caller that sends the request is canceled, concurrent callers still get metadata."""
    async with cluster_at(address, client_id=name) as cluster:
        await cluster.bootstrap()
        with kafka.proxy.hold_answer(MetadataRequest) as held:
            first, second = (asyncio.create_task(cluster.refresh()) for _ in range(2))
            await held.wait_applied()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            held.release()
            await asyncio.wait_for(second, 20)

    assert len(asked(kafka, MetadataRequest, name)) == 1 + 2


async def test_a_refresh_covers_topics_watched_meanwhile(kafka, address, name):
    """A caller that watches another topic during a refresh gets metadata of that topic."""
    topic = f"{name}-later"
    kafka.create_topic(topic, 3)
    async with cluster_at(address, client_id=name, retry_backoff_ms=1) as cluster:
        await cluster.bootstrap()
        with kafka.proxy.hold_answer(MetadataRequest) as held:
            earlier = asyncio.create_task(cluster.refresh())
            await held.wait_applied()
            cluster.watch("the leader", [topic])
            later = [asyncio.create_task(cluster.refresh()) for _ in range(3)]
            await asyncio.sleep(0)
            held.release()
            await asyncio.gather(earlier, *later)

        assert cluster.topology.partition_counts([topic]) == {topic: 3}
    assert len(asked(kafka, MetadataRequest, name)) == 1 + 2


async def test_only_watched_topics_are_requested(kafka, address, name):
    """A refresh requests the topics that any caller watches, or all topics if one caller watches all."""
    async with cluster_at(address, client_id=name, retry_backoff_ms=1) as cluster:
        await cluster.bootstrap()
        cluster.watch("a", ["one", "two"])
        cluster.watch("b", ["two", "three"])
        await cluster.refresh()
        cluster.watch("c", None)
        await cluster.refresh()
        cluster.unwatch("c")
        cluster.unwatch("a")
        cluster.unwatch("nobody")
        await cluster.refresh()

    questions = [frame.message.topics for frame in asked(kafka, MetadataRequest, name)]
    names = [None if topics is None else [topic.name for topic in topics] for topics in questions]
    assert names == [[], ["one", "three", "two"], None, ["three", "two"]]


async def test_leaders_and_errors_are_known(address, new_topic):
    """A refresh returns the partitions and leaders of each watched topic, or its error."""
    topic = new_topic(2)
    missing = f"{topic}-missing"
    async with cluster_at(address) as cluster:
        cluster.watch("me", [topic, missing])
        await cluster.bootstrap()

        assert cluster.topology.partition_counts([topic, missing]) == {topic: 2}
        assert cluster.topology.leader(TopicPartition(topic, 1)).leader_id == 1
        assert cluster.topology.errors == {missing: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert cluster.age_s < 30
        assert repr(cluster).startswith(f"<Cluster {cluster.topology.cluster_id} [<Broker 1 ")


async def test_a_newer_leader_in_a_response_is_applied(address, new_topic):
    """A newer leader in a response (KIP-951) is applied, and one with an older epoch is ignored."""
    partition = TopicPartition(new_topic(), 0)
    async with cluster_at(address) as cluster:
        cluster.watch("me", [partition.topic])
        await cluster.bootstrap()
        before = cluster.topology.leader(partition)
        cluster.learn_leader(partition, 1, before.epoch - 1)
        assert cluster.topology.leader(partition) is before
        cluster.learn_leader(partition, 1, before.epoch + 3)
        assert cluster.topology.leader(partition).epoch == before.epoch + 3


async def test_the_error_for_an_unknown_node_id_lists_the_known_ones(address):
    """The error for an unknown node id lists the known ones."""
    async with cluster_at(address) as cluster:
        await cluster.bootstrap()
        with pytest.raises(NodeNotConnectedError, match=r"broker 9 is not in the cluster \(now: \[1\]\)"):
            cluster.broker(9)


# ---- lost brokers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [lambda answer: replace(answer, brokers=()), lambda answer: replace(answer, error_code=129)],
    ids=["no brokers", "rebootstrap required"],
)
async def test_metadata_without_brokers_is_ignored(kafka, address, new_topic, change):
    """Metadata without brokers, or with the error REBOOTSTRAP_REQUIRED (KIP-1102), do not replace the known ones.

    The cluster is bootstrapped again.
    """
    topic, events = new_topic(), EventRecorder()
    async with cluster_at(address, events=events) as cluster:
        cluster.watch("me", [topic])
        await cluster.bootstrap()
        with kafka.proxy.edit_answer(MetadataRequest, change):
            await cluster.refresh()

        assert list(cluster.topology.brokers) == [1]
        assert cluster.topology.partition_counts([topic]) == {topic: 1}
    assert len(events.of(MetadataRefreshFailed)) == len(events.of(ClusterRebootstrapped)) == 1


async def test_a_broker_with_a_new_address_is_replaced(kafka, address, direct):
    """A broker with a new address is replaced, and its connections to the old one are closed."""
    moved = BrokerMetadata(1, "127.0.0.1", kafka.node.ports.client)
    async with cluster_at(address) as cluster:
        await cluster.bootstrap()
        await cluster.refresh()
        old = cluster.broker(1)
        assert old.is_connected()
        with kafka.proxy.edit_answer(MetadataRequest, lambda answer: replace(answer, brokers=(moved,))):
            await cluster.refresh()

        assert cluster.broker(1).address == direct
        assert not old.is_connected()
        assert await cluster.broker(1).send(MetadataRequest(()))


async def test_the_cluster_is_bootstrapped_again_when_all_brokers_are_gone(own_kafka, direct, name):
    """If no known broker answers, the next refresh bootstraps again (KIP-899).

    The former brokers and coordinators are removed.
    """
    events = EventRecorder()
    async with cluster_at(f"{own_kafka.bootstrap_servers},{direct}", events=events) as cluster:
        await cluster.bootstrap()
        # The other broker stands for another one of the same cluster.
        cluster.topology = dataclasses.replace(cluster.topology, cluster_id=None)
        old = await cluster.retrying(lambda: cluster.coordinator(name), timeout_s=60, what="the coordinator")
        await asyncio.to_thread(own_kafka.stop)
        await cluster.refresh()

        assert cluster.topology.cluster_id is not None
        new = await cluster.retrying(lambda: cluster.coordinator(name), timeout_s=60, what="the coordinator")
        assert new.port != old.port
        assert await new.send(MetadataRequest(()))
    (failed,) = events.of(MetadataRefreshFailed)
    assert own_kafka.bootstrap_servers in failed.reason
    assert len(events.of(ClusterRebootstrapped)) == 1


# ---- coordinators --------------------------------------------------------------------------------------------------


async def test_concurrent_coordinator_lookups_share_one_request(kafka, address, name):
    """Concurrent lookups of a coordinator send one request, and one more after it was removed."""
    events = EventRecorder()
    async with cluster_at(address, client_id=name, events=events) as cluster:
        await cluster.bootstrap()
        await cluster.retrying(lambda: cluster.coordinator(f"{name}-first"), timeout_s=60, what="any coordinator")
        before = len(asked(kafka, FindCoordinatorRequest, name))
        found = await asyncio.gather(*(cluster.coordinator(name) for _ in range(10)))
        assert len(asked(kafka, FindCoordinatorRequest, name)) == before + 1
        assert {broker.id for broker in found} == {cluster.coordinator_id(name)}
        cluster.forget_coordinator(name, "a test")
        cluster.forget_coordinator(name, "a test")
        assert cluster.coordinator_id(name) is None
        await cluster.coordinator(name)
        assert len(asked(kafka, FindCoordinatorRequest, name)) == before + 2

    assert [event.group_id for event in events.of(CoordinatorFound)] == [f"{name}-first", name, name]
    assert [(event.group_id, event.reason) for event in events.of(CoordinatorLost)] == [(name, "a test")]


async def test_a_coordinator_lookup_bootstraps_again(kafka, address, name):
    """If no known broker answers, a coordinator lookup bootstraps again (KIP-899)."""
    with closed_port() as dead:
        gone = BrokerMetadata(1, *split_address(dead))
        async with cluster_at(address) as cluster:
            with kafka.proxy.edit_answer(MetadataRequest, lambda answer: replace(answer, brokers=(gone,))):
                await cluster.bootstrap()
            found = await cluster.retrying(lambda: cluster.coordinator(name), timeout_s=60, what="the coordinator")

    assert found.address == address


def before_the_move(dead):
    """Return an edit function after which broker 1 has its former address, ``dead``, and broker 2 has that of 1."""

    def change(answer):
        (node,) = answer.brokers
        host, port = split_address(dead)
        return replace(answer, brokers=(replace(node, host=host, port=port), replace(node, node_id=2)))

    return change


async def test_a_coordinator_is_used_at_the_address_of_its_lookup(kafka, address, name):
    """A coordinator that has come back under another address is reached before the metadata has that address."""

    def both(answer):
        # The one broker stands for two at its address.
        (node,) = answer.brokers
        return replace(answer, brokers=(node, replace(node, broker_id=2)))

    with (
        closed_port() as dead,
        kafka.proxy.edit_answer(MetadataRequest, before_the_move(dead), times=None),
        kafka.proxy.edit_answer(DescribeClusterRequest, both, times=None),
    ):
        async with cluster_at(address) as cluster:
            await cluster.bootstrap()
            assert cluster.broker(1).address == dead
            found = await cluster.retrying(lambda: cluster.coordinator(name), timeout_s=60, what="the coordinator")

            assert (found.id, found.address) == (1, address)
            assert await found.send(MetadataRequest(()))


async def test_an_operation_is_retried_at_the_new_address_of_a_broker(kafka, address):
    """If a broker cannot be reached, the metadata is refreshed before the next attempt."""
    with closed_port() as dead:
        async with cluster_at(address) as cluster:
            with kafka.proxy.edit_answer(MetadataRequest, before_the_move(dead)):
                await cluster.bootstrap()

            assert await cluster.retrying(
                lambda: cluster.broker(1).send(MetadataRequest(())), timeout_s=30, what="sending a request"
            )


async def test_a_failed_coordinator_lookup_stores_no_coordinator(kafka, address, name):
    """A failed coordinator lookup raises the broker's error and stores no coordinator."""

    def refused(answer):
        return replace(answer, node_id=-1, host="", port=-1, error_code=30)

    async with cluster_at(address) as cluster:
        await cluster.bootstrap()
        message = r"GROUP_AUTHORIZATION_FAILED, code 30\) - grant READ on the group"
        with kafka.proxy.edit_answer(FindCoordinatorRequest, refused), pytest.raises(BrokerError, match=message):
            await cluster.coordinator(name)
        assert cluster.coordinator_id(name) is None
        assert await cluster.retrying(lambda: cluster.coordinator(name), timeout_s=60, what="the coordinator")


async def test_a_coordinator_that_left_the_cluster_is_looked_up_again(kafka, address, name):
    """A coordinator missing from newer metadata is looked up again on its next use."""

    def another(answer):
        return replace(answer, node_id=7, error_code=0)

    async with cluster_at(address) as cluster:
        await cluster.bootstrap()
        await cluster.retrying(lambda: cluster.coordinator(f"{name}-first"), timeout_s=60, what="any coordinator")
        with kafka.proxy.edit_answer(FindCoordinatorRequest, another):
            assert (await cluster.coordinator(name)).id == 7
        assert (await cluster.coordinator(name)).id == 7
        await cluster.refresh()  # its metadata has no broker 7

        assert (await cluster.coordinator(name)).id == 1


# ---- retries -------------------------------------------------------------------------------------------------------


class Attempts:
    """Function that raises the given errors one after another, and then succeeds."""

    def __init__(self, *failures: Exception | None) -> None:
        self._failures = list(failures)
        self.count = 0

    async def __call__(self) -> str:
        self.count += 1
        if not self._failures:
            return "done"
        failure = self._failures.pop(0)
        if failure is None:
            await asyncio.Event().wait()
        raise failure


async def test_transient_errors_are_retried():
    """Lost connections, malformed responses and retriable codes are retried with increasing pauses."""
    attempt = Attempts(BrokerConnectionError("x"), broker_error(ErrorCode.NOT_COORDINATOR), MalformedMessageError("y"))
    async with cluster_at("localhost", retry_backoff_ms=20) as cluster:
        began = time.monotonic()
        assert await cluster.retrying(attempt, timeout_s=10, what="a test") == "done"

    assert attempt.count == 4
    assert time.monotonic() - began > 0.8 * (0.02 + 0.04 + 0.08)


@pytest.mark.parametrize(
    "failure", [broker_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED), ConfigurationError("x"), ValueError("x")]
)
async def test_permanent_errors_are_not_retried(failure):
    """Permanent errors are raised immediately and unchanged."""
    attempt = Attempts(failure)
    async with cluster_at("localhost") as cluster:
        with pytest.raises(type(failure)) as caught:
            await cluster.retrying(attempt, timeout_s=10, what="a test")

    assert caught.value is failure
    assert attempt.count == 1


@pytest.mark.parametrize(
    ("failures", "kind", "message"),
    [
        ([BrokerConnectionError("gone")] * 99, BrokerConnectionError, "a test: tried for 0.3 s; last error: gone"),
        (
            [broker_error(3)] * 99,
            UnknownTopicError,
            "a test: tried for 0.3 s; last error: the broker refused the request (UNKNOWN_TOPIC_OR_PARTITION, code 3)",
        ),
        ([None], RequestTimedOutError, "a test: not finished within 0.3 s"),
        (
            [broker_error(3), None],
            UnknownTopicError,
            "a test: tried for 0.3 s; last error: the broker refused the request (UNKNOWN_TOPIC_OR_PARTITION, code 3)",
        ),
        ([BrokerConnectionError("gone"), None], BrokerConnectionError, "a test: tried for 0.3 s; last error: gone"),
        ([MalformedMessageError("torn")] * 99, MalformedMessageError, "a test: tried for 0.3 s; last error: torn"),
    ],
    ids=["connection", "code", "hangs", "code-then-hangs", "connection-then-hangs", "torn"],
)
async def test_retries_end_at_the_deadline(failures, kind, message):
    """At the deadline the last error is raised in its class, with the operation and the duration."""
    async with cluster_at("localhost") as cluster:
        began = time.monotonic()
        with pytest.raises(TailraceError) as caught:
            await cluster.retrying(Attempts(*failures), timeout_s=0.3, what="a test")

    assert time.monotonic() - began < 15
    assert type(caught.value) is kind
    assert message in str(caught.value)
    assert caught.value.__cause__ is not None


# ---- close ---------------------------------------------------------------------------------------------------------


async def test_close_closes_every_connection(kafka, address, name):
    """After ``close`` no socket is open, and each call fails immediately."""
    events = EventRecorder()
    async with cluster_at(address, events=events, client_id=name) as cluster:
        sockets = Sockets(kafka.proxy.port)
        await cluster.bootstrap()
        await cluster.refresh()
        coordinator = await cluster.retrying(lambda: cluster.coordinator(name), timeout_s=60, what="the coordinator")
        await coordinator.connect(Channel.OFFSETS)
        assert len(sockets.now()) == 2
        cluster.close()
        await asyncio.sleep(0)
        assert sockets.now() == set()
        opened = len(events.of(ConnectionOpened))
        for call in (cluster.refresh, cluster.bootstrap, lambda: cluster.coordinator(name)):
            with pytest.raises(BrokerConnectionError):
                await call()
        with pytest.raises(NodeNotConnectedError):
            await coordinator.send(MetadataRequest(()))

        assert len(events.of(ConnectionOpened)) == opened


# ---- three brokers -------------------------------------------------------------------------------------------------


def asked_of(proxy, name):
    return proxy.requests(MetadataRequest, client_id=name)


@pytest.mark.slow
async def test_metadata_with_an_older_leader_epoch_is_ignored(kafka_cluster, name):
    """After a failover, a broker with stale metadata does not restore the old leader (KIP-320)."""
    brokers = kafka_cluster(3, proxied=True)
    brokers.create_topic(name, 1, replication_factor=3)
    partition = TopicPartition(name, 0)
    async with cluster_at(brokers.bootstrap_servers, client_id=name, retry_backoff_ms=50) as cluster:
        cluster.watch("me", [name])
        await cluster.bootstrap()
        assert sorted(cluster.topology.brokers) == [1, 2, 3]
        bootstrapped = sum(len(asked_of(proxy, name)) for proxy in brokers.proxies.values())
        for _ in range(5):
            await cluster.refresh()
        # Requests go to connected brokers first, so one connection is enough.
        counts = [len(asked_of(proxy, name)) for proxy in brokers.proxies.values()]
        assert max(counts) >= 5
        assert sum(counts) == bootstrapped + 5
        before = cluster.topology.leader(partition)
        past = [f.message for proxy in brokers.proxies.values() for f in proxy.answers(MetadataRequest, client_id=name)]

        await asyncio.to_thread(brokers.leader_of(name).kill)
        async with asyncio.timeout(30):
            while cluster.topology.leader(partition).leader_id in {-1, before.leader_id}:
                await cluster.refresh()
        after = cluster.topology.leader(partition)
        assert after.epoch > before.epoch
        lagging = [p.edit_answer(MetadataRequest, lambda _: past[-1], times=None) for p in brokers.proxies.values()]
        await cluster.refresh()

        assert sum(fault.count for fault in lagging) >= 1
        assert cluster.topology.leader(partition) == after
