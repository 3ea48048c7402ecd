"""What a handler returned, as records to publish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from penstock.app.messages import Message
from penstock.errors import PublishError

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


def outgoing(result: object, topic: str | None, encode: Callable[[object], bytes], where: str) -> Iterator[Outgoing]:
    """The records that a result asks for: none for None, one for a value or Message, several for a list of Messages.

    Args:
        result: what the handler returned.
        topic: where it goes, unless a Message says another.
        encode: makes bytes of a value.
        where: the handler, as errors name it.

    Raises:
        PublishError: it cannot be encoded, or nobody says where it goes.
    """
    if result is None:
        return
    for message in _messages(result):
        to = message.topic or topic
        if to is None:
            raise PublishError(
                f"{where} returned a Message without a topic - give it one, or the handler publish='...'"
            )
        try:
            value = None if message.value is None else encode(message.value)
        except Exception as error:
            raise PublishError(f"{where} returned what its codec cannot encode for {to!r}: {error}") from error
        headers = tuple((name, _bytes(of)) for name, of in message.headers)
        yield Outgoing(to, value, _bytes(message.key), headers, message.partition)


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


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
