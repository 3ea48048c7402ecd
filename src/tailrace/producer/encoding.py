"""Messages, and their encoding as records; the records are published elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, cast

from msgspec import UNSET

from tailrace.codecs.json_codec import JsonCodec, encode_text
from tailrace.codecs.protocols import AnyCodec, TopicCodec
from tailrace.errors import PublishError, SchemaRegistryError
from tailrace.producer.publisher import Headers, OutgoingRecord
from tailrace.user_exceptions import message_of

__all__ = ["Message", "MessageDetails", "RecordEncoder", "check_not_delayed", "messages_of"]


@dataclass(frozen=True, slots=True)
class Message:
    """Record to publish; a handler returns one ``Message`` or a list of them, ``Producer.send_many`` takes several.

    Attributes:
        value: any object that the codec can encode, also a list; None publishes a tombstone.
        key: bytes, or any object, which is encoded in the form that a parameter marked with ``Key`` reads, or by the
            codec if it encodes keys; None for no key. If it is not given, the result of a handler has the key of the
            handled record, and the result of a batch handler and other messages have no key. The key selects the
            partition unless ``partition`` is set.
        headers: names and values; a str value is encoded as UTF-8. The trace of the handled record is added, unless
            these headers contain a trace.
        partition: number of the partition; None to select the partition by the key.
        topic: topic to publish to; None for the topic in the handler's ``publish=``. Required if the handler has no
            ``publish=``, and for a ``Producer``.
        timestamp_ms: time in milliseconds since 1970; None for the current time.
        delay_ms: time in milliseconds after which the message is published, at most the longest delay that the app
            declares by ``publish_delays_ms``; None to publish it now. Only in an ``App``.
        at: time at which the message is published, with a time zone, instead of ``delay_ms``.
    """

    value: object
    key: object = UNSET
    headers: Sequence[tuple[str, bytes | str | None]] = ()
    partition: int | None = None
    topic: str | None = None
    timestamp_ms: int | None = None
    delay_ms: int | None = None
    at: datetime | None = None


def check_not_delayed(message: Message, sender: str) -> None:
    """Check that a message has no delay; ``sender`` is the beginning of the error.

    Raises:
        PublishError: the message has ``delay_ms`` or ``at``, which only an app can keep.
    """
    if message.delay_ms is not None or message.at is not None:
        raise PublishError(
            f"{sender} cannot delay a Message - leave out delay_ms and at, or publish it with an App that declares"
            " publish_delays_ms"
        )


def messages_of(given: object) -> Iterable[Message]:
    """Yield the messages of an argument.

    Raises:
        PublishError: the argument is no iterable of ``Message`` objects.
    """
    if isinstance(given, Message) or not isinstance(given, Iterable):
        raise PublishError(f"messages must be a list of Message objects, not {given!r:.100}")
    for one in cast("Iterable[object]", given):
        if not isinstance(one, Message):
            raise PublishError(
                f"messages must be a list of Message objects, not of {type(one).__name__}: {one!r:.100} - pass"
                " Message(value, key=..., topic=...)"
            )
        yield one


MessageDetails: TypeAlias = tuple[Sequence[tuple[str, bytes | str | None]], int | None, int | None]
"""Headers, partition and timestamp of a ``Message``."""
_NO_DETAILS: MessageDetails = ((), None, None)


class RecordEncoder:
    """Encoder of the keys and values of one producer.

    Args:
        codec: encodes values, and keys if its ``keys`` is True.
        key_serializer: encodes keys in place of the codec; None for the codec.
        value_serializer: encodes values in place of the codec; None for the codec.
        where: beginning of error messages, such as the name of a handler; empty for none.
    """

    def __init__(
        self,
        codec: AnyCodec,
        key_serializer: Callable[[Any], bytes | None] | None = None,
        value_serializer: Callable[[Any], bytes | None] | None = None,
        where: str = "",
    ) -> None:
        self.where: str = f"{where}: " if where else ""
        """Beginning of error messages."""
        by_topic = cast("TopicCodec", codec) if hasattr(codec, "encode_for") else None
        self._by_topic = by_topic
        self._key: Callable[[Any], bytes | None] | None = key_serializer
        if key_serializer is None and not (by_topic is not None and by_topic.keys):
            self._key = encode_text
        self._value: Callable[[Any], bytes | None] | None = value_serializer
        if value_serializer is None and by_topic is None:
            self._value = codec.encode
        self._passes_bytes = value_serializer is None and type(codec) is JsonCodec
        """True if values of type bytes are published unchanged."""
        self.is_immediate: bool = self._key is not None and self._value is not None
        """True if encoding needs no schema, so that ``encode_now`` can be called."""

    def encode_now(self, topic: str, value: object, key: object, rest: MessageDetails) -> OutgoingRecord:
        """Encode a record with functions only.

        Raises:
            PublishError: the record cannot be encoded.
        """
        assert self._key is not None
        assert self._value is not None
        try:
            if value is not None and not (self._passes_bytes and type(value) is bytes):
                value = self._value(value)
            if key is not None:
                key = self._key(key)
            if rest == _NO_DETAILS and (type(value) is bytes or value is None) and (type(key) is bytes or key is None):
                return OutgoingRecord(topic, value, key)
            return _record(topic, value, key, rest)
        except Exception as error:
            raise self._refusal(topic, error) from error

    async def encode(self, topic: str, value: object, key: object, rest: MessageDetails) -> OutgoingRecord:
        """Encode a record; fetch its schemas if they are unknown.

        Raises:
            PublishError: the record cannot be encoded.
            SchemaRegistryError: a schema could not be fetched.
        """
        if self.is_immediate:
            return self.encode_now(topic, value, key, rest)
        by_topic = self._by_topic
        assert by_topic is not None
        try:
            if value is not None:
                value = await by_topic.encode_for(topic, value) if self._value is None else self._value(value)
            if key is not None:
                key = await by_topic.encode_for(topic, key, is_key=True) if self._key is None else self._key(key)
            return _record(topic, value, key, rest)
        except SchemaRegistryError:
            raise
        except Exception as error:
            raise self._refusal(topic, error) from error

    def _refusal(self, topic: str, error: Exception) -> PublishError:
        if isinstance(error, PublishError):
            return error
        return PublishError(f"{self.where}a message to {topic!r} cannot be encoded: {message_of(error, 1_000)}")


def _record(topic: str, value: object, key: object, rest: MessageDetails) -> OutgoingRecord:
    if value is not None and type(value) is not bytes:
        raise TypeError(f"the codec or value_serializer must return bytes, not {type(value).__name__}")
    if key is not None and type(key) is not bytes:
        raise TypeError(f"the codec or key_serializer must return bytes, not {type(key).__name__}")
    headers, partition, timestamp_ms = rest
    if partition is not None:
        _check_partition(partition)
    if timestamp_ms is not None:
        _check_timestamp(timestamp_ms)
    return OutgoingRecord(topic, value, key, _encoded_headers(headers) if headers else (), partition, timestamp_ms)


def _encoded_headers(given: object) -> Headers:
    if isinstance(given, Mapping):
        raise TypeError("headers must be a list of (name, value) pairs, not a mapping - pass list(headers.items())")
    if not isinstance(given, Iterable):
        raise TypeError(f"headers must be a list of (name, value) pairs, not {given!r:.100}")
    return tuple(_header(one) for one in given)


def _header(given: object) -> tuple[str, bytes | None]:
    match given:
        case (str(name), value):
            return name, _bytes(value)
        case _:
            raise TypeError(
                f"a header must be a pair of a name and a value, such as ('kind', b'refund'), not {given!r:.100}"
            )


def _check_partition(given: object) -> None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 0):
        raise TypeError(f"partition must be a non-negative integer, not {given!r:.100}")


def _check_timestamp(given: object) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < 2**63:
        raise TypeError(f"timestamp_ms must be a number of milliseconds since 1970, an int, not {given!r:.100}")


def _bytes(given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"a header value must be bytes or str, not {type(given).__name__}")
