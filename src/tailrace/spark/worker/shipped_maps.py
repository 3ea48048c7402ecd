"""Offset maps in the encoded form in which they are sent to tasks.

An encoded offset map often has a few bytes, a decoded one up to half a megabyte. Spark sends the same function to all
tasks of a job, so each task receives the encoded maps of all partitions, and decodes those of its own partitions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tailrace.core.offset_map import OffsetMap, decode_metadata, encode_metadata
from tailrace.records import TopicPartition

__all__ = ["ShippedMaps"]


class ShippedMaps:
    """Encoded offset maps of all partitions; each map is decoded when it is first used.

    A map that is too large to be encoded is left out, and its records are handled again, as by a member.
    """

    def __init__(self, maps: Mapping[TopicPartition, OffsetMap]) -> None:
        self._texts = {
            one: (offset_map.base, encoded.text)
            for one, offset_map in maps.items()
            if not (encoded := encode_metadata(offset_map, "", sys.maxsize)).is_map_dropped
        }
        self._decoded: dict[TopicPartition, OffsetMap | None] = {}

    def __getstate__(self) -> Mapping[str, object]:
        return {"_texts": self._texts, "_decoded": {}}

    def get(self, partition: TopicPartition) -> OffsetMap | None:
        """Return the offset map of a partition; None if there is none."""
        if partition not in self._texts:
            return None
        if partition not in self._decoded:
            base, text = self._texts[partition]
            self._decoded[partition] = decode_metadata(text, base).offset_map
        return self._decoded[partition]
