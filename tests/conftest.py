"""What holds for every test."""

from __future__ import annotations

import asyncio
import signal

from hypothesis import settings

# A run is the same as the one before; `pytest --hypothesis-profile=explore` looks further.
settings.register_profile("same", derandomize=True, database=None, deadline=None, max_examples=30)
settings.register_profile("explore", deadline=None, max_examples=2_000)
settings.load_profile("same")


def pytest_configure() -> None:
    # pytest-asyncio asks which loop there was before its own: where nobody ever said "none", asyncio makes one for the
    # answer, nobody closes it, and whichever test collects it fails.
    asyncio.set_event_loop(None)
    # Who runs in the background, or is to outlive a terminal, is started with these ignored, and hands that down.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
