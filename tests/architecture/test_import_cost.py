"""Importing tailrace imports only what a consumer needs to start."""

from __future__ import annotations

import subprocess
import sys

import pytest

# aiokafka's record batches and SASL are imported while a consumer starts; each import of them imports its client.
NOT_IMPORTED = {"aiokafka", "pygments", "pyspark", "pytest", "rich", "structlog"}


@pytest.mark.parametrize("name", ["Consumer", "Record", "TailraceError"])
def test_importing_a_name_imports_no_heavy_packages(name):
    """Importing Consumer imports no aiokafka client, terminal library, pytest or Spark."""
    program = f"import sys; from tailrace import {name}; print(*{{m.partition('.')[0] for m in sys.modules}})"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) & NOT_IMPORTED == set()
    assert "tailrace" in done.stdout.split()


def test_importing_consumer_imports_no_app_and_no_messages_of_other_clients():
    """Apps, producers, tools and their messages are imported on first use."""
    program = "import sys; from tailrace import Consumer; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    others = ("app", "admin", "cli", "producer", "spark", "testing", "batches.record_batch")
    messages = ("configs", "group_descriptions", "produce", "topics", "transactions")
    unwanted = {*(f"tailrace.{one}" for one in others), *(f"tailrace.protocol.{one}" for one in messages)}
    assert set(done.stdout.split()) & unwanted == set()
