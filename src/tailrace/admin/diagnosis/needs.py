"""Topics and groups to check, and the use that an app makes of them. Pure: no clock, IO or logging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["ClusterNeeds", "GroupNeeds", "TopicNeeds", "TopicRole"]


class TopicRole(StrEnum):
    """Use of a topic by an app."""

    READ = "read"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    REPLAY = "replay"
    PUBLISH = "publish"

    @property
    def operations(self) -> tuple[str, ...]:
        """Operations that an app needs on a topic with this role."""
        match self:
            case TopicRole.READ:
                return ("Read",)
            case TopicRole.RETRY:
                return ("Read", "Write")
            case TopicRole.REPLAY:
                return ("Read",)
            case TopicRole.DEAD_LETTER | TopicRole.PUBLISH:
                return ("Write",)

    @property
    def is_own(self) -> bool:
        """True for the retry, dead-letter and replay topics of a group: the app creates these topics."""
        return self in {TopicRole.RETRY, TopicRole.DEAD_LETTER, TopicRole.REPLAY}


@dataclass(frozen=True, slots=True)
class TopicNeeds:
    """Use of one topic."""

    name: str
    roles: frozenset[TopicRole] = frozenset()
    """Roles of the topic; empty if it was only named on the command line."""
    origins: frozenset[str] = frozenset()
    """Topics whose records a retry, replay or dead-letter topic contains."""
    delay_ms: int = 0
    """Delay of a retry topic in milliseconds; 0 for other topics."""

    @property
    def operations(self) -> tuple[str, ...]:
        """Operations that the app needs on the topic."""
        return tuple(sorted({operation for role in self.roles for operation in role.operations}))

    @property
    def is_own(self) -> bool:
        """True if the app creates the topic when it starts."""
        return any(role.is_own for role in self.roles)


@dataclass(frozen=True, slots=True)
class GroupNeeds:
    """Group to check."""

    group_id: str
    topics: frozenset[str] = frozenset()
    """Topics that the app's handlers read by name; empty if unknown."""
    group_protocol: str = ""
    """Protocol of the app's members; empty if unknown."""
    strategies: tuple[str, ...] = ()
    """Assignors of the app's members."""
    start: str = ""
    """Command that starts a member, such as ``tailrace run shop:billing``; empty if unknown."""

    @property
    def is_of_app(self) -> bool:
        """True if the group is that of an app; False if it was only named on the command line."""
        return bool(self.group_protocol)


@dataclass(frozen=True, slots=True)
class ClusterNeeds:
    """Topics and groups to check; if there are neither, the whole cluster is checked."""

    groups: tuple[GroupNeeds, ...] = ()
    topics: Mapping[str, TopicNeeds] = field(default_factory=dict)
