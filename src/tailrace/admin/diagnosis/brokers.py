"""Facts about brokers and controllers, each asked within a bound, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import anyio

from tailrace.config import ConsumerConfig, split_address
from tailrace.core.diagnosis.brokers import BrokerFacts, ClockReading, ClusterFacts, VoterFacts
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import AuthenticationError, ConfigurationError, TailraceError, UnsupportedVersionError
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.net.cluster import Cluster
from tailrace.protocol.consumer_group import ConsumerGroupHeartbeatRequest
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

__all__ = ["ReachedCluster", "reach_bootstrap", "reach_brokers", "without_advice"]

_AT_ONCE = 32
"""Number of brokers asked at the same time."""
_CLOCK_READINGS = 3


@dataclass(frozen=True, slots=True)
class ReachedCluster:
    """Facts about the brokers, and the brokers that answer."""

    facts: ClusterFacts
    node_ids: frozenset[int]
    """Brokers that answered."""
    operations: int = OPERATIONS_NOT_REQUESTED
    """Authorized operations on the cluster."""


async def reach_bootstrap(config: ConsumerConfig, timeout_s: float) -> list[BrokerFacts]:
    """Connect to each address of ``bootstrap_servers``, at most ``timeout_s`` each, all at once."""
    nodes = [
        BrokerMetadata(-1 - number, *split_address(entry)) for number, entry in enumerate(config.bootstrap_servers)
    ]
    return await _reach_all([Broker.from_metadata(node, config) for node in nodes], timeout_s, closes=True)


async def reach_brokers(
    cluster: Cluster, bootstrap: Sequence[BrokerFacts], timeout_s: float, now_ms: Callable[[], float]
) -> ReachedCluster:
    """Connect to each broker of the metadata at its advertised address, and ask for controllers and clock.

    Args:
        cluster: a connected cluster.
        bootstrap: facts about the addresses of ``bootstrap_servers``.
        timeout_s: limit of each request, in seconds.
        now_ms: returns this host's time, in milliseconds since 1970.
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
    limit = anyio.CapacityLimiter(_AT_ONCE)

    async def reach(broker: Broker) -> None:
        async with limit:
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
        reason, hint = without_advice(error, broker.address)
        is_other = isinstance(error, AuthenticationError | UnsupportedVersionError | ConfigurationError)
        return replace(facts, failure=reason, hint=hint if is_other else "")
        versions = connection.broker_versions
    return replace(
        facts,
        round_trip_ms=(loop.time() - began) * 1000,
        supported=versions.supported,
        finalized=versions.finalized,
        has_consumer_protocol=ConsumerGroupHeartbeatRequest.api in versions,
    )


def without_advice(error: TailraceError, address: str = "") -> tuple[str, str]:
    """Split the message of an error into reason and advice; the reason does not repeat the address at its start."""
    reason, _, advice = str(error).partition(" - ")
    return (reason if not address else f"{address}: {reason.removeprefix(f'{address}: ')}"), advice


async def _describe_cluster(broker: Broker, timeout_s: float) -> DescribeClusterResponse | None:
    """Return the cluster's description; None if the broker does not support it, or refuses."""
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
    loop = asyncio.get_running_loop()
    best: ClockReading | None = None
    quorum: DescribedQuorum | None = None
    for _ in range(_CLOCK_READINGS):
        began, sent_ms = loop.time(), now_ms()
        try:
            answer = await broker.send(DescribeQuorumRequest((METADATA_LOG,)), timeout_s=timeout_s)
        except UnsupportedVersionError:
            return replace(facts, no_quorum="the brokers do not support DescribeQuorum (Kafka 3.3, without ZooKeeper)")
        except TailraceError as error:
            return replace(facts, no_quorum=without_advice(error)[0], is_quorum_silent=True)
        half_ms = (loop.time() - began) * 500
        quorum = next(iter(answer.partitions), None)
        code = answer.error_code or (0 if quorum is None else quorum.error_code)
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return replace(facts, no_quorum="not authorized to Describe the cluster")
        if code or quorum is None:
            return replace(facts, no_quorum=f"DescribeQuorum failed ({name_of(code)})", is_quorum_silent=True)
        theirs_ms = _leader_time_ms(quorum)
        if theirs_ms is not None and (best is None or half_ms < best.error_ms):
            # The controller's time has a resolution of a millisecond.
            best = ClockReading(quorum.leader_id, theirs_ms - (sent_ms + half_ms), half_ms + 1)
    return replace(facts, voters=_voters(quorum), clock=best, no_quorum="" if best else "the controller tells no time")


def _leader_time_ms(quorum: DescribedQuorum) -> int | None:
    """Return the time of the leader's response."""
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
