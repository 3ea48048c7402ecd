"""Policies of a handler: order, batches, retries, and what follows a failure. Pure: no clock, IO or logging.

``FailureRules`` decide by the first row that applies; an empty cell means that the column does not matter:

| error             | attempts left | a later retry topic | dead-letter topic | decision                        |
|-------------------|---------------|---------------------|-------------------|---------------------------------|
| outage            |               |                     |                   | PAUSE, with backoff             |
| retriable         | yes           |                     |                   | RETRY, after a backoff          |
| retriable         |               | exists              |                   | RETRY_TOPIC, after its delay    |
| any               |               |                     | exists            | DEAD_LETTER                     |
| any               |               |                     |                   | as ``on_failure``               |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, NamedTuple, TypeAlias

from tailrace.core.backoff import Backoff
from tailrace.errors import ConfigurationError
from tailrace.records import TopicPartition
from tailrace.user_exceptions import with_group_members

__all__ = [
    "Batch",
    "FailureAction",
    "FailureCount",
    "FailureCounts",
    "FailureRules",
    "OnFailure",
    "OrderBy",
    "Retry",
    "RetryDecision",
    "consists_of",
]

# ---- failure counts of unfinished records, which outlast an aborted transaction --------------------------------------


class FailureCount(NamedTuple):
    """Failures of one record."""

    failures: int = 0
    """Number of failures that the record itself may have caused."""
    outages: int = 0
    """Number of failures because something that the handler needs was unavailable."""

    @property
    def total(self) -> int:
        """Sum of failures and outages."""
        return self.failures + self.outages


_NONE = FailureCount()


class FailureCounts:
    """Failure counts by record, and the errors of records without an attempt left."""

    def __init__(self) -> None:
        self._counts: dict[TopicPartition, dict[int, FailureCount]] = {}
        self._final_errors: dict[tuple[TopicPartition, int], Exception] = {}

    def __len__(self) -> int:
        return sum(map(len, self._counts.values()))

    @property
    def has_final_errors(self) -> bool:
        """True if a record has no attempt left."""
        return bool(self._final_errors)

    def count_failure(self, partition: TopicPartition, offset: int, *, is_outage: bool) -> FailureCount:
        """Count a failure of a record, and return the failures of the record so far."""
        counts = self._counts.setdefault(partition, {})
        before = counts.get(offset, _NONE)
        found = counts[offset] = FailureCount(before.failures + (not is_outage), before.outages + is_outage)
        return found

    def set_final_error(self, partition: TopicPartition, offset: int, error: Exception) -> None:
        """Note that a record has no attempt left; the record fails with ``error`` when it is delivered again."""
        self._final_errors[partition, offset] = error

    def final_error(self, partition: TopicPartition, offset: int) -> Exception | None:
        """Return the error of a record that has no attempt left; None if the record may be tried."""
        return self._final_errors.get((partition, offset))

    def forget_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the records below the committed ``offsets``."""
        for partition in self._counts.keys() & offsets.keys():
            self._keep_from(partition, offsets[partition])

    def forget(self, partition: TopicPartition) -> None:
        """Forget the records of a partition that was revoked."""
        if partition in self._counts:
            self._keep_from(partition, None)

    def _keep_from(self, partition: TopicPartition, begin: int | None) -> None:
        """Forget the records of a partition below the offset ``begin``; all records if it is None."""
        counts = self._counts.pop(partition)
        kept = {offset: count for offset, count in counts.items() if begin is not None and offset >= begin}
        if kept:
            self._counts[partition] = kept
        for record in [one for one in self._final_errors if one[0] == partition]:
            if record[1] not in kept:
                del self._final_errors[record]


# ---- order and batches of a handler ----------------------------------------------------------------------------------

OrderBy: TypeAlias = Literal["partition", "key", "none"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Limits of a handler's batches: a batch starts as soon as one limit is reached.

    Args:
        max_records: Maximum number of records.
        max_wait_ms: Maximum time in milliseconds that the first record of a batch waits for other records.
        max_bytes: Maximum size of keys, values and headers in bytes; a larger record is a batch of its own. Unlimited
            by default.

    Raises:
        ConfigurationError: A limit is not an integer, or too small.
    """

    max_records: int = 500
    max_wait_ms: int = 200
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_records", 1), ("max_wait_ms", 0), ("max_bytes", 1)):
            value = getattr(self, name)
            if name == "max_bytes" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigurationError(f"Batch: {name} must be an integer of at least {least}, not {value!r}")


# ---- retry policy of a handler, and the decision about a record whose handler failed ---------------------------------

Exceptions: TypeAlias = type[Exception] | tuple[type[Exception], ...]
OnFailure: TypeAlias = Literal["pause", "stop", "skip"]

_NO_JITTER = 0.5
"""Value of ``chance`` that leaves a backoff unchanged."""


@dataclass(frozen=True)
class Retry:
    """Retry policy: which errors of a handler are retried, how often, when and where.

    Args:
        attempts: Maximum number of attempts, including the first one, before a record goes to a retry topic or fails
            for good.
        backoff_ms: Time in milliseconds before the second attempt. The time doubles with each further attempt.
        max_backoff_ms: Maximum time in milliseconds between two attempts, before jitter.
        jitter: Vary each backoff by up to 20 percent, so that records that failed together are not retried together.
        on: Exception class, or tuple of exception classes, to retry. Subclasses are included.
        not_on: Exception class, or tuple of exception classes, not to retry although ``on`` includes it.
        topic_delays_ms: Delays in milliseconds of the retry topics, such as ``[5_000, 60_000]``. A record without an
            attempt left is published to the retry topic with the next delay and retried after that delay, while later
            records are handled. In each retry topic, the record has ``attempts`` more attempts.
        allow_reordering: Accept that later records of a key are handled before a record in a retry topic. Required for
            ``topic_delays_ms`` with ``order_by="key"``.

    Raises:
        ConfigurationError: A number is out of range, or ``on`` and ``not_on`` contradict each other.
    """

    attempts: int = 3
    backoff_ms: int = 200
    max_backoff_ms: int = 30_000
    jitter: bool = True
    on: Exceptions = Exception
    not_on: Exceptions = ()
    topic_delays_ms: Sequence[int] = ()
    allow_reordering: bool = False

    def __post_init__(self) -> None:
        for name, least in (("attempts", 1), ("backoff_ms", 0), ("max_backoff_ms", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigurationError(f"Retry: {name} must be an integer of at least {least}, not {value!r}")
        if self.backoff_ms > self.max_backoff_ms:
            raise ConfigurationError(
                f"Retry: backoff_ms={self.backoff_ms} must be at most max_backoff_ms={self.max_backoff_ms}"
            )
        for name in ("jitter", "allow_reordering"):
            flag: object = getattr(self, name)
            if not isinstance(flag, bool):
                raise ConfigurationError(f"Retry: {name} must be True or False, not {flag!r}")
        self._check_exceptions()
        self._check_delays()
        # A policy with a list would not be hashable.
        object.__setattr__(self, "topic_delays_ms", tuple(self.topic_delays_ms))

    def _check_exceptions(self) -> None:
        for name in ("on", "not_on"):
            given: tuple[object, ...] = _as_tuple(getattr(self, name))
            for one in given:
                if not isinstance(one, type) or not issubclass(one, Exception):
                    raise ConfigurationError(
                        f"Retry: {name} must be an exception class or a tuple of exception classes, not {one!r}"
                    )
        for one in _as_tuple(self.on):
            if issubclass(one, self.not_on):
                raise ConfigurationError(f"Retry: {one.__name__} is in on= and in not_on= - remove it from one of them")

    def _check_delays(self) -> None:
        delays: object = self.topic_delays_ms
        if not isinstance(delays, list | tuple) or any(type(one) is not int or one < 1 for one in delays):
            raise ConfigurationError(
                f"Retry: topic_delays_ms must be a list of positive integers such as [5_000, 60_000], not {delays!r}"
            )
        if len(set(delays)) < len(delays):
            raise ConfigurationError(f"Retry: topic_delays_ms={delays!r} contains a delay twice - list each delay once")

    def is_retriable(self, error: BaseException, never: tuple[type[BaseException], ...] = ()) -> bool:
        """Return True if the policy retries ``error``; errors of the classes ``never`` are not retried.

        An exception group is retriable if ``on`` includes the group itself or every error in it, and if ``not_on`` and
        ``never`` include neither the group nor any error in it.
        """
        return consists_of(error, _as_tuple(self.on)) and not _is_any(error, (*_as_tuple(self.not_on), *never))

    def pause_s(self, failures: int, chance: float) -> float | None:
        """Return the backoff in seconds before the next attempt; None if no attempt is left.

        Args:
            failures: Number of failures of the record, at least one.
            chance: Random number in [0, 1) for the jitter.
        """
        return None if failures >= self.attempts else self.wait_s(failures, chance)

    def wait_s(self, failures: int, chance: float) -> float:
        """Return the backoff in seconds before the next attempt, without the limit ``attempts``."""
        backoff = Backoff.of_ms(self.backoff_ms, self.max_backoff_ms)
        return backoff.pause_s(failures, chance if self.jitter else _NO_JITTER)


class FailureAction(Enum):
    """Action for a failed record."""

    RETRY = auto()
    """Retry the record after a pause, during which its lane waits."""
    RETRY_TOPIC = auto()
    """Publish the record to a retry topic and finish its offset."""
    DEAD_LETTER = auto()
    """Publish the record to the dead-letter topic and finish its offset."""
    PAUSE = auto()
    """Retry the record after a pause, during which its lane waits, without a limit of attempts.

    The pause is ``max_backoff_ms``, or in an outage the backoff of the policy.
    """
    STOP = auto()
    """Stop the app with the error."""
    SKIP = auto()
    """Count and log the failure, and continue with the next record."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """Action for a failed record, and the pause before its next attempt."""

    action: FailureAction
    pause_s: float = 0.0
    """Time in seconds before the next attempt, including an attempt after RETRY_TOPIC; 0 if there is none."""
    topic_delay_ms: int | None = None
    """Delay of the retry topic in milliseconds; None unless ``action`` is RETRY_TOPIC."""


_ON_FAILURE_ACTIONS = {"pause": FailureAction.PAUSE, "stop": FailureAction.STOP, "skip": FailureAction.SKIP}


@dataclass(frozen=True, slots=True)
class FailureRules:
    """Rules of a handler about failed records.

    Attributes:
        retry: Retry policy of the handler.
        on_failure: Action if there is no dead-letter topic.
        has_dead_letter: True if there is a dead-letter topic.
        never: Error classes that are never retried, because another attempt would fail with the same error.
        outages: Error classes of outages: something that the handler needs is unavailable, whatever the record is.
    """

    retry: Retry
    on_failure: OnFailure
    has_dead_letter: bool
    never: tuple[type[BaseException], ...] = ()
    outages: tuple[type[BaseException], ...] = ()

    def decide(
        self, failures: int, error: BaseException, chance: float, topic_delay_ms: int | None = None
    ) -> RetryDecision:
        """Return the action for a record that failed.

        Args:
            failures: Number of failures since the record was read from its current topic, including the last failure.
                If the last failure is an outage, the number of outages.
            error: Error of the last attempt.
            chance: Random number in [0, 1) for the jitter.
            topic_delay_ms: Delay of the retry topic that the record was read from; None for the original topic.
        """
        retry = self.retry
        if consists_of(error, self.outages):
            return RetryDecision(FailureAction.PAUSE, retry.wait_s(failures, chance))
        if retry.is_retriable(error, self.never):
            pause_s = retry.pause_s(failures, chance)
            if pause_s is not None:
                return RetryDecision(FailureAction.RETRY, pause_s)
            next_delay_ms = self._next_topic_delay_ms(topic_delay_ms)
            if next_delay_ms is not None:
                return RetryDecision(FailureAction.RETRY_TOPIC, next_delay_ms / 1000, next_delay_ms)
        if self.has_dead_letter:
            return RetryDecision(FailureAction.DEAD_LETTER)
        action = _ON_FAILURE_ACTIONS[self.on_failure]
        return RetryDecision(action, retry.max_backoff_ms / 1000 if action is FailureAction.PAUSE else 0.0)

    def _next_topic_delay_ms(self, topic_delay_ms: int | None) -> int | None:
        """Return the delay of the retry topic after that with ``topic_delay_ms``; None after the last one.

        The first retry topic comes after the original topic. If the handler no longer has a retry topic with this
        delay, the record continues with the first topic that has a longer delay.
        """
        delays_ms = self.retry.topic_delays_ms
        if topic_delay_ms is None:
            following = delays_ms
        elif topic_delay_ms in delays_ms:
            following = delays_ms[delays_ms.index(topic_delay_ms) + 1 :]
        else:
            following = [one for one in delays_ms if one > topic_delay_ms]
        return following[0] if following else None


def consists_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Return True for an error of the classes ``kinds``, and for an exception group in which every error is one."""
    return all(isinstance(one, BaseExceptionGroup) for one in with_group_members(error, leave_out=kinds))


def _is_any(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    return any(isinstance(one, kinds) for one in with_group_members(error))


def _as_tuple(exceptions: Exceptions) -> tuple[type[Exception], ...]:
    return exceptions if isinstance(exceptions, tuple) else (exceptions,)
