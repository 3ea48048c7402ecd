"""What an open transaction has of each partition, as the consumer is told of it.

Rule of this file: to the consumer, what a transaction has is in hand until it is committed, finished or not. So a
partition that has to be given back waits for that, and one that goes sooner takes the transaction's end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.app.sources import Crew
from penstock.app.transactions.seams import Foothold
from penstock.core.offset_map import encode
from penstock.core.positions import Position
from penstock.records import OffsetAndMetadata, Record, TopicPartition

__all__ = ["Rest", "Share", "Shares"]

_METADATA_BYTES = 4_096


@dataclass(slots=True, eq=False)
class Share:
    """What it has of one partition."""

    position: Position
    epoch: int
    first: int
    """The offset from which it has all there is."""
    following: int
    """The offset behind that."""
    leader_epoch: int

    @property
    def is_current(self) -> bool:
        """Whether the partition is still read from where it was."""
        return self.position.epoch == self.epoch


@dataclass(slots=True, eq=False)
class Rest:
    """Records that came with others and may not be handed out yet."""

    position: Position
    epoch: int
    records: Sequence[Record]

    @property
    def may_go(self) -> bool:
        """Whether the partition is still read from where it was, and now, and the group knows of that place."""
        at = self.position
        return at.epoch == self.epoch and not (at.is_halted or at.is_paused or at.is_anew)


class Shares:
    """The taker of a consumer whose records are handled in transactions.

    Args:
        crew: who handles the records.
        on_halt: told of a partition that has to be given back, of which something is not committed.
        on_loss: told of a partition that went, or is read from elsewhere, before it was.

    Attributes:
        rests: what came too early, by partition.
    """

    def __init__(
        self, crew: Crew, *, on_halt: Callable[[], None], on_loss: Callable[[TopicPartition, bool], None]
    ) -> None:
        self._crew, self._on_halt, self._on_loss = crew, on_halt, on_loss
        self._shares: dict[TopicPartition, Share] = {}
        self._passed: list[Share] = []
        self._is_reading_again = False
        self.rests: dict[TopicPartition, Rest] = {}

    def __iter__(self) -> Iterator[Share]:
        return iter(list(self._shares.values()))

    def __len__(self) -> int:
        return len(self._shares)

    # ---- as a consumer wants it --------------------------------------------------------------------------------

    def next_of(self, position: Position) -> int | None:
        """The lowest offset that is handed out and not committed; None when there is none."""
        share, rest = self._shares.get(position.partition), self.rests.get(position.partition)
        if share is not None and share.epoch == position.epoch:
            return share.first
        return rest.records[0].offset if rest is not None and rest.epoch == position.epoch else None

    def done_of(self, position: Position) -> int | None:
        """The same: what is finished is done when it is committed."""
        return self.next_of(position)

    def halt(self, partition: TopicPartition) -> int | None:
        """A partition has to be given back; what is handed out of it is finished first, as all of the transaction."""
        rest = self.rests.pop(partition, None)
        if partition in self._shares:
            self._on_halt()
        return None if rest is None else rest.records[0].offset

    def drop(self, partition: TopicPartition) -> None:
        """A partition is not ours any more, or is read from elsewhere."""
        self.rests.pop(partition, None)
        self._crew.drop(partition)
        if not self._is_reading_again:
            self._on_loss(partition, self._shares.pop(partition, None) is not None)

    # ---- as transactions want it -------------------------------------------------------------------------------

    def begin(self, positions: Iterable[Position]) -> None:
        """It is about where these have begun, of which nothing is handed out."""
        for at in positions:
            assert at.done is not None
            self._shares[at.partition] = Share(at, at.epoch, at.done, at.done, at.delivered_epoch)

    def passed(self, positions: Iterable[Position]) -> None:
        """It is also about how far these have come past what is no record: of such, nothing is ever taken back."""
        self._passed.clear()
        for at in positions:
            if at.partition in self.rests or at.delivered is None:
                continue
            share = self._shares.get(at.partition)
            if share is None:
                self._passed.append(Share(at, at.epoch, at.delivered, at.delivered, at.delivered_epoch))
            elif share.is_current:
                share.following, share.leader_epoch = at.delivered, at.delivered_epoch

    def took(self, position: Position, records: Sequence[Record], following: int) -> None:
        """Records are handed out; the partition goes on at ``following``."""
        share = self._shares.get(position.partition)
        if share is not None and share.is_current:
            share.following, share.leader_epoch = following, position.delivered_epoch
            return
        first = records[0].offset if position.done is None else min(position.done, records[0].offset)
        self._shares[position.partition] = Share(position, position.epoch, first, following, position.delivered_epoch)

    def next_rest(
        self, take: Callable[[Sequence[Record]], Sequence[Record]]
    ) -> tuple[Position, Sequence[Record], int | None] | None:
        """What ``take`` takes of what came too early of one partition, and where that goes on; None when nothing."""
        for partition, rest in self.rests.items():
            if not rest.may_go or not (taken := take(rest.records)):
                continue
            if left := rest.records[len(taken) :]:
                self.rests[partition] = Rest(rest.position, rest.epoch, left)
            else:
                del self.rests[partition]
            return rest.position, taken, left[0].offset if left else rest.position.delivered
        return None

    @property
    def are_done(self) -> bool:
        """Whether all that was handed out is finished."""
        return all(self._crew.done_of(share.position) is None for share in self._shares.values())

    @property
    def are_held_back(self) -> bool:
        """Whether the rest of it waits for somebody who may be away for long."""
        return self._crew.is_held_back

    @property
    def are_gathering(self) -> bool:
        """Whether some of it waits for others, to be handled with them."""
        return self._crew.gathers

    def hurry(self) -> None:
        """There will be no others."""
        self._crew.hurry()

    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit, when all is finished."""
        return {share.position.partition: _offset(share) for share in (*self, *self._passed)}

    def committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """It is."""
        for share in (*self, *self._passed):
            if share.is_current:
                share.position.note_committed(offsets[share.position.partition].offset)
        self._shares.clear()

    def read_again(self, foothold: Foothold, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Go back to what is committed, of all of them."""
        self._is_reading_again = True
        try:
            for share in self:
                # Where nothing was handed out, it stands where it is to begin.
                if foothold.is_ours(share.position) and share.is_current and share.following > share.first:
                    at = committed.get(share.position.partition) or OffsetAndMetadata(share.first)
                    foothold.read_again(share.position, at)
                    share.position.note_committed(at.offset)
        finally:
            self._is_reading_again = False
            self._shares.clear()

    def partitions(self) -> list[TopicPartition]:
        """Which there are."""
        return list(self._shares)


def _offset(share: Share) -> OffsetAndMetadata:
    """With what an owner before us had finished behind it, and no more: under exactly-once nothing else is."""
    metadata, tracker = "", share.position.tracker
    if tracker is not None and tracker.known is not None and share.is_current:
        tracker.advance(share.following)
        metadata = encode(tracker.offset_map(), "", _METADATA_BYTES).text
    return OffsetAndMetadata(share.following, metadata, None if share.leader_epoch < 0 else share.leader_epoch)
