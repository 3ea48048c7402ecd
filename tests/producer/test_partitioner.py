"""Partitions of records: by hash for records with a key, by batch for those without."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.cluster_metadata import Leadership
from tailrace.installation import murmur2 as compiled_murmur2
from tailrace.producer.partitioner import Partitioner, murmur2, partition_of


def partitions(number: int, *, without_leader: tuple[int, ...] = ()) -> dict[int, Leadership]:
    """Return the leaderships of ``number`` partitions, some of them without a leader."""
    return {one: Leadership(-1 if one in without_leader else 1, 0) for one in range(number)}


def counting() -> Partitioner:
    """Return a partitioner whose random numbers are 0.0, 0.1, … 0.9, and again."""
    numbers = count()
    return Partitioner(lambda: next(numbers) % 10 / 10)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_hashes_as_with_kafkas_own_clients(key, expected):
    """murmur2() returns the values of Kafka's own test of Utils.murmur2."""
    assert expected % (1 << 32) == murmur2(key)


@pytest.mark.skipif(compiled_murmur2 is None, reason="tailrace was installed without its compiled module")
@given(st.binary(max_size=40))
def test_the_compiled_hash_is_the_same(key):
    """The compiled hash and that in Python are equal, so that an installation without a compiler changes no order."""
    assert compiled_murmur2(key) == murmur2(key)


def test_the_sign_of_a_hash_is_left_out():
    """A negative hash selects the same partition as in Java, by its lower 31 bits."""
    assert partition_of(b"21", 10) == (-973932308 & 0x7FFFFFFF) % 10 == 0


@given(st.binary(max_size=40), st.integers(1, 100))
def test_a_key_has_one_partition(key, number):
    """Two producers choose the same partition for a key."""
    one, other = Partitioner(lambda: 0.1), Partitioner(lambda: 0.9)

    assert one.choose("t", key, partitions(number)) == other.choose("t", key, partitions(number))
    assert 0 <= one.choose("t", key, partitions(number)) < number


def test_a_key_keeps_its_partition_while_the_partition_has_no_leader():
    chosen = counting().choose("t", b"k", partitions(3))

    assert counting().choose("t", b"k", partitions(3, without_leader=(chosen,))) == chosen


def test_records_without_a_key_stick_together_for_a_batch():
    """Records without a key fill a batch of one partition, then continue with another, per topic (KIP-480)."""
    chooser, all_of_them = counting(), partitions(10)

    first = {chooser.choose("t", None, all_of_them) for _ in range(9)}
    other = {chooser.choose("u", None, all_of_them) for _ in range(9)}
    chooser.change_partition("t")
    second = {chooser.choose("t", None, all_of_them) for _ in range(9)}
    kept = {chooser.choose("u", None, all_of_them) for _ in range(9)}
    chooser.change_partition()

    assert (first, other, second, kept) == ({0}, {1}, {2}, {1})
    assert chooser.choose("u", None, all_of_them) == 3


def test_records_without_a_key_go_where_a_leader_is():
    """Records without a key skip a partition without a leader while others have one."""
    chooser = counting()
    chosen = Counter()
    for _ in range(20):
        chosen[chooser.choose("t", None, partitions(4, without_leader=(1, 2)))] += 1
        chooser.change_partition()

    assert chosen.keys() == {0, 3}
    assert chooser.choose("u", None, partitions(2, without_leader=(0, 1))) in {0, 1}


def test_the_sticky_partition_changes_if_the_topic_shrinks():
    """Records without a key go to another partition if theirs is missing in a recreated topic."""
    chooser = Partitioner(lambda: 0.99)
    assert chooser.choose("t", None, partitions(8)) == 7

    assert chooser.choose("t", None, partitions(2)) == 1
