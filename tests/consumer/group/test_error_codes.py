"""Reactions to the error codes of group requests."""

from __future__ import annotations

import asyncio
import time

import pytest
from msgspec.structs import replace

from tailrace import (
    BrokerError,
    CommitFailedError,
    ConfigurationError,
    FencedMemberError,
    GroupAuthorizationFailedError,
    InvalidSessionTimeoutError,
    NoCommonAssignorError,
    TopicPartition,
    UnknownTopicError,
)
from tailrace.error_codes import ErrorCode, name_of
from tailrace.observe.events import (
    CommitFailed,
    ConsumerFailed,
    Event,
    GroupJoined,
    GroupLeft,
    GroupRequestFailed,
    PartitionsLost,
)
from tailrace.protocol.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tailrace.protocol.metadata import FindCoordinatorRequest
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

QUICK = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 100, "max_poll_interval_ms": 6_000}
SHORT = {**QUICK, "session_timeout_ms": 3_000}
"""Options of tests that wait for the end of a session."""
PAUSE_S = 0.08
"""First pause before a retry, less a fifth for jitter."""

OF_MEMBERSHIP = [JoinGroupRequest, SyncGroupRequest, HeartbeatRequest]
BY_KIND = {"ids": lambda kind: kind.__name__.removesuffix("Request")}


def refusing(code):
    """Return a function that edits a response of any of these requests into a refusal."""

    def edit(answer):
        if hasattr(answer, "error_code"):
            return replace(answer, error_code=int(code))
        return replace(answer, partitions=tuple(replace(one, error_code=int(code)) for one in answer.partitions))

    return edit


def joins(witness, client):
    """Return the member id of each join."""
    return [frame.message.member_id for frame in witness.proxy.requests(JoinGroupRequest, client_id=client)]


async def provoke_refusal(consumer, kind, refused):
    """Call commit() if it is the request to refuse, and wait for the refusal."""
    if kind is OffsetCommitRequest:
        await consumer.commit()
    await refused.wait_applied()


# ---- retriable errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*OF_MEMBERSHIP, OffsetCommitRequest], **BY_KIND)
@pytest.mark.parametrize("code", [14, 15, 16])
async def test_a_loading_or_moved_coordinator_is_retried(witness_of, group, kind, code):
    """Codes 14, 15 and 16 are retried after a pause, and for 15 and 16 the coordinator is looked up first."""
    topic, events, proxy = witness_of.topic_with(10), EventRecorder(), witness_of.proxy
    options = {**QUICK, "heartbeat_interval_ms": 300, "group_id": group, "client_id": group, "hooks": [events]}

    # The first join only gets a member id.
    with proxy.edit_answer(kind, refusing(code), skip=int(kind is JoinGroupRequest)) as refused:
        async with witness_of.consumer(topic, **options) as consumer:
            got = [(await consumer.getone()).offset]
            await provoke_refusal(consumer, kind, refused)
            await until(lambda: asked_again(proxy, kind, group) is not None)
            got += [(await consumer.getone()).offset for _ in range(9)]

    assert list(range(10)) == got
    assert asked_again(proxy, kind, group) >= PAUSE_S
    assert looked_up_again(proxy, kind, group) is (code != 14)
    assert len(events.of(GroupJoined)) == 1
    assert not events.of(PartitionsLost) + events.of(CommitFailed) + events.of(ConsumerFailed)
    if kind is not OffsetCommitRequest:
        assert any(name_of(code) in event.error for event in events.of(GroupRequestFailed))


async def test_unstable_committed_offsets_are_fetched_again(witness_of, group):
    """Committed offsets that a pending transaction makes unstable (KIP-447) are fetched again until they are stable."""
    topic, events, proxy = witness_of.topic_with(3), EventRecorder(), witness_of.proxy
    options = {**QUICK, "max_poll_interval_ms": 1_000, "group_id": group, "hooks": [events]}

    with proxy.edit_answer(OffsetFetchRequest, refusing(88), times=None) as refused:
        async with witness_of.consumer(topic, **options) as consumer:
            reading = asyncio.create_task(consumer.getone())
            await events.wait_for(GroupRequestFailed, where=lambda event: event.request == "TakeOver")
            refused.end()
            record = await asyncio.wait_for(reading, 30)

    assert record.offset == 0
    assert len(events.of(GroupJoined)) == 1


def asked_again(proxy, kind, client):
    """Return the time from the refusal to the repeated request, which is a join if a sync was refused."""
    return since_refusal(proxy, kind, client, JoinGroupRequest if kind is SyncGroupRequest else kind)


def looked_up_again(proxy, kind, client):
    return since_refusal(proxy, kind, client, FindCoordinatorRequest) is not None


def since_refusal(proxy, kind, client, then):
    """Return the time from the refusal of a request of ``kind`` to the next request of the kind ``then``."""
    refused = proxy.answers(kind, client_id=client)[int(kind is JoinGroupRequest) :]
    later = [f.at - refused[0].at for f in proxy.requests(then, client_id=client) if refused and f.at > refused[0].at]
    return later[0] if later else None


async def test_retries_at_a_loading_coordinator_back_off(witness_of, group):
    """A join that is refused repeatedly is retried after 100, 200 and 400 ms, each plus or minus a fifth."""
    topic, proxy = witness_of.topic_with(1), witness_of.proxy

    with proxy.edit_answer(JoinGroupRequest, refusing(14), skip=1, times=3) as refused:
        async with witness_of.consumer(topic, group_id=group, client_id=group, **QUICK) as consumer:
            await consumer.getone()

    answered = [frame.at for frame in proxy.answers(JoinGroupRequest, client_id=group)][1:4]
    asked = [frame.at for frame in proxy.requests(JoinGroupRequest, client_id=group)][2:]
    pauses = [later - sooner for sooner, later in zip(answered, asked, strict=True)]
    assert refused.count == 3
    # A fifth less or more of jitter, and the delay of a busy machine.
    assert all(0.8 * s <= pause <= 1.2 * s + 5 for s, pause in zip((0.1, 0.2, 0.4), pauses, strict=True)), pauses


# ---- errors that end the generation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [22, 25])
async def test_a_heartbeat_error_that_ends_the_membership_rejoins(witness_of, group, code):
    """After code 22 or 25 of a heartbeat, the partitions are lost and the member joins again.

    Its record in flight is delivered again.
    """
    topic, events = witness_of.topic_with(10), EventRecorder()
    options = {**SHORT, "group_id": group, "client_id": group, "hooks": [events]}

    async with witness_of.consumer(topic, **options) as consumer:
        first = await consumer.getone()
        with witness_of.proxy.edit_answer(HeartbeatRequest, refusing(code)):
            lost = await events.wait_for(PartitionsLost)
            again = await consumer.getone()

    assert (lost.partitions, name_of(code) in lost.reason) == ({TopicPartition(topic, 0)}, True)
    assert (first.offset, again.offset) == (0, 0)
    assert_rejoined(witness_of, group, code)
    assert len(events.of(GroupJoined)) == 2


@pytest.mark.parametrize(
    "kind", [*OF_MEMBERSHIP, OffsetCommitRequest, OffsetFetchRequest, FindCoordinatorRequest], **BY_KIND
)
async def test_a_failure_in_the_broker_is_retried(witness_of, group, kind):
    """After UNKNOWN_SERVER_ERROR, a request is repeated, and neither the partitions nor the membership are lost."""
    topic, events = witness_of.topic_with(10), EventRecorder()

    with witness_of.proxy.edit_answer(kind, refusing(-1), skip=int(kind is JoinGroupRequest)) as refused:
        async with witness_of.consumer(topic, group_id=group, hooks=[events], **QUICK) as consumer:
            got = [(await consumer.getone()).offset for _ in range(5)]
            await provoke_refusal(consumer, kind, refused)
            got += [(await consumer.getone()).offset for _ in range(5)]

    assert got == list(range(10))
    assert not [*events.of(PartitionsLost), *events.of(ConsumerFailed)]


async def test_a_failure_in_the_broker_that_lasts_ends_the_membership(witness_of, group):
    """If joins are answered with UNKNOWN_SERVER_ERROR for longer than a session, the next poll raises the error."""
    topic = witness_of.topic_with(1)

    with witness_of.proxy.edit_answer(JoinGroupRequest, refusing(-1), times=None):
        async with witness_of.consumer(topic, group_id=group, **SHORT) as consumer:
            with pytest.raises(BrokerError, match=r"JoinGroup was refused .UNKNOWN_SERVER_ERROR, code -1"):
                await read_on(consumer)


async def test_a_member_that_fails_leaves_the_group(witness_of, group):
    """A member that the broker refuses for good leaves, so that the group need not wait until its session is over."""
    topic, events = witness_of.topic_with(1), EventRecorder()

    async with witness_of.consumer(topic, group_id=group, client_id=group, hooks=[events], **QUICK) as consumer:
        await consumer.getone()
        with (
            witness_of.proxy.edit_answer(HeartbeatRequest, refusing(ErrorCode.GROUP_MAX_SIZE_REACHED)),
            pytest.raises(BrokerError, match=r"the group is full, .* group.max.size"),
        ):
            await read_on(consumer)
        await events.wait_for(GroupLeft)
        assert await witness_of.members(group) == {}

    assert len(witness_of.proxy.requests(LeaveGroupRequest, client_id=group)) == 1


def assert_rejoined(witness, client, code):
    """Assert the member ids of the joins: none at first, then the one that the coordinator returned."""
    nobody, given, *later = joins(witness, client)
    assert (nobody, bool(given)) == ("", True)
    if code == 25:
        # The broker holds the new member's join until the old member's session expires, so it may be sent again.
        empty, newly_given, *sent_again = later
        assert (empty, newly_given in {"", given}) == ("", False)
        assert set(sent_again) <= {newly_given}
    else:
        assert later == [given]


@pytest.mark.parametrize("kind", [JoinGroupRequest, SyncGroupRequest], **BY_KIND)
@pytest.mark.parametrize("code", [22, 25, 27])
async def test_a_join_error_joins_again(witness_of, group, kind, code):
    """Codes 22, 25 and 27 of a join or sync are followed by another join, which has a new member id after 25."""
    topic, events = witness_of.topic_with(1), EventRecorder()
    options = {**SHORT, "group_id": group, "client_id": group, "hooks": [events]}

    with witness_of.proxy.edit_answer(kind, refusing(code), skip=int(kind is JoinGroupRequest)):
        async with witness_of.consumer(topic, **options) as consumer:
            await consumer.getone()

    assert_rejoined(witness_of, group, code)
    assert len(events.of(GroupJoined)) == 1
    assert not events.of(PartitionsLost)


async def test_a_heartbeat_that_announces_a_rebalance_joins(witness_of, group):
    """After code 27 of a heartbeat, the member joins with its id, and kept partitions are read on."""
    topic, events = witness_of.topic_with(10), EventRecorder()

    async with witness_of.consumer(topic, group_id=group, client_id=group, hooks=[events], **QUICK) as consumer:
        got = [(await consumer.getone()).offset for _ in range(5)]
        with witness_of.proxy.edit_answer(HeartbeatRequest, refusing(27)):
            await events.wait_for(GroupJoined, 2)
        got += [(await consumer.getone()).offset for _ in range(5)]

    assert list(range(10)) == got
    assert_rejoined(witness_of, group, 27)
    assert not events.of(PartitionsLost)


async def test_member_id_required_joins_again_with_the_id(witness_of, group):
    """After code 79 the member joins again with the id of the response."""
    topic, proxy = witness_of.topic_with(1), witness_of.proxy

    async with witness_of.consumer(topic, group_id=group, client_id=group, **QUICK) as consumer:
        await consumer.getone()
        members = await witness_of.members(group)

    required, accepted = (frame.message for frame in proxy.answers(JoinGroupRequest, client_id=group))
    assert (required.error_code, accepted.error_code) == (ErrorCode.MEMBER_ID_REQUIRED, 0)
    assert joins(witness_of, group) == ["", required.member_id]
    assert list(members) == [required.member_id]


# ---- commits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [22, 25])
async def test_a_commit_error_that_ends_the_membership_raises(witness_of, group, code):
    """Codes 22 and 25 of a commit raise CommitFailedError, the partitions are lost, and the member joins again."""
    topic, events = witness_of.topic_with(10), EventRecorder()
    options = {**SHORT, "group_id": group, "client_id": group, "hooks": [events]}

    async with witness_of.consumer(topic, **options) as consumer:
        await consumer.getone()
        with (
            witness_of.proxy.edit_answer(OffsetCommitRequest, refusing(code)),
            pytest.raises(CommitFailedError, match=f"continues without this member.*{name_of(code)}"),
        ):
            await consumer.commit()
        await events.wait_for(PartitionsLost)
        await consumer.getone()

    assert_rejoined(witness_of, group, code)


async def test_a_commit_in_a_rebalance_waits_for_its_end(witness_of, group):
    """After code 27, commit() sends the same offsets again and raises nothing."""
    topic, proxy = witness_of.topic_with(10), witness_of.proxy

    async with witness_of.consumer(topic, group_id=group, client_id=group, **QUICK) as consumer:
        await consumer.getone()
        with proxy.edit_answer(OffsetCommitRequest, refusing(27)):
            await consumer.commit()

    first, second, *_ = (frame.message for frame in proxy.requests(OffsetCommitRequest, client_id=group))
    assert first == second


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (12, BrokerError),
        (24, BrokerError),
        (30, GroupAuthorizationFailedError),
        (82, FencedMemberError),
        (999, BrokerError),
    ],
)
@pytest.mark.parametrize("by_hand", [True, False], ids=["commit()", "automatic"])
async def test_a_permanently_refused_commit_raises(witness_of, group, code, error, by_hand):
    """A permanent error code of a commit is raised by commit(), or by the next poll after an automatic commit."""
    topic = witness_of.topic_with(10)
    options = {**QUICK, "auto_commit_interval_ms": 60_000 if by_hand else 50, "enable_auto_commit": not by_hand}

    async with witness_of.consumer(topic, group_id=group, **options) as consumer:
        record = await consumer.getone()
        with witness_of.proxy.edit_answer(OffsetCommitRequest, refusing(code), times=None) as refused:
            if not by_hand:
                # Its start offset may be committed by now.
                consumer.ack(record)
                await refused.wait_applied()
            with pytest.raises(error, match=rf"{name_of(code)}, code {code}"):
                await (consumer.commit() if by_hand else read_on(consumer))


async def read_on(consumer):
    async with asyncio.timeout(30):
        while True:
            await consumer.getone()


# ---- errors that end the membership -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OF_MEMBERSHIP, **BY_KIND)
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (23, NoCommonAssignorError),
        (24, BrokerError),
        (26, InvalidSessionTimeoutError),
        (30, GroupAuthorizationFailedError),
        (81, BrokerError),
        (82, FencedMemberError),
        (999, BrokerError),
    ],
)
async def test_a_fatal_error_code_reaches_the_reader(witness_of, group, kind, code, error):
    """A fatal error code is raised by every further poll, and stop() ends within 10 s."""
    topic = witness_of.topic_with(1)

    async with witness_of.consumer(topic, group_id=group, **QUICK) as consumer:
        with witness_of.proxy.edit_answer(kind, refusing(code)):
            with pytest.raises(error, match=rf"{name_of(code)}, code {code}") as caught:
                await read_on(consumer)
            with pytest.raises(error):
                await consumer.getmany()
        began = time.monotonic()

    assert time.monotonic() - began < 10
    assert not isinstance(caught.value, BrokerError) or (caught.value.code, caught.value.name) == (code, name_of(code))


@pytest.mark.parametrize("code", [74, 75, 76, 78, 88, 100, 103, 106, 110, 111, 112, 113])
async def test_b13_newer_codes_have_their_names(witness_of, group, code):
    """The event of a newer error code has Kafka's name of the code (B13)."""
    topic, events = witness_of.topic_with(1), EventRecorder()
    options = {**QUICK, "group_id": group, "hooks": [events], "default_api_timeout_ms": 5_000}
    name = ErrorCode(code).name

    async with witness_of.consumer(topic, **options) as consumer:
        await consumer.getone()
        with witness_of.proxy.edit_answer(HeartbeatRequest, refusing(code)):
            reported = await events.wait_for(Event, where=lambda event: name in str(event))

    assert isinstance(reported, GroupRequestFailed | PartitionsLost | ConsumerFailed)
    assert "UNKNOWN" not in str(reported).replace(name, "")


async def test_b13_a_final_commit_error_has_the_error_of_its_code_as_cause(witness_of, group):
    """The error of a commit that keeps failing has the error of its code as cause (B13)."""
    topics, codes = {witness_of.topic_with(1): code for code in (88, 100, 113)}, {}
    options = {**QUICK, "enable_auto_commit": False, "default_api_timeout_ms": 3_000}

    def refused(answer):
        partitions = tuple(replace(one, error_code=codes[one.topic_id]) for one in answer.partitions)
        return replace(answer, partitions=partitions)

    async def cause_of(topic, code):
        async with witness_of.consumer(topic, group_id=f"{group}-{code}", **options) as consumer:
            await consumer.getone()
            codes[consumer._started.parts.cluster.topology.topic_id(topic)] = code
            with pytest.raises(CommitFailedError, match=name_of(code)) as caught:
                await consumer.commit()
        cause = caught.value.__cause__
        return type(cause), cause.code, cause.name

    with witness_of.proxy.edit_answer(OffsetCommitRequest, refused, times=None):
        causes = await asyncio.gather(*(cause_of(topic, code) for topic, code in topics.items()))

    assert causes == [
        (BrokerError, 88, "UNSTABLE_OFFSET_COMMIT"),
        (UnknownTopicError, 100, "UNKNOWN_TOPIC_ID"),
        (BrokerError, 113, "STALE_MEMBER_EPOCH"),
    ]


# ---- leaving ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "times"), [(14, 2), (15, 2), (16, 2), (25, 1), (30, 1), (999, 1)])
async def test_leave_is_sent_twice_at_most(witness_of, group, code, times):
    """LeaveGroup is repeated once after codes 14, 15 and 16, and stop() raises nothing."""
    topic, events, proxy = witness_of.topic_with(1), EventRecorder(), witness_of.proxy
    consumer = witness_of.consumer(topic, group_id=group, client_id=group, hooks=[events], **QUICK)
    await consumer.start()
    await consumer.getone()

    with proxy.edit_answer(LeaveGroupRequest, refusing(code), times=None):
        began = time.monotonic()
        await consumer.stop()
        took = time.monotonic() - began

    assert len(proxy.requests(LeaveGroupRequest, client_id=group)) == times
    assert took < 10
    # The group has removed an unknown member already, so nothing is left to report.
    is_reported = any(name_of(code) in event.error for event in events.of(GroupRequestFailed))
    assert is_reported is (code != ErrorCode.UNKNOWN_MEMBER_ID)


# ---- outdated responses -------------------------------------------------------------------------------------------


async def test_a_heartbeat_error_of_a_former_generation_is_ignored(witness_of, group):
    """Code 25 of a heartbeat that arrives in the next generation loses no partition and causes no join."""
    topic, events, proxy = witness_of.topic_with(10), EventRecorder(), witness_of.proxy
    options = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 100, "metadata_max_age_ms": 200}

    async with witness_of.consumer(topic, group_id=group, client_id=group, hooks=[events], **options) as consumer:
        got = [(await consumer.getone()).offset for _ in range(5)]
        with proxy.edit_answer(HeartbeatRequest, refusing(25)), proxy.hold_answer(HeartbeatRequest) as held:
            await held.wait_applied()
            witness_of.server.add_partitions(topic, 2)
            await events.wait_for(GroupJoined, 2)
            await until(lambda: len(consumer.assignment()) == 2)
            held.release()
            answered = len(proxy.answers(HeartbeatRequest, client_id=group))
            await until(lambda: len(proxy.answers(HeartbeatRequest, client_id=group)) > answered + 2)
        got += [(await consumer.getone()).offset for _ in range(5)]

    assert list(range(10)) == got
    assert not events.of(PartitionsLost)
    assert len(joins(witness_of, group)) == 3


async def test_a_heartbeat_error_during_a_join_is_ignored(witness_of, group):
    """Code 25 of a heartbeat that arrives during a join loses no partition, and reading continues."""
    topic, events, proxy = witness_of.topic_with(10), EventRecorder(), witness_of.proxy
    options = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 100, "metadata_max_age_ms": 200}

    async with witness_of.consumer(topic, group_id=group, client_id=group, hooks=[events], **options) as consumer:
        got = [(await consumer.getone()).offset for _ in range(5)]
        with proxy.edit_answer(HeartbeatRequest, refusing(25)), proxy.hold_answer(HeartbeatRequest) as beat:
            await beat.wait_applied()
            with proxy.hold_answer(JoinGroupRequest) as join:
                witness_of.server.add_partitions(topic, 2)
                await join.wait_applied()
                beat.release()
                answered = len(proxy.answers(HeartbeatRequest, client_id=group))
                await until(lambda: len(proxy.answers(HeartbeatRequest, client_id=group)) > answered)
                got += [(await consumer.getone()).offset for _ in range(5)]
            await events.wait_for(GroupJoined, 2)

    assert list(range(10)) == got
    assert not events.of(PartitionsLost)
    assert len(joins(witness_of, group)) == 3


async def test_a_commit_refused_for_a_former_generation_is_sent_again(witness_of, group):
    """Code 22 of a commit that arrives in the next generation loses no partition, and the offsets are sent again."""
    topic, events, proxy = witness_of.topic_with(10), EventRecorder(), witness_of.proxy
    options = {"session_timeout_ms": 60_000, "metadata_max_age_ms": 200, "auto_commit_interval_ms": 60_000}

    async with witness_of.consumer(topic, group_id=group, client_id=group, hooks=[events], **options) as consumer:
        await consumer.getone()
        with proxy.edit_answer(OffsetCommitRequest, refusing(22)), proxy.hold_answer(OffsetCommitRequest) as held:
            committing = asyncio.create_task(consumer.commit())
            await held.wait_applied()
            witness_of.server.add_partitions(topic, 2)
            await events.wait_for(GroupJoined, 2)
            held.release()
            await committing

    first, second, *_ = (frame.message for frame in proxy.requests(OffsetCommitRequest, client_id=group))
    assert (first.generation_id, second.generation_id) == (1, 2)
    assert first.partitions == second.partitions
    assert not events.of(PartitionsLost)


# ---- overridden reactions -----------------------------------------------------------------------------------------


async def test_group_error_reactions_override_the_defaults(witness_of, group):
    """With group_error_reactions={14: "fail"}, code 14 raises at the next poll."""
    topic = witness_of.topic_with(1)

    async with witness_of.consumer(topic, group_id=group, group_error_reactions={14: "fail"}, **QUICK) as consumer:
        with (
            witness_of.proxy.edit_answer(HeartbeatRequest, refusing(14)),
            pytest.raises(BrokerError, match="COORDINATOR_LOAD_IN_PROGRESS, code 14"),
        ):
            await read_on(consumer)


@pytest.mark.parametrize("kind", [*OF_MEMBERSHIP, OffsetCommitRequest], **BY_KIND)
async def test_group_error_reactions_may_be_functions(witness_of, group, kind):
    """A function in group_error_reactions is called with the error code and returns the reaction."""
    topic, events, asked = witness_of.topic_with(10), EventRecorder(), []

    def decide(code):
        asked.append(code)
        return "retry"

    options = {**QUICK, "group_id": group, "group_error_reactions": {999: decide}, "hooks": [events]}
    with witness_of.proxy.edit_answer(kind, refusing(999), skip=int(kind is JoinGroupRequest)) as refused:
        async with witness_of.consumer(topic, **options) as consumer:
            got = [(await consumer.getone()).offset]
            await provoke_refusal(consumer, kind, refused)
            got += [(await consumer.getone()).offset for _ in range(9)]

    assert list(range(10)) == got
    assert asked == [999]
    assert not events.of(PartitionsLost)


@pytest.mark.parametrize("kind", [*OF_MEMBERSHIP, OffsetCommitRequest], **BY_KIND)
@pytest.mark.parametrize(
    ("decide", "words"),
    [
        (lambda _code: "dance", r"reaction to code 999 must be one of retry, .* not 'dance'"),
        (lambda _code: None, r"reaction to code 999 must be one of retry, .* not None"),
        (lambda code: code / 0, r"code 999 raised ZeroDivisionError"),
    ],
    ids=["a word that is none", "nothing", "an exception"],
)
async def test_an_invalid_reaction_of_a_function_raises(witness_of, group, kind, decide, words):
    """A reaction function that raises or returns an unknown reaction causes a ConfigurationError at the next call."""
    topic = witness_of.topic_with(1)
    options = {**QUICK, "group_id": group, "group_error_reactions": {999: decide}, "enable_auto_commit": False}

    with witness_of.proxy.edit_answer(kind, refusing(999), skip=int(kind is JoinGroupRequest)):
        async with witness_of.consumer(topic, **options) as consumer:
            with pytest.raises(ConfigurationError, match=words):
                await (commit_one(consumer) if kind is OffsetCommitRequest else read_on(consumer))


async def commit_one(consumer):
    await consumer.getone()
    await consumer.commit()


@pytest.mark.parametrize("reactions", [{14: "dance"}, {"14": "retry"}, ["retry"], {14: None}])
def test_invalid_group_error_reactions_raise_at_once(witness_of, reactions):
    """Invalid group_error_reactions raise in the constructor."""
    with pytest.raises(ConfigurationError, match="group_error_reactions"):
        witness_of.consumer("any", group_id="g", group_error_reactions=reactions)
