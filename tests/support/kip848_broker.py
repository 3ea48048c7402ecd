"""Broker behind a fault proxy with short heartbeat intervals, and the recorded requests of KIP-848."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tailrace import Consumer
from tailrace.config import resolve
from tailrace.net.cluster import Cluster
from tailrace.protocol.admin import ConfigAlteration, ConfigsToAlter, IncrementalAlterConfigsRequest
from tailrace.protocol.groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, OffsetCommitRequest
from tailrace.testing import FaultProxy
from tests.support.consumer_group import ConsumerGroup
from tests.support.proxied_broker import ProxiedBroker

__all__ = ["QUICK", "Kip848Broker", "has_no_changes", "is_full"]

QUICK: Mapping[str, object] = {
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.session.timeout.ms": 500,
    "group.consumer.session.timeout.ms": 30_000,
    "log.cleaner.backoff.ms": 200,
    # The next assignment of the group is not delayed.
    "group.consumer.assignment.interval.ms": 0,
}

_GROUP_RESOURCE = 32


class Kip848Broker(ProxiedBroker):
    """Creates consumers of the consumer protocol and returns their recorded requests and responses."""

    @property
    def direct(self) -> str:
        """Address of the broker, past the proxy."""
        return f"127.0.0.1:{self.server.node.ports.internal}"

    def consumer(self, *topics: str, **options: object) -> Consumer:
        return super().consumer(*topics, **{"group_protocol": "consumer", **options})

    def heartbeats(self, client_id: str) -> list[ConsumerGroupHeartbeatRequest]:
        """Return the heartbeats of a client, in order."""
        return heartbeats(self.proxy, client_id)

    def responses(self, client_id: str) -> list[ConsumerGroupHeartbeatResponse]:
        """Return the responses to heartbeats of a client."""
        return [f.message for f in self.proxy.answers(ConsumerGroupHeartbeatRequest, client_id=client_id)]

    def commits(self, client_id: str) -> list[OffsetCommitRequest]:
        """Return the commits of a client, in order."""
        return [frame.message for frame in self.proxy.requests(OffsetCommitRequest, client_id=client_id)]

    async def wait_until_agreed(self, group: str, crew: ConsumerGroup) -> None:
        """Wait until the broker's assignments equal those of all members."""
        async with asyncio.timeout(20):
            theirs = await self.members(group)
            while {one.consumer.assignment() for one in crew.members} != set(theirs.values()):
                theirs = await self.members(group)

    async def configure(self, group: str, **config: int) -> None:
        """Set a configuration of the group, such as ``consumer_session_timeout_ms=1000``."""
        entries = tuple(ConfigAlteration(k.replace("_", "."), 0, str(v)) for k, v in config.items())
        cluster = Cluster(resolve({"bootstrap_servers": self.direct}))
        try:
            await cluster.bootstrap()
            request = IncrementalAlterConfigsRequest((ConfigsToAlter(_GROUP_RESOURCE, group, entries),))
            answer = await cluster.send_to_any(request)
        finally:
            cluster.close()
            await asyncio.sleep(0)  # the sockets are closed in the next loop iteration
        assert [one.error_code for one in answer.responses] == [0], answer


def heartbeats(proxy: FaultProxy, client_id: str) -> list[ConsumerGroupHeartbeatRequest]:
    """Return the heartbeats of a client, in order."""
    return [frame.message for frame in proxy.requests(ConsumerGroupHeartbeatRequest, client_id=client_id)]


def has_no_changes(beat: ConsumerGroupHeartbeatRequest) -> bool:
    """Return True if a heartbeat contains no changes."""
    return beat == ConsumerGroupHeartbeatRequest(beat.group_id, beat.member_id, beat.member_epoch, beat.instance_id)


def is_full(beat: ConsumerGroupHeartbeatRequest) -> bool:
    """Return True if a heartbeat contains all fields of a join."""
    return (
        (beat.subscribed_topic_names is not None or beat.subscribed_topic_regex is not None)
        and beat.rebalance_timeout_ms > 0
        and beat.topic_partitions is not None
    )
