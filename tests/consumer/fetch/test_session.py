"""Fetch sessions, compared with a model of the broker's."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tailrace.consumer.fetch.plan import FetchSession
from tailrace.error_codes import ErrorCode
from tailrace.protocol.records import FetchPartition, FetchResponse, ForgottenPartition
from tailrace.records import TopicPartition

FIRST_ID, SECOND_ID = UUID(int=1), UUID(int=2)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def asked(partition: TopicPartition, offset: int = 0, topic_id: UUID = FIRST_ID) -> FetchPartition:
    return FetchPartition(partition.partition, offset, 100, partition.topic, topic_id)


def answer(session_id: int = 5, error_code: int = 0) -> FetchResponse:
    return FetchResponse((), error_code=error_code, session_id=session_id)


@pytest.fixture
def session():
    """Session with two partitions after the first response."""
    made = FetchSession()
    made.next_request({A: asked(A), B: asked(B)})
    made.handle_answer(answer())
    return made


def test_first_request_is_full():
    """The first request names all partitions and requests a session with epoch 0."""
    session = FetchSession()

    part = session.next_request({A: asked(A), B: asked(B)})

    assert session.is_full
    assert (part.session_id, part.session_epoch) == (0, 0)
    assert part.partitions == (asked(A), asked(B))
    assert part.forgotten == ()


def test_next_request_names_only_changes(session):
    """The next requests name only changed partitions, with epochs from 1 on."""
    part = session.next_request({A: asked(A, 10), B: asked(B)})
    session.handle_answer(answer())

    assert not session.is_full
    assert (part.session_id, part.session_epoch) == (5, 1)
    assert (part.partitions, part.forgotten) == ((asked(A, 10),), ())
    again = session.next_request({A: asked(A, 10), B: asked(B)})
    assert (again.session_epoch, again.partitions, again.forgotten) == (2, (), ())


def test_partition_no_longer_fetched_is_forgotten(session):
    """A paused partition is removed from the session, and added again when it is resumed."""
    part = session.next_request({B: asked(B)})
    session.handle_answer(answer())

    assert (part.partitions, part.forgotten) == ((), (ForgottenPartition(0, "t", FIRST_ID),))
    assert session.next_request({A: asked(A), B: asked(B)}).partitions == (asked(A),)


def test_recreated_topic_starts_a_new_session(session):
    """A recreated topic starts a new session, as a broker that identifies topics by name would remove the new topic."""
    part = session.next_request({A: asked(A, topic_id=SECOND_ID), B: asked(B)})

    assert (part.session_id, part.session_epoch) == (5, 0)
    assert len(part.partitions) == 2
    assert part.forgotten == ()


def test_broker_without_sessions_gets_full_requests(session):
    """While a broker returns session id 0, each request names all partitions and requests a session."""
    assert session.handle_answer(answer(session_id=0))

    assert session.is_full
    assert session.next_request({A: asked(A)}).session_id == 0


@pytest.mark.parametrize(
    ("code", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 5),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 5),
    ],
)
def test_session_error_ends_the_session(session, code, session_id):
    """After a session error, the next request names all partitions and ends the old session."""
    session.next_request({A: asked(A)})

    assert not session.handle_answer(answer(error_code=code))

    assert session.is_full
    part = session.next_request({A: asked(A)})
    assert (part.session_id, part.session_epoch, part.partitions) == (session_id, 0, (asked(A),))


def test_other_error_resets_the_session_and_is_returned(session):
    """Any other error is returned to the caller, and the next request names all partitions."""
    session.next_request({A: asked(A)})

    assert session.handle_answer(answer(error_code=ErrorCode.UNKNOWN_SERVER_ERROR))
    assert session.is_full


def test_request_after_a_lost_answer_is_full(session):
    """After a lost response, the next request names all partitions, as the broker's state is unknown."""
    session.next_request({A: asked(A, 10)})
    session.restart()

    part = session.next_request({A: asked(A, 10)})

    assert (part.session_id, part.session_epoch, part.partitions) == (5, 0, (asked(A, 10),))


def test_epochs_wrap_to_1():
    """Session epochs wrap to 1, as 0 and -1 have other meanings."""
    session = FetchSession()
    session.next_request({})
    session.handle_answer(answer())
    session._epoch = 0x7FFFFFFF
    assert session.next_request({}).session_epoch == 0x7FFFFFFF

    session.handle_answer(answer())

    assert session.next_request({}).session_epoch == 1


class Broker:
    """Model of a broker's fetch sessions (KIP-227), by topic name or by topic id."""

    def __init__(self, *, by_id: bool) -> None:
        self._by_id = by_id
        self._ids = 0
        self._session_id, self._epoch = 0, 0
        self.remembers: dict[object, FetchPartition] = {}

    def fetch(self, part, *, has_room: bool) -> tuple[FetchResponse, list[FetchPartition]]:
        """Return the answer, and the partitions it sends."""
        if part.session_epoch == 0:
            if part.session_id == self._session_id:
                self.evict()
            if not has_room:
                return FetchResponse(()), list(part.partitions)
            self._ids += 1
            self._session_id, self._epoch, self.remembers = self._ids, 1, {}
        elif part.session_id != self._session_id:
            return FetchResponse((), error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), []
        elif part.session_epoch != self._epoch:
            return FetchResponse((), error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH), []
        else:
            self._epoch += 1
        self.remembers |= {self._key(one): one for one in part.partitions}
        for one in part.forgotten:
            self.remembers.pop(self._key(one), None)
        return FetchResponse((), session_id=self._session_id), list(self.remembers.values())

    def evict(self) -> None:
        """Evict the session."""
        self._session_id, self._epoch, self.remembers = 0, 0, {}

    def _key(self, one: FetchPartition | ForgottenPartition) -> tuple[object, int]:
        return (one.topic_id if self._by_id else one.topic, one.partition)


class Fetching(RuleBasedStateMachine):
    """Model of any sequence of fetches, losses and evictions, after which the broker sends the wanted partitions."""

    @initialize(by_id=st.booleans())
    def begin(self, by_id):
        self.broker, self.session = Broker(by_id=by_id), FetchSession()
        self.topic_ids = {"t": FIRST_ID, "u": SECOND_ID}
        self.wanted: dict[TopicPartition, FetchPartition] = {}

    @rule(topic=st.sampled_from("tu"), number=st.integers(0, 2), offset=st.none() | st.integers(0, 5))
    def want(self, topic, number, offset):
        partition = TopicPartition(topic, number)
        if offset is None:
            self.wanted.pop(partition, None)
        else:
            self.wanted[partition] = asked(partition, offset, self.topic_ids[topic])

    @rule(topic=st.sampled_from("tu"))
    def make_anew(self, topic):
        self.topic_ids[topic] = UUID(int=max(one.int for one in self.topic_ids.values()) + 1)
        for partition in self.wanted:
            if partition.topic == topic:
                self.wanted[partition] = asked(partition, 0, self.topic_ids[topic])

    @rule(has_room=st.booleans(), fate=st.sampled_from(["answered", "answered", "request lost", "answer lost"]))
    def fetch(self, has_room, fate):
        part = self.session.next_request(self.wanted)
        if fate == "request lost":
            self.session.restart()
            return
        answer, sent = self.broker.fetch(part, has_room=has_room)
        if fate == "answer lost":
            self.session.restart()
        elif self.session.handle_answer(answer):
            key = lambda one: (one.topic, one.partition)  # noqa: E731
            assert sorted(sent, key=key) == sorted(self.wanted.values(), key=key)
        else:
            assert self.session.is_full
            assert sent == []

    @precondition(lambda self: self.broker.remembers)
    @rule()
    def evict(self):
        self.broker.evict()


TestFetching = Fetching.TestCase
TestFetching.__doc__ = "The broker sends exactly the wanted partitions, after any loss or eviction."
