"""Offset maps sent to tasks as encoded text: a decoded map takes up to half a megabyte, its text often a few bytes.

Spark sends the same function to all tasks of a job, so each task has the maps of all partitions and decodes its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tailrace.core.offset_map import OffsetMap, decode_metadata, encode_metadata
from tailrace.records import TopicPartition

__all__ = ["ShippedMaps"]


class ShippedMaps:
    """Encoded offset maps, each decoded on first use and kept for the task.

    A map that exceeds the limit for decoding is left out, and its records are handled again, as by a member of the
    group.
    """

    def __init__(self, maps: Mapping[TopicPartition, OffsetMap]) -> None:
        self._texts = {
            one: (known.base, encoded.text)
            for one, known in maps.items()
            if not (encoded := encode_metadata(known, "", sys.maxsize)).is_map_dropped
        }
        self._decoded: dict[TopicPartition, OffsetMap | None] = {}

    def __getstate__(self) -> Mapping[str, object]:
        return {"_texts": self._texts, "_decoded": {}}

    def get(self, partition: TopicPartition) -> OffsetMap | None:
        """Return the map of a partition; None if all its records are unfinished."""
        if partition not in self._texts:
            return None
        if partition not in self._decoded:
            base, text = self._texts[partition]
            self._decoded[partition] = decode_metadata(text, base).offset_map
        return self._decoded[partition]
