"""Encoding of the results of handlers as records; the records are published elsewhere.

A list or plain tuple contains several results. None is no result. A result that is not a ``Message`` is the value of a
``Message``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import msgspec
from msgspec import UNSET

from tailrace.app.publish.delays import PublishDelays, undeclared
from tailrace.core.cluster_metadata import topic_name_fault
from tailrace.errors import PublishError
from tailrace.producer.encoding import Message, RecordEncoder, messages_of
from tailrace.producer.publisher import OutgoingRecord

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
    messages: Iterable[Message],
    topic: str | None,
    encoder: RecordEncoder,
    delays: PublishDelays | None,
    key: bytes | None = None,
) -> list[OutgoingRecord]:
    """Encode messages as records; a delayed message becomes the record that waits in its place.

    Args:
        messages: messages to publish.
        topic: topic of messages whose ``topic`` is None; None if each message must have a topic.
        encoder: encodes keys and values.
        delays: declared delays; None if there are none.
        key: encoded key of messages whose ``key`` is not given.

    Raises:
        PublishError: a message cannot be encoded, has no topic or an invalid one, or cannot be delayed as it demands.
        SchemaRegistryError: a schema could not be fetched.
    """
    encoded: list[OutgoingRecord] = []
    for message in messages_of(messages):
        to: object = message.topic or topic
        if to is None:
            raise PublishError(
                f"{encoder.where}a Message has no topic - set topic= of the Message, or publish= of the handler"
            )
        if not isinstance(to, str):
            raise PublishError(f"{encoder.where}topic must be a string such as 'orders', not {to!r:.100}")
        if fault := topic_name_fault(to):
            raise PublishError(f"{encoder.where}{to!r:.300} is not a legal topic name: {fault}")
        is_key_given = message.key is not UNSET
        details = (message.headers, message.partition, message.timestamp_ms)
        record = await encoder.encode(to, message.value, message.key if is_key_given else None, details)
        if not is_key_given and key is not None:
            record = msgspec.structs.replace(record, key=key)
        if message.delay_ms is not None or message.at is not None:
            if delays is None:
                raise undeclared(encoder.where)
            record = delays.delayed(record, message.delay_ms, message.at, encoder.where)
        encoded.append(record)
    return encoded
