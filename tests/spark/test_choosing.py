"""What of an app runs on Spark is what the service would run, and reads what it would read."""

from __future__ import annotations

import pytest

from penstock import App
from penstock.spark.choosing import choose


@pytest.mark.parametrize(
    ("topic", "is_read"),
    [("orders", True), ("orders.g.dead", False), ("failed-orders", False), ("orders.g.replay", False)],
)
def test_a_pattern_takes_no_letters(topic, is_read):
    """As in the service: or what fails on Spark would be handled there again, for ever."""
    app = App(group_id="g", dead_letter="failed-{topic}")

    @app.handler(pattern="ord.*|failed-.*|orders[.]g.*")
    async def handle(value: bytes) -> None: ...

    (pattern,) = choose(app, handle, "g").patterns

    assert pattern.fullmatch(topic) is is_read
