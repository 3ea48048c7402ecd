"""Which batches a reader may see."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.fetch.isolation import visible
from tailrace.protocol.fetch import AbortedTransaction


@dataclass(frozen=True)
class Header:
    """All that is known of a batch."""

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
    """Where the batches begin that may be seen."""
    return [batch.base_offset for batch, is_visible in visible(batches, aborted) if is_visible]


TAKEN_BACK = [
    Header(0, 2, producer_id=7),
    Header(2, 1),
    Header(3, 2, producer_id=7),
    Header(5, 1, producer_id=8),
    Header(6, producer_id=7, marks="abort"),
    Header(7, 1, producer_id=7),
    Header(8, producer_id=7, marks="commit"),
]


def test_what_was_taken_back_is_not_seen():
    """From the transaction's first offset to its marker, that producer's records and no others."""
    assert offsets(TAKEN_BACK, [AbortedTransaction(7, 0)]) == [2, 5, 7]


def test_markers_are_never_seen():
    """With ``read_uncommitted``, too: all records, and no markers."""
    assert offsets(TAKEN_BACK, None) == [0, 2, 3, 5, 7]
    assert offsets(TAKEN_BACK, []) == [0, 2, 3, 5, 7]


def test_every_batch_comes_out_in_order():
    """What is not seen is passed over, not lost: positions move past it."""
    assert [batch for batch, _ in visible(TAKEN_BACK, [AbortedTransaction(7, 0)])] == TAKEN_BACK


def test_a_transaction_that_began_before_the_fetch():
    """Reading may begin in the middle of one."""
    assert offsets(TAKEN_BACK[2:], [AbortedTransaction(7, 0)]) == [5, 7]


def test_a_producer_that_takes_back_twice():
    """What it committed in between is seen; the list may be in any order."""
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


def test_a_commit_ends_nobody_elses_transaction():
    """A marker ends its own producer's transaction only."""
    batches = [
        Header(0, producer_id=7),
        Header(1, producer_id=8, marks="abort"),
        Header(2, producer_id=8, marks="commit"),
        Header(3, producer_id=7),
    ]

    assert offsets(batches, [AbortedTransaction(7, 0)]) == []


STEPS = st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from(["write", "plain", "commit", "abort"])))


@given(STEPS, st.data())
def test_read_committed_sees_what_was_committed(steps, data):
    """Of any history of transactions, from any offset on: what was not taken back, and nothing else."""
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
    # A broker sends no further than the first transaction that is open still.
    stable = min((offsets_[0] for offsets_ in open_since.values()), default=len(batches))
    start = data.draw(st.integers(0, stable))

    found = offsets(batches[start:stable], [one for one, ended_at in aborted if ended_at >= start])

    assert found == [
        batch.base_offset
        for batch in batches[start:stable]
        if not batch.is_control and batch.base_offset not in taken_back
    ]
