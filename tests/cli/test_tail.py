"""`tailrace tail`: records of a topic as JSON, table or raw values."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess

import pytest

from tailrace.cli.tail import matcher, parse_condition, writer_of
from tailrace.records import Record
from tests.support.commands import COMMAND, end, environment

NOON_MS = 1_760_000_000_000


def record(value: bytes | None = b"", key: bytes | None = None, **more) -> Record:
    return Record("orders", 0, 7, key, value, NOON_MS, **more)


@pytest.fixture
def topic(kafka) -> str:
    """Create two partitions of ten records, a second apart."""
    name = kafka.topic(2)
    for partition in range(2):
        values = [b'{"n": %d, "of": {"partition": %d}}' % (n, partition) for n in range(10)]
        kafka.produce(name, *values, partition=partition, since_ms=NOON_MS, key=b"ann" if partition else b"bob")
    return name


def places(done) -> list[tuple[int, int]]:
    return sorted((one["partition"], one["offset"]) for one in done.lines)


def tail(kafka, *arguments: str) -> subprocess.Popen[str]:
    """Start `tailrace tail` in its own process."""
    return subprocess.Popen(
        [*COMMAND, "tail", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TAILRACE_BOOTSTRAP_SERVERS=kafka.bootstrap_servers),
    )


# ---- start and end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        ("earliest", range(10)),
        ("0", range(10)),
        ("7", range(7, 10)),
        ("-3", range(7, 10)),
        ("-99", range(10)),
        ("10", ()),
        ("2025-10-09T08:53:24.5", range(5, 10)),
        ("5000d", range(10)),
        ("1h", ()),
        ("2096-01-01", ()),
        ("latest", ()),
    ],
)
def test_from_selects_the_start(kafka, topic, start, offsets):
    """--from accepts an end, an offset, a count before the end, a time or an age."""
    done = kafka.call("tail", topic, "--from", start, "--no-follow")

    assert done.code == 0
    assert places(done) == [(partition, offset) for partition in range(2) for offset in offsets]


def test_partition_and_max_limit_the_output(kafka, topic):
    """--partition and --max limit the printed records."""
    done = kafka.call("tail", topic, "--from", "earliest", "--partition", "1", "--max", "4")

    assert places(done) == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_json_lines_are_complete(kafka):
    """--json embeds JSON values, and prints text as text, other bytes as hex, and null as null."""
    topic = kafka.topic()
    kafka.produce(topic, b'{"total": 1.10, "\xc3\xa9": [1]}', key=b"ann", headers=[("a", b"4bf9"), ("raw", b"\xff")])
    kafka.produce(topic, b"two\nlines", b"\x00\xff", None, since_ms=NOON_MS)

    done = kafka.call("tail", topic, "--from", "earliest", "--no-follow")

    first, text, raw, null = done.lines
    assert '"value":{"total":1.10,"é":[1]}' in done.out
    assert (first["key"], first["key_format"], first["value_format"]) == ("ann", "text", "JSON")
    assert first["headers"] == [
        {"name": "a", "value": "4bf9", "format": "text"},
        {"name": "raw", "value": "ff", "format": "hex"},
    ]
    assert (text["value"], text["value_format"], text["timestamp"]) == (
        "two\nlines",
        "text",
        "2025-10-09T08:53:20.000Z",
    )
    assert (raw["value"], raw["value_format"]) == ("00ff", "hex")
    assert (null["value"], null["value_format"], null["key"]) == (None, "null", None)


def test_a_table_fits_80_columns_and_escapes_control_characters(kafka):
    """A row of a table has at most 80 columns and no control characters, and raw values are unchanged."""
    topic = kafka.topic()
    kafka.produce(
        topic, b"x" * 500, b"a\x1b[31mb\nc", "日本語".encode() * 50, key="ключ".encode() * 20, since_ms=NOON_MS
    )

    table = kafka.call("tail", topic, "--from", "earliest", "--no-follow", "--format", "table")
    raw = kafka.call("tail", topic, "--from", "earliest", "--max", "1", "--format", "raw")

    assert [len(line) <= 80 for line in table.out.splitlines()] == [True] * 5
    assert "\x1b" not in table.out
    assert "0:1             2025-10-09 08:53:21" in table.out
    assert raw.out == "x" * 500 + "\n"


def test_tail_joins_no_group(kafka, topic, monkeypatch):
    """`tail` creates no group, even if the environment has group options."""
    monkeypatch.setitem(__import__("os").environ, "TAILRACE_GROUP_ID", kafka.group)
    monkeypatch.setitem(__import__("os").environ, "TAILRACE_ENABLE_AUTO_COMMIT", "true")

    done = kafka.call("tail", topic, "--from", "earliest", "--no-follow")

    assert len(done.lines) == 20
    assert kafka.group not in kafka.groups()


# ---- new records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_new_records_are_printed_until_a_signal(kafka, number, code):
    """`tail` prints new records until SIGINT or SIGTERM, and ends with a complete line."""
    topic = kafka.topic()
    kafka.produce(topic, b"old")
    with tail(kafka, topic, "--from", "earliest") as process:
        seen = [json.loads(process.stdout.readline())["value"]]
        for value in (b"new", b"newer"):
            kafka.produce(topic, value)
            seen.append(json.loads(process.stdout.readline())["value"])
        ended, rest = end(process, number)

    assert seen == ["old", "new", "newer"]
    assert (ended, rest) == (code, "")


@pytest.mark.parametrize("records", [1, 5_000], ids=["before the next write", "while it writes"])
def test_a_closed_pipe_ends_tail_with_exit_code_0(kafka, records):
    """`tail` exits with 0 when its reader closes the pipe, even if no record arrives."""
    topic = kafka.topic()
    kafka.produce(topic, *(b"x" * 100 for _ in range(records)))
    with tail(kafka, topic, "--from", "earliest") as process:
        assert json.loads(process.stdout.readline())["offset"] == 0
        process.stdout.close()

        assert process.wait(60) == 0
        assert process.stderr.read() == ""


# ---- conditions ----------------------------------------------------------------------------------------------------


def test_all_conditions_must_match(kafka, topic):
    """--where compares the key and fields of JSON values, and all conditions must match."""
    done = kafka.call("tail", topic, "--from", "0", "--no-follow", "--where", "key=ann", "--where", "of.partition=1")
    one = kafka.call("tail", topic, "--from", "0", "--where", "n=3", "--where", "key!=ann", "--max", "1")

    assert places(done) == [(1, offset) for offset in range(10)]
    assert places(one) == [(0, 3)]


VALUE = b'{"status": "paid", "n": 3, "ok": true, "none": null, "lines": [{"sku": "a-17"}], "key": "inner", "x": 1.0}'


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("status=paid", True),
        ("status=pai", False),
        ("status!=paid", False),
        ("status~ai", True),
        ("n=3", True),
        ("n=3.0", True),
        ("n=03", False),
        ("x=1", True),
        ("ok=true", True),
        ("ok=1", False),
        ("none=null", True),
        ("absent=null", False),
        ("absent!=1", True),
        ("absent~", False),
        ("lines.0.sku=a-17", True),
        ("lines.1.sku=a-17", False),
        ("lines~17", True),
        ("key=ann", True),
        ("value.key=inner", True),
        ("key~n", True),
        ("header.trace~4b", True),
        ("header.trace=4bf9", True),
        ("header.none=null", True),
        ("header.absent=x", False),
        ("status=a=b", False),
    ],
)
def test_conditions_compare_by_type(condition, holds):
    """A condition compares strings as text and other values as JSON, and a missing field equals nothing."""
    one = record(VALUE, b"ann", headers=[("trace", b"4bf9"), ("none", None)])

    assert matcher([parse_condition(condition)])(one) is holds


def test_values_that_are_not_json_have_no_fields():
    """For a value that is not JSON, only a condition with != matches."""
    for value in (None, b"", b"plain", b"\xff", b"[" * 10_000, b"17"):
        assert not matcher([parse_condition("a=1")])(record(value))
        assert matcher([parse_condition("a!=1")])(record(value))


def test_json_that_is_nested_too_deeply_is_text():
    """JSON that is nested too deeply is treated as text."""
    line = json.loads(writer_of("json")(record(b"[" * 100_000 + b"]" * 100_000)))

    assert line["value_format"] == "text"


@pytest.mark.parametrize("text", ["", "x", "=1", "~"])
def test_malformed_conditions_are_refused(text):
    """A malformed condition is an error with an example."""
    with pytest.raises(argparse.ArgumentTypeError, match="key=ann"):
        parse_condition(text)


# ---- usage errors --------------------------------------------------------------------------------------------------


def test_unknown_topics_and_partitions_are_errors(kafka, topic):
    """A similar topic name is suggested; an unknown partition is named."""
    unknown = kafka.call("tail", f"{topic}x", "--max", "1")
    partition = kafka.call("tail", topic, "--partition", "2")

    assert (unknown.code, partition.code) == (1, 1)
    assert f"did you mean '{topic}'?" in unknown.errors
    assert "has no partition 2" in partition.errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "TOPIC"),
        (["orders", "--from", "yesterday"], "must be earliest, latest"),
        (["orders", "--max", "0"], "must be a positive integer"),
        (["orders", "--where", "paid"], "must be FIELD=VALUE"),
        (["orders", "--partition", "a"], "must be partition numbers"),
        (["orders", "--format", "xml"], "invalid choice"),
    ],
)
def test_usage_errors_exit_with_2(kafka, arguments, message):
    """A usage error exits with 2 and a hint."""
    done = kafka.call("tail", *arguments)

    assert (done.code, done.out) == (2, "")
    assert message in done.errors
