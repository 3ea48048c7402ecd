"""The ways on the design page: each class that a way names takes part in it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tailrace import App, Consumer, Retry
from tailrace.observe.events import OffsetsCommitted, PartitionsRevoked, RecordDeadLettered
from tests.support.event_recorder import EventRecorder
from tests.support.record_way import calls

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"^\d+\. \*\*`(\w+)`\*\* \(`([\w/]+\.py)`\)", re.MULTILINE)
WAYS = {"A record's way": 11, "A commit's way": 7, "A rebalance's way": 10, "A failure's way": 5}


def steps_of(way: str) -> list[tuple[str, str]]:
    """Return the module and the class of each step."""
    page = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {way}\n")[2].partition("\n## ")[0]
    return [(f"/{module}", name) for name, module in STEP.findall(section)]


@pytest.mark.parametrize(("way", "count"), WAYS.items())
def test_each_step_names_a_class_of_a_module(way, count):
    """A way has as many steps as nouns, and each names a class of the module beside it."""
    steps = steps_of(way)

    assert len(steps) == count
    for module, name in steps:
        text = (ROOT / "src" / "tailrace" / module[1:]).read_text(encoding="utf-8")
        assert re.search(rf"^class {name}\b", text, re.MULTILINE), f"{module} has no class {name}"


async def test_each_class_on_a_way_takes_part(kafka_server, name, group, witness):
    """In an app that reads, commits, retries, rebalances and publishes a dead letter, each class is called."""
    kafka_server.create_topic(name, 2)
    witness.fill(name, 2, 1)
    recorder = EventRecorder()
    options = {"bootstrap_servers": kafka_server.bootstrap_servers, "group_id": group, "heartbeat_interval_ms": 200}
    app = App(**options, hooks=[recorder], auto_commit_interval_ms=100, dead_letter="{topic}.{group}.dead")

    @app.handler(name, retry=Retry(attempts=2, backoff_ms=1))
    async def handle(_: bytes) -> None:
        await asyncio.sleep(0)
        raise ValueError

    with calls() as found:
        async with app:
            await recorder.wait_for(RecordDeadLettered, 2)
            await recorder.wait_for(OffsetsCommitted)
            async with Consumer(name, **options) as other:
                await recorder.wait_for(PartitionsRevoked)
                await other.assigned()
        async with Consumer(
            name, bootstrap_servers=options["bootstrap_servers"], auto_offset_reset="earliest"
        ) as alone:
            await anext(alone)

    called = {(module, function.partition(".")[0]) for module, function in found}
    missing = {way: [step for step in steps_of(way) if step not in called] for way in WAYS}
    assert missing == {way: [] for way in WAYS}
