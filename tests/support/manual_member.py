"""Group member whose requests the test sends."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, Self, TypeVar

from tailrace.config import resolve
from tailrace.error_codes import ErrorCode
from tailrace.errors import broker_error
from tailrace.net.broker import Broker
from tailrace.net.cluster import Cluster
from tailrace.protocol.groups import (
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberSubscription,
    OffsetFetchPartition,
    OffsetFetchRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
    encode_subscription,
)
from tailrace.protocol.message import Request

ResponseT = TypeVar("ResponseT", bound=Any)


class ManualMember:
    """Member within an ``async with`` block, which closes its connections."""

    def __init__(self, bootstrap_servers: str, group: str) -> None:
        self._cluster = Cluster(resolve({"bootstrap_servers": bootstrap_servers, "client_id": "stranger"}))
        self._group, self.member_id = group, ""

    async def __aenter__(self) -> Self:
        await self._cluster.bootstrap()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cluster.close()
        await asyncio.sleep(0)  # the sockets are closed in the next loop iteration

    async def join(
        self,
        *topics: str,
        protocol_type: str = "consumer",
        protocol: str = "range",
        session_s: float = 30,
        assigns: bytes = b"",
    ) -> JoinGroupResponse:
        """Join, and assign the encoded assignment ``assigns`` to each other member, if this member leads.

        The protocols determine which other members can join.
        """
        offer = JoinGroupProtocol(protocol, encode_subscription(MemberSubscription(topics)))
        session_ms = round(session_s * 1000)
        # The first response contains the member id, or an error of a coordinator that is loading.
        give_up_at = time.monotonic() + 60
        while time.monotonic() < give_up_at:
            join = JoinGroupRequest(self._group, session_ms, 60_000, self.member_id, protocol_type, (offer,))
            joined = await (await self._coordinator()).send(join, timeout_s=60)
            self.member_id = joined.member_id
            if not joined.error_code:
                break
            if joined.error_code in {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}:
                self._cluster.forget_coordinator(self._group, "it is loading")
                await asyncio.sleep(0.1)
        assert not joined.error_code, joined
        others = {one.member_id for one in joined.members} - {self.member_id}
        shares = (SyncGroupAssignment(self.member_id, b""), *(SyncGroupAssignment(one, assigns) for one in others))
        sync = SyncGroupRequest(
            self._group, joined.generation_id, self.member_id, None, protocol_type, protocol, shares
        )
        synced = await (await self._coordinator()).send(sync)
        assert not synced.error_code, synced
        return joined

    async def coordinator_id(self) -> int:
        """Return the node id of the coordinator."""
        return (await self._coordinator()).id

    async def committed(self, topic: str, partitions: int) -> dict[int, int]:
        """Return the committed offsets while the coordinator moves, which would crash librdkafka's client."""
        wanted = tuple(OffsetFetchPartition(topic, partition) for partition in range(partitions))
        answer = await self._asked(OffsetFetchRequest(self._group, wanted))
        return {one.partition: one.offset for one in answer.partitions if one.offset >= 0}

    async def leave(self) -> None:
        """Send LeaveGroup to the current coordinator."""
        await self._asked(LeaveGroupRequest(self._group, self.member_id))

    async def _asked(self, request: Request[ResponseT]) -> ResponseT:
        """Return the response of the current coordinator when it has loaded the group."""

        async def attempt() -> ResponseT:
            self._cluster.forget_coordinator(self._group, "it may have moved")
            answer = await (await self._coordinator()).send(request, timeout_s=1)
            if answer.error_code:
                raise broker_error(answer.error_code)
            return answer

        return await self._cluster.retrying(attempt, timeout_s=30, what=f"asking {request}")

    async def _coordinator(self) -> Broker:
        return await self._cluster.retrying(
            partial(self._cluster.coordinator, self._group), timeout_s=30, what="looking for the coordinator"
        )
