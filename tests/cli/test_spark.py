"""`tailrace spark`: an app of a module on Spark."""

from __future__ import annotations

import json
import signal
import subprocess
import uuid

import pytest
from confluent_kafka import Consumer, Producer

from tests.support.commands import COMMAND, environment, tailrace

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(280)]

SHOP = """
from tailrace import App

billing = App(group_id="{topic}")


@billing.handler("{topic}", publish="{topic}-out")
async def double(n: int) -> int:
    return 2 * n
"""


@pytest.fixture
def shop(tmp_path, kafka_server):
    """Create a folder with a module of an app, and its topic with ten numbers."""
    topic = f"t-{uuid.uuid4().hex[:12]}"
    for name in (topic, f"{topic}-out"):
        kafka_server.create_topic(name, 2)
    (tmp_path / "shop.py").write_text(SHOP.format(topic=topic))
    produce(kafka_server, topic, range(10))
    return tmp_path, topic


def produce(kafka_server, topic, numbers):
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    for n in numbers:
        producer.produce(topic, b"%d" % n, partition=n % 2)
    assert producer.flush(10) == 0


def doubled(kafka_server, topic, count):
    """Return ``count`` published values, sorted."""
    witness = Consumer(
        {"bootstrap.servers": kafka_server.bootstrap_servers, "group.id": "w", "auto.offset.reset": "earliest"}
    )
    witness.subscribe([f"{topic}-out"])
    found = []
    while len(found) < count:
        message = witness.poll(100)
        assert message is not None, f"only {len(found)} of {count} came"
        found.append(int(message.value()))
    witness.close()
    return sorted(found)


def spark(folder, *arguments):
    return subprocess.run(
        [*COMMAND, "spark", *arguments, "--master", "local[2]"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_backfill_and_handoff_commit_to_the_group(shop, kafka_server):
    """`backfill` handles and commits existing records, and `handoff` later ones."""
    folder, topic = shop

    servers = ("--set", f"bootstrap_servers={kafka_server.bootstrap_servers}")
    done = spark(folder, "backfill", "shop:billing", *servers)

    assert done.returncode == 0, done.stderr
    assert "10 records handled" in done.stdout
    assert "tailrace run shop:billing" in done.stdout
    assert doubled(kafka_server, topic, 10) == [2 * n for n in range(10)]
    produce(kafka_server, topic, range(10, 12))
    lag = tailrace("lag", topic, "--bootstrap-servers", kafka_server.bootstrap_servers, "--json")
    assert [json.loads(line)["lag"] for line in lag.stdout.splitlines()] == [1, 1]

    handed_over = spark(folder, "handoff", "shop:billing", "double", "--max-lag", "1", *servers)

    assert handed_over.returncode == 0, handed_over.stderr
    assert handed_over.stdout.splitlines() == [
        f"lag of group {topic}: 0 records",
        "the app can take over, run: tailrace run shop:billing",
    ]
    # The group of the reader continues at its committed offset.
    assert doubled(kafka_server, topic, 2) == [20, 22]


def test_a_stream_runs_until_sigterm(shop, kafka_server, tmp_path):
    """`stream` handles records until SIGTERM, and prints their number."""
    folder, topic = shop
    command = [*COMMAND, "spark", "run", "shop:billing", "double", "--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--set", f"bootstrap_servers={kafka_server.bootstrap_servers}", "--master", "local[2]"]

    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            found = doubled(kafka_server, topic, 10)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()

    assert found == [2 * n for n in range(10)]
    assert process.returncode == 143
    assert "10 records handled" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["backfill", "nowhere:app"], "there is no module 'nowhere'"),
        (["backfill", "shop:billing", "--since", "soon"], "must be a time since 1970"),
        (["run", "shop:billing"], "--checkpoint"),
        (["handoff", "shop:billing", "--max-lag", "0"], "must be a positive integer, not '0'"),
        (["backfill", "shop:billing", "--set", "group"], "must be OPTION=VALUE, not 'group'"),
        (["backfill", "shop:billing", "nohandler"], "the app has no handler 'nohandler' - its handlers are: double"),
        (["handoff", "shop:billing", "nohandler"], "the app has no handler 'nohandler' - its handlers are: double"),
    ],
)
def test_usage_errors_exit_with_2_before_spark_starts(tmp_path, arguments, message):
    """Wrong arguments exit with 2 before Spark starts."""
    (tmp_path / "shop.py").write_text(SHOP.format(topic="t"))

    done = spark(tmp_path, *arguments)

    assert done.returncode == 2
    assert message in done.stderr
