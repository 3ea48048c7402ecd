"""The compiled decoder returns the same records as the pure one, and malformed bytes are detected."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.batches import record_batch
from tailrace.batches.record_batch import split
from tailrace.errors import MalformedMessageError
from tailrace.installation import COMPILED
from tailrace.records import Record
from tests.support.protocol.built_batches import SentRecord, any_records, batch

HEAD = 61
RECORDS = any_records(at_most=6)
CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4)

pytestmark = pytest.mark.skipif(not COMPILED, reason="tailrace was installed without its compiled module")


def decoded(data: bytes, position: int, slices: list[int]) -> list[Record] | None:
    """Return all records of a batch, decoded in steps, or None if it is malformed."""
    try:
        decoder = split(memoryview(data))[0].decode("t", 3, position)
        records = [record for count in [*slices, 100, 1] for record in decoder.take(count)]
        return [msgspec.structs.replace(record, headers=list(record.headers)) for record in records]
    except MalformedMessageError:
        return None


@settings(max_examples=300)
@given(RECORDS, CHANGES, st.integers(0, 7), st.lists(st.integers(1, 3), max_size=3))
def test_both_decoders_agree(records, changes, position, slices):
    """Both decoders return the same records of a batch, from any position and in steps of any size.

    If both accept a damaged batch, they return the same records; each may refuse one that the other accepts.
    """
    data = bytearray(batch(*records))
    for at, byte in changes:
        data[HEAD + at % (len(data) - HEAD)] = byte
    compiled = decoded(bytes(data), position, slices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_batch, "_BatchDecoder", None)
        pure = decoded(bytes(data), position, slices)
        if changes and compiled != pure:
            # aiokafka reads the attributes of a record, an unused byte, as a number of variable length.
            patch.setattr(record_batch, "_raw_records", record_batch._lenient_records)
            pure = decoded(bytes(data), position, slices)

    assert compiled == pure or (changes and None in (compiled, pure))


def test_attributes_of_a_record_are_one_byte():
    """The attributes of a record, which are not used, take one byte whatever their value is."""
    data = bytearray(batch(SentRecord(b"k", b"v", 0, ())))
    data[HEAD + 1] = 0x80

    assert [(one.offset, one.key, one.value) for one in decoded(bytes(data), 0, [])] == [(0, b"k", b"v")]


def test_records_without_headers_are_not_tracked_by_the_garbage_collector():
    """Records without headers have no containers, so that decoding causes no garbage collection."""
    records = split(memoryview(batch(*[SentRecord(b"k", b"v", 1, ())] * 3)))[0].decode("t", 3, 0).take(3)

    assert len(records) == 3
    assert not any(gc.is_tracked(one) for record in records for one in (record, record.headers))


@settings(max_examples=200)
@given(st.binary(max_size=120), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**63 - 1))
def test_any_bytes_are_records_or_one_typed_error(content, count, position):
    """Any bytes after a batch's header give records or MalformedMessageError."""
    data = bytearray(batch(SentRecord(b"k", b"v", 1, ()))[:HEAD] + content)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[57:61] = count.to_bytes(4, "big", signed=True)

    found = decoded(bytes(data), position, [1])

    assert found is None or all(type(record) is Record for record in found)


FUZZ = """
import os, random, sys
sys.path.insert(0, sys.argv[1])
from _native import BatchDecoder, Columns
rng, seeds = random.Random(7), [bytes.fromhex(line) for line in open(sys.argv[2])]
for number in range(200_000):
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(6)):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    del data[rng.randrange(61, len(data) + 1):]
    columns, most = Columns(), rng.randrange(1, 5)
    try:
        lowest = rng.choice((0, 0, 2, 1 << 40))
        decoder = BatchDecoder(data, "t", 0, lowest, lambda *fields: fields)
        while decoder.take(most):
            pass
    except ValueError:
        pass
    if number % 5:
        continue
    for content in (data, data, rng.choice(seeds)):
        count = columns.count
        try:
            decoder = BatchDecoder(content, "t", 0, lowest, None)
            while decoder.take_into(columns, most):
                count = columns.count
        except ValueError:
            assert columns.count == count
    rows = columns.count
    offsets = [columns.offset(row) for row in range(rows)]
    (partitions, *others, header_ends), binaries = columns.finish()
    assert [len(partitions), *map(len, others), len(header_ends)] == [4 * rows, 8 * rows, 8 * rows, 4 * rows + 4]
    assert offsets == memoryview(others[0]).cast("q").tolist()
    headers = memoryview(header_ends).cast("i")[-1]
    for expected, (length, nulls, valid, ends, content) in zip((rows, rows, headers, headers), binaries):
        assert length == expected
        ends, bits = memoryview(ends).cast("i").tolist(), int.from_bytes(valid, "little")
        assert len(ends) == length + 1 and ends[0] == 0 and ends[-1] == len(content) and ends == sorted(ends)
        assert nulls == length - (bits & ((1 << length) - 1)).bit_count() and len(valid) == (length + 7) // 8
print("survived")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_byte_is_read_outside_of_the_batch(tmp_path):
    """The decoder reads no byte outside of any of 200,000 damaged batches.

    A build with gcc's address sanitizer would end at the first such access.
    """
    source = Path(record_batch.__file__).parents[1] / "_native.pyx"
    if not (compiler := shutil.which("gcc")):
        pytest.skip("there is no gcc")
    pytest.importorskip("Cython")
    subprocess.run([sys.executable, "-m", "cython", "-3", source, "-o", tmp_path / "_native.c"], check=True)
    target = tmp_path / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-shared", "-fPIC", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([compiler, *flags, include, tmp_path / "_native.c", "-o", target], check=True)
    seeds = tmp_path / "seeds"
    some = [SentRecord(b"k" * n, b"v" * (n * 40), n, (("h", b"x" * n), ("n", None))) for n in range(5)]
    seeds.write_text("\n".join(batch(*some[:n]).hex() for n in range(1, 6)))
    asan = subprocess.run([compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)

    done = subprocess.run(
        [sys.executable, "-c", FUZZ, tmp_path, seeds],
        # With Python's own allocator, the sanitizer would not see the ends of small objects.
        env={
            **os.environ,
            "PYTHONMALLOC": "malloc",
            "LD_PRELOAD": asan.stdout.strip(),
            "ASAN_OPTIONS": "detect_leaks=0",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.returncode) == ("survived\n", 0), done.stderr[-2_000:]
