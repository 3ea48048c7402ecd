"""Administration of topics, groups and committed offsets.

``async with reached(...) as cluster`` connects to a cluster, which is the first argument of all other functions.
"""

from tailrace.admin.connect import reached
from tailrace.admin.descriptions import GroupDescription, GroupListing, GroupMemberDescription
from tailrace.admin.groups import delete_group, describe_group, describe_groups, list_groups
from tailrace.admin.lag import GroupLag, PartitionLag, group_lag
from tailrace.admin.offset_resets import ResetPlan, reset_offsets
from tailrace.admin.offsets import EARLIEST, LATEST, GroupOffset, committed_offsets, delete_offsets, list_offsets
from tailrace.admin.reset_plan import OffsetChange, ResetTarget, ShiftBy, ToEarliest, ToLatest, ToOffset, ToTime
from tailrace.admin.topics import create_topic, delete_topic, partitions_of

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
