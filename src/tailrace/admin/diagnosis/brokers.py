"""Facts about brokers and controllers, requested from all brokers at once and with time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import anyio

from tailrace.admin.diagnosis.broker_findings import BrokerFacts, ClockReading, ClusterFacts, VoterFacts
from tailrace.config import ConsumerConfig, split_address
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import AuthenticationError, ConfigurationError, TailraceError, UnsupportedVersionError
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.net.cluster import Cluster
from tailrace.protocol.groups import ConsumerGroupHeartbeatRequest
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import (
    METADATA_LOG,
    OPERATIONS_NOT_REQUESTED,
    BrokerMetadata,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedQuorum,
    DescribeQuorumRequest,
    MetadataRequest,
)

__all__ = ["ReachedCluster", "reach_bootstrap", "reach_brokers", "reason_and_advice"]

_MAX_CONCURRENT = 32
"""Maximum number of brokers to which connections are opened at the same time."""
_CLOCK_READINGS = 3
"""Number of times that the controller's clock is read; the most precise reading is used."""


@dataclass(frozen=True, slots=True)
class ReachedCluster:
    """Facts about the brokers and controllers."""

    facts: ClusterFacts
    node_ids: frozenset[int]
    """Node ids of the brokers that answered."""
    operations: int = OPERATIONS_NOT_REQUESTED
    """Authorized operations on the cluster, as a bit field."""


async def reach_bootstrap(config: ConsumerConfig, timeout_s: float) -> list[BrokerFacts]:
    """Connect to all addresses of ``bootstrap_servers``, each within ``timeout_s``, and return the results."""
    nodes = [
        BrokerMetadata(-1 - number, *split_address(entry)) for number, entry in enumerate(config.bootstrap_servers)
    ]
    return await _reach_all([Broker.from_metadata(node, config) for node in nodes], timeout_s, closes=True)


async def reach_brokers(
    cluster: Cluster, bootstrap: Sequence[BrokerFacts], timeout_s: float, now_ms: Callable[[], float]
) -> ReachedCluster:
    """Connect to each broker at its advertised address, and request facts about the controllers and their clock.

    Args:
        cluster: a connected cluster.
        bootstrap: facts about the addresses of ``bootstrap_servers``, to include in the result.
        timeout_s: maximum time of each request, in seconds.
        now_ms: function that returns this host's time, in milliseconds since 1970.
    """
    nodes = sorted(cluster.topology.brokers)
    brokers = await _reach_all([cluster.broker(node_id) for node_id in nodes], timeout_s)
    reached = sorted((one for one in brokers if not one.failure), key=lambda one: one.round_trip_ms)
    facts = ClusterFacts(bootstrap, brokers)
    operations = OPERATIONS_NOT_REQUESTED
    if reached:
        nearest = cluster.broker(reached[0].node_id)
        described = await _describe_cluster(nearest, timeout_s)
        if described is not None:
            operations = described.authorized_operations
            fenced = [BrokerFacts(one.broker_id, one.host, one.port) for one in described.brokers if one.is_fenced]
            facts = replace(facts, fenced=[one for one in fenced if one.node_id not in nodes])
        facts = await _with_quorum(facts, nearest, timeout_s, now_ms)
    return ReachedCluster(facts, frozenset(one.node_id for one in reached), operations)


async def _reach_all(brokers: Sequence[Broker], timeout_s: float, *, closes: bool = False) -> list[BrokerFacts]:
    found: dict[int, BrokerFacts] = {}
    limiter = anyio.CapacityLimiter(_MAX_CONCURRENT)

    async def reach(broker: Broker) -> None:
        async with limiter:
            try:
                found[broker.id] = await _reach(broker, timeout_s)
            finally:
                if closes:
                    broker.close()

    async with anyio.create_task_group() as tasks:
        for broker in brokers:
            tasks.start_soon(reach, broker)
    return [found[broker.id] for broker in brokers]


async def _reach(broker: Broker, timeout_s: float) -> BrokerFacts:
    facts, loop = BrokerFacts(broker.id, broker.host, broker.port), asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            await broker.connect()
            connection = await broker.connection_for(ChannelKey(Channel.MAIN))
            began = loop.time()
            await connection.send(MetadataRequest(()), timeout_s)
    except TimeoutError:
        return replace(facts, failure=f"no answer within {timeout_s:.0f} s")
    except TailraceError as error:
        reason, advice = reason_and_advice(error, broker.address)
        # Advice about connections is left out, because the findings contain advice of their own.
        is_other = isinstance(error, AuthenticationError | UnsupportedVersionError | ConfigurationError)
        return replace(facts, failure=reason, hint=advice if is_other else "")
    versions = connection.broker_versions
    return replace(
        facts,
        round_trip_ms=(loop.time() - began) * 1000,
        supported=versions.supported,
        finalized=versions.finalized,
        has_consumer_protocol=ConsumerGroupHeartbeatRequest.api in versions,
    )


def reason_and_advice(error: TailraceError, address: str = "") -> tuple[str, str]:
    """Split the message of an error into the reason and the advice after " - ".

    With ``address``, the reason begins with the address, which is not repeated if it is there already.
    """
    reason, _, advice = str(error).partition(" - ")
    return (reason if not address else f"{address}: {reason.removeprefix(f'{address}: ')}"), advice


async def _describe_cluster(broker: Broker, timeout_s: float) -> DescribeClusterResponse | None:
    """Return the description of the cluster; None if the broker does not support the request, or refuses it."""
    request: Request[DescribeClusterResponse] = DescribeClusterRequest(
        include_cluster_authorized_operations=True, include_fenced_brokers=True
    )
    try:
        answer = await broker.send(request, timeout_s=timeout_s)
    except TailraceError:
        return None
    return None if answer.error_code else answer


async def _with_quorum(
    facts: ClusterFacts, broker: Broker, timeout_s: float, now_ms: Callable[[], float]
) -> ClusterFacts:
    """Return ``facts`` with the controllers and the clock of their leader, or with the reason why they are unknown."""
    loop = asyncio.get_running_loop()
    most_precise: ClockReading | None = None
    quorum: DescribedQuorum | None = None
    for _ in range(_CLOCK_READINGS):
        began, sent_ms = loop.time(), now_ms()
        try:
            answer = await broker.send(DescribeQuorumRequest((METADATA_LOG,)), timeout_s=timeout_s)
        except UnsupportedVersionError:
            return replace(facts, no_quorum="the brokers do not support DescribeQuorum (Kafka 3.3, without ZooKeeper)")
        except TailraceError as error:
            return replace(facts, no_quorum=reason_and_advice(error)[0], is_quorum_silent=True)
        half_ms = (loop.time() - began) * 500
        quorum = next(iter(answer.partitions), None)
        code = answer.error_code or (0 if quorum is None else quorum.error_code)
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return replace(facts, no_quorum="not authorized to Describe the cluster")
        if code or quorum is None:
            return replace(facts, no_quorum=f"DescribeQuorum failed ({name_of(code)})", is_quorum_silent=True)
        leader_ms = _leader_time_ms(quorum)
        if leader_ms is not None and (most_precise is None or half_ms < most_precise.error_ms):
            # The controller returns its time in whole milliseconds, which adds one millisecond to the error.
            most_precise = ClockReading(quorum.leader_id, leader_ms - (sent_ms + half_ms), half_ms + 1)
    no_quorum = "" if most_precise else "the controller does not return its time"
    return replace(facts, voters=_voters(quorum), clock=most_precise, no_quorum=no_quorum)


def _leader_time_ms(quorum: DescribedQuorum) -> int | None:
    """Return the leader's time at its response, in milliseconds since 1970; None if the response has no times."""
    leaders: Iterable[int] = (
        one.last_fetch_timestamp
        for one in quorum.voters
        if one.replica_id == quorum.leader_id and one.last_fetch_timestamp >= 0
    )
    return next(iter(leaders), None)


def _voters(quorum: DescribedQuorum | None) -> list[VoterFacts]:
    if quorum is None or (now_ms := _leader_time_ms(quorum)) is None:
        return []
    return [
        VoterFacts(one.replica_id, now_ms - one.last_caught_up_timestamp if one.last_caught_up_timestamp >= 0 else None)
        for one in quorum.voters
    ]
