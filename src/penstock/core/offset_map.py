"""The text that goes with a commit: who wrote it, which offsets behind the commit are finished, the user's own text.

Rule of this file: the text is ASCII, has a version and a checksum, and stays within the broker's limit
(``offset_metadata_max_bytes``). A map that does not fit is left out, the commit never is; a text that cannot be read
gives no map and says why, and the records are run again. With nothing but a user's text to say, that text is written
as it is, as every client does.

``penstock:1:<CRC-32 of the rest>:<writer>:<map>:<user's text>``, the texts escaped as in JSON. The map is one letter
and base64 of deflated bytes. Both kinds begin with the base as a varint:

- ``g``, for few that are unfinished: how many finished ones lie before each, and after the last, as varints;
- ``b``, for many: the number of offsets as a varint, then a bit for each, set when it is unfinished.

Whichever is shorter before it is deflated is taken. Of the default limit of 4,096 bytes, records unfinished at random
among those that are finished take: 2,000 of 12,000 two fifths, 2,000 of 100,000 two thirds, 200 of 1,000,000 a seventh;
one that is stuck before any number of finished ones takes 40 bytes.
"""

from __future__ import annotations

import binascii
import json
import operator
import zlib
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Decoded", "Envelope", "OffsetMap", "decode", "encode"]

_MAGIC = "penstock:"
_VERSION = "1"
_HIGH = 0.75
_MOST_BYTES = 1 << 18
"""Of a map before it is deflated: what is corrupt on purpose does not fill the memory."""
_MOST_VARINT = 10


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """What is finished from ``base`` on, below ``limit``: all but ``unfinished``, which is sorted."""

    base: int
    limit: int
    """One past the highest offset that is finished."""
    unfinished: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        edges = (self.base - 1, *self.unfinished, self.limit)
        if self.base < 0 or not all(map(operator.lt, edges, edges[1:])):
            raise ValueError("its offsets are not in order")

    def is_finished(self, offset: int) -> bool:
        """Whether to skip the record of ``offset``: somebody finished it before."""
        if offset >= self.limit:
            return False
        place = bisect_left(self.unfinished, offset)
        return place == len(self.unfinished) or self.unfinished[place] != offset


@dataclass(frozen=True, slots=True)
class Envelope:
    """What to commit beside an offset."""

    text: str
    is_map_dropped: bool = False
    """The map did not fit: a next owner would run again what is finished behind the offset."""
    fill: float = 0.0
    """How much of the room that the user's text leaves is taken by the map; above 1 it is dropped."""

    @property
    def is_high(self) -> bool:
        """Whether no new records should be begun, so that the map fits next time; those it spans may go on."""
        return self.fill > _HIGH


@dataclass(frozen=True, slots=True)
class Decoded:
    """What was committed beside an offset."""

    offset_map: OffsetMap | None = None
    user_text: str = ""
    is_foreign: bool = False
    """The text is somebody's own, with nothing of ours: all of it is ``user_text``."""
    problem: str = ""
    """Why there is no map, or none that can be trusted; empty when all is well."""
    writer: str = ""


def encode(offset_map: OffsetMap | None, user_text: str, limit: int, *, writer: str = "") -> Envelope:
    """The text that says all this, at most ``limit`` bytes long.

    The map is dropped first, then the writer. A user's text is never cut: one that is too long alone goes out as it
    is, and the broker's refusal tells the user.
    """
    bare = _bare(user_text, writer)
    if len(bare.encode()) > limit:
        bare = _bare(user_text, "")
        writer = ""
    if offset_map is None:
        return Envelope(bare)
    packed = _packed(offset_map)
    room = limit - len(_sealed(writer, "", user_text))
    fill = len(packed) / room if packed and room > 0 else float("inf")
    if fill > 1:
        return Envelope(bare, is_map_dropped=True, fill=fill)
    return Envelope(_sealed(writer, packed, user_text), fill=fill)


def decode(text: str, offset: int) -> Decoded:
    """What ``text`` says, which was committed with ``offset``; a map of another offset is not given."""
    if not text.startswith(_MAGIC):
        return Decoded(user_text=text, is_foreign=bool(text))
    version, _, rest = text.removeprefix(_MAGIC).partition(":")
    if version != _VERSION:
        return Decoded(problem=f"version {version[:20]!r} of the commit metadata is not known here")
    checksum, _, body = rest.partition(":")
    parts = body.split(":", 2)
    if not text.isascii() or checksum != _checksum(body) or len(parts) != 3:
        return Decoded(problem="the commit metadata is damaged: its checksum does not hold")
    try:
        writer, user_text = _plain(parts[0]), _plain(parts[2])
        found = _unpacked(parts[1]) if parts[1] else None
    except ValueError as error:
        return Decoded(problem=f"the commit metadata cannot be read: {error}")
    if found is not None and found.base != offset:
        problem = f"the commit metadata is of offset {found.base}, not of {offset}"
        return Decoded(user_text=user_text, writer=writer, problem=problem)
    return Decoded(found, user_text, writer=writer)


# ---- the envelope --------------------------------------------------------------------------------------------------


def _bare(user_text: str, writer: str) -> str:
    """Without a map: the user's text alone, unless it could be taken for an envelope."""
    is_plain = not writer and not user_text.startswith(_MAGIC)
    return user_text if is_plain else _sealed(writer, "", user_text)


def _sealed(writer: str, packed: str, user_text: str) -> str:
    body = ":".join((_escaped(writer).replace(":", r"\u003a"), packed, _escaped(user_text)))
    return f"{_MAGIC}{_VERSION}:{_checksum(body)}:{body}"


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def _plain(text: str) -> str:
    return str(json.loads(f'"{text}"'))


# ---- the map -------------------------------------------------------------------------------------------------------


def _packed(offset_map: OffsetMap) -> str:
    """The map as text; empty when it is larger than any that is read."""
    base, size = offset_map.base, offset_map.limit - offset_map.base
    # A gap takes a byte or more, and a bit for each offset an eighth of one.
    if size // 8 < len(offset_map.unfinished):
        kind, plain = "b", _varint(base) + _varint(size) + _bits(offset_map)
    else:
        kind, plain = "g", _varint(base) + b"".join(map(_varint, _gaps(offset_map)))
    if len(plain) > _MOST_BYTES:
        return ""
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return kind + b64encode(deflate.compress(plain) + deflate.flush()).decode().rstrip("=")


def _unpacked(packed: str) -> OffsetMap:
    """The map of a text.

    Raises:
        ValueError: it is damaged, or larger than any that is written.
    """
    kind, text = packed[0], packed[1:]
    try:
        deflated = b64decode(text + "=" * (-len(text) % 4), validate=True)
        inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        plain = iter(inflate.decompress(deflated, _MOST_BYTES))
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"its map is damaged ({error})") from error
    if not inflate.eof:
        raise ValueError("its map does not end")
    base, first = _next_varint(plain), _next_varint(plain)
    match kind:
        case "b":
            return OffsetMap(base, base + first, tuple(_of_bits(base, plain)))
        case "g":
            *unfinished, limit = _of_gaps(base, first, plain)
            return OffsetMap(base, limit, tuple(unfinished))
    raise ValueError(f"a map of kind {kind!r} is not known here")


def _gaps(offset_map: OffsetMap) -> Iterator[int]:
    at = offset_map.base
    for offset in offset_map.unfinished:
        yield offset - at
        at = offset + 1
    yield offset_map.limit - at


def _of_gaps(base: int, first: int, plain: Iterator[int]) -> Iterator[int]:
    at = base + first
    yield at
    while operator.length_hint(plain):
        at += 1 + _next_varint(plain)
        yield at


def _bits(offset_map: OffsetMap) -> bytes:
    base = offset_map.base
    bits = bytearray((offset_map.limit - base + 7) // 8)
    for offset in offset_map.unfinished:
        place = offset - base
        bits[place >> 3] |= 1 << (place & 7)
    return bytes(bits)


def _of_bits(base: int, plain: Iterator[int]) -> Iterator[int]:
    for eighth, byte in enumerate(plain):
        for place in range(8):
            if byte >> place & 1:
                yield base + 8 * eighth + place


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _next_varint(plain: Iterator[int]) -> int:
    value = 0
    for place, byte in zip(range(_MOST_VARINT), plain, strict=False):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value
    raise ValueError("its map ends within a number")
