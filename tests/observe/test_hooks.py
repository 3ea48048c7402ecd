"""Log lines of events, and their values for programs."""

from __future__ import annotations

import json
import logging

import pytest

from tailrace import TopicPartition
from tailrace.observe.events import OffsetsCommitted, PartitionsAssigned, RecordSkipped
from tailrace.observe.hooks import Observer

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
        "partitions assigned client_id=c group_id=g added=orders[0] orders[2] kept=none"
    )
    assert "partition=orders[2] offset=17" in caplog.records[2].getMessage()


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
