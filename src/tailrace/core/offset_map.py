"""Commit metadata: the writer, the offset map of records finished after the offset, and the user's own text.

The text is ASCII, has a version and a checksum, and stays within the broker's limit (``offset_metadata_max_bytes``). An
offset map that does not fit is left out; the commit is still made. If a text cannot be decoded, the reason is returned
instead of an offset map, and the finished records after the committed offset are handled again. A user's text without a
writer and an offset map is written unchanged, as other clients write it.

The format is ``omap:1:<CRC-32 of the rest>:<writer>:<log>:<map>:<user's text>``. The writer and the user's text are
escaped as in JSON. The log consists of the topic id in URL-safe base64, a dot, and the highest leader epoch of the
records that the map covers; an unknown id or epoch is empty. The map consists of one character for its kind and
deflated bytes in base64. The bytes begin with the base offset as a varint. The rest depends on the kind:

- ``g``, for few unfinished offsets: for each unfinished offset, the number of finished offsets directly before it, as a
  varint; then the number of finished offsets after the last unfinished one;
- ``b``, for many unfinished offsets: the number of offsets as a varint; then one bit for each offset, which is set if
  the offset is unfinished.

The kind that is shorter before deflating is written. With unfinished offsets at random positions, 2,000 unfinished of
12,000 offsets take about two fifths of the default limit of 4,096 bytes, 2,000 of 100,000 take two thirds, and 200 of
1,000,000 take a seventh. With a single unfinished offset the text takes about 60 bytes besides the writer and the
user's text, however many finished offsets follow.
"""

from __future__ import annotations

import binascii
import json
import operator
import re
import zlib
from array import array
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

__all__ = ["DecodedMetadata", "EncodedMetadata", "OffsetMap", "decode_metadata", "encode_metadata"]

_MAGIC = "omap:"
_VERSION = "1"
_HIGH = 0.75
_MOST_BYTES = 1 << 15
"""Limit of a map's size before deflating, so that a forged text of a few bytes cannot exhaust the memory."""
_MOST_VARINT = 10
_END_OF_OFFSETS = 1 << 63
_WORD = 64
"""Offsets in one word of the bitmap."""
_LOG_BYTES = 33
"""Room for a topic id, a dot and an epoch."""
_LOG = re.compile(r"(?:([A-Za-z0-9_-]{22})?\.(\d{1,10})?)?")


class OffsetMap:
    """Finished offsets of one partition, kept as a sparse bitmap of the unfinished offsets.

    All offsets from ``base`` on and below ``limit`` are finished, except those in ``unfinished``.

    Args:
        base: the first offset that the map covers.
        limit: one past the highest finished offset.
        unfinished: the unfinished offsets, ascending.
        topic_id: the topic that the offsets belong to; None when unknown.
        leader_epoch: the highest leader epoch of the records below ``limit``; -1 when unknown.

    Attributes:
        unfinished_count: the number of unfinished offsets.
    """

    __slots__ = ("_numbers", "_words", "base", "leader_epoch", "limit", "topic_id", "unfinished_count")

    def __init__(
        self,
        base: int,
        limit: int,
        unfinished: Iterable[int] = (),
        *,
        topic_id: UUID | None = None,
        leader_epoch: int = -1,
    ) -> None:
        self.base, self.limit, self.topic_id, self.leader_epoch = base, limit, topic_id, leader_epoch
        self._numbers, self._words = array("q"), array("Q")
        """Numbers of the bitmap's words that are not zero, and the words."""
        self.unfinished_count = 0
        if not 0 <= base <= limit <= _END_OF_OFFSETS:
            raise ValueError("the offsets are not in ascending order")
        before, number, word = base - 1, -1, 0
        for offset in unfinished:
            if not before < offset < limit:
                raise ValueError("the offsets are not in ascending order")
            if offset // _WORD != number:
                self._append(number, word)
                number, word = offset // _WORD, 0
            word |= 1 << offset % _WORD
            self.unfinished_count += 1
            before = offset
        self._append(number, word)

    def _append(self, number: int, word: int) -> None:
        if word:
            self._numbers.append(number)
            self._words.append(word)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetMap) and all(getattr(self, one) == getattr(other, one) for one in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.base, self.limit, self.unfinished_count, self.topic_id, self.leader_epoch))

    def __repr__(self) -> str:
        log = f"topic_id={self.topic_id}, leader_epoch={self.leader_epoch}"
        return f"OffsetMap({self.base}, {self.limit}, <{self.unfinished_count} unfinished>, {log})"

    @property
    def finished_count(self) -> int:
        """Number of finished offsets from ``base`` on and below ``limit``."""
        return self.limit - self.base - self.unfinished_count

    def is_finished(self, offset: int) -> bool:
        """Return True if an earlier owner finished the record at ``offset``, so that the record is skipped."""
        if offset >= self.limit:
            return False
        place = bisect_left(self._numbers, offset // _WORD)
        is_there = place < len(self._numbers) and self._numbers[place] == offset // _WORD
        return not (is_there and self._words[place] >> offset % _WORD & 1)

    def unfinished_from(self, offset: int) -> Iterator[int]:
        """Yield the unfinished offsets from ``offset`` on, ascending."""
        for place in range(bisect_left(self._numbers, offset // _WORD), len(self._numbers)):
            at, word = self._numbers[place] * _WORD, self._words[place]
            while word:
                found = at + (word & -word).bit_length() - 1
                word &= word - 1
                if found >= offset:
                    yield found

    def from_offset(self, offset: int) -> OffsetMap | None:
        """Return the part of the map from ``offset`` on; None if no offset from there on is finished."""
        if self.limit <= offset:
            return None
        return OffsetMap(
            offset,
            self.limit,
            self.unfinished_from(offset),
            topic_id=self.topic_id,
            leader_epoch=self.leader_epoch,
        )

    def bind_to_log(self, topic_id: UUID | None, leader_epoch: int) -> OffsetMap:
        """Set the topic id and leader epoch of the log that the offsets belong to, and return the map."""
        self.topic_id, self.leader_epoch = topic_id, leader_epoch
        return self

    def contradiction(self, topic_id: str, end_offset: int) -> str:
        """Return why the map cannot belong to a log with this topic id and end offset; empty if the map can."""
        if topic_id and self.topic_id is not None and str(self.topic_id) != topic_id:
            return f"the offset map belongs to topic id {self.topic_id}, but the topic now has id {topic_id}"
        if self.limit > end_offset:
            return f"the offset map covers offsets below {self.limit}, but the log ends at {end_offset}"
        return ""

    def contradiction_of_epoch(self, end_offset: int) -> str:
        """Return why records that the map covers must have been replaced; empty if they need not have been.

        Args:
            end_offset: offset at which the log ends the map's leader epoch; -1 if the log has neither that epoch nor a
                later one.
        """
        if self.leader_epoch < 0 or end_offset >= self.limit:
            return ""
        return (
            f"the offset map covers offsets below {self.limit} up to leader epoch {self.leader_epoch}, but the log "
            + (f"ends that epoch at {end_offset}" if end_offset >= 0 else "has neither that epoch nor a later one")
        )

    def is_rewritten_by(self, base_offset: int, leader_epoch: int) -> bool:
        """Return True if a batch has replaced records that the map covers.

        The leader epoch of such a batch is later than the highest leader epoch of the covered records.
        """
        return base_offset < self.limit and 0 <= self.leader_epoch < leader_epoch


@dataclass(frozen=True, slots=True)
class EncodedMetadata:
    """Metadata to commit with an offset."""

    text: str
    is_map_dropped: bool = False
    """True if the map did not fit. The next owner then handles finished records after the offset again."""
    fill: float = 0.0
    """Size of the map, divided by the space that the other parts leave. A map with a fill above 1 is dropped."""

    @property
    def is_high(self) -> bool:
        """True if no new records should be started, so that the next map fits. Records in flight may continue."""
        return self.fill > _HIGH


@dataclass(frozen=True, slots=True)
class DecodedMetadata:
    """Metadata committed with an offset."""

    offset_map: OffsetMap | None = None
    user_text: str = ""
    is_foreign: bool = False
    """True if the text is not in this format; ``user_text`` is then the whole text."""
    problem: str = ""
    """Reason why the metadata could not be decoded or the map was ignored; empty if there is no problem."""
    writer: str = ""


def encode_metadata(offset_map: OffsetMap | None, user_text: str, limit: int, *, writer: str = "") -> EncodedMetadata:
    """Return metadata of at most ``limit`` bytes.

    Parts that do not fit are dropped, first the map and then the writer. The user's text is never cut: a text that is
    too long by itself is committed unchanged, and the broker refuses the commit.
    """
    bare = _bare(user_text, writer)
    if len(bare.encode()) > limit:
        bare = _bare(user_text, "")
        writer = ""
    if offset_map is None:
        return EncodedMetadata(bare)
    packed = _packed(offset_map)
    room = limit - len(_sealed(writer, "", "", user_text)) - _LOG_BYTES
    fill = len(packed) / room if packed and room > 0 else float("inf")
    if fill > 1:
        return EncodedMetadata(bare, is_map_dropped=True, fill=fill)
    return EncodedMetadata(_sealed(writer, _log_text(offset_map), packed, user_text), fill=fill)


def decode_metadata(text: str, offset: int) -> DecodedMetadata:
    """Decode ``text``, which was committed with ``offset``; a map for another offset is ignored."""
    if not text.startswith(_MAGIC):
        return DecodedMetadata(user_text=text, is_foreign=bool(text))
    version, _, rest = text.removeprefix(_MAGIC).partition(":")
    if version != _VERSION:
        return DecodedMetadata(problem=f"version {version[:20]!r} of the commit metadata is not supported")
    checksum, _, body = rest.partition(":")
    parts = body.split(":", 3)
    if not text.isascii() or checksum != _checksum(body) or len(parts) != 4:
        return DecodedMetadata(problem="the commit metadata is damaged: the checksum does not match")
    try:
        writer, user_text = _plain(parts[0]), _plain(parts[3])
        found = _unpacked(parts[2]).bind_to_log(*_log_of(parts[1])) if parts[2] else None
    except ValueError as error:
        return DecodedMetadata(problem=f"the commit metadata cannot be decoded: {error}")
    if found is not None and found.base != offset:
        problem = f"the commit metadata belongs to offset {found.base}, not {offset}"
        return DecodedMetadata(user_text=user_text, writer=writer, problem=problem)
    return DecodedMetadata(found, user_text, writer=writer)


# ---- the envelope --------------------------------------------------------------------------------------------------


def _bare(user_text: str, writer: str) -> str:
    """Return metadata without a map: the user's text alone, unless there is a writer or the text looks encoded."""
    is_plain = not writer and not user_text.startswith(_MAGIC)
    return user_text if is_plain else _sealed(writer, "", "", user_text)


def _sealed(writer: str, log: str, packed: str, user_text: str) -> str:
    body = ":".join((_escaped(writer).replace(":", r"\u003a"), log, packed, _escaped(user_text)))
    return f"{_MAGIC}{_VERSION}:{_checksum(body)}:{body}"


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def _plain(text: str) -> str:
    return str(json.loads(f'"{text}"'))


def _log_text(offset_map: OffsetMap) -> str:
    topic_id, epoch = offset_map.topic_id, offset_map.leader_epoch
    name = "" if topic_id is None else urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"{name}.{epoch if epoch >= 0 else ''}" if name or epoch >= 0 else ""


def _log_of(text: str) -> tuple[UUID | None, int]:
    if (found := _LOG.fullmatch(text)) is None:
        raise ValueError(f"the log {text[:40]!r} is not a topic id and leader epoch")
    name, epoch = found.groups()
    return None if not name else UUID(bytes=urlsafe_b64decode(name + "==")), int(epoch) if epoch else -1


# ---- the map -------------------------------------------------------------------------------------------------------


def _packed(offset_map: OffsetMap) -> str:
    """Return the map as text; empty if the map exceeds ``_MOST_BYTES``."""
    base, size = offset_map.base, offset_map.limit - offset_map.base
    # In kind ``g``, each gap takes at least one byte. In kind ``b``, each offset takes one bit.
    if min(size // 8, offset_map.unfinished_count) > _MOST_BYTES:
        return ""
    if size // 8 < offset_map.unfinished_count:
        kind, plain = "b", _varint(base) + _varint(size) + _bits(offset_map)
    else:
        kind, plain = "g", _varint(base) + b"".join(map(_varint, _gaps(offset_map)))
    if len(plain) > _MOST_BYTES:
        return ""
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return kind + b64encode(deflate.compress(plain) + deflate.flush()).decode().rstrip("=")


def _unpacked(packed: str) -> OffsetMap:
    """Decode a map.

    Raises:
        ValueError: the text is damaged, or larger than the limit.
    """
    kind, text = packed[0], packed[1:]
    try:
        deflated = b64decode(text + "=" * (-len(text) % 4), validate=True)
        inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        plain = iter(inflate.decompress(deflated, _MOST_BYTES))
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"the offset map is damaged ({error})") from error
    if not inflate.eof:
        raise ValueError("the offset map is too long or truncated")
    base, first = _next_varint(plain), _next_varint(plain)
    match kind:
        case "b":
            return OffsetMap(base, base + first, _of_bits(base, plain))
        case "g":
            *unfinished, limit = _of_gaps(base, first, plain)
            return OffsetMap(base, limit, unfinished)
    raise ValueError(f"offset maps of kind {kind!r} are not supported")


def _gaps(offset_map: OffsetMap) -> Iterator[int]:
    at = offset_map.base
    for offset in offset_map.unfinished_from(offset_map.base):
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
    for offset in offset_map.unfinished_from(offset_map.base):
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
    raise ValueError("the offset map ends within a number")
