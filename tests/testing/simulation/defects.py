"""Defects that are planted into tailrace, to show that the simulation finds what it is there for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from tailrace import Consumer
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.group.rebalance import Assignment
from tailrace.consumer.offsets.committer import Committer
from tailrace.consumer.partition import AssignedPartitions, Partition

__all__ = ["DEFECTS"]

Patch = Callable[[], Any]
"""Function that returns a context in which the defect is present."""


def _commits_delivered() -> Any:
    return patch.object(Partition, "to_commit", lambda self: (self.delivered, None))


def _begins_one_later() -> Any:
    begin = Partition.begin

    def late(self: Partition, offset: int, *rest: Any) -> None:
        begin(self, offset + (offset > 0), *rest)

    return patch.object(Partition, "begin", late)


def _reads_after_revocation() -> Any:
    remove = Assignment._remove

    def kept(self: Assignment, partitions: Any) -> None:
        asyncio.get_running_loop().call_later(1.0, remove, self, partitions)

    return patch.multiple(Assignment, _remove=kept), patch.object(Reader, "halt", lambda *_: None)


def _loses_a_batch() -> Any:
    put, count = Partition.put, itertools.count(1)

    def lossy(self: Partition, batch: Any) -> None:
        put(self, batch)
        if next(count) % 200 == 0:
            self.skip(batch.next_offset, -1)
            self.remove_first()

    return patch.object(Partition, "put", lossy)


def _delivers_backwards() -> Any:
    deliver = Partition.deliver

    def backwards(self: Partition, records: Any, *rest: Any) -> Any:
        return deliver(self, records[::-1], *rest)

    return patch.object(Partition, "deliver", backwards)


def _revokes_without_a_commit() -> Any:
    commit = Committer.commit_automatically

    async def later(self: Committer, *rest: Any, will_retry: bool, **more: Any) -> None:
        if will_retry:
            await commit(self, *rest, will_retry=will_retry, **more)

    return patch.object(Committer, "commit_automatically", later)


def _commits_nothing() -> Any:
    async def nothing(*_: object, **__: object) -> None:
        pass

    return patch.object(Committer, "commit_automatically", nothing)


def _ends_late() -> Any:
    stop = Consumer.stop

    async def late(self: Consumer[Any, Any]) -> None:
        await stop(self)
        await asyncio.sleep(90)

    return patch.object(Consumer, "stop", late)


def _forgets_a_partition() -> Any:
    add = AssignedPartitions.add

    def forgetful(self: AssignedPartitions, partitions: Any, *rest: Any, **more: Any) -> Any:
        found = add(self, partitions, *rest, **more)
        for partition in found[1:2]:
            partition.refuse()
        return found

    return patch.object(AssignedPartitions, "add", forgetful)


DEFECTS: dict[str, tuple[Patch, str, str]] = {
    "commits delivered records": (_commits_delivered, "acknowledge", "C"),
    "begins one record after the commit": (_begins_one_later, "iterate", "L"),
    "reads on after the revocation": (_reads_after_revocation, "iterate", "Z"),
    "loses a batch": (_loses_a_batch, "iterate", "L"),
    "delivers records backwards": (_delivers_backwards, "iterate", "P"),
    "revokes without a commit": (_revokes_without_a_commit, "iterate", "D"),
    "commits nothing": (_commits_nothing, "iterate", "D"),
    "stops late": (_ends_late, "iterate", "T"),
    "forgets a partition": (_forgets_a_partition, "iterate", "L"),
}
"""Defect, scenario and promise that it breaks, by description."""
