"""Encoding of the results of handlers as records; the records are published elsewhere.

A list or plain tuple contains several results. None is no result. A result that is not a ``Message`` is the value of a
``Message``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tailrace.codecs.json_codec import encode_text
from tailrace.codecs.protocols import AnyCodec, TopicCodec
from tailrace.core.cluster_metadata import topic_name_fault
from tailrace.errors import PublishError, SchemaRegistryError
from tailrace.producer.publisher import Headers, OutgoingRecord
from tailrace.user_exceptions import message_of

__all__ = [
    "Message",
    "encode_messages",
    "messages_in",
    "results_in",
]

# ---- ``Message``, a result of a handler with a key, headers, a partition or a topic ----------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """Record to publish; a handler returns one ``Message`` or a list of them.

    Attributes:
        value: any object that the codec can encode, also a list; None publishes a tombstone.
        key: bytes, or any object, which is encoded in the form that a parameter marked with ``Key`` reads, or by the
            codec if it encodes keys. The key selects the partition unless ``partition`` is set.
        headers: names and values; a str value is encoded as UTF-8. The trace of the handled record is added, unless
            these headers contain a trace.
        partition: number of the partition; None to select the partition by the key.
        topic: topic to publish to; None for the topic in the handler's ``publish=``. Required if the handler has no
            ``publish=``.
    """

    value: object
    key: object = None
    headers: Sequence[tuple[str, bytes | str | None]] = ()
    partition: int | None = None
    topic: str | None = None


# ---- encoding of the results of handlers as records; the records are published elsewhere -----------------------------


def results_in(returned: object) -> Sequence[object]:
    """Return the items of a list or plain tuple; return any other object, also a named tuple, as a single result."""
    if isinstance(returned, list) or type(returned) is tuple:
        return cast("Sequence[object]", returned)
    return (returned,)


def messages_in(returned: object, *, publish_values: bool) -> list[Message]:
    """Return the messages in a handler's result.

    Args:
        returned: result of a handler, or of one record of a batch.
        publish_values: True to include results that are not a ``Message``; False to ignore them.
    """
    return [
        one if isinstance(one, Message) else Message(one)
        for one in results_in(returned)
        if isinstance(one, Message) or (publish_values and one is not None)
    ]


async def encode_messages(
    messages: Iterable[Message], topic: str | None, codec: AnyCodec, where: str
) -> list[OutgoingRecord]:
    """Encode messages as records.

    Args:
        messages: messages to publish.
        topic: topic of messages whose ``topic`` is None; None if each message must have a topic.
        codec: encodes values; a codec with ``encode_for`` also encodes keys if its ``keys`` is True.
        where: name of the handler or method, for error messages.

    Raises:
        PublishError: a message cannot be encoded, or has no topic or an invalid one.
        SchemaRegistryError: a schema could not be fetched.
    """
    encoded: list[OutgoingRecord] = []
    # hasattr, because isinstance with a Protocol would be slow for each record.
    by_topic = cast("TopicCodec", codec) if hasattr(codec, "encode_for") else None
    for message in messages:
        to: object = message.topic or topic
        if to is None:
            raise PublishError(
                f"{where}: a Message has no topic - set topic= of the Message, or publish= of the handler"
            )
        if not isinstance(to, str):
            raise PublishError(f"{where}: topic must be a string such as 'orders', not {to!r}")
        if fault := topic_name_fault(to):
            raise PublishError(f"{where}: {to!r} is not a legal topic name: {fault}")
        try:
            if by_topic is None:
                value = None if message.value is None else codec.encode(message.value)
                key = None if message.key is None else encode_text(message.key)
            else:
                value = None if message.value is None else await by_topic.encode_for(to, message.value)
                encodes_key = by_topic.keys and message.key is not None
                if encodes_key:
                    key = await by_topic.encode_for(to, message.key, is_key=True)
                else:
                    key = None if message.key is None else encode_text(message.key)
            headers = _headers(message.headers)
            _check_partition(message.partition)
        except SchemaRegistryError:
            raise
        except Exception as error:
            raise PublishError(f"{where}: a message to {to!r} cannot be encoded: {message_of(error, 1_000)}") from error
        encoded.append(OutgoingRecord(to, value, key, headers, message.partition))
    return encoded


def _headers(given: object) -> Headers:
    if isinstance(given, Mapping):
        raise TypeError("headers must be a list of (name, value) pairs, not a mapping - pass list(headers.items())")
    if not isinstance(given, Iterable):
        raise TypeError(f"headers must be a list of (name, value) pairs, not {given!r}")
    return tuple(_header(one) for one in given)


def _header(given: object) -> tuple[str, bytes | None]:
    match given:
        case (str(name), value):
            return name, _bytes(value)
        case _:
            raise TypeError(
                f"a header must be a pair of a name and a value, such as ('kind', b'refund'), not {given!r}"
            )


def _check_partition(given: object) -> None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 0):
        raise TypeError(f"partition must be a non-negative integer, not {given!r}")


def _bytes(given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"a header value must be bytes or str, not {type(given).__name__}")
