"""Offset maps on their way to the tasks: a decoded one takes up to half a megabyte, the same as text a few bytes.

Each task carries those of all partitions, since Spark sends every task of a job the same function, and decodes its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tailrace.core.offset_map import OffsetMap, decode_metadata, encode_metadata
from tailrace.records import TopicPartition

__all__ = ["ShippedMaps"]


class ShippedMaps:
    """Offset maps as text; each is decoded when it is asked for, and kept for as long as the task.

    A map above the limit of the ones that are read is left out, and its records are handled again, as they would be by
    a member of the group.
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
