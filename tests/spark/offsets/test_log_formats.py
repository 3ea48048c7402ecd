"""Offset logs of Spark's checkpoint in both formats, and unreadable ones."""

from __future__ import annotations

import pytest

from tailrace import CorruptCheckpointError, TopicPartition
from tailrace.observe.events import CheckpointAbandoned
from tailrace.spark.offsets.query_log import ends_in_log

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.slow
def test_a_stream_continues_from_either_format_of_the_offset_log(world, version):
    """A stopped stream continues after its last batch with either format of Spark's offset log."""
    name = "spark.sql.streaming.offsetLog.formatVersion"
    world.make_topic(2)
    world.produce([b"a"] * 5, partition=0)
    before = world.spark.conf.get(name, None)
    world.spark.conf.set(name, version)
    try:
        world.run_to_the_end()
        world.produce([b"b"] * 5, partition=1)
        world.run_to_the_end()
    finally:
        world.spark.conf.unset(name) if before is None else world.spark.conf.set(name, before)
    assert world.ledger.counts() == {(p, n): 1 for p in range(2) for n in range(5)}
    assert world.committed == {0: 5, 1: 5}
    assert not (world.folder / "checkpoint" / "generation-2").exists()


@pytest.mark.parametrize(
    "text",
    [
        'v1\n{"batchWatermarkMs":0}\n{"t":{"0":5,"1":7}}',
        'v2\n{"batchWatermarkMs":0}\n0:{"t":{"0":5,"1":7}}',
        'v2\n{"batchWatermarkMs":0}\norders:{"t":{"0":5,"1":7}}\n',
    ],
)
def test_both_formats_of_the_offset_log_are_read(text):
    """Both formats are read, of which the second has the number or name of a source before its offsets."""
    assert ends_in_log(text) == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 7}


@pytest.mark.parametrize("text", ["", "v1", "v1\n{}", "v1\n{}\n-", "v1\n{}\n{", 'v3\n{}\n{"t":{"0":5}}', "v1\n{}\n[1]"])
def test_truncated_or_unknown_entries_are_refused(text):
    with pytest.raises(ValueError, match=r"."):
        ends_in_log(text)


def test_sources_of_other_topics_and_kinds_are_ignored():
    """Only the topics of a handler are read; a partition that two sources read is at the lower of their offsets."""
    text = 'v1\n{}\n{"t":{"0":5,"1":7}}\n-\n{"u":{"0":1}}\n{"logOffset":3}\n12\n{"t":{"0":4}}'

    assert ends_in_log(text, ["t"]) == {TopicPartition("t", 0): 4, TopicPartition("t", 1): 7}
    assert ends_in_log(text, ["v"]) == {}


class Events(list):
    """Hook that keeps all events."""

    on_event = list.append


@pytest.mark.parametrize(("file", "content"), [("offsets/1", "v1\n{}\n"), ("commits/1", ""), ("metadata", "{")])
def test_an_unreadable_checkpoint_starts_a_new_generation(world, file, content):
    """With an unreadable checkpoint, the stream continues at the committed offsets, and an event is emitted."""
    world.make_topic()
    for value in (b"a", b"b"):
        world.produce([value] * 5)
        world.run_to_the_end()
    damage(world, file, content)
    world.produce([b"c"] * 5)
    events = Events()
    world.run_to_the_end(hooks=[events])

    (event,) = [one for one in events if isinstance(one, CheckpointAbandoned)]
    assert f"generation-1/{file} cannot be read" in event.reason
    assert world.ledger.counts() == {(0, n): 1 for n in range(15)}
    assert world.committed == {0: 15}


def test_an_unreadable_checkpoint_without_commits_is_refused(world):
    """An unreadable checkpoint of a group without committed offsets raises an error."""
    world.make_topic()
    world.produce([b"a"] * 5)
    world.run_to_the_end()
    damage(world, "offsets/0", "")
    world.admin.delete_consumer_groups([world.group])[world.group].result(30)

    with pytest.raises(
        CorruptCheckpointError, match=r"offsets/0 cannot be read.* set them with `tailrace offsets reset`"
    ):
        world.run_to_the_end()

    assert world.ledger.counts() == {(0, n): 1 for n in range(5)}


def damage(world, file: str, content: str) -> None:
    """Replace a file of the checkpoint with truncated content."""
    path = world.folder / "checkpoint" / "generation-1" / file
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.write_text(content)
