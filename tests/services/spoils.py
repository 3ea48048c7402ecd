"""Handlers that go wrong, to be included in a service that is well."""

from __future__ import annotations

import time
from pathlib import Path

from tailrace import Handlers, Retry

spoils = Handlers()


@spoils.handler("blocks")
async def block(path: str) -> None:
    """Keeps the event loop from everybody until a file is there."""
    for _ in range(3_000):
        if Path(path).exists():  # noqa: ASYNC240 - that is what is wrong with it
            return
        time.sleep(0.01)  # noqa: ASYNC251 - and that


@spoils.handler("fatal", on_failure="stop", retry=Retry(attempts=1))
async def give_up(value: bytes) -> None:
    """Ends the app."""
    raise ValueError(f"there is no {value.decode()}")
