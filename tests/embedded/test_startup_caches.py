"""Caches of a start: jars, the formatted folder and the class data archive."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pytest

from tailrace.embedded import jars
from tailrace.embedded.node import BrokerNode, ClassDataArchive
from tailrace.embedded.settings import Ports
from tailrace.testing import KafkaServer


@pytest.fixture
def cache(empty_cache, monkeypatch) -> Path:
    """Provide a cache that contains only the jars."""
    listed = jars._list_file(jars._broker(jars.KAFKA_VERSION)).name
    with monkeypatch.context() as before:
        before.delenv("XDG_CACHE_HOME")
        jars.broker_class_path()
        source = jars.cache_folder() / listed
    empty_cache.mkdir(parents=True)
    shutil.copyfile(source, empty_cache / listed)
    return empty_cache


@pytest.fixture
def java(tmp_path):
    """Create a ``java`` that only reports a version."""

    def make(version: str, then: str = "") -> Path:
        path = tmp_path / f"java-{version}"
        path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n{then}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.mark.slow
def test_starts_use_the_caches_of_earlier_starts(cache, temporary):
    """The second start skips formatting, the third reads the class archive, and all brokers have distinct ids."""
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


def test_other_brokers_have_their_own_formatted_file(cache):
    """The formatted file is cached for each version, configuration and SCRAM mechanism."""
    from tailrace.embedded.node import checkpoint_cache_path  # noqa: PLC0415 - of this cache

    kinds = [("4.3.0", None, {}), ("4.2.0", None, {}), ("4.3.0", "SCRAM-SHA-256", {}), ("4.3.0", None, {"a": 1})]

    assert len({checkpoint_cache_path(*kind) for kind in kinds}) == len(kinds)
    assert checkpoint_cache_path("4.3.0", None, {"a": 1, "b": 2}) == checkpoint_cache_path(
        "4.3.0", None, {"b": 2, "a": "1"}
    )


@pytest.mark.parametrize(
    ("version", "options"),
    [
        ("17.0.15", ("-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile=", ".jsa")),
        ("24.0.1", ("-XX:ArchiveClassesAtExit=", "-XX:SharedArchiveFile=", ".jsa")),
        ("25", ("-XX:AOTCacheOutput=", "-XX:AOTCache=", ".aot")),
    ],
)
def test_the_second_start_writes_the_class_archive(empty_cache, java, tmp_path, version, options):
    """The second start writes the class archive with the options of its Java, and later ones read it."""
    classes, new = ClassDataArchive(java(version), [], []), tmp_path / "new"
    writing, reading, suffix = options
    assert classes.read_options() == classes.write_options(new) == []

    assert classes.write_options(new) == [f"{writing}{new}{suffix}"]
    assert classes.write_options(tmp_path / "another's") == []
    new.with_suffix(suffix).write_text("classes")
    classes.keep(new)

    (option,) = classes.read_options()
    assert option.startswith(reading)
    assert Path(option.removeprefix(reading)).read_text() == "classes"
    assert ClassDataArchive(java(version), ["-Xmx1g"], []).read_options() == []
    classes.forget()
    assert classes.read_options() == []


def test_java_that_failed_to_write_the_class_archive_is_not_used_for_it_again(empty_cache, java, tmp_path):
    """A Java that failed to write the class archive starts brokers without one."""
    classes, new = ClassDataArchive(java("17.0.1"), [], []), tmp_path / "new"
    classes.write_options(new)
    assert classes.write_options(new) != []

    classes.keep(new)

    assert classes.write_options(new) == classes.read_options() == []


def test_a_killed_writer_is_replaced_after_an_hour(empty_cache, java, tmp_path):
    """If the writer of the class archive was killed, a start after an hour writes it."""
    classes, new = ClassDataArchive(java("17.0.1"), [], []), tmp_path / "new"
    classes.write_options(new)
    assert classes.write_options(new) != []
    assert classes.write_options(new) == []
    (state,) = (empty_cache / "classes").glob("*.state")

    os.utime(state, (0, 0))

    assert classes.write_options(new) != []


def test_an_archive_is_removed_when_a_jvm_crashes(empty_cache, java, tmp_path, eventually):
    """If a JVM crashes, its class archive is removed."""
    crashing = java("17.0.1", then="kill -SEGV $$")
    node = BrokerNode(1, Ports(1, 2, 3, 1), tmp_path / "node", crashing, [])
    node.folder.mkdir()
    kept = node._class_data._cached.with_suffix(".jsa")
    kept.parent.mkdir(parents=True)
    kept.touch()

    node.start()
    eventually(lambda: not node.is_running, "the crash")
    assert kept.exists()
    node.kill()

    assert not kept.exists()
