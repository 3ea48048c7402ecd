"""Choice of the partition of a record for which the user names no partition. Pure: no clock, IO or logging.

A key determines the partition: by default with murmur2, as in the Java client, so that both clients write the records
of a key to the same partition; or with CRC-32, as in librdkafka. Records without a key go to one partition until a
batch of that partition is sent (KIP-480), because few large batches are cheaper than many small batches.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping

from tailrace.core.cluster_metadata import Leadership
from tailrace.errors import PublishError

__all__ = ["Partitioner", "murmur2", "partition_of"]

_SEED, _M, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF
_WORD = struct.Struct("<I")


def murmur2(data: bytes) -> int:
    """Return the hash that Kafka's default partitioner uses, an unsigned 32-bit number."""
    size = len(data)
    whole = size & ~3
    value = (_SEED ^ size) & _MASK
    for (word,) in _WORD.iter_unpack(memoryview(data)[:whole]):
        mixed = word * _M & _MASK
        value = (value * _M & _MASK) ^ ((mixed ^ mixed >> 24) * _M & _MASK)
    if whole != size:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, count: int, hash_key: Callable[[bytes], int] = murmur2) -> int:
    """Return the partition of a key in a topic of ``count`` partitions."""
    return (hash_key(key) & 0x7FFFFFFF) % count


class Partitioner:
    """Chooses partitions for one producer.

    Args:
        chance: returns a number in [0, 1).
        partitioning: option ``partitioner``.
        hash_key: function that returns what ``murmur2`` returns.
    """

    def __init__(
        self,
        chance: Callable[[], float],
        partitioning: str | Callable[..., int] = "murmur2",
        hash_key: Callable[[bytes], int] = murmur2,
    ) -> None:
        self._chance, self._partitioning, self._hash_key = chance, partitioning, hash_key
        self._current: dict[str, int] = {}
        self.keeps_partition: bool = isinstance(partitioning, str)
        """True if records without a key keep their partition until ``change_partition``."""

    def choose(self, topic: str, key: bytes | None, partitions: Mapping[int, Leadership]) -> int:
        """Return the partition of a record; ``partitions`` contains all partitions of ``topic``, at least one.

        Records without a key keep their partition until ``change_partition``. A partition without a leader is newly
        chosen for them only if no partition has a leader.

        Raises:
            PublishError: the user's function has raised, or has returned no partition of the topic.
        """
        match self._partitioning:
            case "murmur2":
                if key is not None:
                    return partition_of(key, len(partitions), self._hash_key)
            case "consistent_random":
                if key:
                    return zlib.crc32(key) % len(partitions)
            case "sticky":
                pass
            case str(name):
                raise AssertionError(f"unknown partitioner {name!r}")
            case function:
                return _chosen_by(function, topic, key, partitions)
        current = self._current.get(topic)
        if current is None or current not in partitions:
            choices = [number for number, one in partitions.items() if one.leader_id >= 0] or list(partitions)
            current = self._current[topic] = choices[int(self._chance() * len(choices))]
        return current

    def change_partition(self, topic: str | None = None) -> None:
        """Choose another partition at the next record without a key, in all topics if ``topic`` is None."""
        if topic is None:
            self._current.clear()
        else:
            self._current.pop(topic, None)


def _chosen_by(
    function: Callable[..., int], topic: str, key: bytes | None, partitions: Mapping[int, Leadership]
) -> int:
    every = sorted(partitions)
    try:
        chosen: object = function(key, every, [number for number in every if partitions[number].leader_id >= 0])
    except Exception as error:
        raise PublishError(f"{topic}: partitioner raised {error!r}") from error
    if isinstance(chosen, bool) or not isinstance(chosen, int) or chosen not in partitions:
        raise PublishError(f"{topic}: partitioner returned {chosen!r:.100}, which is not one of {every}")
    return chosen
