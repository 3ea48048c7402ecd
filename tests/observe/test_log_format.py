"""JSON log lines with typed fields."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from tailrace import TopicPartition
from tailrace.observe.events import HandlerFailedPermanently, OffsetsCommitted
from tailrace.observe.hooks import Observer
from tailrace.observe.log_format import json_formatter

ORDERS = TopicPartition("orders", 2)


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Log to a text in JSON."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(json_formatter(worker=1))
    loggers = [logging.getLogger(name) for name in ("tailrace", "shop")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.addHandler(handler)
        one.setLevel(logging.DEBUG)
    yield text
    for one, level in zip(loggers, levels, strict=True):
        one.removeHandler(handler)
        one.setLevel(level)


def test_events_are_lines_of_json_with_typed_fields(written):
    """An event is one line of JSON, in which numbers keep their types and a traceback is a field."""
    observer = Observer(client_id="c")
    try:
        {}["customer\nforged line"]
    except KeyError as error:
        failed = HandlerFailedPermanently("charge", ORDERS, 17, 3, "KeyError", "skipped", None, error, error)
    observer.emit(OffsetsCommitted("g", {ORDERS: 7}, 0.5))
    observer.emit(failed)

    committed, logged = (json.loads(line) for line in written.getvalue().splitlines())
    assert committed.pop("timestamp").endswith("Z")
    assert committed == {
        "event": "offsets committed",
        "level": "debug",
        "logger": "tailrace",
        "worker": 1,
        "client_id": "c",
        "group_id": "g",
        "offsets": [{"topic": "orders", "partition": 2, "offset": 7}],
        "took_s": 0.5,
    }
    assert (logged["level"], logged["failures"], logged["partition"]) == (
        "error",
        3,
        {"topic": "orders", "partition": 2},
    )
    assert "KeyError" in logged["exception"]


def test_other_log_records_are_lines_of_json_with_their_extra_fields(written):
    """Other log records are lines of JSON with the fields of ``extra=`` and of structlog."""
    logging.getLogger("shop").info("charged %s", "ann", extra={"total": 5})
    shop = structlog.wrap_logger(
        logging.getLogger("shop"),
        processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    shop.warning("charged", total=6)

    first, second = (json.loads(line) for line in written.getvalue().splitlines())
    assert (first["event"], first["total"], first["level"], first["logger"]) == ("charged ann", 5, "info", "shop")
    assert (second["event"], second["total"], second["level"], second["worker"]) == ("charged", 6, "warning", 1)
