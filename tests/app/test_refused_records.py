"""Records whose output or dead letter the broker refused as too large."""

from __future__ import annotations

import pytest

from tailrace import TopicPartition
from tailrace.app.refused_records import RefusedRecords
from tailrace.errors import PublishTooLargeError

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
TOO_LARGE, STILL = PublishTooLargeError("too large"), PublishTooLargeError("still too large")


def test_refused_outputs_and_refused_dead_letters_are_kept_apart():
    refusals = RefusedRecords()
    refusals.note_refusal(HERE, 3, TOO_LARGE, is_dead_letter=True)
    refusals.note_refusal(HERE, 3, STILL, is_dead_letter=True)
    refusals.note_refusal(THERE, 3, TOO_LARGE, is_dead_letter=False)

    assert [refusals.result_error(at, 3) for at in (HERE, THERE)] == [None, TOO_LARGE]
    assert [list(refusals.dead_letter_errors(at, 3)) for at in (HERE, THERE)] == [[TOO_LARGE, STILL], []]
    assert refusals.result_error(HERE, 4) is None
    assert list(refusals.dead_letter_errors(HERE, 4)) == []


@pytest.mark.parametrize(
    ("end", "left"),
    [
        (lambda refusals: refusals.forget_committed({HERE: 3, THERE: 9}), 1),
        (lambda refusals: refusals.forget_committed({HERE: 4}), 1),
        (lambda refusals: refusals.forget_committed({HERE: 4, THERE: 4}), 0),
        (lambda refusals: refusals.forget(THERE), 1),
        (lambda refusals: refusals.forget_record(HERE, 3), 1),
        (lambda refusals: refusals.forget_record(HERE, 4), 2),
    ],
)
def test_an_entry_is_removed_when_its_record_is_committed(end, left):
    """The entry of a refused record is removed when the record is committed, and not when others are."""
    refusals = RefusedRecords()
    for partition in (HERE, THERE):
        refusals.note_refusal(partition, 3, TOO_LARGE, is_dead_letter=False)
    end(refusals)

    assert len(refusals) == left
