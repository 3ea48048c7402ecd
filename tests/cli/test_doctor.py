"""`tailrace doctor`: findings about a real broker, with faults."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tailrace.cli import main
from tailrace.protocol.handshake import ApiVersionsRequest
from tailrace.protocol.records import ProduceRequest
from tailrace.protocol.transactions import InitProducerIdRequest, TxnOffsetCommitRequest
from tailrace.testing import KafkaCluster, KafkaServer
from tests.support.admin_tools import Done, commit_to
from tests.support.commands import COMMAND, environment
from tests.support.offered_versions import limited

SHOP = """
from tailrace import App, Retry

billing = App(
    group_id="{group}", dead_letter="{{topic}}.{{group}}.dead", auto_commit_interval_ms=500, publish_delays_ms=[60_000]
)


@billing.handler("{topic}", retry=Retry(attempts=2, topic_delays_ms=[30_000]))
async def charge(value: bytes) -> None: ...


wrong = App(group_id="{group}")


@wrong.handler("{topic}", "missing")
async def other(value: bytes, unknown) -> None: ...
"""


class Doctor:
    """Calls of the command in a folder with an app."""

    def __init__(self, folder: Path, topic: str, group: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.topic, self.group, self._capsys = topic, group, capsys
        # A module name of its own, because modules stay imported.
        self.module = f"shop_{group.replace('-', '_')}"
        (folder / f"{self.module}.py").write_text(SHOP.format(topic=topic, group=group))
        self.app = f"{self.module}:billing"

    def text(self, *arguments: str) -> Done:
        """Return the exit code and the output on a screen of 80 columns."""
        self._capsys.readouterr()
        # In a thread, because the command has its own event loop besides that of pytest-asyncio.
        with ThreadPoolExecutor(1) as thread:
            code = thread.submit(main, ["doctor", *arguments]).result()
        printed = self._capsys.readouterr()
        return Done(code, printed.out, printed.err)

    def json(self, *arguments: str) -> tuple[int, dict[tuple[str, str], dict]]:
        """Return the exit code, and the findings by check and subject."""
        done = self.text(*arguments, "--json")
        assert done.errors == ""
        return done.code, {(one["check"], one["subject"]): one for one in done.lines}


@pytest.fixture
def doctor(tmp_path, name, group, capsys, monkeypatch) -> Doctor:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", environment())
    return Doctor(tmp_path, name, group, capsys)


def bad(findings) -> set[tuple[str, str, str]]:
    return {(one["level"], *key) for key, one in findings.items() if one["level"] in {"warning", "problem"}}


@contextmanager
def closed_port() -> Iterator[int]:
    """Hold a port of this machine that refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


# ---- without a broker ----------------------------------------------------------------------------------------------


def test_a_wrong_app_is_a_problem_in_words(doctor):
    """A wrong app or handler, and missing brokers, exit with 2 and without a traceback."""
    texts = []
    for app in ("nowhere:billing", f"{doctor.module}:nothing", f"{doctor.module}:wrong", doctor.app):
        address = ["--bootstrap-servers", "127.0.0.1:1"] if app.endswith("wrong") else []
        done = doctor.text("--app", app, *address)
        assert (done.code, done.errors, done.fits) == (2, "", True)
        texts.append(done.words)

    assert "problem app nowhere:billing: there is no module 'nowhere' next: run this where" in texts[0]
    assert f"'nothing' of {doctor.module} is not an App next: use one of billing, wrong" in texts[1]
    assert f"problem app {doctor.module}:wrong: " in texts[2]
    assert "unknown" in texts[2]
    assert "bootstrap_servers is missing next: give --bootstrap-servers HOST:PORT" in texts[3]


def test_an_unreachable_cluster_is_one_problem_per_address(doctor):
    """Each bootstrap address that cannot be reached is one problem with its reason."""
    with closed_port() as closed, socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [f"127.0.0.1:{closed}", f"127.0.0.1:{silent.getsockname()[1]}"]
        began = time.monotonic()
        code, found = doctor.json("--bootstrap-servers", ",".join(addresses), "--timeout", "3")
        took = time.monotonic() - began
        plain = doctor.text("--bootstrap-servers", ",".join(addresses), "--timeout", "1")

    assert code == 2
    assert bad(found) == {("problem", "bootstrap", "bootstrap_servers")}
    assert "connection refused; no check of the cluster was possible" in plain.words
    assert took < 30
    assert plain.out.endswith("\n2 problems\n")


# ---- without a fault ---------------------------------------------------------------------------------------------


def test_a_sound_app_has_no_problem(doctor, kafka_server):
    """A correct app has no problem, and a single broker is a warning, which --strict counts."""
    kafka_server.create_topic(doctor.topic, 2)
    arguments = ["--app", doctor.app, "--bootstrap-servers", kafka_server.bootstrap_servers]

    code, found = doctor.json(*arguments)
    strict, _ = doctor.json(*arguments, "--strict")

    assert (code, strict) == (0, 1)
    assert bad(found) == {("warning", "broker.single", "brokers")}
    assert found["version", "versions"]["text"].startswith("Kafka 4.3 (metadata.version 30)")
    assert "KIP-848 (group_protocol='consumer') is available" in found["feature", "features"]["text"]
    assert "± " in found["clock", "clocks"]["text"]
    assert found["clock", "clocks"]["level"] == "ok"
    assert f"{doctor.topic}: 2 partitions" in found["topic", "topics"]["text"]
    own = {subject for check, subject in found if check == "topic.own-missing"}
    assert own == {
        f"topic {doctor.group}.delayed-publish.1m",
        *(f"topic {doctor.topic}.{doctor.group}.{kind}" for kind in ("dead", "replay", "retry.30s")),
    }


def test_the_whole_cluster_is_checked_without_arguments(doctor, kafka_server, new_topic):
    """Without --topic all topics are checked, and the suggested command is complete at 80 columns."""
    topic = new_topic(1, min_insync_replicas=2)
    done = doctor.text("--topic", topic, "--bootstrap-servers", kafka_server.bootstrap_servers)
    whole, found = doctor.json("--bootstrap-servers", kafka_server.bootstrap_servers)

    assert (done.code, whole, done.fits) == (2, 2, True)
    assert found["topic.min-isr", f"topic {topic}"]["level"] == "problem"
    words = " ".join(done.out.replace("\\\n", "").split())
    assert f"problem topic {topic}: min.insync.replicas=2 is above its replication factor 1" in words
    assert f"--entity-name {topic} --add-config min.insync.replicas=1" in words


def test_no_check_writes(doctor):
    """No check creates a topic, not even the one for committed offsets."""
    with KafkaServer() as server:
        server.create_topic(doctor.topic)
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        before = set(admin.list_topics(timeout=20).topics)
        code, found = doctor.json("--app", doctor.app, "--bootstrap-servers", server.bootstrap_servers)
        after = set(admin.list_topics(timeout=20).topics)

    assert (code, before, after) == (0, {doctor.topic}, {doctor.topic})
    assert found["group.missing", f"group {doctor.group}"]["level"] == "ok"


# ---- brokers -------------------------------------------------------------------------------------------------------


def test_a_killed_broker_is_a_problem(doctor):
    """A killed broker is a problem, and so is a partition without enough replicas."""
    with KafkaCluster(3) as cluster:
        cluster.create_topic(doctor.topic, 3, config={"min.insync.replicas": 3})
        address = cluster.nodes[0].address
        cluster.nodes[2].kill()
        admin = AdminClient({"bootstrap.servers": address})
        deadline = time.monotonic() + 60
        while len(admin.list_topics(timeout=20).brokers) > 2:
            assert time.monotonic() < deadline
        code, found = doctor.json("--bootstrap-servers", address)

    assert code == 2
    assert {
        ("problem", "broker.fenced", "broker 3"),
        ("problem", "topic.under-min-isr", f"topic {doctor.topic}"),
    } <= bad(found)
    assert "not in sync on broker 3" in found["topic.under-min-isr", f"topic {doctor.topic}"]["text"]
    assert found["broker.reachable", "brokers"]["text"].startswith("2 of 2 answer")


def test_a_wrong_advertised_name_is_a_problem(doctor):
    """A broker that does not answer at its advertised address is a problem that names the address."""
    with (
        closed_port() as closed,
        KafkaCluster(2, advertise=lambda node_id, port: closed if node_id == 2 else port) as cluster,
    ):
        code, found = doctor.json("--bootstrap-servers", f"127.0.0.1:{cluster.nodes[0].ports.client}")

    one = found["broker.unreachable", "broker 2"]
    assert code == 2
    assert one["text"] == f"does not answer under its advertised name: 127.0.0.1:{closed}: connection refused"
    assert one["command"] == f"nc -vz 127.0.0.1 {closed}"


def test_a_broker_that_hangs_delays_the_report_by_its_timeout_only(doctor):
    """A broker that does not answer is a problem, and the report ends in bounded time."""
    with KafkaCluster(2) as cluster:
        cluster.create_topic(doctor.topic, 4)
        cluster.nodes[1].pause()
        began = time.monotonic()
        code, found = doctor.json(
            "--topic", doctor.topic, "--bootstrap-servers", cluster.nodes[0].address, "--timeout", "8"
        )
        took = time.monotonic() - began
        cluster.nodes[1].resume()

    assert code == 2
    assert (
        "no connection within" in found["broker.unreachable", "broker 2"]["text"]
        or "no answer within" in (found["broker.unreachable", "broker 2"]["text"])
    )
    assert took < 60


# ---- groups --------------------------------------------------------------------------------------------------------


@contextmanager
def member(doctor: Doctor, server: KafkaServer):
    """Run the app in a process until the block ends."""
    arguments = ["run", doctor.app, "--set", f"bootstrap_servers={server.bootstrap_servers}"]
    with subprocess.Popen([*COMMAND, *arguments], env=environment()) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


def test_a_stalled_member_is_a_problem(doctor, kafka):
    """A group whose member commits nothing while its lag grows is a problem."""
    kafka.server.create_topic(doctor.topic)
    address = ["--bootstrap-servers", kafka.bootstrap_servers]
    with member(doctor, kafka.server) as process:
        kafka.produce(doctor.topic, *[b"1"] * 10)
        deadline = time.monotonic() + 60
        while 10 not in [one["committed"] for one in kafka.call("lag", doctor.group, "--json").lines]:
            assert time.monotonic() < deadline
        code, sound = doctor.json("--app", doctor.app, *address)
        os.kill(process.pid, signal.SIGSTOP)
        kafka.produce(doctor.topic, b"1")
        with ThreadPoolExecutor(1) as thread:
            examined = thread.submit(doctor.json, "--group", doctor.group, "--interval", "3", *address)
            while not examined.done():
                kafka.produce(doctor.topic, b"1")
            bad_code, found = examined.result()

    assert (code, [one for one in bad(sound) if "group" in one[1]]) == (0, [])
    stalled = found["group.stalled", f"group {doctor.group}"]
    assert (bad_code, stalled["level"]) == (2, "problem")
    assert re.search(rf"committed nothing in \d+ s for {doctor.topic}\[0\]; its lag of ", stalled["text"])
    assert " grew by " in stalled["text"]


def test_an_old_lag_is_a_problem(doctor, kafka_server):
    """Unread records that are close to their deletion, or deleted already, are a problem."""
    hour_ms = 3_600_000
    kafka_server.create_topic(doctor.topic, 2, config={"retention.ms": 24 * hour_ms})
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    now = int(time.time() * 1000)
    for partition, age in ((0, 23 * hour_ms), (1, 13 * hour_ms)):
        for number in range(5):
            producer.produce(doctor.topic, b"1", partition=partition, timestamp=now - age + number)
    assert producer.flush(20) == 0
    commit_to(kafka_server.bootstrap_servers, doctor.group, doctor.topic, {0: 0, 1: 0})

    code, found = doctor.json("--group", doctor.group, "--bootstrap-servers", kafka_server.bootstrap_servers)
    kafka_server.delete_records(doctor.topic, {1: 3})
    _, later = doctor.json("--group", doctor.group, "--bootstrap-servers", kafka_server.bootstrap_servers)

    subject = f"group {doctor.group}"
    assert code == 2
    assert "lag of 10; its offsets are deleted 7 d after" in found["group.empty", subject]["text"]
    # The finding of the older records comes first, so that the dictionary keeps the later one.
    assert f"{doctor.topic}[1] is older than 50% of retention.ms=86400000" in found["group.retention", subject]["text"]
    assert later["group.lost", subject]["text"].startswith(f"the log no longer contains 3 records of {doctor.topic}[1]")
    assert f"{doctor.topic}[0] is older than 90% of retention.ms=86400000" in later["group.retention", subject]["text"]


def test_names_that_do_not_exist_are_problems(doctor, kafka_server, new_topic):
    """A topic or group that does not exist is a problem, and a similar topic is suggested."""
    topic = new_topic()
    code, found = doctor.json(
        "--group", doctor.group, "--topic", f"{topic}x", "--bootstrap-servers", kafka_server.bootstrap_servers
    )

    assert code == 2
    assert found["topic.missing", f"topic {topic}x"]["text"] == f"does not exist, but {topic} exists"
    assert found["group.missing", f"group {doctor.group}"]["level"] == "problem"


# ---- permissions ---------------------------------------------------------------------------------------------------


def test_missing_permissions_are_problems(doctor):
    """Missing permissions are problems with the command that grants them, or skip a check."""
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaServer(security="PLAIN", config=config) as server:
        server.create_topic(doctor.topic)
        arguments = ["--app", doctor.app]
        for option, value in server.client_options.items():
            arguments += ["--set", f"{option}={value}"]
        _, nothing = doctor.json(*arguments)
        inside = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.node.ports.internal}"})
        rules = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                "User:alice",
                "*",
                AclOperation.DESCRIBE,
                AclPermissionType.ALLOW,
            )
            for kind, name in ((ResourceType.TOPIC, doctor.topic), (ResourceType.GROUP, doctor.group))
        ]
        for done in inside.create_acls(rules).values():
            done.result(20)
        deadline = time.monotonic() + 60
        while True:
            code, found = doctor.json(*arguments)
            if (one := found.get(("topic.permission", f"topic {doctor.topic}"))) and "to Read" in one["text"]:
                break
            assert time.monotonic() < deadline, found

    assert code == 2
    assert "not authorized to Describe this topic" in nothing["topic.permission", f"topic {doctor.topic}"]["text"]
    assert one["text"] == "User:alice is not authorized to Read this topic, only to Describe"
    assert one["command"].endswith(f"--add --allow-principal User:alice --operation Read --topic {doctor.topic}")
    assert found["group.permission", f"group {doctor.group}"]["command"].endswith(
        f"--operation Read --group {doctor.group}"
    )
    assert found["clock", "clocks"]["text"] == "not compared: not authorized to Describe the cluster"
    assert found["topic.settings", "topic settings"]["level"] == "skipped"


# ---- size ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_problems_of_many_topics_are_summarized(doctor):
    """Problems that 20 topics have in common are printed for the first topics, and the others are counted."""
    with KafkaServer() as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        names = [f"{doctor.topic}-{number}" for number in range(20)]
        config = {"min.insync.replicas": "2"}
        for done in admin.create_topics([NewTopic(one, 100, 1, config=config) for one in names]).values():
            done.result(100)
        began = time.monotonic()
        done = doctor.text("--bootstrap-servers", server.bootstrap_servers)
        took = time.monotonic() - began

    assert done.code == 2
    assert done.words.count("min.insync.replicas=2 is above its replication factor 1") == 5
    assert re.search(r"problem also: topic \S+, .* and 11 more; --json prints all", done.words)
    assert "20 problems, 1 warning" in done.words
    assert took < 30


def test_the_versions_of_each_broker_are_a_table(doctor):
    """A broker of two that offers less has a column of its own at 80 columns, and is a problem for an app."""
    with KafkaCluster(2, proxied=True) as cluster:
        limits = limited({ProduceRequest: 2, TxnOffsetCommitRequest: 2, InitProducerIdRequest: None})
        with cluster.proxies[2].edit_answer(ApiVersionsRequest, limits, times=None):
            done = doctor.text("--bootstrap-servers", cluster.bootstrap_servers)
            found = doctor.text("--bootstrap-servers", cluster.bootstrap_servers, "--app", doctor.app, "--json").lines

    assert (done.code, done.fits) == (0, True)
    cells = [line.split() for line in done.out.splitlines()]
    assert ["feature", "request", "needs", "broker", "1", "broker", "2"] in cells
    assert [one[-2:] for one in cells if one[:2] == ["publish", "Produce"]] == [["no", "(0-2)"]]
    assert [one[-1] for one in cells if one[:2] == ["idempotence", "InitProducerId"]] == ["no"]
    assert [one[-2:] for one in cells if one[:1] == ["TxnOffsetCommit"] and len(one) > 3] == [["no", "(0-2)"]]
    (rows,) = (one["table"] for one in found if one["check"] == "feature.requests")
    table = {(row["capability"], row["request"]): row for row in rows}
    oldest, newest = ProduceRequest.api.versions[0], ProduceRequest.api.versions[-1]
    assert table["publish", "Produce"]["needed"] == [oldest, newest]
    assert table["publish", "Produce"]["offered"]["2"] == [0, 2]
    assert table["idempotence", "InitProducerId"]["offered"]["2"] is None
    (problem,) = (one["text"] for one in found if (one["check"], one["level"]) == ("feature.missing", "problem"))
    assert problem.startswith("broker 2 does not support publishing, so the app does not start: Produce: ")
