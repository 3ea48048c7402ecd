# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""Compiled decoder of record batches of format 2; ``tailrace.batches.record_batch`` works without it.

Every length is checked against the end of its record before a byte is read, because the bytes come from the network.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint64_t

DEF HEAD = 61  # bytes of a batch before its records


cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end
    bint is_broken


cdef inline int64_t varint(Cursor* cursor) noexcept nogil:
    """Read a zigzag varint; mark the cursor as broken if it ends early or is longer than 64 bits."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while cursor.at < cursor.end and shift < 64:
        byte = cursor.at[0]
        cursor.at += 1
        value |= (<uint64_t> (byte & 0x7F)) << shift
        if byte < 0x80:
            return <int64_t> (value >> 1) ^ -(<int64_t> (value & 1))
        shift += 7
    cursor.is_broken = True
    return 0


cdef inline object nullable_bytes(Cursor* cursor):
    """Read a length and that many bytes; return None for a negative length."""
    cdef int64_t length = varint(cursor)
    if length < 0:
        return None
    if length > cursor.end - cursor.at:
        cursor.is_broken = True
        return None
    cursor.at += length
    return PyBytes_FromStringAndSize(<const char*> (cursor.at - length), length)


cdef object headers_of(Cursor* cursor, int64_t count):
    """Read ``count`` headers as a list of (name, value)."""
    cdef int64_t length
    cdef list headers = []
    while count > 0 and not cursor.is_broken:
        length = varint(cursor)
        if length < 0 or length > cursor.end - cursor.at:
            cursor.is_broken = True
            break
        name = PyUnicode_DecodeUTF8(<const char*> cursor.at, length, NULL)
        cursor.at += length
        headers.append((name, nullable_bytes(cursor)))
        count -= 1
    return headers


cdef inline int64_t plus(int64_t base, int64_t delta) noexcept nogil:
    """Add with wraparound, because corrupt bytes may lead to any sum."""
    return <int64_t> (<uint64_t> base + <uint64_t> delta)


cdef inline int64_t big_endian(const uint8_t* at, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = (value << 8) | at[i]
    return <int64_t> value


cdef class BatchDecoder:
    """Decoder of the records of one batch from an offset on, a slice at a time.

    ``content`` is a whole batch of format 2 whose records are not compressed. The decoder keeps ``content`` alive.
    """

    cdef const uint8_t[::1] _content
    cdef Py_ssize_t _at
    cdef int32_t _left
    cdef int64_t _base_offset, _base_timestamp, _append_time, _lowest
    cdef bint _has_append_time
    cdef object _topic, _partition, _record

    def __init__(self, content, topic, partition, int64_t lowest, record):
        self._content = content
        if self._content.shape[0] < HEAD:
            raise ValueError("a record batch shorter than its header")
        cdef const uint8_t* head = &self._content[0]
        self._at = HEAD
        self._base_offset = big_endian(head, 8)
        self._has_append_time = head[22] & 0x08
        self._base_timestamp = big_endian(head + 27, 8)
        self._append_time = big_endian(head + 35, 8)
        self._left = <int32_t> big_endian(head + 57, 4)
        self._lowest = lowest if lowest > self._base_offset else INT64_MIN
        self._topic, self._partition, self._record = topic, partition, record

    def take(self, Py_ssize_t most):
        """Return the next ``most`` records, or fewer at the end of the batch.

        Raises:
            ValueError: the bytes are not records.
        """
        cdef const uint8_t* start = &self._content[0]
        cdef const uint8_t* end = start + self._content.shape[0]
        cdef Cursor cursor
        cdef int64_t length, timestamp, offset, count, lowest = self._lowest
        cdef int32_t left = self._left
        cdef list records = []
        cursor.is_broken = False
        cursor.at = start + self._at
        while left > 0 and most > 0:
            cursor.end = end
            length = varint(&cursor)
            if cursor.is_broken or length < 1 or length > end - cursor.at:
                raise ValueError("a record that does not end within its batch")
            cursor.end = cursor.at + length
            cursor.at += 1  # attributes, unused
            timestamp = varint(&cursor)
            offset = plus(self._base_offset, varint(&cursor))
            if offset < lowest and not cursor.is_broken:
                cursor.at = cursor.end
                left -= 1
                continue
            lowest = INT64_MIN  # records are skipped at the beginning only
            key = nullable_bytes(&cursor)
            value = nullable_bytes(&cursor)
            count = varint(&cursor)
            headers = headers_of(&cursor, count)
            if cursor.is_broken or count < 0 or cursor.at != cursor.end:
                raise ValueError("a record that is not as long as it claims")
            if self._has_append_time:
                record = self._record(
                    self._topic, self._partition, offset, key, value, self._append_time, headers, "LogAppendTime"
                )
            else:
                timestamp = plus(self._base_timestamp, timestamp)
                record = self._record(self._topic, self._partition, offset, key, value, timestamp, headers)
            records.append(record)
            left -= 1
            most -= 1
        self._at, self._left, self._lowest = cursor.at - start, left, lowest
        return records
