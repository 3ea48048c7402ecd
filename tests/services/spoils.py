"""Failing handlers, to be included in a service."""

from __future__ import annotations

import time
from pathlib import Path

from tailrace import Handlers, Retry

spoils = Handlers()


@spoils.handler("blocks")
async def block(path: str) -> None:
    """Block the event loop until a file exists."""
    for _ in range(3_000):
        if Path(path).exists():  # noqa: ASYNC240 - blocks on purpose
            return
        time.sleep(0.01)  # noqa: ASYNC251 - and that


@spoils.handler("fatal", on_failure="stop", retry=Retry(attempts=1))
async def give_up(value: bytes) -> None:
    """End the app."""
    raise ValueError(f"there is no {value.decode()}")
