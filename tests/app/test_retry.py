"""Retry decisions: which errors are retried, when, and the policy for records that fail finally."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.app.policies import FailureAction, FailureRules, Retry, RetryDecision
from tailrace.core.backoff import Backoff
from tailrace.errors import ConfigurationError

EVEN = 0.5
"""Random number that leaves a pause unchanged."""


class Rejected(Exception):  # noqa: N818 - a word of the handler
    """Error that is never retried."""


NEVER = (Rejected,)


# ---- policy ----------------------------------------------------------------------------------------------------


def test_defaults_of_retry():
    """By default: three attempts at any exception, pauses of 200 ms to 30 s, no retry topics."""
    assert Retry() == Retry(3, 200, 30_000, True, Exception, (), (), False)
    assert hash(Retry(topic_delays_ms=[5])) == hash(Retry(topic_delays_ms=(5,)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attempts": 0}, "attempts must be an integer of at least 1, not 0"),
        ({"attempts": True}, "attempts must be an integer of at least 1, not True"),
        ({"backoff_ms": 1.5}, "backoff_ms must be an integer of at least 0, not 1.5"),
        ({"backoff_ms": -1}, "backoff_ms must be an integer of at least 0, not -1"),
        ({"max_backoff_ms": 0}, "max_backoff_ms must be an integer of at least 1, not 0"),
        ({"backoff_ms": 500, "max_backoff_ms": 400}, "backoff_ms=500 must be at most max_backoff_ms=400"),
        ({"on": "ValueError"}, "on must be an exception class or a tuple of exception classes, not 'ValueError'"),
        ({"on": (OSError, 5)}, "on must be an exception class or a tuple of exception classes, not 5"),
        ({"on": OSError()}, r"on must be .*, not OSError\(\)"),
        ({"not_on": KeyboardInterrupt}, "not_on must be .*, not .*KeyboardInterrupt"),
        ({"on": (OSError, ValueError), "not_on": ValueError}, "ValueError is in on= and in not_on="),
        ({"on": ConnectionError, "not_on": OSError}, "ConnectionError is in on= and in not_on="),
        ({"topic_delays_ms": 5_000}, "topic_delays_ms must be a list of positive integers such as .*, not 5000"),
        ({"topic_delays_ms": [0]}, r"topic_delays_ms must be a list of positive integers such as .*, not \[0\]"),
        ({"topic_delays_ms": [1.5]}, r"topic_delays_ms must be a list of positive integers such as .*, not \[1.5\]"),
        ({"topic_delays_ms": [True]}, "topic_delays_ms must be a list of positive integers"),
        ({"topic_delays_ms": [5, 5]}, r"topic_delays_ms=\[5, 5\] contains a delay twice"),
        ({"jitter": 0.2}, "jitter must be True or False, not 0.2"),
        ({"allow_reordering": "key"}, "allow_reordering must be True or False, not 'key'"),
    ],
)
def test_invalid_policies_are_refused(options, words):
    """A policy with an invalid field raises an error that names the field and the value."""
    with pytest.raises(ConfigurationError, match=f"^Retry: {words}"):
        Retry(**options)


def test_boundary_values_of_retry_are_valid():
    """Boundary values are valid: a single attempt, no pause, a constant pause."""
    assert Retry(attempts=1, backoff_ms=0, max_backoff_ms=1).pause_s(1, EVEN) is None
    assert Retry(backoff_ms=500, max_backoff_ms=500).pause_s(2, EVEN) == 0.5


def test_exception_classes_include_their_subclasses():
    """``on`` and ``not_on`` include subclasses, and ``not_on`` takes precedence."""
    network = Retry(on=OSError, not_on=(PermissionError, FileNotFoundError))

    assert network.is_retriable(ConnectionResetError())
    assert not network.is_retriable(PermissionError())
    assert not network.is_retriable(ValueError())
    assert Retry(on=(OSError, ValueError)).is_retriable(UnicodeError())
    assert not Retry(on=()).is_retriable(ValueError())


def test_errors_in_never_are_not_retried():
    """Exceptions in ``never`` are not retried whatever ``on`` contains, nor is a KeyboardInterrupt."""
    assert Retry().is_retriable(Rejected())
    assert not Retry().is_retriable(Rejected(), NEVER)
    assert not Retry(on=Rejected).is_retriable(Rejected(), NEVER)
    assert not Retry().is_retriable(KeyboardInterrupt())


def of_group(*errors: Exception) -> ExceptionGroup:
    return ExceptionGroup("unhandled errors in a TaskGroup", errors)


def test_an_exception_group_is_retried_if_each_of_its_errors_is():
    """An exception group is retried only if each error in it, at any depth, is retriable."""
    network, reset, bug = Retry(on=OSError, not_on=PermissionError), ConnectionResetError(), ValueError()

    assert network.is_retriable(of_group(reset, of_group(TimeoutError(), reset)))
    assert not network.is_retriable(of_group(reset, of_group(bug)))
    assert not network.is_retriable(of_group(reset, PermissionError()))
    assert Retry().is_retriable(of_group(reset, bug))
    assert not Retry().is_retriable(of_group(reset, of_group(Rejected())), NEVER)
    assert Retry(on=ExceptionGroup).is_retriable(of_group(reset, bug))
    assert not Retry(not_on=ExceptionGroup).is_retriable(of_group(reset))


def test_pauses_grow_until_the_attempts_are_used_up():
    """Pauses grow up to their maximum; N attempts have N - 1 pauses."""
    retry = Retry(attempts=5, backoff_ms=200, max_backoff_ms=1_000, jitter=False)

    assert [retry.pause_s(n, 0.9) for n in range(1, 5)] == pytest.approx([0.2, 0.4, 0.8, 1.0])
    assert retry.pause_s(5, 0.9) is None
    assert retry.pause_s(6, 0.9) is None
    assert Retry(attempts=1).pause_s(1, EVEN) is None


@given(st.integers(1, 50), st.floats(0, 1, exclude_max=True), st.integers(0, 10_000), st.integers(1, 60_000))
def test_pauses_have_jitter(failures, chance, first_ms, more_ms):
    """Pauses are exponential with jitter, as those between requests and connections."""
    retry = Retry(attempts=51, backoff_ms=first_ms, max_backoff_ms=first_ms + more_ms)

    assert retry.pause_s(failures, chance) == Backoff.of_ms(first_ms, first_ms + more_ms).pause_s(failures, chance)


# ---- decision --------------------------------------------------------------------------------------------------

RETRY = Retry(attempts=3, backoff_ms=200, max_backoff_ms=5_000, jitter=False, not_on=KeyError)
DELAYED = dataclasses.replace(RETRY, topic_delays_ms=(10_000, 60_000))
FAILED, HOPELESS, REJECTED, AWAY = ValueError(), KeyError(), Rejected(), ConnectionError()
ONCE_MORE = RetryDecision(FailureAction.RETRY, 0.4)
DEAD = RetryDecision(FailureAction.DEAD_LETTER)


NO_DEAD_LETTERS = {"has_dead_letter": False}


@pytest.mark.parametrize(
    ("error", "failures", "situation", "decision"),
    [
        # an outage: retried in place for as long as it lasts
        (AWAY, 1, {}, RetryDecision(FailureAction.PAUSE, 0.2)),
        (AWAY, 4, {"retry": DELAYED}, RetryDecision(FailureAction.PAUSE, 1.6)),
        (AWAY, 99, {"on_failure": "skip"} | NO_DEAD_LETTERS, RetryDecision(FailureAction.PAUSE, 5.0)),
        # attempts left: retried in place, with or without retry topics
        (FAILED, 1, {}, RetryDecision(FailureAction.RETRY, 0.2)),
        (FAILED, 2, NO_DEAD_LETTERS, ONCE_MORE),
        (FAILED, 2, {"retry": DELAYED}, ONCE_MORE),
        (FAILED, 2, {"retry": DELAYED, "topic_delay_ms": 60_000}, ONCE_MORE),
        # attempts used up: the next retry topic, then the dead-letter topic
        (FAILED, 3, {"retry": DELAYED}, RetryDecision(FailureAction.RETRY_TOPIC, 10.0, 10_000)),
        (
            FAILED,
            3,
            {"retry": DELAYED, "topic_delay_ms": 10_000},
            RetryDecision(FailureAction.RETRY_TOPIC, 60.0, 60_000),
        ),
        (FAILED, 3, {"retry": DELAYED} | NO_DEAD_LETTERS, RetryDecision(FailureAction.RETRY_TOPIC, 10.0, 10_000)),
        (FAILED, 3, {"retry": DELAYED, "topic_delay_ms": 60_000}, DEAD),
        (FAILED, 3, {"retry": DELAYED, "topic_delay_ms": 99_000}, DEAD),
        (FAILED, 3, {}, DEAD),
        # not retriable: dead-lettered at once
        (HOPELESS, 1, {"retry": DELAYED}, DEAD),
        (REJECTED, 1, {"retry": DELAYED}, DEAD),
        (REJECTED, 1, {}, DEAD),
        # no dead-letter topic: the partition is paused
        (FAILED, 3, NO_DEAD_LETTERS, RetryDecision(FailureAction.PAUSE, 5.0)),
        (FAILED, 4, NO_DEAD_LETTERS, RetryDecision(FailureAction.PAUSE, 5.0)),
        (
            FAILED,
            3,
            {"retry": DELAYED, "topic_delay_ms": 60_000} | NO_DEAD_LETTERS,
            RetryDecision(FailureAction.PAUSE, 5.0),
        ),
        (REJECTED, 1, {"retry": DELAYED} | NO_DEAD_LETTERS, RetryDecision(FailureAction.PAUSE, 5.0)),
    ],
)
def test_failures_lead_to_the_documented_decisions(error, failures, situation, decision):
    """The rules return the decision for each row of the table."""
    options = {"retry": RETRY, "has_dead_letter": True, "on_failure": "pause", "never": NEVER} | situation
    topic_delay_ms = options.pop("topic_delay_ms", None)
    rules = FailureRules(outages=(ConnectionError,), **options)

    assert rules.decide(failures, error, EVEN, topic_delay_ms) == decision


@pytest.mark.parametrize(
    ("delay_ms", "delays_ms", "next_ms"),
    [
        (None, (5, 60), 5),
        (5, (5, 60), 60),
        (60, (5, 60), None),
        (60, (60, 5), 5),
        # delays removed from the handler's retry policy
        (10, (5, 60), 60),
        (1, (5, 60), 5),
        (99, (5, 60), None),
        (5, (), None),
        (None, (), None),
    ],
)
def test_record_continues_after_the_retry_topic_it_came_from(delay_ms, delays_ms, next_ms):
    """A record of a removed delay continues with the next longer delay; after the last topic, it is dead-lettered."""
    decision = FailureRules(Retry(attempts=1, topic_delays_ms=delays_ms), "pause", True).decide(
        1, FAILED, EVEN, delay_ms
    )

    assert decision.topic_delay_ms == next_ms
    assert decision.action is (FailureAction.DEAD_LETTER if next_ms is None else FailureAction.RETRY_TOPIC)


@pytest.mark.parametrize(("on_failure", "step"), [("stop", FailureAction.STOP), ("skip", FailureAction.SKIP)])
def test_on_failure_decides_without_a_dead_letter_topic(on_failure, step):
    """Without a dead-letter topic on_failure decides; with one the record is dead-lettered."""
    with_none, with_some = (
        FailureRules(RETRY, on_failure, there_are).decide(3, FAILED, EVEN) for there_are in (False, True)
    )

    assert with_none == RetryDecision(step)
    assert with_some == DEAD


@given(
    st.integers(1, 5),
    st.lists(st.integers(1, 100_000), max_size=4, unique=True),
    st.booleans(),
    st.sampled_from(["pause", "stop", "skip"]),
    st.floats(0, 1, exclude_max=True),
)
def test_every_failing_record_comes_to_a_final_decision(attempts, delays_ms, dead_letter, on_failure, chance):
    """A record that always fails has ``attempts`` attempts in its topic and each retry topic, then a final decision."""
    retry = Retry(attempts=attempts, topic_delays_ms=delays_ms)
    tried, topics, came_by, failures = 0, [], None, 0

    while True:
        tried, failures = tried + 1, failures + 1
        decision = FailureRules(retry, on_failure, dead_letter).decide(failures, FAILED, chance, came_by)
        if decision.action is FailureAction.RETRY_TOPIC:
            came_by, failures = decision.topic_delay_ms, 0
            topics.append(came_by)
        elif decision.action is not FailureAction.RETRY:
            break

    assert tried == attempts * (1 + len(delays_ms))
    assert topics == delays_ms
    assert decision.action is (FailureAction.DEAD_LETTER if dead_letter else FailureAction[on_failure.upper()])
