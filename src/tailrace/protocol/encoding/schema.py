"""How a table of fields becomes the encoder and the decoder of one version of a message.

Rule of this file: it knows Kafka's types and nothing of any message. A table is written once for all versions (each
field says since when and until when it exists, as in Kafka's own message definitions); ``encoder`` and ``decoder``
compile it for one. From a message's first *flexible* version on, lengths are varints and tagged fields follow each
structure (KIP-482). An unknown tag is passed over, so a newer broker may say more than we know.

Values are untyped in here and nowhere else: the tables tie fields to attributes of the dataclasses in ``messages``
by name, and tests hold the two together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from tailrace.errors import MalformedMessageError, UnsupportedVersionError
from tailrace.protocol.encoding.frame_reader import FrameReader, write_uvarint
from tailrace.protocol.encoding.primitives import Decode, Encode, length_reader, write_length

__all__ = ["NEVER", "USED", "Array", "ByTopic", "Field", "Sole", "Struct", "WireType", "field", "only"]

ItemT = TypeVar("ItemT")

NEVER = 1 << 15
"""A version that no message reaches."""


USED = object()
"""Marks a field that ``messages`` carries."""


class WireType(Protocol):
    """One of Kafka's types: gives the two functions for a version of the message around it."""

    def encoder(self, version: int, *, flexible: bool, nullable: bool) -> Encode: ...

    def decoder(self, version: int, *, flexible: bool, nullable: bool) -> Decode: ...


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a structure, over all versions."""

    name: str
    """As Kafka's message definitions call it, in snake case."""
    type: WireType
    since: int = 0
    until: int = NEVER
    """The last version that has it."""
    nullable: int = NEVER
    """The first version in which it may be null."""
    tag: int | None = None
    ignorable: bool = False
    """Whether a version without the field may drop a value that matters."""
    attribute: str = ""
    """What ``messages`` calls it, where that differs."""
    path: str = ""
    """Where it is in the message, where that is not simply the attribute."""
    unused: object = USED
    """Of a field that ``messages`` leaves out: what is written for it; what is read is dropped."""

    def exists_in(self, version: int) -> bool:
        """Whether the message has it in that version."""
        return self.since <= version <= self.until


def field(  # noqa: PLR0913 - one row of a table, read as one line
    name: str,
    type: WireType,  # noqa: A002 - the field's own word
    since: int = 0,
    until: int = NEVER,
    *,
    nullable: int = NEVER,
    tag: int | None = None,
    ignorable: bool = False,
    attribute: str = "",
    path: str = "",
    unused: object = USED,
) -> Field:
    """A row of a table."""
    attribute = attribute or name
    return Field(name, type, since, until, nullable, tag, ignorable, attribute, path or attribute, unused)


# ---- arrays --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Array:
    """A length, then so many elements; a tuple in ``messages``."""

    item: WireType

    @classmethod
    def of(cls, factory: Callable[..., Any], *fields: Field) -> Array:
        """An array of structures."""
        return cls(Struct(factory, *fields))

    def encoder(self, version: int, *, flexible: bool, nullable: bool) -> Encode:
        encode_item = self.item.encoder(version, flexible=flexible, nullable=False)

        def encode(out: bytearray, value: Any) -> None:
            if value is None and not nullable:
                raise MalformedMessageError("None where the protocol wants an array")
            write_length(out, None if value is None else len(value), flexible=flexible, short=False)
            for item in value or ():
                encode_item(out, item)

        return encode

    def decoder(self, version: int, *, flexible: bool, nullable: bool) -> Decode:
        read_length = length_reader(flexible=flexible, short=False)
        decode_item = self.item.decoder(version, flexible=flexible, nullable=False)

        def decode(reader: FrameReader) -> Any:
            length = read_length(reader)
            if length < 0:
                if length == -1 and nullable:
                    return None
                raise MalformedMessageError(f"an array of {length} elements")
            return tuple([decode_item(reader) for _ in range(reader.count(length))])

        return decode


# ---- structures ------------------------------------------------------------------------------------------------


class Struct:
    """Fields in order, then (in flexible versions) tagged ones; ``factory`` makes the message of what was read."""

    __slots__ = ("factory", "fields")

    def __init__(self, factory: Callable[..., Any], *fields: Field) -> None:
        self.factory = factory
        self.fields = fields

    def encoder(self, version: int, *, flexible: bool, nullable: bool = False) -> Encode:
        encode = _fields_encoder(self.factory, self.fields, version, flexible=flexible)
        return _or_null(encode) if nullable else encode

    def decoder(self, version: int, *, flexible: bool, nullable: bool = False) -> Decode:
        factory = self.factory
        decode_fields = _fields_decoder(self.fields, version, flexible=flexible)

        def decode(reader: FrameReader) -> Any:
            return factory(**decode_fields(reader))

        return _null_or(decode) if nullable else decode


@dataclass(frozen=True, slots=True)
class Sole:
    """A structure of one field, in whose place ``messages`` has the value of the field."""

    field: Field

    def encoder(self, version: int, *, flexible: bool, nullable: bool) -> Encode:
        encode_field = _encoder_of(self.field, version, flexible=flexible)

        def encode(out: bytearray, value: Any) -> None:
            encode_field(out, value)
            if flexible:
                write_uvarint(out, 0)

        return _or_null(encode) if nullable else encode

    def decoder(self, version: int, *, flexible: bool, nullable: bool) -> Decode:
        decode_fields = _fields_decoder((self.field,), version, flexible=flexible)
        attribute = self.field.attribute

        def decode(reader: FrameReader) -> Any:
            return decode_fields(reader)[attribute]

        return _null_or(decode) if nullable else decode


_NULL, _THERE = 0xFF, 0x01
"""The byte before a structure that may be null, in all versions alike (KIP-893)."""


def _or_null(encode: Encode) -> Encode:
    def encode_or_null(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(_NULL)
            return
        out.append(_THERE)
        encode(out, value)

    return encode_or_null


def _null_or(decode: Decode) -> Decode:
    def decode_or_null(reader: FrameReader) -> Any:
        mark = reader.view(1)[0]
        if mark == _NULL:
            return None
        if mark != _THERE:
            raise MalformedMessageError(f"0x{mark:02x} before a structure, which neither is there nor is null")
        return decode(reader)

    return decode_or_null


def _fields_encoder(factory: Callable[..., Any], fields: Sequence[Field], version: int, *, flexible: bool) -> Encode:
    here = [f for f in fields if f.exists_in(version)]
    plain: list[tuple[Callable[[Any], Any], Encode]] = [
        (_getter(f), _encoder_of(f, version, flexible=flexible)) for f in here if f.tag is None
    ]
    defaults = _defaults(factory)
    tagged = sorted(
        (f.tag, _getter(f), _encoder_of(f, version, flexible=flexible), defaults.get(f.attribute, f.unused))
        for f in here
        if f.tag is not None
    )
    # A value that this version cannot carry, although it would matter, is an error and not a silent loss.
    refused = [
        (f, attrgetter(f.attribute), defaults[f.attribute])
        for f in fields
        if not f.exists_in(version) and not f.ignorable and f.attribute in defaults
    ]

    def encode(out: bytearray, value: Any) -> None:
        for absent, get, default in refused:
            if get(value) != default:
                raise UnsupportedVersionError(
                    f"version {version} of this request cannot carry {absent.name}={get(value)!r}; "
                    f"it needs version {absent.since} - upgrade the broker, or leave the option at its default"
                )
        for read, encode_field in plain:
            encode_field(out, read(value))
        if flexible:
            _encode_tagged(out, value, tagged)

    return encode


def _getter(f: Field) -> Callable[[Any], Any]:
    if f.unused is USED:
        return attrgetter(f.path)
    return lambda _message: f.unused


def _encode_tagged(out: bytearray, value: Any, tagged: Iterable[tuple[int, Callable[[Any], Any], Encode, Any]]) -> None:
    present = [(tag, encode, got) for tag, get, encode, default in tagged if (got := get(value)) != default]
    write_uvarint(out, len(present))
    for tag, encode, got in present:
        body = bytearray()
        encode(body, got)
        write_uvarint(out, tag)
        write_uvarint(out, len(body))
        out += body


def _fields_decoder(
    fields: Sequence[Field], version: int, *, flexible: bool
) -> Callable[[FrameReader], dict[str, Any]]:
    here = [f for f in fields if f.exists_in(version)]
    plain = [(f.attribute, _decoder_of(f, version, flexible=flexible)) for f in here if f.tag is None]
    tagged = {f.tag: (f.attribute, _decoder_of(f, version, flexible=flexible)) for f in here if f.tag is not None}
    dropped = [f.attribute for f in here if f.unused is not USED]

    def decode(reader: FrameReader) -> dict[str, Any]:
        values = {attribute: decode_field(reader) for attribute, decode_field in plain}
        if flexible:
            for _ in range(reader.count(reader.uvarint())):
                tag, body = reader.uvarint(), FrameReader(reader.view(reader.uvarint()))
                if tag in tagged:
                    attribute, decode_field = tagged[tag]
                    values[attribute] = decode_field(body)
        for attribute in dropped:
            values.pop(attribute, None)
        return values

    return decode


def _encoder_of(f: Field, version: int, *, flexible: bool) -> Encode:
    return f.type.encoder(version, flexible=flexible, nullable=version >= f.nullable)


def _decoder_of(f: Field, version: int, *, flexible: bool) -> Decode:
    return f.type.decoder(version, flexible=flexible, nullable=version >= f.nullable)


def _defaults(factory: Callable[..., Any]) -> dict[str, Any]:
    if not (isinstance(factory, type) and dataclasses.is_dataclass(factory)):
        return {}
    return {f.name: f.default for f in dataclasses.fields(factory) if f.default is not dataclasses.MISSING}


def only(items: Sequence[ItemT]) -> ItemT:
    """The element of an array that has one, where ``messages`` has no array; for factories.

    Raises:
        MalformedMessageError: there are none, or more.
    """
    if len(items) != 1:
        raise MalformedMessageError(f"{len(items)} elements where one was asked for")
    return items[0]


@dataclass(frozen=True, slots=True)
class ByTopic:
    """An array of topics, each with an array of its partitions: flat in ``messages``, where an entry names its topic.

    ``entry`` is a structure of the fields inside, or a plain type for arrays of bare partition numbers.
    """

    topic: tuple[Field, ...]
    """The fields that say which topic."""
    name: str
    """What Kafka calls the inner array."""
    entry: Struct
    bare: bool = False
    """Whether an entry is nothing but its first field."""

    def encoder(self, version: int, *, flexible: bool, nullable: bool) -> Encode:
        keys = [f for f in self.topic if f.exists_in(version)]
        key_of = attrgetter(*(f.attribute for f in keys))
        encode_keys = [(attrgetter(f.attribute), _encoder_of(f, version, flexible=flexible)) for f in keys]
        encode_entries = Array(self._item()).encoder(version, flexible=flexible, nullable=False)

        def encode(out: bytearray, value: Any) -> None:
            if value is None and not nullable:
                raise MalformedMessageError("None where the protocol wants an array of topics")
            topics: dict[Any, list[Any]] = {}
            for entry in value or ():
                topics.setdefault(key_of(entry), []).append(entry)
            write_length(out, None if value is None else len(topics), flexible=flexible, short=False)
            for entries in topics.values():
                for get, encode_key in encode_keys:
                    encode_key(out, get(entries[0]))
                encode_entries(out, entries)
                if flexible:
                    write_uvarint(out, 0)

        return encode

    def decoder(self, version: int, *, flexible: bool, nullable: bool) -> Decode:
        inner = Field("", Array(_Decoded(self._item())), attribute="entries")
        topics = Array(_Decoded(Struct(dict, *self.topic, inner)))
        decode_topics = topics.decoder(version, flexible=flexible, nullable=nullable)
        factory = self.entry.factory

        def decode(reader: FrameReader) -> Any:
            found = decode_topics(reader)
            if found is None:
                return None
            flat: list[Any] = []
            for topic in found:
                entries = topic.pop("entries")
                flat += [factory(**topic, **entry) for entry in entries]
            return tuple(flat)

        return decode

    def _item(self) -> WireType:
        return _Bare(self.entry.fields[0]) if self.bare else self.entry


@dataclass(frozen=True, slots=True)
class _Bare:
    """A structure on the wire reduced to its only field."""

    only: Field

    def encoder(self, version: int, *, flexible: bool, nullable: bool) -> Encode:
        encode, get = (
            self.only.type.encoder(version, flexible=flexible, nullable=nullable),
            attrgetter(self.only.attribute),
        )
        return lambda out, value: encode(out, get(value))

    def decoder(self, version: int, *, flexible: bool, nullable: bool) -> Decode:
        decode, name = self.only.type.decoder(version, flexible=flexible, nullable=nullable), self.only.attribute
        return lambda reader: {name: decode(reader)}


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A structure read as a dict of its fields, its factory not called yet."""

    type: WireType

    def encoder(self, version: int, *, flexible: bool, nullable: bool) -> Encode:
        return self.type.encoder(version, flexible=flexible, nullable=nullable)

    def decoder(self, version: int, *, flexible: bool, nullable: bool) -> Decode:
        if isinstance(self.type, Struct):
            return _fields_decoder(self.type.fields, version, flexible=flexible)
        return self.type.decoder(version, flexible=flexible, nullable=nullable)
