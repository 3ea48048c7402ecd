"""Worker processes: number, partitions, names, and pauses before restarts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.app.processes.messages import (
    HEADER,
    SliceMessage,
    decode_from_child,
    encode,
    length_of,
    records_of,
    slice_of,
)
from tailrace.app.processes.worker_plan import (
    Restarts,
    assign_in_turn,
    check_count,
    check_transactional_id,
    instance_id_template,
    is_outage,
    workers_for,
)
from tailrace.core.backoff import Backoff
from tailrace.error_codes import ErrorCode
from tailrace.errors import AuthenticationError, BrokerConnectionError, ConfigurationError, broker_error
from tailrace.records import Record, TopicPartition


def test_pauses_grow_while_a_worker_dies_early():
    """Each death of a worker soon after its start doubles the pause, up to the limit."""
    restarts = Restarts(Backoff(1.0, 5.0), stable_after_s=60)
    pauses = []
    for now in range(0, 50, 10):
        restarts.note_start(now)
        pauses.append(restarts.note_death(now + 1, 0.5))

    assert pauses == [1, 2, 4, 5, 5]


def test_pause_after_a_long_run_is_the_first():
    """After a long run of a worker, its next death has the first pause again."""
    restarts = Restarts(Backoff(1.0, 5.0), stable_after_s=60)
    for now in (0, 10, 20):
        restarts.note_start(now)
        restarts.note_death(now + 1, 0.5)
    restarts.note_start(30)

    assert (restarts.deaths(40), restarts.is_failing(40)) == (3, True)
    assert (restarts.deaths(90), restarts.is_failing(90)) == (0, False)
    assert restarts.note_death(90, 0.5) == 1


def test_a_single_early_death_is_not_unhealthy():
    """A worker that died early once is not failing."""
    restarts = Restarts()
    restarts.note_start(0)
    restarts.note_death(1, 0)

    assert not restarts.is_failing(1)


@pytest.mark.parametrize(
    ("partitions", "workers", "per_worker", "count"),
    [(6, 3, None, 3), (6, 10, None, 6), (6, 5, 4, 2), (6, 1, 6, 1), (6, 1, 1, 6), (1, 4, None, 1)],
)
def test_there_are_no_more_workers_than_partitions(partitions, workers, per_worker, count):
    """There are no more workers than partitions, and partitions_per_worker takes precedence over workers."""
    assert workers_for(partitions, workers, per_worker) == count


@given(st.integers(1, 50), st.integers(1, 20))
def test_partitions_are_assigned_evenly(count, workers):
    """Each partition is assigned once, and workers differ by one partition at most."""
    partitions = [TopicPartition("t", number) for number in range(count)]
    shares = assign_in_turn(partitions, workers)

    assert sorted(one for share in shares for one in share) == partitions
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_instance_ids_of_workers_differ():
    """A group_instance_id must differ between workers; the default one also differs between pools."""
    assert instance_id_template(None, 2, "7.1") == "{hostname}-7.1-{worker}"
    assert instance_id_template("a-{worker}", 2, "7.1") == "a-{worker}"
    assert instance_id_template("a", 1, "7.1") == "a"
    with pytest.raises(ConfigurationError, match="the same in all 2 workers"):
        instance_id_template("a", 2, "7.1")


@pytest.mark.parametrize("count", [0, -1, 1.0, "2", True, None])
def test_count_must_be_a_positive_integer(count):
    """A count that is not a positive integer raises ConfigurationError with the argument's name."""
    with pytest.raises(ConfigurationError, match="workers"):
        check_count("workers", count)


@pytest.mark.parametrize("headers", [(), (("a", b"1"), ("a", None), ("", b""))])
def test_records_are_encoded_without_loss(headers):
    """Records are the same after encoding, also with null keys and values, headers and the largest offsets."""
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
def test_temporary_errors_are_outages(error, passes):
    """An unreachable broker or coordinator is an outage, and a refusal is not."""
    assert is_outage(error) is passes


def test_transactional_ids_of_workers_differ():
    """A transactional_id that is the same in all workers is refused, as they would fence each other."""
    for good in ("{group}-{worker}", "{pid}", "{instance}", None):
        check_transactional_id(good, 2)
    check_transactional_id("{group}-{hostname}", 1)
    with pytest.raises(ConfigurationError, match="the same in all 2 workers"):
        check_transactional_id("{group}-{hostname}", 2)
