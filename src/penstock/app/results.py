"""What a handler returned, as records to publish."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from penstock.app.codecs import AnyCodec, TopicCodec
from penstock.app.messages import Message
from penstock.errors import PublishError, SchemaRegistryError

__all__ = ["Outgoing", "outgoing", "traced"]

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_TRACE = frozenset({"traceparent", "tracestate", "baggage"})
"""Headers by which what belongs together is found again (W3C Trace Context, W3C Baggage)."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to publish, in bytes."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None


async def outgoing(result: object, topic: str | None, codec: AnyCodec, where: str) -> list[Outgoing]:
    """The records that a result asks for: none for None, one for a value or Message, several for a list of Messages.

    All of them or none: what cannot be encoded keeps the others back, too.

    Args:
        result: what the handler returned.
        topic: where it goes, unless a Message says another.
        codec: makes bytes of a value, and of a key that is its.
        where: the handler, as errors name it.

    Raises:
        PublishError: it cannot be encoded, or nobody says where it goes.
        SchemaRegistryError: its schema is not known yet, and the registry could not be asked.
    """
    if result is None:
        return []
    out: list[Outgoing] = []
    # Cheaper than to ask a Protocol, for each record.
    by_topic = cast("TopicCodec", codec) if hasattr(codec, "encode_for") else None
    for message in _messages(result):
        to = message.topic or topic
        if to is None:
            raise PublishError(
                f"{where} returned a Message without a topic - give it one, or the handler publish='...'"
            )
        try:
            if by_topic is None:
                value = None if message.value is None else codec.encode(message.value)
                key = _bytes(message.key)
            else:
                value = None if message.value is None else await by_topic.encode_for(to, message.value)
                is_its = by_topic.keys and message.key is not None
                key = await by_topic.encode_for(to, message.key, is_key=True) if is_its else _bytes(message.key)
        except SchemaRegistryError:
            raise
        except Exception as error:
            raise PublishError(f"{where} returned what its codec cannot encode for {to!r}: {error}") from error
        headers = tuple((name, _bytes(of)) for name, of in message.headers)
        out.append(Outgoing(to, value, key, headers, message.partition))
    return out


def traced(headers: Headers, source: Headers) -> Headers:
    """``headers``, and those of ``source`` that carry a trace on; a trace that was begun anew stays as it is."""
    carried = [one for one in source if one[0] in _TRACE]
    if not carried or any(name in _TRACE for name, _ in headers):
        return headers
    return [*headers, *carried]


def _messages(result: object) -> Iterable[Message]:
    if isinstance(result, Message):
        return [result]
    if isinstance(result, list | tuple) and result and all(isinstance(one, Message) for one in result):
        return result
    return [Message(result)]


def _bytes(given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"a key or a header is bytes or text, not {type(given).__name__}")
