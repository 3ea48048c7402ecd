"""Visibility of fetched batches under each isolation level."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tailrace.consumer.fetch.fetcher import AbortedTransactions
from tailrace.protocol.records import AbortedTransaction


@dataclass(frozen=True)
class Header:
    """Header of a batch."""

    base_offset: int
    count: int = 1
    producer_id: int | None = None
    marks: str = ""

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def is_control(self) -> bool:
        return bool(self.marks)

    def is_abort_marker(self) -> bool:
        return self.marks == "abort"


def offsets(batches, aborted) -> list[int]:
    """Return the base offsets of the visible batches."""
    hidden = AbortedTransactions(aborted or ())
    return [batch.base_offset for batch in batches if not hidden.hides(batch)]


TAKEN_BACK = [
    Header(0, 2, producer_id=7),
    Header(2, 1),
    Header(3, 2, producer_id=7),
    Header(5, 1, producer_id=8),
    Header(6, producer_id=7, marks="abort"),
    Header(7, 1, producer_id=7),
    Header(8, producer_id=7, marks="commit"),
]


def test_aborted_records_are_not_visible():
    """With read_committed, records of an aborted transaction are invisible up to its marker."""
    assert offsets(TAKEN_BACK, [AbortedTransaction(7, 0)]) == [2, 5, 7]


def test_control_batches_are_never_visible():
    """Control batches are invisible also with read_uncommitted, which delivers all records."""
    assert offsets(TAKEN_BACK, None) == [0, 2, 3, 5, 7]
    assert offsets(TAKEN_BACK, []) == [0, 2, 3, 5, 7]


def test_an_aborted_transaction_may_begin_before_the_fetch():
    """Records of an aborted transaction are invisible also if the fetch begins in the middle of it."""
    assert offsets(TAKEN_BACK[2:], [AbortedTransaction(7, 0)]) == [5, 7]


def test_records_between_two_aborts_of_a_producer_are_visible():
    """Records committed between two aborts are visible, in whichever order the broker lists the aborts."""
    batches = [
        Header(0, producer_id=7),
        Header(1, producer_id=7, marks="abort"),
        Header(2, producer_id=7),
        Header(3, producer_id=7, marks="commit"),
        Header(4, producer_id=7),
        Header(5, producer_id=7, marks="abort"),
        Header(6, producer_id=7),
    ]

    assert offsets(batches, [AbortedTransaction(7, 4), AbortedTransaction(7, 0)]) == [2, 6]


def test_marker_ends_only_its_producers_transaction():
    """The marker of one producer does not end the transactions of others."""
    batches = [
        Header(0, producer_id=7),
        Header(1, producer_id=8, marks="abort"),
        Header(2, producer_id=8, marks="commit"),
        Header(3, producer_id=7),
    ]

    assert offsets(batches, [AbortedTransaction(7, 0)]) == []


STEPS = st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from(["write", "plain", "commit", "abort"])))


@given(STEPS, st.data())
def test_read_committed_delivers_exactly_committed_records(steps, data):
    """With read_committed, exactly the committed records are visible, for any history and from any offset on."""
    batches, open_since, aborted, taken_back = [], {}, [], set()
    for offset, (producer, what) in enumerate(steps):
        match what:
            case "plain":
                batches.append(Header(offset))
            case "write":
                open_since.setdefault(producer, []).append(offset)
                batches.append(Header(offset, producer_id=producer))
            case _:
                mine = open_since.pop(producer, [])
                batches.append(Header(offset, producer_id=producer, marks=what))
                if what == "abort" and mine:
                    aborted.append((AbortedTransaction(producer, mine[0]), offset))
                    taken_back.update(mine)
    # A broker sends only records before the first open transaction.
    stable = min((offsets_[0] for offsets_ in open_since.values()), default=len(batches))
    start = data.draw(st.integers(0, stable))

    found = offsets(batches[start:stable], [one for one, ended_at in aborted if ended_at >= start])

    assert found == [
        batch.base_offset
        for batch in batches[start:stable]
        if not batch.is_control and batch.base_offset not in taken_back
    ]
