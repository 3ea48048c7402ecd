"""Administration of topics, groups and committed offsets.

``async with reached(...) as cluster`` connects to a cluster, which is the first argument of all other functions. Each
name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.admin.connect import reached
    from tailrace.admin.descriptions import GroupDescription, GroupListing, GroupMemberDescription
    from tailrace.admin.groups import delete_group, describe_group, describe_groups, list_groups
    from tailrace.admin.lag import GroupLag, PartitionLag, group_lag
    from tailrace.admin.offset_resets import ResetPlan, reset_offsets
    from tailrace.admin.offsets import EARLIEST, LATEST, GroupOffset, committed_offsets, delete_offsets, list_offsets
    from tailrace.admin.reset_plan import OffsetChange, ResetTarget, ShiftBy, ToEarliest, ToLatest, ToOffset, ToTime
    from tailrace.admin.topics import create_topic, delete_topic, partitions_of

_MODULES = {
    "connect": ["reached"],
    "descriptions": ["GroupDescription", "GroupListing", "GroupMemberDescription"],
    "groups": ["delete_group", "describe_group", "describe_groups", "list_groups"],
    "lag": ["GroupLag", "PartitionLag", "group_lag"],
    "offset_resets": ["ResetPlan", "reset_offsets"],
    "offsets": ["EARLIEST", "LATEST", "GroupOffset", "committed_offsets", "delete_offsets", "list_offsets"],
    "reset_plan": ["OffsetChange", "ResetTarget", "ShiftBy", "ToEarliest", "ToLatest", "ToOffset", "ToTime"],
    "topics": ["create_topic", "delete_topic", "partitions_of"],
}
"""Names by module."""

__all__ = [
    "EARLIEST",
    "LATEST",
    "GroupDescription",
    "GroupLag",
    "GroupListing",
    "GroupMemberDescription",
    "GroupOffset",
    "OffsetChange",
    "PartitionLag",
    "ResetPlan",
    "ResetTarget",
    "ShiftBy",
    "ToEarliest",
    "ToLatest",
    "ToOffset",
    "ToTime",
    "committed_offsets",
    "create_topic",
    "delete_group",
    "delete_offsets",
    "delete_topic",
    "describe_group",
    "describe_groups",
    "group_lag",
    "list_groups",
    "list_offsets",
    "partitions_of",
    "reached",
    "reset_offsets",
]


if not TYPE_CHECKING:  # type checkers would accept misspelled names if they saw a __getattr__

    def __getattr__(name: str) -> object:
        module = next((module for module, names in _MODULES.items() if name in names), None)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(import_module(f"{__name__}.{module}"), name)
        globals()[name] = found
        return found
