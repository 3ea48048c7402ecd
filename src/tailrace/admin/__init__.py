"""Administration of topics, groups and committed offsets.

``async with reached(...) as cluster`` connects to a cluster, which is the first argument of all other functions. Each
name is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.admin.groups import (
        GroupDescription,
        GroupListing,
        GroupMemberDescription,
        delete_group,
        describe_group,
        describe_groups,
        list_groups,
    )
    from tailrace.admin.offset_resets import (
        OffsetChange,
        ResetPlan,
        ResetTarget,
        ShiftBy,
        ToEarliest,
        ToLatest,
        ToOffset,
        ToTime,
        reset_offsets,
    )
    from tailrace.admin.offsets import (
        EARLIEST,
        LATEST,
        GroupLag,
        GroupOffset,
        PartitionLag,
        committed_offsets,
        delete_offsets,
        group_lag,
        list_offsets,
    )
    from tailrace.admin.requests import reached
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

_MODULES = ("groups", "offset_resets", "offsets", "requests", "topics")


if not TYPE_CHECKING:  # type checkers would accept misspelled names if they saw a __getattr__

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module in _MODULES:
            globals().update(
                (one, found) for one, found in vars(import_module(f"{__name__}.{module}")).items() if one in __all__
            )
        return globals()[name]
