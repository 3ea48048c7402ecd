"""Keys and values as the user's functions read them: ``key_deserializer``, ``value_deserializer``.

Rule of this file: it works on the records of a slice, when they are decoded. What cannot be read stands in place of
its record, as an error, every time, until somebody seeks past it; or is left out, where the options say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tailrace.config import ConsumerConfig
from tailrace.errors import DecodeError
from tailrace.observe.events import RecordUnreadable
from tailrace.observe.hooks import Observer
from tailrace.records import Record

__all__ = ["Deserializers", "deserializing"]

Deserializer = Callable[[bytes], Any]


def deserializing(config: ConsumerConfig, observer: Observer) -> Deserializers | None:
    """What the options say; None when records stay bytes."""
    if config.key_deserializer is None and config.value_deserializer is None:
        return None
    return Deserializers(config, observer)


class Deserializers:
    """Reads the keys and values of records."""

    def __init__(self, config: ConsumerConfig, observer: Observer) -> None:
        self._key, self._value = config.key_deserializer, config.value_deserializer
        self._is_skipping, self._observer = config.on_deserialize_error == "skip", observer

    def apply(self, records: Sequence[Record]) -> tuple[list[Record], DecodeError | None]:
        """The records with their keys and values read, up to the first that cannot be; and its error."""
        good = []
        for record in records:
            try:
                good.append(self._read(record))
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises
                told = DecodeError(
                    f"{record.topic_partition} at offset {record.offset}: {type(error).__name__}: {error}"
                    " - seek() past it, or set on_deserialize_error='skip'"
                )
                told.__cause__ = error
                if not self._is_skipping:
                    return good, told
                self._observer.emit(RecordUnreadable(record.topic_partition, record.offset, str(told)))
        return good, None

    def _read(self, record: Record) -> Record:
        key: Any = record.key
        value: Any = record.value
        if self._key is not None and key is not None:
            key = self._key(key)
        if self._value is not None and value is not None:
            value = self._value(value)
        return msgspec.structs.replace(record, key=key, value=value)
