"""What a start needs is made once and kept: jars, a formatted folder, the JVM's classes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pytest

from tailrace.embedded import jars
from tailrace.embedded.class_data_sharing import ClassDataArchive
from tailrace.embedded.node import BrokerNode
from tailrace.embedded.settings import Ports
from tailrace.testing import KafkaServer


@pytest.fixture
def cache(empty_cache, monkeypatch) -> Path:
    """A cache that has the jars and nothing else."""
    listed = jars._list_of(jars._broker(jars.KAFKA_VERSION)).name
    with monkeypatch.context() as before:
        before.delenv("XDG_CACHE_HOME")
        jars.broker_class_path()
        source = jars.cache_folder() / listed
    empty_cache.mkdir(parents=True)
    shutil.copyfile(source, empty_cache / listed)
    return empty_cache


@pytest.fixture
def java(tmp_path):
    """A java of a version, which does nothing but say so."""

    def make(version: str, then: str = "") -> Path:
        path = tmp_path / f"java-{version}"
        path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n{then}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.mark.slow
def test_the_second_start_formats_nothing_and_the_third_loads_no_class_anew(cache, temporary):
    """Each is made by a start and used by those after it; every broker has ids of its own all the same."""
    formatted, reads, ids = [], [], []
    for _ in range(3):
        with KafkaServer() as server:
            server.create_topic("made")
            formatted.append(b"Formatting" in server.node.log_file.read_bytes())
            command = psutil.Process(server.node.pid).cmdline()
            reads.append(any(one.startswith(("-XX:SharedArchiveFile=", "-XX:AOTCache=")) for one in command))
            meta = (server.node.data / "meta.properties").read_text().splitlines()
            ids += [line for line in meta if line.startswith(("cluster.id=", "directory.id="))]

    assert formatted == [True, False, False]
    assert reads == [False, False, True]
    assert len(set(ids)) == 6
    assert len(list((cache / "formatted").iterdir())) == 1
    temporary.assert_nothing_is_left()


def test_brokers_of_another_kind_are_formatted_anew(cache):
    """What is kept is of one version, one configuration and one way to get in."""
    from tailrace.embedded.storage import formatted_file  # noqa: PLC0415 - of this cache

    kinds = [("4.3.0", None, {}), ("4.2.0", None, {}), ("4.3.0", "SCRAM-SHA-256", {}), ("4.3.0", None, {"a": 1})]

    assert len({formatted_file(*kind) for kind in kinds}) == len(kinds)
    assert formatted_file("4.3.0", None, {"a": 1, "b": 2}) == formatted_file("4.3.0", None, {"b": 2, "a": "1"})


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("17.0.15", ("-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile=", ".jsa")),
        ("24.0.1", ("-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile=", ".jsa")),
        ("25", ("-XX:AOTCacheOutput=", "-XX:AOTCache=", ".aot")),
    ],
)
def test_the_second_start_writes_the_classes_and_those_after_it_read_them(
    empty_cache, java, tmp_path, version, options
):
    """Nobody waits for it at a first start; one writes, by the name that its Java understands; then all read."""
    classes, new = ClassDataArchive(java(version), [], []), tmp_path / "new"
    writing, reading, suffix = options
    assert classes.to_read() == classes.to_write(new) == []

    assert classes.to_write(new) == [f"{writing}{new}{suffix}"]
    assert classes.to_write(tmp_path / "another's") == []
    new.with_suffix(suffix).write_text("classes")
    classes.keep(new)

    (option,) = classes.to_read()
    assert option.startswith(reading)
    assert Path(option.removeprefix(reading)).read_text() == "classes"
    assert ClassDataArchive(java(version), ["-Xmx1g"], []).to_read() == []
    classes.forget()
    assert classes.to_read() == []


def test_a_java_that_cannot_write_them_is_not_asked_again(empty_cache, java, tmp_path):
    """A JRE that was cut down may lack what it needs for that: it starts as ever."""
    classes, new = ClassDataArchive(java("17.0.1"), [], []), tmp_path / "new"
    classes.to_write(new)
    assert classes.to_write(new) != []

    classes.keep(new)

    assert classes.to_write(new) == classes.to_read() == []


def test_a_writer_that_was_killed_does_not_keep_others_from_it(empty_cache, java, tmp_path):
    """After an hour nobody believes any more that it is being written."""
    classes, new = ClassDataArchive(java("17.0.1"), [], []), tmp_path / "new"
    classes.to_write(new)
    assert classes.to_write(new) != []
    assert classes.to_write(new) == []
    (state,) = (empty_cache / "classes").glob("*.state")

    os.utime(state, (0, 0))

    assert classes.to_write(new) != []


def test_classes_with_which_a_jvm_crashes_are_removed(empty_cache, java, tmp_path, eventually):
    """A bad file costs one start, not all that follow."""
    crashing = java("17.0.1", then="kill -SEGV $$")
    node = BrokerNode(1, Ports(1, 2, 3, 1), tmp_path / "node", crashing, [])
    node.folder.mkdir()
    kept = node._classes._cached.with_suffix(".jsa")
    kept.parent.mkdir(parents=True)
    kept.touch()

    node.start()
    eventually(lambda: not node.is_running, "the crash")
    assert kept.exists()
    node.kill()

    assert not kept.exists()
