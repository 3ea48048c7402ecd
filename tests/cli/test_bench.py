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
    """Each client has a row, ratios are those of the rows, and the exit code is that of the promise."""
    path = tmp_path / "deep" / "consume.json"

    done = bench("consume", "--records", "5000", "--rounds", "1", "--json", str(path))

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
        "faststream handler",
    }
    assert result["ratios"]["tailrace async for / aiokafka async for"] == pytest.approx(ratio)
    assert all(row["cpu_s"] > 0 and row["max_rss_bytes"] > 10e6 and row["records"] == 5_000 for row in result["rows"])
    assert done.returncode == (0 if ratio >= 3 else 1)
    assert done.stdout.splitlines()[-1].startswith(f"ratio     {ratio:.1f} times aiokafka")
    assert [line for line in done.stdout.splitlines() if len(line.rstrip()) > 80] == []


def test_bench_handlers_prints_a_row_for_each_kind_of_handler(tmp_path):
    """Typed and bytes handlers have a row each; the promise compares those with at-least-once delivery."""
    path = tmp_path / "handlers.json"

    done = bench("handlers", "--records", "1000", "--rounds", "1", "--json", str(path))

    result = json.loads(path.read_text())
    speeds = {row["client"]: row["records_per_s"] for row in result["rows"]}
    assert set(speeds) == {
        f"{framework} {how}"
        for framework, hows in {
            "tailrace": ["typed handler", "bytes handler"],
            "faststream": ["typed handler", "bytes handler", "typed, acknowledged", "bytes, acknowledged"],
        }.items()
        for how in hows
    }
    for one in result["promises"]:
        ours = speeds[f"tailrace {one['handler']} handler"]
        assert one["measured"] == pytest.approx(ours / speeds[f"faststream {one['handler']}, acknowledged"])
        assert one["by_default"] == pytest.approx(ours / speeds[f"faststream {one['handler']} handler"])
    assert done.returncode == (0 if all(one["holds"] for one in result["promises"]) else 1)
    assert [line for line in done.stdout.splitlines() if len(line.rstrip()) > 80] == []


def test_lanes_compares_handlers_with_tasks(tmp_path):
    """Each round has both rates, keys stay in order, and the exit code is that of the ratio."""
    path = tmp_path / "lanes.json"

    done = bench("lanes", "--records", "1280", "--rounds", "1", "--json", str(path))

    result = json.loads(path.read_text())
    (run,) = result["runs"]
    assert result["promise"]["measured"] == pytest.approx(run["handlers"] / run["tasks"])
    assert done.returncode == (0 if result["promise"]["holds"] else 1)
    assert [line for line in done.stdout.splitlines() if len(line.rstrip()) > 80] == []


def test_rebalance_measures_gaps_of_kept_partitions(tmp_path):
    """Each protocol has its gaps, with and without a slow member, and the exit code is that of the gaps."""
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


@pytest.mark.parametrize("arguments", [[], ["consume", "--records", "0"], ["consume", "--size", "x"]], ids=" ".join)
def test_usage_errors_exit_with_2(arguments):
    """A usage error exits with 2 before anything starts."""
    done = bench(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert "usage:" in done.stderr


def test_publish_prints_a_row_for_each_producer(tmp_path):
    """Each producer has a row for each way of publishing, and the exit code is that of all promises."""
    path = tmp_path / "publish.json"

    done = bench("publish", "--rounds", "1", "--json", str(path))

    result = json.loads(path.read_text())
    kinds = {(row["way"], row["size"]) for row in result["rows"]}
    assert len(kinds) == 8
    for client in ("tailrace", "aiokafka", "confluent-kafka"):
        assert {(row["way"], row["size"]) for row in result["rows"] if row["client"] == client} == kinds
    assert done.returncode == (0 if all(one["holds"] for one in result["promises"]) else 1), done.stderr
