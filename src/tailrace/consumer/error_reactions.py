"""Reactions to group error codes: the defaults and the user's ``group_error_reactions``."""

from __future__ import annotations

from tailrace.config import ConsumerConfig
from tailrace.core.group_requests import REACTIONS, GroupReaction, GroupRequestKind
from tailrace.errors import ConfigurationError
from tailrace.user_exceptions import error_text

__all__ = ["ErrorReactions"]


class ErrorReactions:
    """Reactions of ``core.group_requests``, some of them overridden by ``group_error_reactions``."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._reactions = config.group_error_reactions or {}

    def reaction_to(self, code: int, request: GroupRequestKind) -> GroupReaction:
        """Return the reaction to ``code`` in the response to ``request``.

        Raises:
            ConfigurationError: the user's function raised, or returned something other than a reaction.
        """
        return REACTIONS.reaction_to(code, request, self.overrides(code))

    def overrides(self, code: int) -> dict[int, GroupReaction]:
        """Return the configured reaction to ``code``; raise the same error as ``reaction_to``."""
        configured = self._reactions.get(code)
        if configured is None:
            return {}
        try:
            name = configured(code) if callable(configured) else configured
        except Exception as error:
            raise ConfigurationError(
                f"group_error_reactions: the function for code {code} raised {error_text(error)}"
            ) from error
        reaction = GroupReaction.__members__.get(str(name).upper())
        if reaction is None:
            known = ", ".join(one.lower() for one in GroupReaction.__members__)
            raise ConfigurationError(
                f"group_error_reactions: the reaction to code {code} must be one of {known}, not {name!r}"
            )
        return {code: reaction}
