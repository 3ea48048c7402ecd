"""Samples of the page about monitoring: JSON logs, and errors in Sentry."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "watch-an-app.md").read_text()

KEEPING = """
import asyncio, functools, json
import sentry_sdk
from tailrace.testing import TestApp

class Kept(sentry_sdk.transport.Transport):
    events = []

    def capture_envelope(self, envelope):
        self.events += [item.payload.json for item in envelope.items if item.type == "event"]

sentry_sdk.init = functools.partial(sentry_sdk.init, transport=Kept)
"""
FAILING = """
async def charge(order: dict) -> None:
    raise LookupError(order["customer"])

async def send(app):
    app.handler("orders", dead_letter="orders.dead")(charge)
    async with TestApp(app) as kafka:
        for customer in ("ann", "bob"):
            await kafka.send("orders", {"customer": customer})

asyncio.run(send(billing))
def error_of(event):
    return event["exception"]["values"][0] if "exception" in event else None

print(json.dumps([(error_of(one), one.get("logger")) for one in Kept.events]))
"""


def sample(containing: str) -> str:
    """Return the sample of the page that contains a text."""
    (found,) = (one for one in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if containing in one)
    return str(found)


def output(program: str) -> tuple[str, str]:
    """Return the text that a program writes to stdout and to stderr."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_sentry_gets_each_exception_once():
    """Sentry gets one event for a failed record, with the handler's frame and its variables."""
    text, _ = output(KEEPING + sample("class Sentry") + FAILING)

    events = json.loads(text)
    assert [(error["type"], error["value"], logger) for error, logger in events] == [
        ("LookupError", "ann", None),
        ("LookupError", "bob", None),
    ]
    frame = events[0][0]["stacktrace"]["frames"][-1]
    assert (frame["function"], frame["vars"]["order"]) == ("charge", {"customer": "'ann'"})


def test_sentry_reports_the_log_without_a_hook():
    """With only ``sentry_sdk.init()``, Sentry gets the log lines of a failed record and of its dead letter."""
    init = 'sentry_sdk.init(dsn="https://key@sentry.example/1")\n'
    text, _ = output(KEEPING + "from tailrace import App\n" + init + "billing = App(group_id='b')\n" + FAILING)

    failed, dead_lettered, *_ = json.loads(text)
    assert (failed[0]["value"], failed[1]) == ("ann", "tailrace")
    assert dead_lettered == [None, "tailrace"]


def test_the_log_of_a_program_is_json():
    """With the formatter of the sample, each log line is JSON with the fields of the event."""
    program = (
        sample("json_formatter")
        + "from tailrace.observe.events import OffsetReset\nfrom tailrace.observe.hooks import Observer\n"
        + "from tailrace import TopicPartition\n"
        + "Observer().emit(OffsetReset(TopicPartition('orders', 3), None, 7, 'earliest', None))\n"
    )
    _, text = output(program)

    line = json.loads(text)
    assert (line["service"], line["partition"], line["after"]) == ("billing", {"topic": "orders", "partition": 3}, 7)
