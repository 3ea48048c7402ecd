"""Removal of a member from a classic group, as an administrator does it."""

from __future__ import annotations

import asyncio
from contextlib import closing

from tailrace.config import resolve
from tailrace.net.cluster import Cluster
from tailrace.protocol.groups import LeaveGroupRequest

__all__ = ["expel"]


async def expel(bootstrap_servers: str, group: str, member_id: str) -> None:
    """Send LeaveGroup for the member; its next heartbeat is answered with UNKNOWN_MEMBER_ID."""
    with closing(Cluster(resolve({"bootstrap_servers": bootstrap_servers}, {}))) as cluster:
        await cluster.bootstrap()
        coordinator = await cluster.coordinator(group)
        answer = await coordinator.send(LeaveGroupRequest(group, member_id))
        assert not answer.error_code
    await asyncio.sleep(0)  # the sockets are closed in the next loop iteration
