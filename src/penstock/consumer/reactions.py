"""What the group's error codes mean to this consumer: the table, and what the user says instead."""

from __future__ import annotations

from penstock.config import ConsumerConfig
from penstock.core.group_errors import Asked, Reaction, event_of, reaction_to
from penstock.core.membership_events import GroupEvent
from penstock.errors import ConfigurationError

__all__ = ["Reactions"]


class Reactions:
    """``core.group_errors`` with ``group_error_reactions`` in front of it."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._said = config.group_error_reactions or {}

    def to(self, code: int, asked: Asked) -> Reaction:
        """What to do about ``code`` in the answer to ``asked``.

        Raises:
            ConfigurationError: the user's function raised, or does not say one of the reactions.
        """
        return reaction_to(code, asked, self._overrides(code))

    def event_of(self, code: int, asked: Asked) -> GroupEvent:
        """The same as the event that a membership is told.

        Raises:
            ConfigurationError: the user's function raised, or does not say one of the reactions.
        """
        return event_of(code, asked, self._overrides(code))

    def _overrides(self, code: int) -> dict[int, Reaction]:
        said = self._said.get(code)
        if said is None:
            return {}
        try:
            name = said(code) if callable(said) else said
        except Exception as error:
            raise ConfigurationError(
                f"group_error_reactions: the function for code {code} raised {type(error).__name__}: {error}"
            ) from error
        reaction = Reaction.__members__.get(str(name).upper())
        if reaction is None:
            known = ", ".join(one.lower() for one in Reaction.__members__)
            raise ConfigurationError(
                f"group_error_reactions: {name!r} for code {code} will not do - say one of {known}"
            )
        return {code: reaction}
