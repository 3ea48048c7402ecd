"""Delta and Iceberg, with Spark in its own process, since their jars must be present when Spark starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.spark import fares
from tests.support.commands import environment

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.slow,
    pytest.mark.timeout(560),
    pytest.mark.skipif(
        not pyspark.__version__.startswith(("4.1.", "4.2.")),
        reason="Spark 4.0 has no Arrow UDFs, and Delta has no release for Spark 4.3",
    ),
]


def test_tables_have_each_batch_once(world):
    """A repeated batch is written once, and twice if its checkpoint was deleted; no row is missing."""
    world.make_topic()
    world.produce([b"%d" % n for n in range(50)])
    driver, arguments = Path(__file__).with_name("tables_driver.py"), (world.group, world.topic, str(world.folder))

    done = subprocess.run(
        [sys.executable, str(driver), world.server.bootstrap_servers, *arguments],
        env=environment(PYTHONPATH=str(Path(__file__).parents[2])),
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])  # samples of the page print tables
    assert result["batches"] == [0, 0, 1, 1]
    assert result["values"] == sorted(2 * n for n in (*range(50), *range(30, 40)))
    assert world.committed == {0: 50}
    # Batches 0 and 1 of one checkpoint, and batch 0 of another.
    assert all(values == [1, 1, 11] for values in result["appended"].values())
    first = int(fares.BEGIN.timestamp())
    rows = sorted([f"city-{n % 3}", first + 60 * n, 120 * (n % 5)] for n in range(60) if n % 5)
    newest = list({row[0]: row for row in rows}.values())
    assert all(tables == [rows, newest] for tables in result["streamed"].values())
    count = 2 if pyspark.__version__.startswith("4.1.") else 1  # Iceberg has a release only for Spark 4.1
    assert len(result["appended"]) == len(result["streamed"]) == count
