"""Groups removed."""

from __future__ import annotations

from penstock.core.group_errors import Asked, Reaction, reaction_to
from penstock.error_codes import ErrorCode, name_of
from penstock.errors import BrokerConnectionError, broker_error
from penstock.messages import DeleteGroupsRequest
from penstock.net.cluster import Cluster

__all__ = ["delete_group"]


async def delete_group(cluster: Cluster, group_id: str, *, timeout_s: float = 30) -> None:
    """Remove a group without members, and all that it has committed; one that is not there is removed already.

    Raises:
        BrokerError: it has members, or may not be removed.
        BrokerConnectionError: the brokers do not answer in time.
    """

    async def delete() -> None:
        coordinator = await cluster.coordinator(group_id)
        try:
            answer = await coordinator.send(DeleteGroupsRequest((group_id,)))
        except BrokerConnectionError as error:
            cluster.forget_coordinator(group_id, str(error))
            raise
        codes = {group.group_id: group.error_code for group in answer.groups}
        code = codes.get(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if code in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}:
            return
        if reaction_to(code, Asked.OFFSETS) is Reaction.FIND_COORDINATOR:
            cluster.forget_coordinator(group_id, name_of(code))
        raise broker_error(code, f"group {group_id} was not removed")

    await cluster.retrying(delete, timeout_s=timeout_s, what=f"removing group {group_id}")
