# cython: language_level=3, boundscheck=False, wraparound=False, embedsignature=True
"""Compiled parts: decoder and writer of record batches of format 2, the iterator of ``async for``, the loop over
handlers, the hash of Kafka's partitioner, and buffers for responses.

``tailrace`` works without them. Every length is checked against the end
of its record before a byte is read, because the bytes come from the network.
"""

cimport cython

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_AsTuple
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from time import time

cdef object must_resolve = None  # imported on first use, because it imports asyncio

cdef extern from "Python.h":
    ctypedef enum PySendResult:
        PYGEN_RETURN
        PYGEN_ERROR
        PYGEN_NEXT
    ctypedef struct PyAsyncMethods:
        PySendResult (*am_send)(PyObject*, PyObject*, PyObject**) except? PYGEN_ERROR
    ctypedef struct AwaitableType "PyTypeObject":
        PyAsyncMethods* tp_as_async
    PySendResult PyIter_Send(PyObject*, PyObject*, PyObject**) except? PYGEN_ERROR
    bint PyCoro_CheckExact(object)
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL

cdef enum:
    HEAD = 61  # bytes of a batch before its records
    SHORTEST = 7  # bytes of a record without key, value and headers


cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end  # of the record
    bint is_broken
    # Of the batch; the decoder takes them over when all records were read without an error.
    const uint8_t* batch_end
    int32_t left  # records not read yet
    int64_t lowest  # records below this offset are skipped
    # Of the record that ``BatchDecoder.enter_record`` entered.
    int64_t offset, timestamp


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
    """Read ``count`` headers as a tuple of (name, value).

    Brokers accept any bytes as the name of a header. As in Java's client, bytes that are not UTF-8 become U+FFFD.
    """
    cdef int64_t length
    cdef list headers = []
    while count > 0 and not cursor.is_broken:
        length = varint(cursor)
        if length < 0 or length > cursor.end - cursor.at:
            cursor.is_broken = True
            break
        name = PyUnicode_DecodeUTF8(<const char*> cursor.at, length, "replace")
        cursor.at += length
        headers.append((name, nullable_bytes(cursor)))
        count -= 1
    return PyList_AsTuple(headers)


cdef inline int64_t plus(int64_t base, int64_t delta) noexcept nogil:
    """Add with wraparound, because corrupt bytes may lead to any sum."""
    return <int64_t> (<uint64_t> base + <uint64_t> delta)


cdef inline int64_t big_endian(const uint8_t* at, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int i
    for i in range(size):
        value = (value << 8) | at[i]
    return <int64_t> value


def new_buffer(Py_ssize_t size):
    """Return a bytearray whose bytes are not set to zero, for a caller who fills all of them.

    Raises:
        ValueError: the size is negative.
    """
    if size < 0:
        raise ValueError("negative size")
    return PyByteArray_FromStringAndSize(NULL, size)


cdef class Block:
    """Growing buffer of one column, backed by a bytearray, which Arrow reads without a copy."""

    cdef bytearray content
    cdef char* start
    cdef Py_ssize_t size, _room

    def __cinit__(self):
        self.content = bytearray()
        self.start = PyByteArray_AS_STRING(self.content)
        self.size = self._room = 0

    cdef inline int reserve(self, Py_ssize_t more) except -1:
        """Make room for ``more`` bytes after ``size``."""
        if more > self._room - self.size:
            self._resize(max(self.size + more, 2 * self._room, 64))
        return 0

    cdef int _resize(self, Py_ssize_t room) except -1:
        PyByteArray_Resize(self.content, room)
        self.start = PyByteArray_AS_STRING(self.content)
        self._room = room
        return 0

    cdef bytearray finish(self):
        """Return the bytes; the block must not grow afterwards."""
        self._resize(self.size)
        return self.content


cdef class BinaryColumn:
    """Nullable binary column: validity bitmap, 32-bit end offsets and bytes."""

    cdef Block valid, ends, content
    cdef Py_ssize_t count, nulls

    def __cinit__(self):
        self.valid, self.ends, self.content = Block(), Block(), Block()
        self.count = self.nulls = 0
        self.ends.reserve(sizeof(int32_t))
        (<int32_t*> self.ends.start)[0] = 0
        self.ends.size = sizeof(int32_t)

    cdef inline int append(self, const uint8_t* at, int64_t length) except -1:
        """Append ``length`` bytes; a negative length appends a null."""
        cdef Py_ssize_t byte = self.count >> 3
        cdef uint8_t bit = <uint8_t> (1 << (self.count & 7))
        if byte == self.valid.size:
            self.valid.reserve(1)
            self.valid.start[byte] = 0
            self.valid.size += 1
        self.ends.reserve(sizeof(int32_t))
        if length < 0:
            self.valid.start[byte] = <char> (<uint8_t> self.valid.start[byte] & ~bit)
            self.nulls += 1
        else:
            if length > INT32_MAX - self.content.size or self.count == INT32_MAX:
                raise OverflowError("one column of the batch exceeds 2 GiB - ask for fewer records at once")
            self.valid.start[byte] = <char> (<uint8_t> self.valid.start[byte] | bit)
            if length > 0:
                self.content.reserve(length)
                memcpy(self.content.start + self.content.size, at, length)
                self.content.size += length
        (<int32_t*> (self.ends.start + self.ends.size))[0] = <int32_t> self.content.size
        self.ends.size += sizeof(int32_t)
        self.count += 1
        return 0

    cdef void cut(self, Py_ssize_t count) noexcept:
        """Remove all values from the index ``count`` on."""
        cdef Py_ssize_t index
        for index in range(count, self.count):
            if not (self.valid.start[index >> 3] >> (index & 7)) & 1:
                self.nulls -= 1
        self.count = count
        self.valid.size = (count + 7) >> 3
        self.ends.size = (count + 1) * sizeof(int32_t)
        self.content.size = (<int32_t*> self.ends.start)[count]

    cdef tuple finish(self):
        return self.count, self.nulls, self.valid.finish(), self.ends.finish(), self.content.finish()


cdef class Columns:
    """Columns of records, in Arrow's layout, to which ``BatchDecoder.take_into`` appends."""

    cdef readonly Py_ssize_t count
    cdef Block _partitions, _offsets, _timestamps, _header_ends
    cdef BinaryColumn _keys, _values, _names, _header_values

    def __cinit__(self):
        self.count = 0
        self._partitions, self._offsets, self._timestamps = Block(), Block(), Block()
        self._keys, self._values = BinaryColumn(), BinaryColumn()
        self._header_ends, self._names, self._header_values = Block(), BinaryColumn(), BinaryColumn()
        self._header_ends.reserve(sizeof(int32_t))
        (<int32_t*> self._header_ends.start)[0] = 0
        self._header_ends.size = sizeof(int32_t)

    cdef int reserve(self, Py_ssize_t rows) except -1:
        """Make room for ``rows`` rows in the columns of fixed width."""
        self._partitions.reserve(rows * sizeof(int32_t))
        self._offsets.reserve(rows * sizeof(int64_t))
        self._timestamps.reserve(rows * sizeof(int64_t))
        self._header_ends.reserve(rows * sizeof(int32_t))
        return 0

    cdef inline void end_row(self, int32_t partition, int64_t offset, int64_t timestamp) noexcept:
        """End a row whose key, value and headers were appended; room for it was reserved."""
        (<int32_t*> self._partitions.start)[self.count] = partition
        (<int64_t*> self._offsets.start)[self.count] = offset
        (<int64_t*> self._timestamps.start)[self.count] = timestamp
        self.count += 1
        (<int32_t*> self._header_ends.start)[self.count] = <int32_t> self._names.count
        self._set_sizes()

    cdef inline void _set_sizes(self) noexcept:
        self._partitions.size = self.count * sizeof(int32_t)
        self._offsets.size = self._timestamps.size = self.count * sizeof(int64_t)
        self._header_ends.size = (self.count + 1) * sizeof(int32_t)

    cdef void cut(self, Py_ssize_t count) noexcept:
        """Remove all rows from the index ``count`` on, and what was appended of an unfinished row."""
        cdef Py_ssize_t headers = (<int32_t*> self._header_ends.start)[count]
        self.count = count
        self._set_sizes()
        self._keys.cut(count)
        self._values.cut(count)
        self._names.cut(headers)
        self._header_values.cut(headers)

    @property
    def size(self):
        """Number of bytes in the columns without fixed width."""
        return (
            self._keys.content.size
            + self._values.content.size
            + self._names.content.size
            + self._header_values.content.size
        )

    def offset(self, Py_ssize_t row):
        """Return the offset of the record in a row."""
        if not 0 <= row < self.count:
            raise IndexError("there is no such row")
        return (<int64_t*> self._offsets.start)[row]

    def finish(self):
        """Return the buffers of the columns; nothing can be appended afterwards.

        The buffers are those of partitions, offsets, timestamps and header ends. The columns after them are keys,
        values, names of headers and values of headers, each as its length, number of nulls, validity, ends and bytes.
        """
        fixed = [
            self._partitions.finish(),
            self._offsets.finish(),
            self._timestamps.finish(),
            self._header_ends.finish(),
        ]
        return fixed, [
            self._keys.finish(), self._values.finish(), self._names.finish(), self._header_values.finish()
        ]


cdef inline int length_of_varint(int64_t value) noexcept nogil:
    """Return the number of bytes of a zigzag varint."""
    cdef uint64_t left = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    cdef int length = 1
    while left > 0x7F:
        left >>= 7
        length += 1
    return length


cdef inline uint8_t* put_varint(uint8_t* at, int64_t value) noexcept nogil:
    """Write a zigzag varint, and return the place after it."""
    cdef uint64_t left = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    while left > 0x7F:
        at[0] = <uint8_t> (left | 0x80)
        at += 1
        left >>= 7
    at[0] = <uint8_t> left
    return at + 1


cdef inline int64_t length_of_bytes(bytes content) noexcept:
    """Return the size of nullable bytes with their length before them."""
    return 1 if content is None else length_of_varint(len(content)) + len(content)


cdef inline uint8_t* put_bytes(uint8_t* at, bytes content) noexcept:
    """Write nullable bytes with their length before them, and return the place after them."""
    if content is None:
        return put_varint(at, -1)
    at = put_varint(at, len(content))
    memcpy(at, <const char*> content, len(content))
    return at + len(content)


@cython.final
cdef class RecordWriter:
    """Records of format 2 of one batch, encoded behind room for the head of the batch.

    Args:
        limit: maximum size of the batch in bytes; the first record may be larger.
    """

    cdef readonly Py_ssize_t count
    cdef readonly int64_t first_timestamp, max_timestamp
    cdef readonly list timestamps
    cdef Block _content
    cdef Py_ssize_t _limit
    cdef object _timestamp

    def __init__(self, Py_ssize_t limit):
        self._limit, self._content, self.timestamps = limit, Block(), []
        self._content.reserve(HEAD)
        memset(self._content.start, 0, HEAD)
        self._content.size = HEAD
        self.count = self.first_timestamp = self.max_timestamp = 0
        self._timestamp = 0

    @property
    def size(self):
        """Number of bytes, those of the head included."""
        return self._content.size

    def append(self, bytes key, bytes value, headers, timestamp_ms):
        """Append a record and return its size; return 0 without appending it if the batch is full or finished.

        Without ``timestamp_ms``, the record has the current time.

        Raises:
            TypeError, ValueError, OverflowError: the record is invalid; nothing was appended.
        """
        cdef int64_t timestamp = <int64_t> (<double> time() * 1000) if timestamp_ms is None else timestamp_ms
        cdef int64_t timestamp_delta, size, whole
        cdef bytes header_value
        cdef list encoded = None
        cdef uint8_t* at
        if self.count == 0:
            timestamp_delta = 0
        else:
            timestamp_delta = <int64_t> (<uint64_t> timestamp - <uint64_t> self.first_timestamp)
        size = 1 + length_of_varint(timestamp_delta) + length_of_varint(self.count)
        size += length_of_bytes(key) + length_of_bytes(value)
        if headers:
            encoded = []
            for name, given in headers:
                header_value = given
                header_name = (<str?> name).encode()
                size += length_of_bytes(header_name) + length_of_bytes(header_value)
                encoded.append((header_name, header_value))
            size += length_of_varint(len(encoded))
        else:
            size += 1
        whole = length_of_varint(size) + size
        if self._limit < 0 or (self.count and self._content.size + whole >= self._limit):
            return 0
        if whole > INT32_MAX - self._content.size:
            raise OverflowError("the record is larger than 2 GiB")
        self._content.reserve(whole)
        at = put_varint(<uint8_t*> self._content.start + self._content.size, size)
        at[0] = 0  # attributes, unused
        at = put_varint(put_varint(at + 1, timestamp_delta), self.count)
        at = put_bytes(put_bytes(at, key), value)
        if encoded is None:
            at[0] = 0
        else:
            at = put_varint(at, len(encoded))
            for header_name, header_value in encoded:
                at = put_bytes(put_bytes(at, header_name), header_value)
        self._content.size += whole
        if self.count == 0:
            self.first_timestamp = self.max_timestamp = timestamp
            self._timestamp = timestamp
        elif timestamp != <int64_t> self._timestamp:  # most records share the object with the record before
            self._timestamp = timestamp
            if timestamp > self.max_timestamp:
                self.max_timestamp = timestamp
        self.timestamps.append(self._timestamp)
        self.count += 1
        return whole

    def finish(self):
        """Return the bytes, with zeros in place of the head; no record can be appended afterwards."""
        self._limit = -1
        return self._content.finish()


def murmur2(bytes data not None):
    """Return the hash that Kafka's default partitioner uses, an unsigned 32-bit number."""
    cdef const uint8_t* at = <const uint8_t*> <const char*> data
    cdef Py_ssize_t left = len(data)
    cdef uint32_t factor = 0x5BD1E995, value = 0x9747B28C ^ <uint32_t> left, word
    while left >= 4:
        word = at[0] | <uint32_t> at[1] << 8 | <uint32_t> at[2] << 16 | <uint32_t> at[3] << 24
        word *= factor
        value = (value * factor) ^ ((word ^ word >> 24) * factor)
        at += 4
        left -= 4
    if left:
        word = at[0]
        if left > 1:
            word |= <uint32_t> at[1] << 8
        if left > 2:
            word |= <uint32_t> at[2] << 16
        value = (value ^ word) * factor
    value = (value ^ value >> 13) * factor
    return value ^ value >> 15


cdef inline int append_bytes(Cursor* cursor, BinaryColumn column) except -1:
    """Read a length and that many bytes into a column; a negative length is a null."""
    cdef int64_t length = varint(cursor)
    if length > cursor.end - cursor.at:
        cursor.is_broken = True
    if not cursor.is_broken:
        column.append(cursor.at, length)
        if length > 0:
            cursor.at += length
    return 0


cdef inline int append_headers(Cursor* cursor, int64_t count, Columns columns) except -1:
    """Read ``count`` headers into the columns of names and values; names are decoded as in ``headers_of``."""
    cdef int64_t length
    cdef Py_ssize_t size = 0
    cdef const char* text
    while count > 0 and not cursor.is_broken:
        length = varint(cursor)
        if length < 0 or length > cursor.end - cursor.at:
            cursor.is_broken = True
            break
        # Arrow trusts its strings to be UTF-8. The bytes of an ASCII name are those of the string object itself.
        name = PyUnicode_DecodeUTF8(<const char*> cursor.at, length, "replace")
        text = PyUnicode_AsUTF8AndSize(name, &size)
        columns._names.append(<const uint8_t*> text, size)
        cursor.at += length
        append_bytes(cursor, columns._header_values)
        count -= 1
    return 0


cdef inline int leave_record(Cursor* cursor, int64_t header_count) except -1:
    """Check that the cursor stands at the end of the record, behind ``header_count`` headers."""
    if cursor.is_broken or header_count < 0 or cursor.at != cursor.end:
        raise ValueError("a record that is not as long as it claims")
    return 0


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

    cdef inline Cursor cursor(self) noexcept:
        """Return a cursor at the first record that was not taken yet."""
        cdef Cursor cursor
        cdef const uint8_t* start = &self._content[0]
        cursor.at = start + self._at
        cursor.end = cursor.batch_end = start + self._content.shape[0]
        cursor.is_broken = False
        cursor.left, cursor.lowest = self._left, self._lowest
        cursor.offset = cursor.timestamp = 0
        return cursor

    cdef inline int enter_record(self, Cursor* cursor) except -1:
        """Move the cursor to the key of the next record that is not skipped; return 0 at the end of the batch."""
        cdef int64_t length
        while cursor.left > 0:
            cursor.end = cursor.batch_end
            length = varint(cursor)
            if cursor.is_broken or length < 1 or length > cursor.batch_end - cursor.at:
                raise ValueError("a record that does not end within its batch")
            cursor.end = cursor.at + length
            cursor.at += 1  # attributes, unused
            cursor.timestamp = varint(cursor)
            cursor.offset = plus(self._base_offset, varint(cursor))
            cursor.left -= 1
            if cursor.offset >= cursor.lowest or cursor.is_broken:
                cursor.lowest = INT64_MIN  # records are skipped at the beginning only
                if self._has_append_time:
                    cursor.timestamp = self._append_time
                else:
                    cursor.timestamp = plus(self._base_timestamp, cursor.timestamp)
                return 1
            cursor.at = cursor.end
        return 0

    cdef inline void advance(self, Cursor* cursor) noexcept:
        """Continue at the cursor next time."""
        self._at = cursor.at - &self._content[0]
        self._left, self._lowest = cursor.left, cursor.lowest

    def take(self, Py_ssize_t most):
        """Return the next ``most`` records, or fewer at the end of the batch.

        Raises:
            ValueError: the bytes are not records.
        """
        cdef Cursor cursor = self.cursor()
        cdef int64_t count, last_timestamp = 0
        cdef list records = []
        cdef object timestamp = 0
        while most > 0 and self.enter_record(&cursor):
            if cursor.timestamp != last_timestamp:  # most records share the object with the record before
                timestamp = last_timestamp = cursor.timestamp
            key = nullable_bytes(&cursor)
            value = nullable_bytes(&cursor)
            count = varint(&cursor)
            # The empty tuple is not allocated. A list for each record would keep the garbage collector busy.
            headers = headers_of(&cursor, count) if count else ()
            leave_record(&cursor, count)
            if self._has_append_time:
                record = self._record(
                    self._topic, self._partition, cursor.offset, key, value, timestamp, headers, "LogAppendTime"
                )
            else:
                record = self._record(self._topic, self._partition, cursor.offset, key, value, timestamp, headers)
            records.append(record)
            most -= 1
        self.advance(&cursor)
        return records

    def take_into(self, Columns columns not None, Py_ssize_t most):
        """Append the next ``most`` records to ``columns``, or fewer at the end of the batch; return their number.

        Raises:
            ValueError: the bytes are not records.
            OverflowError: a column would exceed 2 GiB.
        An error leaves ``columns`` and the decoder as they were.
        """
        cdef Py_ssize_t before = columns.count
        try:
            self._append_to(columns, most)
        except BaseException:
            columns.cut(before)
            raise
        return columns.count - before

    cdef int _append_to(self, Columns columns, Py_ssize_t most) except -1:
        cdef Cursor cursor = self.cursor()
        cdef int64_t count
        cdef int32_t partition = self._partition
        # The batch claims ``left`` records; its bytes may hold fewer. No shorter record becomes a row.
        columns.reserve(max(0, min(most, cursor.left, (cursor.batch_end - cursor.at) // SHORTEST + 1)))
        while most > 0 and self.enter_record(&cursor):
            append_bytes(&cursor, columns._keys)
            append_bytes(&cursor, columns._values)
            count = varint(&cursor)
            append_headers(&cursor, count, columns)
            leave_record(&cursor, count)
            columns.end_row(partition, cursor.offset, cursor.timestamp)
            most -= 1
        self.advance(&cursor)
        return 0


@cython.final
cdef class RecordIterator:
    """Iterator of ``async for`` over the records of a polling user, and the awaitable of its next record.

    A coroutine for each record would take longer than everything else that is done for a record. Here a coroutine is
    created only to wait, and ``anext`` returns the iterator itself. The record is taken when the awaitable is awaited, so
    none is lost if it is never awaited.

    Args:
        polled: has the iterator ``remaining`` of the records that can be taken at once.
        wait: coroutine function that returns the next record.
    """

    cdef object _polled, _wait
    cdef object _waiting  # coroutine that waits for the next record; None if none is under way

    def __init__(self, polled, wait):
        self._polled, self._wait = polled, wait

    def __aiter__(self):
        return self

    def __anext__(self):
        return self

    def __await__(self):
        # Another task is waiting already: this one has a coroutine of its own, which raises the error for two readers.
        return self if self._waiting is None else RecordIterator(self._polled, self._wait)

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        """Continue the wait; raise StopIteration with the record."""
        cdef PyObject* result = NULL
        cdef PySendResult outcome = send(<PyObject*> self, <PyObject*> value, &result)
        found = <object> result
        Py_DECREF(found)
        if outcome == PYGEN_RETURN:
            raise StopIteration(found)
        return found

    def throw(self, *error):
        """Raise an exception, such as a cancellation, in the waiting coroutine."""
        waiting = self._wait() if self._waiting is None else self._waiting
        self._waiting = None
        found = waiting.throw(*error)
        self._waiting = waiting  # it still waits
        return found

    def close(self):
        """End the wait."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.close()


cdef PySendResult send(PyObject* awaitable, PyObject* value, PyObject** result) except? PYGEN_ERROR:
    """Give the awaiting coroutine a record, or what the waiting coroutine waits for."""
    cdef RecordIterator self = <RecordIterator> awaitable
    cdef PySendResult outcome
    if self._waiting is None:
        for record in self._polled.remaining:
            Py_INCREF(record)
            result[0] = <PyObject*> record
            return PYGEN_RETURN
        waiting = self._wait()
    else:
        waiting, self._waiting = self._waiting, None
    outcome = PyIter_Send(<PyObject*> waiting, value, result)
    if outcome == PYGEN_NEXT:
        self._waiting = waiting
    return outcome


@cython.final
@cython.freelist(8)
cdef class HandlerRun:
    """Awaitable that calls a handler for one record after the other, as long as nothing else has to be done.

    It ends after ``most`` records, or after a record whose handler has returned a result that cannot be appended to
    ``collected``, has changed its context, or was marked as suspended (``worker.queued``). It returns the result, and
    raises what the handler raises; ``worker.record`` is the record then.

    Args:
        worker: task that runs the records.
        records: records to handle.
        most: maximum number of records.
        handle: calls the handler for a record.
        function: called with the value of a record without headers, in place of ``handle``; or None.
        decode: decodes the value for ``function``; None for bytes.
        collected: list to which the record and then its result are appended, unless ``must_resolve`` is true for the
            result; or None.
    """

    cdef object _worker, _records, _handle, _function, _decode, _context, _initial_context
    cdef list _collected
    cdef object _resolved  # type of the last result that was appended
    cdef object _running  # coroutine of the handler
    cdef Py_ssize_t _left

    def __init__(self, worker, records, Py_ssize_t most, handle, function, decode, list collected=None):
        self._worker, self._records, self._left = worker, iter(records), most
        self._handle, self._function, self._decode = handle, function, decode
        self._context, self._initial_context = worker.context, worker.initial_context
        self._collected = collected

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        """Go on; raise StopIteration with the result of the last handler."""
        cdef PyObject* result = NULL
        cdef PySendResult outcome = run_handlers(<PyObject*> self, <PyObject*> value, &result)
        found = <object> result
        Py_DECREF(found)
        if outcome == PYGEN_RETURN:
            raise StopIteration(found)
        return found

    def throw(self, *error):
        """Raise an exception, such as a cancellation, in the running handler."""
        if self._running is None:
            self._running = unstarted()
        return self._running.throw(*error)

    def close(self):
        """End the running handler."""
        if self._running is not None:
            self._running.close()

    cdef bint start_next(self) except -1:
        """Call the handler for the next record; return False if there is none."""
        if self._left <= 0:
            return False
        for record in self._records:
            self._left -= 1
            self._worker.record = record
            called = self.call(record)
            self._running = called if PyCoro_CheckExact(called) else awaited(called)
            return True
        return False

    cdef object call(self, record):
        if self._function is not None and not record.headers:
            value = record.value
            if self._decode is not None:
                try:
                    value = self._decode(value)
                except Exception:
                    return self._handle(record)  # which raises the error with the place of the record
                return self._function(value)
            if value is not None:
                return self._function(value)
        return self._handle(record)

    cdef bint collect(self, record, result) except -1:
        """Append a result to ``collected``; return False if that is not possible."""
        global must_resolve
        if self._collected is None:
            return False
        if must_resolve is None:
            from tailrace import awaitables

            must_resolve = awaitables.must_resolve
        kind = type(result)
        if kind is not self._resolved:
            if must_resolve(result):
                return False
            self._resolved = kind
        self._collected.append(record)
        self._collected.append(result)
        return True


async def awaited(awaitable):
    """Await an awaitable that is no coroutine of the interpreter."""
    return await awaitable


async def unstarted():
    """Coroutine that raises what is thrown into it."""


cdef PySendResult run_handlers(PyObject* awaitable, PyObject* value, PyObject** result) except? PYGEN_ERROR:
    """Give the running handler what it waits for, and run the records after it."""
    cdef HandlerRun self = <HandlerRun> awaitable
    while self._running is not None or self.start_next():
        running = self._running
        if PyIter_Send(<PyObject*> running, value, result) == PYGEN_NEXT:
            return PYGEN_NEXT
        self._running = None
        worker = self._worker
        if worker.queued is not None or self._context != self._initial_context:
            return PYGEN_RETURN
        if <object> result[0] is not None and not self.collect(worker.record, <object> result[0]):
            return PYGEN_RETURN
        Py_DECREF(<object> result[0])
        value = <PyObject*> None
    Py_INCREF(None)
    result[0] = <PyObject*> None
    return PYGEN_RETURN


# Cython has no name for this slot, by which ``await`` gets a result without a StopIteration.
(<AwaitableType*> <PyObject*> RecordIterator).tp_as_async.am_send = send
(<AwaitableType*> <PyObject*> HandlerRun).tp_as_async.am_send = run_handlers
