"""When a heartbeat is due, and when the session is over."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.core.group.heartbeat import Heartbeat


@pytest.fixture
def heartbeat():
    """Of a session of ten seconds and a heartbeat every three, begun at 100."""
    made = Heartbeat(session_timeout_s=10, interval_s=3)
    made.reset(100)
    return made


def test_the_first_is_due_after_an_interval(heartbeat):
    """Joining told the group that we live; ``ttl`` counts down to the next time and never below 0."""
    assert (heartbeat.ttl(100), heartbeat.ttl(102), heartbeat.ttl(103), heartbeat.ttl(200)) == (3, 1, 0, 0)
    assert not heartbeat.should_heartbeat(102.9)
    assert heartbeat.should_heartbeat(103)


def test_one_is_under_way_at_a_time(heartbeat):
    """No other goes out before the answer, however late it is."""
    heartbeat.sent(103)

    assert not heartbeat.should_heartbeat(109)
    heartbeat.received(109)
    assert heartbeat.should_heartbeat(109)


def test_the_interval_is_from_sending_to_sending(heartbeat):
    """An answer that takes its time does not push the next one back."""
    heartbeat.sent(103)
    heartbeat.received(105)

    assert heartbeat.ttl(105) == 1


def test_a_broker_that_will_not_listen_is_left_alone(heartbeat):
    """Throttling moves the next heartbeat back, never forward."""
    heartbeat.sent(103)
    heartbeat.received(104, pause_s=5)

    assert heartbeat.ttl(104) == 5


def test_a_failed_one_is_tried_again_after_a_pause(heartbeat):
    """The session goes on counting from before."""
    heartbeat.sent(103)
    heartbeat.failed(104, pause_s=0.5)

    assert not heartbeat.should_heartbeat(104.4)
    assert heartbeat.should_heartbeat(104.5)
    assert heartbeat.expires_at == 110


def test_the_session_counts_from_the_sending_of_the_last_one_acknowledged(heartbeat):
    """We give ourselves up no later than the broker does: it heard the heartbeat after it was sent."""
    heartbeat.sent(103)
    heartbeat.received(109)

    assert heartbeat.expires_at == 113
    assert not heartbeat.session_expired(112.9)
    assert heartbeat.session_expired(113)
    assert heartbeat.age_s(113) == 10


def test_a_session_without_answers_ends(heartbeat):
    """Sending alone keeps nobody alive."""
    heartbeat.sent(103)
    heartbeat.failed(106, 0.1)
    heartbeat.sent(107)

    assert heartbeat.session_expired(110)


def test_a_reset_begins_everything_anew(heartbeat):
    """The group has just heard from us; what was under way counts for nothing any more."""
    heartbeat.sent(103)
    heartbeat.reset(108)

    assert heartbeat.expires_at == 118
    assert heartbeat.ttl(108) == 3
    heartbeat.received(109)
    assert heartbeat.expires_at == 118
    assert heartbeat.should_heartbeat(111)


def test_something_is_to_be_done_when_it_says(heartbeat):
    """The next heartbeat, or the end of the session where that comes first or an answer is waited for."""
    assert heartbeat.next_at == 103
    heartbeat.sent(103)
    assert heartbeat.next_at == 110
    heartbeat.failed(108, pause_s=5)
    assert heartbeat.next_at == 110


class Sessions(RuleBasedStateMachine):
    """A member that beats whenever it should, and a broker that hears, or does not."""

    @initialize(session=st.integers(3, 30), interval=st.integers(1, 10))
    def begin(self, session, interval):
        self.now = self.broker_heard_at = 0.0
        self.session, self.interval = session, interval
        self.heartbeat = Heartbeat(session, interval)
        self.heartbeat.reset(self.now)
        self.heard_at = None
        self.under_way = False

    @rule(seconds=st.floats(0, 5))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.heartbeat.should_heartbeat(self.now))
    @rule(is_heard=st.booleans(), delay=st.floats(0, 2))
    def beat(self, is_heard, delay):
        assert not self.under_way
        self.heartbeat.sent(self.now)
        self.under_way = True
        self.now += delay
        self.heard_at = self.now if is_heard else None

    @precondition(lambda self: self.under_way)
    @rule()
    def answer(self):
        self.under_way = False
        if self.heard_at is None:
            self.heartbeat.failed(self.now, 0.1)
        else:
            self.broker_heard_at = self.heard_at
            self.heartbeat.received(self.now)

    @invariant()
    def we_give_up_no_later_than_the_broker(self):
        if hasattr(self, "now") and self.now >= self.broker_heard_at + self.session:
            assert self.heartbeat.session_expired(self.now)

    @invariant()
    def there_is_always_something_to_wait_for(self):
        if hasattr(self, "now"):
            due = self.heartbeat.should_heartbeat(self.now) or self.heartbeat.session_expired(self.now)
            assert due == (self.now >= self.heartbeat.next_at)
            assert self.heartbeat.ttl(self.now) >= 0


TestSessions = Sessions.TestCase
TestSessions.__doc__ = "However time passes and answers get lost, a member does not outlive its session."
