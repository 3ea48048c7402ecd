"""Commit metadata: the text that Kafka stores with a committed offset. Pure: no clock, IO or logging.

The metadata contains the writer, which is the name of the consumer that commits; the offset map, which lists the
records finished after the committed offset; and the user's own text. Without a writer and an offset map, the user's
text is written unchanged, as other clients write it. All other metadata is ASCII and has a version and a checksum.

An offset map that exceeds the limit ``offset_metadata_max_bytes`` is left out; the offset is still committed. If the
metadata cannot be decoded, the reader gets the reason instead of an offset map, and the finished records after the
committed offset are handled again.

The format is ``omap:1:<CRC-32 of the rest>:<writer>:<log>:<map>:<user's text>``. The writer and the user's text are
escaped as in JSON. The log consists of the topic id in URL-safe base64, a dot, and the highest leader epoch of the
records that the map covers; an unknown id or epoch is empty. The map consists of one character for its kind and
deflated bytes in base64. The bytes begin with the base offset as a varint. The remaining bytes depend on the kind:

- ``g`` (gaps), for few unfinished offsets: for each unfinished offset, the number of finished offsets directly before
  it, as a varint; then the number of finished offsets after the last unfinished offset;
- ``b`` (bits), for many unfinished offsets: the number of offsets as a varint; then one bit for each offset, which is
  set if the offset is unfinished.

Kind ``b`` is written if its bits take fewer bytes than there are unfinished offsets. With unfinished offsets at random
positions, 2,000 unfinished of 12,000 offsets take about two fifths of the default limit of 4,096 bytes, 2,000 of
100,000 take two thirds, and 200 of 1,000,000 take a seventh. With a single unfinished offset, the metadata takes about
60 bytes in addition to the writer and the user's text, however many finished offsets follow.
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
_HIGH_FILL = 0.75
"""Fill of an offset map above which no new records should be started."""
_MAX_MAP_BYTES = 1 << 15
"""Limit of a map's size before deflating, so that forged metadata of a few bytes cannot exhaust the memory."""
_MAX_VARINT_BYTES = 10
_END_OF_OFFSETS = 1 << 63
_WORD = 64
"""Number of offsets in one word of the bitmap."""
_LOG_BYTES = 33
"""Maximum size of the log: a topic id, a dot and a leader epoch."""
_LOG = re.compile(r"(?:([A-Za-z0-9_-]{22})?\.(\d{1,10})?)?")


class OffsetMap:
    """Finished offsets of one partition, stored as a sparse bitmap of the unfinished offsets.

    All offsets from ``base`` to ``limit`` (exclusive) are finished, except those in ``unfinished``.

    Args:
        base: first offset that the map covers.
        limit: offset after the highest finished offset.
        unfinished: unfinished offsets, ascending.
        topic_id: id of the topic that the offsets belong to; None if unknown.
        leader_epoch: highest leader epoch of the records below ``limit``; -1 if unknown.

    Attributes:
        unfinished_count: number of unfinished offsets.

    Raises:
        ValueError: ``base`` and ``limit`` are not valid offsets in ascending order, or ``unfinished`` is not ascending
            or contains other offsets than those between them.
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
        """Indices of the bitmap's words that are not zero, and these words."""
        self.unfinished_count = 0
        if not 0 <= base <= limit <= _END_OF_OFFSETS:
            raise ValueError(f"{base} to {limit} is not a range of offsets")
        before, number, word = base - 1, -1, 0
        for offset in unfinished:
            if not before < offset < limit:
                raise ValueError("the unfinished offsets are not in ascending order")
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
        """Number of finished offsets from ``base`` to ``limit`` (exclusive)."""
        return self.limit - self.base - self.unfinished_count

    def is_finished(self, offset: int) -> bool:
        """Return True if ``offset`` is finished according to the map, or is below ``base``; False from ``limit`` on."""
        if offset >= self.limit:
            return False
        index = bisect_left(self._numbers, offset // _WORD)
        has_word = index < len(self._numbers) and self._numbers[index] == offset // _WORD
        return not (has_word and self._words[index] >> offset % _WORD & 1)

    def unfinished_from(self, offset: int) -> Iterator[int]:
        """Yield the unfinished offsets from ``offset`` on, ascending."""
        for index in range(bisect_left(self._numbers, offset // _WORD), len(self._numbers)):
            first, word = self._numbers[index] * _WORD, self._words[index]
            while word:
                found = first + (word & -word).bit_length() - 1
                word &= word - 1
                if found >= offset:
                    yield found

    def from_offset(self, offset: int) -> OffsetMap | None:
        """Return the part of the map from ``offset`` on; None if the map ends before."""
        if offset == self.base:
            return self
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
        """Set the topic id and leader epoch of the map, and return the map itself."""
        self.topic_id, self.leader_epoch = topic_id, leader_epoch
        return self

    def contradiction(self, topic_id: str, end_offset: int, current_epoch: int = -1) -> str:
        """Return why the map cannot describe a log; empty if it can.

        Args:
            topic_id: topic id of the log; empty if unknown.
            end_offset: end offset of the log.
            current_epoch: epoch of the log's leader; -1 if unknown.
        """
        if topic_id and self.topic_id is not None and str(self.topic_id) != topic_id:
            return f"the offset map belongs to topic id {self.topic_id}, but the topic now has id {topic_id}"
        if self.limit > end_offset:
            return f"the offset map covers offsets below {self.limit}, but the log ends at {end_offset}"
        if 0 <= current_epoch < self.leader_epoch:
            return (
                f"the offset map covers records up to leader epoch {self.leader_epoch}, but the leader has epoch"
                f" {current_epoch}"
            )
        return ""

    def epoch_contradiction(self, end_offset: int) -> str:
        """Return why the log no longer contains all records that the map covers; empty if it may contain them.

        Records are replaced after an unclean leader election. The log then ends the map's leader epoch too early.

        Args:
            end_offset: end offset of the map's leader epoch in the log; -1 if the log has neither that epoch nor a
                later one.
        """
        if self.leader_epoch < 0 or end_offset >= self.limit:
            return ""
        return (
            f"the offset map covers offsets below {self.limit} up to leader epoch {self.leader_epoch}, but the log "
            + (f"ends that epoch at {end_offset}" if end_offset >= 0 else "has neither that epoch nor a later one")
        )

    def is_rewritten_by(self, base_offset: int, leader_epoch: int) -> bool:
        """Return True if the batch at ``base_offset`` has replaced records that the map covers.

        The leader epoch of such a batch is later than that of every covered record.
        """
        return base_offset < self.limit and 0 <= self.leader_epoch < leader_epoch


@dataclass(frozen=True, slots=True)
class EncodedMetadata:
    """Metadata to commit with an offset."""

    text: str
    is_map_dropped: bool = False
    """True if the map did not fit. The next owner then handles the finished records after the offset again."""
    fill: float = 0.0
    """Size of the map, divided by the space that the other parts leave; 0 without a map.

    A map whose fill is above 1 is dropped.
    """

    @property
    def is_high(self) -> bool:
        """True if no new records should be started, because the map of the next commit might not fit."""
        return self.fill > _HIGH_FILL


@dataclass(frozen=True, slots=True)
class DecodedMetadata:
    """Content of the metadata that was committed with an offset."""

    offset_map: OffsetMap | None = None
    user_text: str = ""
    is_foreign: bool = False
    """True if the metadata does not have this module's format; ``user_text`` is then the whole metadata."""
    problem: str = ""
    """Reason why the metadata could not be decoded or the map was ignored; empty if there is no problem."""
    writer: str = ""
    """Name of the consumer that committed; empty if unknown."""


def encode_metadata(offset_map: OffsetMap | None, user_text: str, limit: int, *, writer: str = "") -> EncodedMetadata:
    """Encode metadata within ``limit`` bytes.

    The writer is dropped if it does not fit beside the user's text, and the map if it does not fit beside both. The
    user's text is never cut: if it exceeds ``limit`` by itself, the broker refuses the commit.
    """
    without_map = _without_map(user_text, writer)
    if len(without_map.encode()) > limit:
        without_map = _without_map(user_text, "")
        writer = ""
    if offset_map is None:
        return EncodedMetadata(without_map)
    packed = _encode_map(offset_map)
    room = limit - len(_encoded(writer, "", "", user_text)) - _LOG_BYTES
    fill = len(packed) / room if packed and room > 0 else float("inf")
    if fill > 1:
        return EncodedMetadata(without_map, is_map_dropped=True, fill=fill)
    return EncodedMetadata(_encoded(writer, _encode_log(offset_map), packed, user_text), fill=fill)


def decode_metadata(text: str, offset: int) -> DecodedMetadata:
    """Decode ``text``, which was committed with ``offset``; ignore a map for another offset."""
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
        writer, user_text = _unescaped(parts[0]), _unescaped(parts[3])
        found = _decode_map(parts[2]).bind_to_log(*_decode_log(parts[1])) if parts[2] else None
    except ValueError as error:
        return DecodedMetadata(problem=f"the commit metadata cannot be decoded: {error}")
    if found is not None and found.base != offset:
        problem = f"the commit metadata belongs to offset {found.base}, not {offset}"
        return DecodedMetadata(user_text=user_text, writer=writer, problem=problem)
    return DecodedMetadata(found, user_text, writer=writer)


# ---- metadata ------------------------------------------------------------------------------------------------------


def _without_map(user_text: str, writer: str) -> str:
    """Return metadata without a map: the user's text alone if there is no writer and no ``omap:`` in front of it."""
    is_unchanged = not writer and not user_text.startswith(_MAGIC)
    return user_text if is_unchanged else _encoded(writer, "", "", user_text)


def _encoded(writer: str, log: str, packed: str, user_text: str) -> str:
    body = ":".join((_escaped(writer).replace(":", r"\u003a"), log, packed, _escaped(user_text)))
    return f"{_MAGIC}{_VERSION}:{_checksum(body)}:{body}"


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def _unescaped(text: str) -> str:
    return str(json.loads(f'"{text}"'))


def _encode_log(offset_map: OffsetMap) -> str:
    topic_id, epoch = offset_map.topic_id, offset_map.leader_epoch
    name = "" if topic_id is None else urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    return f"{name}.{epoch if epoch >= 0 else ''}" if name or epoch >= 0 else ""


def _decode_log(text: str) -> tuple[UUID | None, int]:
    if (found := _LOG.fullmatch(text)) is None:
        raise ValueError(f"the log {text[:40]!r} is not a topic id and leader epoch")
    name, epoch = found.groups()
    return None if not name else UUID(bytes=urlsafe_b64decode(name + "==")), int(epoch) if epoch else -1


# ---- offset maps ---------------------------------------------------------------------------------------------------


def _encode_map(offset_map: OffsetMap) -> str:
    """Encode a map; return an empty text if the map exceeds ``_MAX_MAP_BYTES``."""
    base, size = offset_map.base, offset_map.limit - offset_map.base
    # In kind ``g``, each gap takes at least one byte. In kind ``b``, each offset takes one bit.
    if min(size // 8, offset_map.unfinished_count) > _MAX_MAP_BYTES:
        return ""
    if size // 8 < offset_map.unfinished_count:
        kind, plain = "b", _varint(base) + _varint(size) + _bits(offset_map)
    else:
        kind, plain = "g", _varint(base) + b"".join(map(_varint, _gaps(offset_map)))
    if len(plain) > _MAX_MAP_BYTES:
        return ""
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return kind + b64encode(deflate.compress(plain) + deflate.flush()).decode().rstrip("=")


def _decode_map(packed: str) -> OffsetMap:
    """Decode a map.

    Raises:
        ValueError: the text is damaged, or its map exceeds ``_MAX_MAP_BYTES``.
    """
    kind, text = packed[0], packed[1:]
    try:
        deflated = b64decode(text + "=" * (-len(text) % 4), validate=True)
        inflate = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
        plain = iter(inflate.decompress(deflated, _MAX_MAP_BYTES))
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"the offset map is damaged ({error})") from error
    if not inflate.eof:
        raise ValueError("the offset map is too long or truncated")
    base, first = _next_varint(plain), _next_varint(plain)
    match kind:
        case "b":
            return OffsetMap(base, base + first, _decode_bits(base, plain))
        case "g":
            *unfinished, limit = _decode_gaps(base, first, plain)
            return OffsetMap(base, limit, unfinished)
    raise ValueError(f"offset maps of kind {kind!r} are not supported")


def _gaps(offset_map: OffsetMap) -> Iterator[int]:
    following = offset_map.base
    for offset in offset_map.unfinished_from(offset_map.base):
        yield offset - following
        following = offset + 1
    yield offset_map.limit - following


def _decode_gaps(base: int, first: int, plain: Iterator[int]) -> Iterator[int]:
    """Yield the unfinished offsets, then the limit of the map."""
    offset = base + first
    yield offset
    while operator.length_hint(plain):
        offset += 1 + _next_varint(plain)
        yield offset


def _bits(offset_map: OffsetMap) -> bytes:
    base = offset_map.base
    bits = bytearray((offset_map.limit - base + 7) // 8)
    for offset in offset_map.unfinished_from(offset_map.base):
        index = offset - base
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)


def _decode_bits(base: int, plain: Iterator[int]) -> Iterator[int]:
    for index, byte in enumerate(plain):
        for bit in range(8):
            if byte >> bit & 1:
                yield base + 8 * index + bit


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _next_varint(plain: Iterator[int]) -> int:
    value = 0
    for index, byte in zip(range(_MAX_VARINT_BYTES), plain, strict=False):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value
    raise ValueError("the offset map ends within a number")
