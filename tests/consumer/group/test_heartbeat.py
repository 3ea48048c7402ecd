"""Due times of heartbeats, and the end of the session."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.consumer.group.group_machine import Heartbeat


@pytest.fixture
def heartbeat():
    """Return a heartbeat with an interval of three seconds and a session of ten seconds, started at 100."""
    made = Heartbeat(session_timeout_s=10, interval_s=3)
    made.reset(100)
    return made


def test_first_heartbeat_is_due_after_an_interval(heartbeat):
    """The first heartbeat is due after an interval."""
    assert not heartbeat.should_heartbeat(102.9)
    assert heartbeat.should_heartbeat(103)


def test_only_one_heartbeat_is_in_flight(heartbeat):
    """No heartbeat is due before the response to the last one."""
    heartbeat.note_sent(103)

    assert not heartbeat.should_heartbeat(109)
    heartbeat.note_answer(109)
    assert heartbeat.should_heartbeat(109)


def test_interval_counts_from_sending(heartbeat):
    """A slow response does not delay the next heartbeat."""
    heartbeat.note_sent(103)
    heartbeat.note_answer(105)

    assert not heartbeat.should_heartbeat(105.9)
    assert heartbeat.should_heartbeat(106)


def test_failed_heartbeat_is_repeated_after_a_pause(heartbeat):
    """A failed heartbeat is repeated after a pause, and does not extend the session."""
    heartbeat.note_sent(103)
    heartbeat.note_failure(104, pause_s=0.5)

    assert not heartbeat.should_heartbeat(104.4)
    assert heartbeat.should_heartbeat(104.5)
    assert heartbeat.expires_at == 110


def test_session_counts_from_sending_the_last_acknowledged_heartbeat(heartbeat):
    """The session starts when the last acknowledged heartbeat was sent, so that it ends no later than the broker's."""
    heartbeat.note_sent(103)
    heartbeat.note_answer(109)

    assert heartbeat.expires_at == 113
    assert not heartbeat.session_expired(112.9)
    assert heartbeat.session_expired(113)
    assert heartbeat.age_s(113) == 10


def test_session_without_answers_expires(heartbeat):
    """A session expires if heartbeats are not acknowledged."""
    heartbeat.note_sent(103)
    heartbeat.note_failure(106, 0.1)
    heartbeat.note_sent(107)

    assert heartbeat.session_expired(110)


def test_reset_starts_a_new_session(heartbeat):
    """A reset starts a new session, for which a heartbeat in flight does not count."""
    heartbeat.note_sent(103)
    heartbeat.reset(108)

    assert heartbeat.expires_at == 118
    assert not heartbeat.should_heartbeat(110.9)
    heartbeat.note_answer(109)
    assert heartbeat.expires_at == 118
    assert heartbeat.should_heartbeat(111)


def test_next_at_is_the_heartbeat_or_the_end_of_the_session(heartbeat):
    """next_at is the next heartbeat or the end of the session, whichever comes first."""
    assert heartbeat.next_at == 103
    heartbeat.note_sent(103)
    assert heartbeat.next_at == 110
    heartbeat.note_failure(108, pause_s=5)
    assert heartbeat.next_at == 110


class Sessions(RuleBasedStateMachine):
    """Model of a member that sends due heartbeats, and a broker that receives some of them."""

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
        self.heartbeat.note_sent(self.now)
        self.under_way = True
        self.now += delay
        self.heard_at = self.now if is_heard else None

    @precondition(lambda self: self.under_way)
    @rule()
    def answer(self):
        self.under_way = False
        if self.heard_at is None:
            self.heartbeat.note_failure(self.now, 0.1)
        else:
            self.broker_heard_at = self.heard_at
            self.heartbeat.note_answer(self.now)

    @invariant()
    def we_give_up_no_later_than_the_broker(self):
        if hasattr(self, "now") and self.now >= self.broker_heard_at + self.session:
            assert self.heartbeat.session_expired(self.now)

    @invariant()
    def there_is_always_something_to_wait_for(self):
        if hasattr(self, "now"):
            due = self.heartbeat.should_heartbeat(self.now) or self.heartbeat.session_expired(self.now)
            assert due == (self.now >= self.heartbeat.next_at)


TestSessions = Sessions.TestCase
TestSessions.__doc__ = "A member never considers its session valid after the broker has ended it."
