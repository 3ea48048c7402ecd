"""Deserialization of keys and values (``key_deserializer``, ``value_deserializer``).

Records are deserialized when they are decoded. If a record cannot be deserialized, each poll raises an error until the
user seeks past the record; with ``on_deserialize_error="skip"`` the record is skipped.
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
from tailrace.user_exceptions import error_text

__all__ = ["Deserializers", "make_deserializers"]

Deserializer = Callable[[bytes], Any]


def make_deserializers(config: ConsumerConfig, observer: Observer) -> Deserializers | None:
    """Return the configured deserializers; None if keys and values stay bytes."""
    if config.key_deserializer is None and config.value_deserializer is None:
        return None
    return Deserializers(config, observer)


class Deserializers:
    """Applies the user's deserializers to records."""

    def __init__(self, config: ConsumerConfig, observer: Observer) -> None:
        self._key, self._value = config.key_deserializer, config.value_deserializer
        self._is_skipping, self._observer = config.on_deserialize_error == "skip", observer

    def apply(self, records: Sequence[Record]) -> tuple[list[Record], DecodeError | None]:
        """Return the deserialized records before the first failure, and the error of that failure; None without one.

        With ``on_deserialize_error="skip"``, leave out records that cannot be deserialized instead.
        """
        deserialized = []
        for record in records:
            try:
                deserialized.append(self._deserialize(record))
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything
                failure = DecodeError(
                    f"{record.topic_partition} at offset {record.offset}: {error_text(error)}"
                    " - seek() past the record, or set on_deserialize_error='skip'"
                )
                failure.__cause__ = error
                if not self._is_skipping:
                    return deserialized, failure
                self._observer.emit(RecordUnreadable(record.topic_partition, record.offset, str(failure), failure))
        return deserialized, None

    def _deserialize(self, record: Record) -> Record:
        key: Any = record.key
        value: Any = record.value
        if self._key is not None and key is not None:
            key = self._key(key)
        if self._value is not None and value is not None:
            value = self._value(value)
        return msgspec.structs.replace(record, key=key, value=value)
