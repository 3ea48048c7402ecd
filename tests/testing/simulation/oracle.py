"""Judgment of a run by the way consumers have handled acknowledged records.

Pure: no clock, IO or logging. The same judgment serves simulated and real brokers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Ledger", "Violation"]

Place = tuple[str, int]
"""Topic and partition."""


class Violation(NamedTuple):
    """Broken promise."""

    promise: str
    """Promise: L (nothing lost), D (repeats only after a fault), P (order of a partition), C (no commit
    above an unfinished record), Z (nothing started after revocation), T (bounded end), E (no unexpected error)."""
    at: float
    text: str


class _Start(NamedTuple):
    at: float
    member: str
    number: int


@dataclass
class Ledger:
    """Record of a run.

    Attributes:
        faults: times at which a fault was in force, after which records may repeat.
    """

    faults: list[float] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    _acked: dict[Place, list[int]] = field(default_factory=lambda: defaultdict(list))
    _lost: dict[Place, set[int]] = field(default_factory=lambda: defaultdict(set))
    _starts: dict[Place, dict[int, list[_Start]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    _finished: dict[Place, set[int]] = field(default_factory=lambda: defaultdict(set))
    _owned: dict[str, dict[Place, int]] = field(default_factory=lambda: defaultdict(dict))
    _epochs: int = 0
    _last: dict[tuple[str, Place, int, object], int] = field(default_factory=dict)
    _truncations: dict[Place, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """Times at which records were lost, and the end of the log then."""

    # ---- what happens ------------------------------------------------------------------------------------------

    def acked(self, place: Place, offsets: Iterable[int]) -> None:
        """Note records that all replicas have."""
        self._acked[place].extend(offsets)

    def lost(self, place: Place, end: int, at: float) -> None:
        """Note that an unclean election has lost the records from ``end`` on.

        Until a member notices, it may handle lost records that it has fetched before, and commit their offsets. Records
        that it handles when it notices are delivered again.
        """
        in_flight = [one for one in self._starts[place] if one not in self._finished[place]]
        self._truncations[place].append((at, min([end, *in_flight])))
        gone = {one for one in self._acked[place] if one >= end}
        self._lost[place] |= gone
        self._acked[place] = [one for one in self._acked[place] if one < end]
        for offset in gone:
            self._starts[place].pop(offset, None)
        self._finished[place] -= gone

    def assigned(self, member: str, places: Iterable[Place]) -> None:
        """Note partitions that a member has got."""
        for place in places:
            self._epochs += 1
            self._owned[member][place] = self._epochs

    def released(self, member: str, places: Iterable[Place]) -> None:
        """Note partitions that a member has given up or lost, when its callback has returned."""
        for place in places:
            self._owned[member].pop(place, None)

    def started(self, member: str, place: Place, offset: int, at: float, lane: object = None) -> None:
        """Note that a member has begun to handle a record; the order holds within a ``lane``, such as a key."""
        epoch = self._owned[member].get(place)
        if epoch is None:
            self._note("Z", at, f"{member} has started {place} offset {offset}, which it does not own")
            return
        last = self._last.get((member, place, epoch, lane))
        if last is not None and offset <= last and not self._is_truncated(place, offset, at):
            self._note("P", at, f"{member} has started {place} offset {offset} after {last}")
        self._last[member, place, epoch, lane] = offset
        earlier = self._starts[place][offset]
        if earlier and not any(at >= fault >= earlier[-1].at - _GRACE_S for fault in self.faults):
            self._note("D", at, f"{member} repeats {place} offset {offset} of {earlier[-1]} without a fault")
        earlier.append(_Start(at, member, epoch))

    def finished(self, place: Place, offset: int) -> None:
        """Note that a record is finished."""
        self._finished[place].add(offset)

    def committed(self, place: Place, offset: int, at: float) -> None:
        """Note a commit that the coordinator has stored."""
        for one in self._acked[place]:
            if one < offset and one not in self._finished[place] and not self._is_truncated(place, one, at):
                self._note("C", at, f"{place} was committed at {offset}, and offset {one} is not finished")
                return

    def failed(self, promise: str, at: float, text: str) -> None:
        """Note another broken promise."""
        self._note(promise, at, text)

    # ---- judgment ----------------------------------------------------------------------------------------------

    def unfinished(self) -> int:
        """Return the number of acknowledged records that are not finished."""
        return sum(len(set(offsets) - self._finished[place]) for place, offsets in self._acked.items())

    def judge_end(self, at: float) -> None:
        """Note the records that were lost."""
        for place, offsets in self._acked.items():
            if missing := sorted(set(offsets) - self._finished[place]):
                self._note("L", at, f"{place}: {len(missing)} of {len(offsets)} records lost, the first {missing[0]}")

    @property
    def repeats(self) -> int:
        """Number of starts of records that were started before."""
        return sum(len(starts) - 1 for one in self._starts.values() for starts in one.values() if starts)

    def _is_truncated(self, place: Place, offset: int, at: float) -> bool:
        return any(at <= lost_at + _GRACE_S and offset >= end for lost_at, end in self._truncations[place])

    def _note(self, promise: str, at: float, text: str) -> None:
        self.violations.append(Violation(promise, at, text))


_GRACE_S = 15.0
"""Time in seconds for which records stay uncommitted after they were started: a fault repeats them."""
