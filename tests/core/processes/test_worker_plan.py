"""Several processes: how many, what each has, when one is started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.backoff import Backoff
from tailrace.core.processes.messages import (
    HEADER,
    SliceMessage,
    decode_from_child,
    encode,
    length_of,
    records_of,
    slice_of,
)
from tailrace.core.processes.worker_plan import (
    Restarts,
    assign_in_turn,
    check_count,
    check_transactional_id,
    is_outage,
    member_name,
    workers_for,
)
from tailrace.error_codes import ErrorCode
from tailrace.errors import AuthenticationError, BrokerConnectionError, ConfigurationError, broker_error
from tailrace.records import Record, TopicPartition


def test_pauses_grow_while_a_worker_dies_early():
    """Each death soon after the start doubles the pause, up to the longest."""
    restarts = Restarts(Backoff(1.0, 5.0), well_after_s=60)
    pauses = []
    for now in range(0, 50, 10):
        restarts.started(now)
        pauses.append(restarts.died(now + 1, 0.5))

    assert pauses == [1, 2, 4, 5, 5]


def test_who_has_run_well_begins_with_the_first_pause():
    """A death after a long life says nothing of the next start."""
    restarts = Restarts(Backoff(1.0, 5.0), well_after_s=60)
    for now in (0, 10, 20):
        restarts.started(now)
        restarts.died(now + 1, 0.5)
    restarts.started(30)

    assert (restarts.deaths(40), restarts.is_unwell(40)) == (3, True)
    assert (restarts.deaths(90), restarts.is_unwell(90)) == (0, False)
    assert restarts.died(90, 0.5) == 1


def test_one_death_is_no_illness():
    """Only who dies again and again is unwell."""
    restarts = Restarts()
    restarts.started(0)
    restarts.died(1, 0)

    assert not restarts.is_unwell(1)


@pytest.mark.parametrize(
    ("partitions", "workers", "per_worker", "count"),
    [(6, 3, None, 3), (6, 10, None, 6), (6, 5, 4, 2), (6, 1, 6, 1), (6, 1, 1, 6), (1, 4, None, 1)],
)
def test_how_many_workers(partitions, workers, per_worker, count):
    """Never more than partitions; partitions_per_worker goes before workers."""
    assert workers_for(partitions, workers, per_worker) == count


@given(st.integers(1, 50), st.integers(1, 20))
def test_partitions_are_dealt_evenly(count, workers):
    """Each partition once, and no two workers differ by more than one."""
    partitions = [TopicPartition("t", number) for number in range(count)]
    shares = assign_in_turn(partitions, workers)

    assert sorted(one for share in shares for one in share) == partitions
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_names_of_members():
    """One's own template stands if it tells workers apart; without one, the name is of the pool's life."""
    assert member_name(None, 2, "7.1") == "{hostname}-7.1-{worker}"
    assert member_name("a-{worker}", 2, "7.1") == "a-{worker}"
    assert member_name("a", 1, "7.1") == "a"
    with pytest.raises(ConfigurationError, match="the same in all 2 workers"):
        member_name("a", 2, "7.1")


@pytest.mark.parametrize("count", [0, -1, 1.0, "2", True, None])
def test_counts(count):
    """A number of things is a whole number, one or more."""
    with pytest.raises(ConfigurationError, match="workers"):
        check_count("workers", count)


@pytest.mark.parametrize("headers", [(), (("a", b"1"), ("a", None), ("", b""))])
def test_records_come_over_as_they_are(headers):
    """What is read in one process is what is handed out in another, to the last null."""
    records = [
        Record("t", 3, 5, None, b"", -1, headers),
        Record("t", 3, 2**62, b"", None, 2**62),
        Record("t", 3, 2**63 - 1, b"k" * 300, b"v" * 70_000, 0),
    ]
    sent = encode(slice_of(7, TopicPartition("t", 3), 9, records))
    message = decode_from_child(sent[HEADER:])

    assert length_of(sent[:HEADER]) == len(sent) - HEADER
    assert isinstance(message, SliceMessage)
    assert (message.lease, message.end_offset) == (7, 9)
    assert records_of(message) == records


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (BrokerConnectionError("gone"), True),
        (broker_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator moves"), True),
        (broker_error(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not ours"), False),
        (AuthenticationError("refused"), False),
        (None, False),
    ],
)
def test_what_ends_by_itself_is_an_outage(error, passes):
    """A coordinator that is away is waited for as a broker is; who is refused is told."""
    assert is_outage(error) is passes


def test_names_of_transactions():
    """Workers tell each other's apart, or each would end the other's."""
    for good in ("{group}-{worker}", "{pid}", "{instance}", None):
        check_transactional_id(good, 2)
    check_transactional_id("{group}-{hostname}", 1)
    with pytest.raises(ConfigurationError, match="the same in all 2 workers"):
        check_transactional_id("{group}-{hostname}", 2)
