"""Restart of workers when a source file changes, for development."""

from __future__ import annotations

from pathlib import Path

import anyio
from watchfiles import PythonFilter, awatch

from tailrace.app.processes.worker_pool import WorkerPool

__all__ = ["run_reloading"]

_QUIET_MS = 50
"""Milliseconds without another change after which the workers are restarted."""


async def run_reloading(pool: WorkerPool, folder: Path) -> None:
    """Run a pool until it ends, and restart the workers whenever a Python file in ``folder`` changes.

    Raises:
        TailraceError: the pool failed.
    """
    ended = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def restart_on_changes() -> None:
            async for _ in awatch(folder, watch_filter=PythonFilter(), stop_event=ended, step=_QUIET_MS):
                pool.renew()

        tasks.start_soon(restart_on_changes)
        try:
            await pool.run()
        finally:
            ended.set()
