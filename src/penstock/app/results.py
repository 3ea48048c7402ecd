"""What a handler returned, as records to publish.

Rule of this file: one rule for all handlers. A list or a tuple is several results, None is none, and what is no Message
is the value of one. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from penstock.app.codecs import AnyCodec, TopicCodec
from penstock.app.messages import Message
from penstock.errors import PublishError, SchemaRegistryError

__all__ = ["Headers", "Outgoing", "messages_in", "outgoing", "results_in", "trace_in", "with_trace"]

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


def results_in(returned: object) -> Sequence[object]:
    """The results in what was returned: the items of a list or tuple (a named one is a value), or it alone."""
    if isinstance(returned, list) or type(returned) is tuple:
        return cast("Sequence[object]", returned)
    return (returned,)


def messages_in(returned: object, *, are_values_meant: bool) -> list[Message]:
    """The messages in what was returned.

    Args:
        returned: by the handler, or for one record of many.
        are_values_meant: whether what is no Message is the value of one; without it, nothing is.
    """
    return [
        one if isinstance(one, Message) else Message(one)
        for one in results_in(returned)
        if isinstance(one, Message) or (are_values_meant and one is not None)
    ]


async def outgoing(messages: Iterable[Message], topic: str | None, codec: AnyCodec, where: str) -> list[Outgoing]:
    """Messages as they go out; all of them or none: what cannot be encoded keeps the others back, too.

    Args:
        messages: what is to be published.
        topic: where it goes, unless a Message says another.
        codec: makes bytes of a value, and of a key that is its.
        where: the handler, as errors name it.

    Raises:
        PublishError: it cannot be encoded, or nobody says where it goes.
        SchemaRegistryError: its schema is not known yet, and the registry could not be asked.
    """
    out: list[Outgoing] = []
    # Cheaper than to ask a Protocol, for each record.
    by_topic = cast("TopicCodec", codec) if hasattr(codec, "encode_for") else None
    for message in messages:
        to = message.topic or topic
        if to is None:
            raise PublishError(f"{where}: a Message without a topic - give it one, or the handler publish='...'")
        try:
            if by_topic is None:
                value = None if message.value is None else codec.encode(message.value)
                key = _bytes(message.key)
            else:
                value = None if message.value is None else await by_topic.encode_for(to, message.value)
                is_its = by_topic.keys and message.key is not None
                key = await by_topic.encode_for(to, message.key, is_key=True) if is_its else _bytes(message.key)
            headers = tuple((name, _bytes(of)) for name, of in message.headers)
        except SchemaRegistryError:
            raise
        except Exception as error:
            raise PublishError(f"{where}: what is to go to {to!r} cannot be encoded: {error}") from error
        out.append(Outgoing(to, value, key, headers, message.partition))
    return out


def trace_in(headers: Headers) -> Headers:
    """Those headers that carry a trace on."""
    return [one for one in headers if one[0] in _TRACE]


def with_trace(headers: Headers, trace: Headers) -> Headers:
    """``headers``, and those of a trace; one that was begun anew stays as it is."""
    if not trace or any(name in _TRACE for name, _ in headers):
        return headers
    return [*headers, *trace]


def _bytes(given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"a key or a header is bytes or text, not {type(given).__name__}")
