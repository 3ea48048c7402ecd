"""Encoding of the results of handlers as records; the records are published elsewhere.

A list or plain tuple contains several results. None is no result. A result that is not a ``Message`` is the value of a
``Message``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from tailrace.codecs.json_codec import encode_text
from tailrace.codecs.protocols import AnyCodec, TopicCodec
from tailrace.core.cluster_metadata import topic_name_fault
from tailrace.errors import PublishError, SchemaRegistryError
from tailrace.producer.encoding import Message, check_partition, encoded_headers
from tailrace.producer.publisher import OutgoingRecord
from tailrace.user_exceptions import message_of

__all__ = [
    "encode_messages",
    "messages_in",
    "results_in",
]

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
            headers = encoded_headers(message.headers)
            check_partition(message.partition)
        except SchemaRegistryError:
            raise
        except Exception as error:
            raise PublishError(f"{where}: a message to {to!r} cannot be encoded: {message_of(error, 1_000)}") from error
        encoded.append(OutgoingRecord(to, value, key, headers, message.partition, message.timestamp_ms))
    return encoded
