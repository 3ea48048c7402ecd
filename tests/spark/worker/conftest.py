"""State of a worker process, for tests without Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tailrace.spark.worker import task_runner as worker


@pytest.fixture
def process(monkeypatch) -> Iterator[worker._WorkerProcessState]:
    """Replace the process state of a worker, and stop its app at the end."""
    log, made = logging.getLogger("tailrace"), worker._WorkerProcessState()
    before = list(log.handlers)
    monkeypatch.setattr(worker, "_PROCESS", made)
    yield made
    with made.task():
        made.stop_app()
    made._timer.cancel()
    if made._thread is not None:
        made._thread.close()
    log.handlers[:] = before
