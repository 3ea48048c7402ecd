"""`tailrace tail`: records of a topic, from anywhere in it, for people, programs and pipes."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess

import pytest

from tailrace.cli.tools.filters import matcher, parse_condition
from tailrace.cli.tools.record_lines import writer_of
from tailrace.records import Record
from tests.support.commands import COMMAND, end, environment

NOON_MS = 1_760_000_000_000


def record(value: bytes | None = b"", key: bytes | None = None, **more) -> Record:
    return Record("orders", 0, 7, key, value, NOON_MS, **more)


@pytest.fixture
def topic(kafka) -> str:
    """Ten records in each of two partitions, a second apart."""
    name = kafka.topic(2)
    for partition in range(2):
        values = [b'{"n": %d, "of": {"partition": %d}}' % (n, partition) for n in range(10)]
        kafka.produce(name, *values, partition=partition, since_ms=NOON_MS, key=b"ann" if partition else b"bob")
    return name


def places(done) -> list[tuple[int, int]]:
    return sorted((one["partition"], one["offset"]) for one in done.lines)


def tail(kafka, *arguments: str) -> subprocess.Popen[str]:
    """One that follows, in a process of its own."""
    return subprocess.Popen(
        [*COMMAND, "tail", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(TAILRACE_BOOTSTRAP_SERVERS=kafka.bootstrap_servers),
    )


# ---- where it begins and ends --------------------------------------------------------------------------------------


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
def test_it_begins_anywhere(kafka, topic, start, offsets):
    """At an end, an offset, so many before the end, a time, how long ago; a time to come is the end."""
    done = kafka.call("tail", topic, "--from", start, "--no-follow")

    assert done.code == 0
    assert places(done) == [(partition, offset) for partition in range(2) for offset in offsets]


def test_it_keeps_to_its_partitions_and_its_number(kafka, topic):
    """--partition and --max bound what is printed."""
    done = kafka.call("tail", topic, "--from", "earliest", "--partition", "1", "--max", "4")

    assert places(done) == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_records_are_whole(kafka):
    """JSON stands in its line as it is, text as text, bytes in hex, and null is null; so do keys and headers."""
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


def test_a_table_fits_and_steers_no_terminal(kafka):
    """Whatever is in the records, a row is a line of at most 80 columns; raw values are what they were."""
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


def test_looking_leaves_nothing_behind(kafka, topic, monkeypatch):
    """Whatever the environment says of a group, none is joined, made or committed for."""
    monkeypatch.setitem(__import__("os").environ, "TAILRACE_GROUP_ID", kafka.group)
    monkeypatch.setitem(__import__("os").environ, "TAILRACE_ENABLE_AUTO_COMMIT", "true")

    done = kafka.call("tail", topic, "--from", "earliest", "--no-follow")

    assert len(done.lines) == 20
    assert kafka.group not in kafka.groups()


# ---- following -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_follows_until_a_signal(kafka, number, code):
    """What comes is printed as it comes; Ctrl-C and SIGTERM end it with whole lines and without a complaint."""
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
def test_it_ends_with_its_reader(kafka, records):
    """`| head -1`: when nobody reads any more, it ends with 0, also where no record comes that it could write."""
    topic = kafka.topic()
    kafka.produce(topic, *(b"x" * 100 for _ in range(records)))
    with tail(kafka, topic, "--from", "earliest") as process:
        assert json.loads(process.stdout.readline())["offset"] == 0
        process.stdout.close()

        assert process.wait(60) == 0
        assert process.stderr.read() == ""


# ---- conditions ----------------------------------------------------------------------------------------------------


def test_only_what_is_asked_for(kafka, topic):
    """All conditions have to hold; they are asked of the key and of the fields of JSON."""
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
def test_a_condition_holds_or_not(condition, holds):
    """Text is compared as text, numbers, true, false and null as JSON; what is not there equals nothing."""
    one = record(VALUE, b"ann", headers=[("trace", b"4bf9"), ("none", None)])

    assert matcher([parse_condition(condition)])(one) is holds


def test_what_is_no_json_has_no_fields():
    """No condition on a field holds for other bytes, but for those that say what it is not."""
    for value in (None, b"", b"plain", b"\xff", b"[" * 10_000, b"17"):
        assert not matcher([parse_condition("a=1")])(record(value))
        assert matcher([parse_condition("a!=1")])(record(value))


def test_json_that_nests_too_deep_is_written_as_text():
    """It is written all the same, and ends no reading."""
    line = json.loads(writer_of("json")(record(b"[" * 10_000 + b"]" * 10_000)))

    assert line["value_format"] == "text"


@pytest.mark.parametrize("text", ["", "x", "=1", "~"])
def test_what_is_no_condition_is_refused(text):
    """With examples of what is."""
    with pytest.raises(argparse.ArgumentTypeError, match="key=ann"):
        parse_condition(text)


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_told(kafka, topic):
    """With the name that was probably meant; the number of a partition, too."""
    unknown = kafka.call("tail", f"{topic}x", "--max", "1")
    partition = kafka.call("tail", topic, "--partition", "2")

    assert (unknown.code, partition.code) == (1, 1)
    assert f"did you mean '{topic}'?" in unknown.errors
    assert "has no partition 2" in partition.errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "TOPIC"),
        (["orders", "--from", "yesterday"], "must be earliest, latest"),
        (["orders", "--max", "0"], "must be a positive integer"),
        (["orders", "--where", "paid"], "must be FIELD=VALUE"),
        (["orders", "--partition", "a"], "must be partition numbers"),
        (["orders", "--format", "xml"], "invalid choice"),
    ],
)
def test_a_wrong_call_is_told(kafka, arguments, said):
    """It ends with 2 and says what is right."""
    done = kafka.call("tail", *arguments)

    assert (done.code, done.out) == (2, "")
    assert said in done.errors
