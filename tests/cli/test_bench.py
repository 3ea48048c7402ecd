"""scripts/bench: rows, ratios and exit codes of the benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(270)]

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=250, check=False
    )


def test_consume_prints_a_row_for_each_client(tmp_path):
    """`consume` writes a row for each client, and exits with 1 if the promised ratio is not reached."""
    path = tmp_path / "deep" / "consume.json"

    done = bench("consume", "--seconds", "1", "--rounds", "1", "--json", str(path))

    result = json.loads(path.read_text())
    speeds = {row["client"]: row["records_per_s"] for row in result["rows"]}
    ratio = speeds["tailrace async for"] / speeds["aiokafka async for"]
    assert set(speeds) == {
        "tailrace async for",
        "tailrace getmany(5000)",
        "tailrace arrow_batches(5000)",
        "tailrace handler",
        "aiokafka async for",
        "aiokafka getmany(5000)",
        "confluent-kafka consume(5000)",
        "confluent-kafka consume(5000), check.crcs",
        "faststream handler",
        "java ConsumerPerformance",
    }
    (promise,) = result["promises"]
    assert promise["measured"] == pytest.approx(ratio)
    assert all(row["cpu_us_per_record"] > 0 and row["max_rss_bytes"] > 10e6 for row in result["rows"])
    assert result["machine"]["kafka"]
    assert done.returncode == (0 if ratio >= 3 else 1)
    assert [line for line in done.stdout.splitlines() if len(line.rstrip()) > 80] == []


def test_consume_reads_any_kind_of_topic(tmp_path):
    """The options of `consume` set payload, codec, headers and partitions of the topic."""
    path = tmp_path / "consume.json"
    shape = ["--payload", "20000", "--codec", "zstd", "--headers", "2", "--partitions", "3"]

    done = bench("consume", *shape, "--clients", "async for", "--seconds", "1", "--rounds", "1", "--json", str(path))

    result = json.loads(path.read_text())
    assert done.returncode == 0, done.stderr
    assert [row["client"] for row in result["rows"]] == ["tailrace async for", "aiokafka async for"]
    assert {"payload": 20_000, "codec": "zstd", "headers": 2, "partitions": 3}.items() <= result["settings"].items()


def test_bench_handlers_prints_a_row_for_each_kind_of_handler(tmp_path):
    """`handlers` writes a row for each kind of handler, and its promises compare at-least-once delivery."""
    path = tmp_path / "handlers.json"
    chosen = ["--clients", "bytes", "--clients", "typed", "--clients", "batch"]

    done = bench("handlers", *chosen, "--seconds", "1", "--rounds", "1", "--json", str(path))

    result = json.loads(path.read_text())
    speeds = {row["client"]: row["records_per_s"] for row in result["rows"]}
    assert len(speeds) == 8
    assert {one["ratio"]: one["measured"] for one in result["promises"]} == {
        f"tailrace {how} handler / faststream {how}, acknowledged": pytest.approx(
            speeds[f"tailrace {how} handler"] / speeds[f"faststream {how}, acknowledged"]
        )
        for how in ("typed", "bytes")
    }
    assert done.returncode == (0 if all(one["holds"] for one in result["promises"]) else 1)
    assert [line for line in done.stdout.splitlines() if len(line.rstrip()) > 80] == []


def test_latency_has_percentiles_of_each_rate(tmp_path):
    """`latency` writes a row for each client and rate, with and without a busy loop."""
    path = tmp_path / "latency.json"

    done = bench("latency", "--clients", "async for", "--seconds", "1", "--rounds", "1", "--json", str(path))

    rows = json.loads(path.read_text())["rows"]
    assert done.returncode == 0, done.stderr
    assert len({(row["client"], row["rate"], row["is_busy"]) for row in rows}) == 8
    assert all(0 < row["p50_ms"]["median"] <= row["p99_ms"]["median"] for row in rows)


def test_processes_are_measured_from_outside(tmp_path):
    """`memory`, `idle` and `start` measure memory over time, CPU time, and the time to the first record."""
    once = ["--rounds", "1", "--clients", "tailrace", "--json"]

    for command in (
        ["memory", "--seconds", "2", "--backlog", "10000000"],
        ["idle", "--seconds", "1", "--partitions", "10"],
        ["start"],
    ):
        done = bench(*command, *once, str(tmp_path / f"{command[0]}.json"))
        assert done.returncode == 0, done.stderr

    memory, idle, start = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("memory", "idle", "start"))
    assert all(row["peak_rss_bytes"]["median"] > 10e6 and row["runs"][0]["samples"] for row in memory["rows"])
    assert all(0 <= row["cpu_share"]["median"] < 1 for row in idle["rows"])
    assert all(0 < row["seconds"]["median"] < 60 for row in start["rows"])


def test_a_client_that_does_not_exist_is_an_error(tmp_path):
    """An unknown client raises an error that lists the clients."""
    done = bench("consume", "--clients", "pykafka", "--json", str(tmp_path / "none.json"))

    assert done.returncode == 1
    assert "no client has 'pykafka' in its name: tailrace async for" in done.stderr


def test_lanes_compares_handlers_with_tasks(tmp_path):
    """`lanes` writes both rates of each round, and the exit code depends on their ratio."""
    path = tmp_path / "lanes.json"

    done = bench("lanes", "--records", "1280", "--rounds", "1", "--json", str(path))

    result = json.loads(path.read_text())
    (run,) = result["runs"]
    assert result["promise"]["measured"] == pytest.approx(run["handlers"] / run["tasks"])
    assert done.returncode == (0 if result["promise"]["holds"] else 1)
    assert [line for line in done.stdout.splitlines() if len(line.rstrip()) > 80] == []


def test_rebalance_measures_gaps_of_kept_partitions(tmp_path):
    """`rebalance` writes the gaps of each protocol, with and without a slow member."""
    path = tmp_path / "rebalance.json"

    done = bench("rebalance", "--rounds", "1", "--json", str(path))

    rows = json.loads(path.read_text())["rows"]
    assert [(row["protocol"], row["drains"]) for row in rows] == [
        ("classic", False),
        ("classic", True),
        ("consumer", False),
        ("consumer", True),
    ]
    assert all(row["holds"] is (row["gap_s"] <= max(0.1, 2 * row["quiet_gap_s"])) for row in rows)
    assert done.returncode == (0 if all(row["holds"] for row in rows) else 1)
    assert [line for line in done.stdout.splitlines() if len(line.rstrip()) > 80] == []


@pytest.mark.parametrize("arguments", [[], ["consume", "--seconds", "0"], ["consume", "--codec", "x"]], ids=" ".join)
def test_usage_errors_exit_with_2(arguments):
    """A usage error exits with 2 before anything starts."""
    done = bench(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert "usage:" in done.stderr


def test_publish_prints_a_row_for_each_producer(tmp_path):
    """`publish` writes a row for each producer and way of publishing, and the exit code depends on all promises."""
    path = tmp_path / "publish.json"
    chosen = ["--sizes", "200", "--codecs", "lz4"]

    done = bench("publish", *chosen, "--rounds", "1", "--seconds", "1", "--json", str(path))

    result = json.loads(path.read_text())
    speeds = {(row["client"], row["way"]): row["records_per_s"] for row in result["rows"]}
    ways = {"one by one": 1, "by 1,000": 1.5, "not awaited": 1.5, "transactions of 1,000": 1.5}
    clients = {"tailrace", "aiokafka", "confluent-kafka Producer", "confluent-kafka AIOProducer"}
    assert set(speeds) == {(client, way) for client in clients for way in ways}
    assert all(row["cpu_us_per_record"] > 0 and row["max_rss_bytes"] > 10e6 for row in result["rows"])
    assert all((row["size"], row["codec"]) == (200, "lz4") for row in result["rows"])
    assert {one["way"]: one["at_least"] for one in result["promises"]} == ways
    for one in result["promises"]:
        ratio = speeds["tailrace", one["way"]] / speeds["aiokafka", one["way"]]
        assert one["measured"] == pytest.approx(ratio)
        assert one["holds"] is (ratio >= one["at_least"])
    assert done.returncode == (0 if all(one["holds"] for one in result["promises"]) else 1), done.stderr
    assert [line for line in done.stdout.splitlines() if len(line.rstrip()) > 80] == []


def test_a_way_of_publishing_that_does_not_exist_is_an_error(tmp_path):
    """An unknown way raises an error that lists the ways."""
    done = bench("publish", "--ways", "twice", "--json", str(tmp_path / "none.json"))

    assert done.returncode == 1
    assert "no way of publishing has 'twice' in its name: one by one; by 1,000; not awaited;" in done.stderr
