"""Encoding of handlers' results as records to publish; nothing is published here.

A list or a tuple is several results, None is no result, and a result that is not a Message is the value of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from tailrace.app.codec_protocols import AnyCodec, TopicCodec
from tailrace.app.publish.message import Message
from tailrace.core.legal_topic_names import topic_name_fault
from tailrace.errors import PublishError, SchemaRegistryError

__all__ = [
    "Headers",
    "OutgoingRecord",
    "messages_in",
    "outgoing",
    "replacing_trace",
    "results_in",
    "trace_in",
    "with_trace",
]

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

_TRACE = frozenset({"traceparent", "tracestate", "baggage"})
"""Headers that propagate a trace (W3C Trace Context, W3C Baggage)."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """Encoded record to publish."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None


def results_in(returned: object) -> Sequence[object]:
    """Return the items of a list or tuple; any other object, a named tuple too, is a single result."""
    if isinstance(returned, list) or type(returned) is tuple:
        return cast("Sequence[object]", returned)
    return (returned,)


def messages_in(returned: object, *, are_values_meant: bool) -> list[Message]:
    """Return the messages in a handler's result.

    Args:
        returned: result of a handler, or of one record of a batch.
        are_values_meant: take results that are no Message as values; if False, ignore them.
    """
    return [
        one if isinstance(one, Message) else Message(one)
        for one in results_in(returned)
        if isinstance(one, Message) or (are_values_meant and one is not None)
    ]


async def outgoing(messages: Iterable[Message], topic: str | None, codec: AnyCodec, where: str) -> list[OutgoingRecord]:
    """Encode messages, all or none.

    Args:
        messages: messages to publish.
        topic: topic of messages that have none.
        codec: encodes values, and keys if it is configured to.
        where: name of the handler in errors.

    Raises:
        PublishError: a message cannot be encoded, or has no topic or an invalid one.
        SchemaRegistryError: a schema is not known yet, and the request for it failed.
    """
    out: list[OutgoingRecord] = []
    # Cheaper than isinstance with a Protocol, for each record.
    by_topic = cast("TopicCodec", codec) if hasattr(codec, "encode_for") else None
    for message in messages:
        to: object = message.topic or topic
        if to is None:
            raise PublishError(f"{where}: a Message without a topic - give it one, or the handler publish='...'")
        if not isinstance(to, str):
            raise PublishError(f"{where}: topic must be a name such as 'orders', not {to!r}")
        if fault := topic_name_fault(to):
            raise PublishError(f"{where}: {to!r} is no name of a topic: {fault}")
        try:
            if by_topic is None:
                value = None if message.value is None else codec.encode(message.value)
                key = _bytes(message.key)
            else:
                value = None if message.value is None else await by_topic.encode_for(to, message.value)
                is_its = by_topic.keys and message.key is not None
                key = await by_topic.encode_for(to, message.key, is_key=True) if is_its else _bytes(message.key)
            headers = _headers(message.headers)
            _check_partition(message.partition)
        except SchemaRegistryError:
            raise
        except Exception as error:
            raise PublishError(f"{where}: what is to go to {to!r} cannot be encoded: {error}") from error
        out.append(OutgoingRecord(to, value, key, headers, message.partition))
    return out


def trace_in(headers: Headers) -> Headers:
    """Return the headers that propagate a trace."""
    return [one for one in headers if one[0] in _TRACE]


def with_trace(headers: Headers, trace: Headers) -> Headers:
    """Return ``headers`` with those of a trace, unless they have a trace of their own."""
    if not trace or any(name in _TRACE for name, _ in headers):
        return headers
    return [*headers, *trace]


def replacing_trace(headers: Headers, trace: Headers) -> Headers:
    """Return ``headers`` with those of ``trace`` in place of their own; baggage is kept unless the trace has some."""
    replaced = {"traceparent", "tracestate", *(name for name, _ in trace)}
    return [*(one for one in headers if one[0] not in replaced), *trace]


def _headers(given: object) -> Headers:
    if isinstance(given, Mapping):
        raise TypeError("headers are a list of (name, value) pairs, not a mapping - give list(headers.items())")
    if not isinstance(given, Iterable):
        raise TypeError(f"headers are a list of (name, value) pairs, not {given!r}")
    return tuple(_header(one) for one in given)


def _header(given: object) -> tuple[str, bytes | None]:
    match given:
        case (str(name), value):
            return name, _bytes(value)
        case _:
            raise TypeError(f"a header is a pair of a name and a value, such as ('kind', b'refund'), not {given!r}")


def _check_partition(given: object) -> None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 0):
        raise TypeError(f"partition must be a whole number, 0 or more, not {given!r}")


def _bytes(given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return given.encode()
    raise TypeError(f"a key or a header is bytes or text, not {type(given).__name__}")
