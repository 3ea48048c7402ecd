"""Importing tailrace imports only what a consumer needs to start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tailrace.installation import COMPILED

# Of aiokafka, a consumer uses SASL, and the batch decoder where tailrace's compiled module is missing.
NOT_IMPORTED = {"aiokafka", "pygments", "pyspark", "pytest", "rich", "structlog"}


@pytest.mark.parametrize("name", ["Consumer", "Record", "TailraceError"])
def test_importing_a_name_imports_no_heavy_packages(name):
    """Importing Consumer imports no aiokafka client, terminal library, pytest or Spark."""
    program = f"import sys; from tailrace import {name}; print(*{{m.partition('.')[0] for m in sys.modules}})"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) & NOT_IMPORTED == set()
    assert "tailrace" in done.stdout.split()


def test_importing_consumer_imports_no_app_and_no_messages_of_other_clients():
    """Apps, producers, tools, their messages, and urllib for identity providers are imported on first use."""
    program = "import sys; from tailrace import Consumer; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    others = ("app", "admin", "cli", "producer", "spark", "testing")
    unwanted = {f"tailrace.{one}" for one in (*others, "protocol.admin", "protocol.transactions")} | {"urllib.request"}
    assert set(done.stdout.split()) & unwanted == set()


@pytest.mark.skipif(not COMPILED, reason="the compiled module is not built, so aiokafka decodes the records")
def test_reading_with_the_compiled_module_imports_no_other_client(kafka_server, witness, new_topic):
    """A consumer without SASL reads records without importing aiokafka, which would delay the first by 0.1 s."""
    topic = new_topic()
    witness.produce(topic, [b"one"])
    program = f"""
import asyncio, sys
from tailrace import Consumer

async def main():
    async with Consumer({topic!r}, bootstrap_servers={kafka_server.bootstrap_servers!r}, group_id="imports") as one:
        print((await one.getone(timeout_ms=30_000)).value, *sys.modules)

asyncio.run(main())
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    value, *modules = done.stdout.split()
    assert value == "b'one'"
    assert {m.partition(".")[0] for m in modules} & NOT_IMPORTED == set()
