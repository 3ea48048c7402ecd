"""What the group's error codes mean to this consumer: the table, and what the user says instead."""

from __future__ import annotations

from tailrace.config import ConsumerConfig
from tailrace.core.group.error_reactions import REACTIONS, GroupReaction, GroupRequestKind, event_of
from tailrace.core.group.events import GroupEvent
from tailrace.errors import ConfigurationError

__all__ = ["ErrorReactions"]


class ErrorReactions:
    """``core.group.error_reactions`` with ``group_error_reactions`` in front of it."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._said = config.group_error_reactions or {}

    def to(self, code: int, asked: GroupRequestKind) -> GroupReaction:
        """What to do about ``code`` in the answer to ``asked``.

        Raises:
            ConfigurationError: the user's function raised, or does not say one of the reactions.
        """
        return REACTIONS.reaction_to(code, asked, self._overrides(code))

    def event_of(self, code: int, asked: GroupRequestKind) -> GroupEvent:
        """The same as the event that a membership is told.

        Raises:
            ConfigurationError: the user's function raised, or does not say one of the reactions.
        """
        return event_of(code, asked, self._overrides(code))

    def _overrides(self, code: int) -> dict[int, GroupReaction]:
        said = self._said.get(code)
        if said is None:
            return {}
        try:
            name = said(code) if callable(said) else said
        except Exception as error:
            raise ConfigurationError(
                f"group_error_reactions: the function for code {code} raised {type(error).__name__}: {error}"
            ) from error
        reaction = GroupReaction.__members__.get(str(name).upper())
        if reaction is None:
            known = ", ".join(one.lower() for one in GroupReaction.__members__)
            raise ConfigurationError(
                f"group_error_reactions: {name!r} for code {code} will not do - say one of {known}"
            )
        return {code: reaction}
