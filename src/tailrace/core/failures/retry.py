"""What becomes of a record whose handler failed: tried again here, sent on to be tried later, or given up.

Rule of this file: a failure, the number of those before it and the handler's options go in, one decision comes out.
The table, first row that fits:

| the error is      | attempts left | a later retry topic | dead letters | decision                             |
|-------------------|---------------|---------------------|--------------|--------------------------------------|
| an outage         |               |                     |              | PAUSE, ever longer                   |
| to be tried again | yes           |                     |              | RETRY, after a pause                 |
| to be tried again |               | yes                 |              | RETRY_TOPIC, and not before its delay |
| any               |               |                     | yes          | DEAD_LETTER                          |
| any               |               |                     |              | as ``on_failure`` says               |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, TypeAlias

from tailrace.core.backoff import Backoff
from tailrace.errors import ConfigurationError

__all__ = ["FailureAction", "OnFailure", "Retry", "RetryDecision", "after_failure"]

Exceptions: TypeAlias = type[Exception] | tuple[type[Exception], ...]
OnFailure: TypeAlias = Literal["pause", "stop", "skip"]

_EVEN = 0.5
"""The chance that leaves a pause as it is."""


@dataclass(frozen=True)
class Retry:
    """Which failures of a handler are tried again, how often, and after which pauses.

    Args:
        attempts: how often a record is tried in all, the first time included.
        backoff_ms: the pause after the first failure; each following one is twice as long.
        max_backoff_ms: the longest pause.
        jitter: whether a pause is up to a fifth shorter or longer, so that not all is tried again at once.
        on: what is tried again: an exception or several, with all that derive from them.
        not_on: what is not, although ``on`` has it.

    Raises:
        ConfigurationError: a number is out of bounds, or what is said of exceptions contradicts itself.
    """

    attempts: int = 3
    backoff_ms: int = 200
    max_backoff_ms: int = 30_000
    jitter: bool = True
    on: Exceptions = Exception
    not_on: Exceptions = ()

    def __post_init__(self) -> None:
        for name, least in (("attempts", 1), ("backoff_ms", 0), ("max_backoff_ms", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigurationError(f"Retry: {name}: {value!r} will not do: it has to be a whole number")
            if value < least:
                raise ConfigurationError(f"Retry: {name}: {value} will not do: it has to be at least {least}")
        if self.backoff_ms > self.max_backoff_ms:
            raise ConfigurationError(
                f"Retry: backoff_ms={self.backoff_ms} has to be at most max_backoff_ms={self.max_backoff_ms}"
            )
        for name in ("on", "not_on"):
            given: tuple[object, ...] = _several(getattr(self, name))
            for one in given:
                if not isinstance(one, type) or not issubclass(one, Exception):
                    raise ConfigurationError(
                        f"Retry: {name}: {one!r} will not do: it has to be an exception, or several as a tuple"
                    )
        for one in _several(self.on):
            if issubclass(one, self.not_on):
                raise ConfigurationError(
                    f"Retry: {one.__name__} is in on and in not_on - it would never be tried again; leave out one"
                )

    def is_retriable(self, error: BaseException, never: tuple[type[BaseException], ...] = ()) -> bool:
        """Whether another attempt is worth it; of ``never`` it is not, whatever the user says.

        A group of errors, as a TaskGroup raises, is what it holds: ``on`` has it when it has the group or every error
        in it, and one that is in ``not_on`` or ``never`` is enough.
        """
        return _is_all(error, _several(self.on)) and not _is_any(error, (*_several(self.not_on), *never))

    def pause_s(self, failures: int, chance: float) -> float | None:
        """The pause after so many failures of a record (at least one); None when no attempt is left.

        ``chance`` in [0, 1) is where the jitter falls.
        """
        return None if failures >= self.attempts else self.wait_s(failures, chance)

    def wait_s(self, failures: int, chance: float) -> float:
        """The same, however many attempts there are."""
        backoff = Backoff.of_ms(self.backoff_ms, self.max_backoff_ms)
        return backoff.pause_s(failures, chance if self.jitter else _EVEN)


class FailureAction(Enum):
    """What to do with a record that failed."""

    RETRY = auto()
    """Try it again here, with its lane waiting."""
    RETRY_TOPIC = auto()
    """Publish it to a retry topic; its offset is done then."""
    DEAD_LETTER = auto()
    """Publish it to the dead letters; its offset is done then."""
    PAUSE = auto()
    """Nobody takes it: try it again here now and then, for ever, with its lane waiting."""
    STOP = auto()
    """Stop the app with the error."""
    SKIP = auto()
    """Count it, log it, and go on."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """What to do with a record that failed, and when."""

    step: FailureAction
    pause_s: float = 0.0
    """Before it is tried again, here or from the retry topic."""
    retry_topic: int | None = None
    """Which of the retry topics it goes to."""


_GIVEN_UP = {"pause": FailureAction.PAUSE, "stop": FailureAction.STOP, "skip": FailureAction.SKIP}


def after_failure(  # noqa: PLR0913 - the columns of the table
    retry: Retry,
    failures: int,
    error: BaseException,
    *,
    dead_letter: bool,
    on_failure: OnFailure,
    chance: float,
    retry_topics: Sequence[int] = (),
    attempt_topic_index: int | None = None,
    never: tuple[type[BaseException], ...] = (),
    outages: tuple[type[BaseException], ...] = (),
) -> RetryDecision:
    """What to do after so many failures in a row of one record, the last one with ``error``.

    Args:
        retry: the handler's policy.
        failures: how often it failed since it was read from the topic that it is in now, ``error`` included.
        error: what the handler raised, or what was wrong before it was called.
        dead_letter: whether there is a topic for dead letters.
        on_failure: what to do when nobody takes the record.
        chance: in [0, 1), for the jitter.
        retry_topics: the delay of each retry topic in milliseconds, in the order in which a record goes through them.
        attempt_topic_index: which of them it was read from; None when it comes from the topic itself.
        never: what is not tried again: that a record was rejected, or that it cannot be decoded.
        outages: what says nothing of the record: something that it needs is away. ``failures`` are those, then.
    """
    if _is_all(error, outages):
        return RetryDecision(FailureAction.PAUSE, retry.wait_s(failures, chance))
    if retry.is_retriable(error, never):
        pause_s = retry.pause_s(failures, chance)
        if pause_s is not None:
            return RetryDecision(FailureAction.RETRY, pause_s)
        following = 0 if attempt_topic_index is None else attempt_topic_index + 1
        if following < len(retry_topics):
            return RetryDecision(FailureAction.RETRY_TOPIC, retry_topics[following] / 1000, following)
    if dead_letter:
        return RetryDecision(FailureAction.DEAD_LETTER)
    step = _GIVEN_UP[on_failure]
    return RetryDecision(step, retry.max_backoff_ms / 1000 if step is FailureAction.PAUSE else 0.0)


def _is_all(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, kinds):
        return True
    return isinstance(error, BaseExceptionGroup) and all(_is_all(one, kinds) for one in error.exceptions)


def _is_any(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, kinds):
        return True
    return isinstance(error, BaseExceptionGroup) and any(_is_any(one, kinds) for one in error.exceptions)


def _several(exceptions: Exceptions) -> tuple[type[Exception], ...]:
    return exceptions if isinstance(exceptions, tuple) else (exceptions,)
