"""What tools ask of brokers, and a consumer does not: topics, groups, what groups have committed and how far behind.

``async with reached(...) as cluster`` gives what each function takes first, and each is through when every step is.
Look in ``topics``, ``groups``, ``offsets``, ``lag`` and ``resets``; ``plans`` decides what a reset does, without asking
anybody.
"""

from penstock.admin.descriptions import GroupDescription, GroupListing, GroupMember
from penstock.admin.groups import delete_group, describe_group, describe_groups, list_groups
from penstock.admin.lag import GroupLag, PartitionLag, group_lag
from penstock.admin.offsets import EARLIEST, LATEST, GroupOffset, committed_offsets, delete_offsets, list_offsets
from penstock.admin.plans import OffsetChange, ResetTarget, ShiftBy, ToEarliest, ToLatest, ToOffset, ToTime
from penstock.admin.reaching import reached
from penstock.admin.resets import ResetPlan, reset_offsets
from penstock.admin.topics import create_topic, delete_topic, partitions_of

__all__ = [
    "EARLIEST",
    "LATEST",
    "GroupDescription",
    "GroupLag",
    "GroupListing",
    "GroupMember",
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
