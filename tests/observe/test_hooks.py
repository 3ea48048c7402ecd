"""Log lines of events, and their values for programs."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex

import pytest

from tailrace import TopicPartition
from tailrace.observe.events import BrokerUnreachable, OffsetsCommitted, PartitionsAssigned, RecordSkipped
from tailrace.observe.hooks import Observer
from tests.support.event_recorder import EventRecorder

ORDERS = [TopicPartition("orders", number) for number in (0, 2)]


def test_a_log_record_has_json_values(caplog):
    """``record.tailrace`` has JSON values for partitions and sets, and the message is one line of text."""
    observer = Observer(client_id="c")
    with caplog.at_level(logging.DEBUG, "tailrace"):
        observer.emit(PartitionsAssigned("g", added=frozenset(ORDERS), kept=frozenset()))
        observer.emit(OffsetsCommitted("g", {ORDERS[1]: 7}))
        observer.emit(RecordSkipped("charge", ORDERS[1], 17, "no"))

    assigned, committed, skipped = (json.loads(json.dumps(record.tailrace)) for record in caplog.records)
    assert assigned == {
        "event": "partitions assigned",
        "client_id": "c",
        "group_id": "g",
        "added": [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 2}],
        "kept": [],
    }
    assert committed["offsets"] == [{"topic": "orders", "partition": 2, "offset": 7}]
    assert (skipped["partition"], skipped["offset"]) == ({"topic": "orders", "partition": 2}, 17)
    assert caplog.records[0].getMessage() == (
        'partitions assigned client_id=c group_id=g added="orders[0] orders[2]" kept=none'
    )
    assert "partition=orders[2] offset=17" in caplog.records[2].getMessage()


def test_a_log_line_can_be_split_at_its_fields(caplog):
    """Values with spaces are quoted, numbers have at most six decimals, and empty values are left out."""
    with caplog.at_level(logging.DEBUG, "tailrace"):
        observer = Observer(client_id="my client")
        observer.emit(OffsetsCommitted("", {ORDERS[1]: 7, ORDERS[0]: 1}, 0.1 + 0.2))
        observer.emit(RecordSkipped("charge", ORDERS[1], 17, 'said "no"\\'))

    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == 'offsets committed client_id="my client" offsets="orders[2]:7 orders[0]:1" took_s=0.3'
    assert shlex.split(lines[1])[2:] == [
        "client_id=my client",
        "handler=charge",
        "partition=orders[2]",
        "offset=17",
        'error=said "no"\\',
    ]
    assert caplog.records[0].tailrace["took_s"] == 0.3


@pytest.mark.parametrize("seconds", [1e-9, 1e-5, 0.00123456789, 1 / 3, 2 / 3 * 100, 1234567.25, 1e12])
def test_numbers_in_the_log_are_short(seconds, caplog):
    """A number has at most six decimals in both log formats."""
    with caplog.at_level(logging.DEBUG, "tailrace"):
        Observer().emit(OffsetsCommitted("g", {}, seconds))

    (record,) = caplog.records
    written = record.getMessage().rpartition("took_s=")[2]
    assert float(written) == pytest.approx(seconds, abs=1e-6)
    assert len(written) <= 16
    assert len(json.dumps(record.tailrace["took_s"])) <= 16


async def test_equal_events_are_logged_once_with_their_number(caplog):
    """An unreachable broker is logged at once and then at intervals with a number; hooks receive each event."""
    received = EventRecorder()
    observer, loop = Observer((received,)), asyncio.get_running_loop()
    began_at, clock = loop.time(), loop.time
    for attempt in range(61):
        loop.time = lambda at=attempt: began_at + at
        observer.emit(BrokerUnreachable("b:1", "b:1: connection refused"))
        observer.emit(BrokerUnreachable("b:2", f"b:2: reason {attempt // 60}"))
    loop.time = clock

    lines = [record.getMessage() for record in caplog.records]
    assert len(received.of(BrokerUnreachable)) == 122
    assert [line.rpartition('"')[2] for line in lines if "b:1" in line] == ["", " times=30", " times=30"]
    assert ["reason 1" in line for line in lines if "b:2" in line] == [False, False, True]


def test_a_hook_that_returns_a_coroutine_is_named_in_the_log(caplog):
    """A hook that returns a coroutine, which is not awaited, is logged as an error with its name."""

    class Late:
        def on_event(self, event):
            return self.send(event)

        async def send(self, event): ...

    with caplog.at_level(logging.ERROR, "tailrace"), pytest.warns(RuntimeWarning, match="never awaited"):
        Observer([Late()]).emit(RecordSkipped("charge", ORDERS[1], 17, "no"))

    (message,) = (line for record in caplog.records if "a hook" in (line := record.getMessage()))
    assert "make on_event a plain method" in message
    assert "Late" in message
