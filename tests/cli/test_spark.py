"""`tailrace spark`: an app of a module on real Spark, from the command line."""

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
    """A folder with a module of an app, and its topic with ten numbers."""
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
    """What was published, so many of it."""
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


def test_a_backfill_commits_for_the_live_app(shop, kafka_server):
    """What is there is handled and committed, as `tailrace lag` says; what came later is left, or a handoff's."""
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
    # The witness goes on where it was.
    assert doubled(kafka_server, topic, 2) == [20, 22]


def test_a_stream_ends_on_sigterm(shop, kafka_server, tmp_path):
    """It handles what comes until SIGTERM, and says how much that was."""
    folder, topic = shop
    command = [*COMMAND, "spark", "run", "shop:billing", "double", "--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--set", f"bootstrap_servers={kafka_server.bootstrap_servers}", "--master", "local[2]"]

    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            found = doubled(kafka_server, topic, 10)
            process.send_signal(signal.SIGTERM)
            told, _ = process.communicate(timeout=120)
        finally:
            process.kill()

    assert found == [2 * n for n in range(10)]
    assert process.returncode == 143
    assert "10 records handled" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["backfill", "nowhere:app"], "there is no module 'nowhere'"),
        (["backfill", "shop:billing", "--since", "soon"], "must be a time since 1970"),
        (["run", "shop:billing"], "--checkpoint"),
        (["handoff", "shop:billing", "--max-lag", "0"], "must be a positive integer, not '0'"),
        (["backfill", "shop:billing", "--set", "group"], "must be NAME=VALUE, not 'group'"),
        (["backfill", "shop:billing", "nohandler"], "this app has no handler 'nohandler' - it has double"),
        (["handoff", "shop:billing", "nohandler"], "this app has no handler 'nohandler' - it has double"),
    ],
)
def test_mistakes_are_told(tmp_path, arguments, said):
    """Wrong arguments end with exit code 2 and one sentence before Spark is started."""
    (tmp_path / "shop.py").write_text(SHOP.format(topic="t"))

    done = spark(tmp_path, *arguments)

    assert done.returncode == 2
    assert said in done.stderr
