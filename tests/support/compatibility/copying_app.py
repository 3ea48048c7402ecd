"""App that publishes each record of the topic FROM_TOPIC to the topic TO_TOPIC."""

from __future__ import annotations

import os

from tailrace import App

app = App(group_id=f"copy-{os.environ['FROM_TOPIC']}", auto_offset_reset="earliest")


@app.handler(os.environ["FROM_TOPIC"], publish=os.environ["TO_TOPIC"], concurrency=1)
async def copy(value: bytes) -> bytes:
    """Return the value unchanged."""
    return value
