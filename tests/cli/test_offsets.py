"""`tailrace offsets`: show, reset and delete committed offsets."""

from __future__ import annotations

import argparse
import os

import pytest

from tailrace.cli.entry import main
from tailrace.cli.options import parse_duration, parse_time
from tailrace.cli.output import iso_text, utc_text
from tailrace.cli.tail import TailStart, parse_start

NOON_MS = 1_760_000_000_000


@pytest.fixture
def topic(kafka) -> str:
    """Create two partitions of ten records, a second apart, with committed offsets 4 and 7."""
    name = kafka.topic(2)
    for partition in range(2):
        kafka.produce(name, *(b"%d" % n for n in range(10)), partition=partition, since_ms=NOON_MS)
    kafka.commit(name, {0: 4, 1: 7})
    return name


# ---- show ----------------------------------------------------------------------------------------------------------


def test_show_prints_committed_offsets(kafka, topic):
    """`show` prints committed offsets with their metadata."""
    plain, of_json = kafka.call("offsets", "show", kafka.group), kafka.call("offsets", "show", kafka.group, "--json")

    assert (plain.code, plain.fits) == (0, True)
    assert f"offsets 2 partitions of group {kafka.group}" in plain.words
    assert [(one["partition"], one["offset"], one["finished_beyond"], one["text"]) for one in of_json.lines] == [
        (0, 4, 0, ""),
        (1, 7, 0, ""),
    ]


def test_metadata_is_truncated_on_a_screen_and_complete_in_a_pipe(kafka, topic, monkeypatch):
    """Long metadata are truncated on a screen and complete in a pipe, and equal ones are printed once."""
    text = f"spark query={'6c2c' * 10} batch=17"
    kafka.commit(topic, {0: 4, 1: 7}, text=text)
    same = kafka.call("offsets", "show", kafka.group)
    kafka.commit(topic, {0: 4}, text="mine")
    screen = kafka.call("offsets", "show", kafka.group)
    monkeypatch.delitem(os.environ, "COLUMNS")
    pipe = kafka.call("offsets", "show", kafka.group)

    assert same.fits
    assert same.out.count("spark query") == 1
    assert f"metadata {text} (the same for all partitions)" in same.words
    assert screen.fits
    assert [line.rstrip()[-1] for line in screen.out.splitlines() if line.startswith(topic[:8])] == ["e", "…"]
    assert [line.rpartition("   ")[2] for line in pipe.out.splitlines()[1:3]] == ["mine", text]


def test_a_group_without_committed_offsets_is_no_error(kafka):
    """A group with members and without committed offsets is not an error."""
    with kafka.member(kafka.topic()):
        assert "has no committed offsets" in kafka.call("offsets", "show", kafka.group).words


# ---- reset ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "new"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 10, 1: 10}),
        (["--to-offset", "6"], {0: 6, 1: 6}),
        (["--to-datetime", "2025-10-09T08:53:23"], {0: 3, 1: 3}),
        (["--to-datetime", "2025-10-09T10:53:23.5+02:00"], {0: 4, 1: 4}),
        (["--to-datetime", "2096-01-01"], {0: 10, 1: 10}),
        (["--by-duration", "1h"], {0: 10, 1: 10}),
        (["--by-duration", "P3000D"], {0: 0, 1: 0}),
        (["--shift-by", "-5"], {0: 0, 1: 2}),
        (["--shift-by", "1"], {0: 5, 1: 8}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_offsets_are_reset_only_with_execute(kafka, topic, arguments, new):
    """`reset` prints the plan, and commits the offsets only with --execute."""
    shown = kafka.call("offsets", "reset", kafka.group, "--topic", topic, *arguments)
    before = kafka.committed(topic)
    done = kafka.call("offsets", "reset", kafka.group, "--topic", topic, *arguments, "--execute", "--json")

    assert (shown.code, done.code, shown.fits) == (0, 0, True)
    assert "dry run nothing changed - add --execute to reset 2 partitions" in shown.words
    assert before == {0: 4, 1: 7}
    assert {one["partition"]: (one["old"], one["new"], one["executed"]) for one in done.lines} == {
        partition: ({0: 4, 1: 7}[partition], offset, True) for partition, offset in new.items()
    }
    assert kafka.committed(topic) == new


def test_a_target_after_the_end_is_moved_and_noted(kafka, topic):
    """An offset after the end of the log becomes its end, and the plan notes it."""
    done = kafka.call("offsets", "reset", kafka.group, "--all-topics", "--to-offset", "99", "--execute")

    assert "99 is after the log; its end is used" in done.words
    assert (done.code, done.fits) == (0, True)
    assert kafka.committed(topic) == {0: 10, 1: 10}


def test_single_partitions_are_reset(kafka, topic):
    """TOPIC:P resets only that partition."""
    done = kafka.call("offsets", "reset", kafka.group, "--topic", f"{topic}:1", "--to-earliest", "--execute")

    assert done.code == 0
    assert f"reset 1 partition of group {kafka.group}" in done.words
    assert kafka.committed(topic) == {0: 4, 1: 0}


def test_a_group_with_live_members_is_not_reset(kafka, topic):
    """`reset` of a group with live members exits with 1 and names the member, with or without --execute."""
    arguments = ["offsets", "reset", kafka.group, "--topic", topic, "--to-earliest"]
    with kafka.member(topic):
        shown, refused = kafka.call(*arguments), kafka.call(*arguments, "--execute")
        assert kafka.committed(topic) == {0: 4, 1: 7}
    done = kafka.call(*arguments, "--execute")

    assert (shown.code, refused.code, done.code) == (1, 1, 0)
    assert "1 live member: north at 127.0.0.1 - stop them" in shown.errors
    assert "1 live member: north at 127.0.0.1 - stop them" in refused.errors
    assert "dry run" in shown.out
    assert not refused.out
    assert kafka.committed(topic) == {0: 0, 1: 0}


def test_reset_creates_a_new_group(kafka, topic):
    """`reset` creates a group that does not exist, with the target offsets."""
    group = f"{kafka.group}-new"

    done = kafka.call("offsets", "reset", group, "--topic", topic, "--to-offset", "3", "--execute")

    assert f"{group} was created" in done.words
    assert kafka.committed(topic, group) == {0: 3, 1: 3}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--to-earliest"], 2, "a topic is required: give --topic or --all-topics"),
        (["--topic", "x"], 2, "--to-earliest"),
        (["--topic", "x", "--to-earliest", "--to-latest"], 2, "not allowed with"),
        (["--topic", "x", "--all-topics", "--to-latest"], 2, "exclude each other"),
        (["--topic", "x:a", "--to-latest"], 2, "such as orders:0,3, not 'x:a'"),
        (["--topic", "x", "--to-offset", "-1"], 2, "must be an offset from 0 to"),
        (["--topic", "x", "--to-offset", str(1 << 63)], 2, "must be an offset from 0 to"),
        (["--topic", "x", "--shift-by", "0"], 2, "must be an integer other than 0"),
        (["--topic", "x", "--by-duration", "PT"], 2, "must be a duration"),
        (["--topic", "x", "--by-duration", "an hour"], 2, "must be a duration"),
        (["--topic", "x", "--by-duration", "99999d"], 1, "from 0 to the time since 1970"),
        (["--topic", "x", "--to-datetime", "tomorrow"], 2, "must be a time"),
        (["--topic", "x", "--to-datetime", "1066-10-14"], 2, "must be a time"),
        (["--topic", "there-is-no-such-topic", "--to-latest"], 1, "there is no topic"),
        (["--topic", "no/topic", "--to-latest"], 2, "is not a legal topic name"),
        (["--all-topics", "--to-latest"], 1, "has no committed offsets"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_resets_change_nothing(kafka, arguments, code, message):
    """`reset` exits with 2 for malformed arguments and with 1 for unknown names, and changes nothing."""
    done = kafka.call("offsets", "reset", kafka.group, *arguments, "--execute")

    assert (done.code, done.out) == (code, "")
    assert message in done.errors
    assert "Traceback" not in done.errors


# ---- delete --------------------------------------------------------------------------------------------------------


def test_offsets_are_deleted_only_with_execute(kafka, topic):
    """`delete` prints the offsets, and deletes the named ones only with --execute."""
    shown = kafka.call("offsets", "delete", kafka.group, "--topic", f"{topic}:1")
    before = kafka.committed(topic)
    done = kafka.call("offsets", "delete", kafka.group, "--topic", f"{topic}:1", "--execute")
    again = kafka.call("offsets", "delete", kafka.group, "--topic", f"{topic}:1", "--execute")

    assert (shown.code, done.code, again.code) == (0, 0, 1)
    assert "delete 1 offset" in shown.words
    assert before == {0: 4, 1: 7}
    assert kafka.committed(topic) == {0: 4}
    assert "has no committed offsets of" in again.errors


def test_offsets_of_a_live_member_are_not_deleted(kafka, topic):
    """`delete` names the live member of the group and deletes nothing."""
    with kafka.member(topic):
        done = kafka.call("offsets", "delete", kafka.group, "--topic", topic, "--execute")
        assert kafka.committed(topic) == {0: 4, 1: 7}

    assert (done.code, done.out) == (1, "")
    assert "north at 127.0.0.1" in done.errors


# ---- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("30m", 1_800),
        ("1h", 3_600),
        ("1h30m", 5_400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("0.5s", 0.5),
        ("PT1H", 3_600),
        ("pt90s", 90),
        ("P1D", 86_400),
        ("P1DT2H3M4.5S", 93_784.5),
        ("P2W", 1_209_600),
    ],
)
def test_durations_are_parsed(text, seconds):
    """ISO 8601 durations and short forms are parsed."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("action", [["reset", "--to-earliest"], ["delete"]])
def test_an_illegal_topic_name_is_a_usage_error_without_a_broker(action, capsys):
    """An illegal topic name is a usage error that needs no broker."""
    name, *target = action
    with pytest.raises(SystemExit, match="2"):
        main(["offsets", name, "billing", "--topic", "bad topic", *target, "--bootstrap-servers", "127.0.0.1:1"])

    assert "'bad topic' is not a legal topic name" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1", "h", "1x", "-1h", "1m1h", "P1H", "1 h", "one hour", "1e3s"]
)
def test_malformed_durations_are_refused(text):
    """The error has examples of durations."""
    with pytest.raises(argparse.ArgumentTypeError, match="PT1H"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", TailStart("earliest")),
        ("latest", TailStart("latest")),
        ("0", TailStart("offset", 0)),
        ("1200", TailStart("offset", 1_200)),
        ("-10", TailStart("last", 10)),
        ("1h", TailStart("ago", 3_600)),
        ("2025-10-09T08:53:20", TailStart("time", NOON_MS)),
        ("2025-10-09T10:53:20+02:00", TailStart("time", NOON_MS)),
    ],
)
def test_starts_are_parsed(text, start):
    """A start is parsed as an end, an offset, a count from the end, a time or an age."""
    assert parse_start(text) == start


def test_times_are_formatted_in_utc():
    """Times are formatted for people and programs; numbers out of range stay numbers."""
    assert (utc_text(NOON_MS), iso_text(NOON_MS + 7)) == ("2025-10-09 08:53:20", "2025-10-09T08:53:20.007Z")
    assert parse_time(iso_text(NOON_MS + 7)) == NOON_MS + 7
    assert (utc_text(-1), iso_text(1 << 60)) == ("-1 ms", f"{1 << 60} ms")
