"""Delta sink, with Spark in its own process, since its jars must be present when Spark starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import environment

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(280)]


def test_delta_has_each_batch_once(world):
    """A repeated batch is written once, and twice if its checkpoint was deleted; no row is missing."""
    world.make_topic()
    world.produce([b"%d" % n for n in range(50)])
    driver, arguments = Path(__file__).with_name("delta_driver.py"), (world.group, world.topic, str(world.folder))

    done = subprocess.run(
        [sys.executable, str(driver), world.server.bootstrap_servers, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["batches"] == [0, 0, 1, 1]
    assert sorted(result["values"]) == sorted(2 * n for n in (*range(50), *range(30, 40)))
    assert world.committed == {0: 50}
