"""Groups as tools see them, from outside."""

from __future__ import annotations

from penstock.messages import DeletedGroup, DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.api import api
from penstock.wire.schema import INT16, INT32, STRING, Array, Struct, field

__all__ = ["DELETE_GROUPS"]

DELETE_GROUPS = api(
    42,
    "DeleteGroups",
    versions=(0, 2),
    flexible=2,
    message=DeleteGroupsRequest,
    request=Struct(DeleteGroupsRequest, field("groups_names", Array(STRING), attribute="group_ids")),
    response=Struct(
        DeleteGroupsResponse,
        field("throttle_time_ms", INT32),
        field(
            "results",
            Array.of(DeletedGroup, field("group_id", STRING), field("error_code", INT16)),
            attribute="groups",
        ),
    ),
)
