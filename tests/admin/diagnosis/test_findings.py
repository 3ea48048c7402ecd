"""Exit codes of findings, and texts of commands."""

from __future__ import annotations

import pytest

from tailrace.admin.diagnosis.findings import CommandLines, Finding, Level, duration, exit_code, named


def of(level: Level) -> Finding:
    return Finding("check", level, "subject", "text")


@pytest.mark.parametrize(
    ("levels", "strict", "code"),
    [
        ([], True, 0),
        ([Level.OK, Level.SKIPPED], True, 0),
        ([Level.WARNING], False, 0),
        ([Level.WARNING], True, 1),
        ([Level.WARNING, Level.PROBLEM, Level.OK], False, 2),
        ([Level.PROBLEM], True, 2),
    ],
)
def test_problems_exit_with_2_and_warnings_with_1_only_if_strict(levels, strict, code):
    """The exit code is 2 for a problem, 1 for a warning if strict, and otherwise 0, also for a skipped check."""
    assert exit_code(map(of, levels), strict=strict) == code


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0.4, "0.4 ms"),
        (250, "250 ms"),
        (90_000, "90 s"),
        (60_000, "1 min"),
        (5_400_000, "90 min"),
        (604_800_000, "7 d"),
        (129_600_000, "36 h"),
        (-3_000, "-3 s"),
    ],
)
def test_durations_have_one_unit(milliseconds, text):
    """A duration is shown in the largest unit in which it is exact or at least two."""
    assert duration(milliseconds) == text


def test_long_lists_are_shortened():
    """A long list shows some names and the number of the others."""
    assert named(["a", "b"]) == "a, b"
    assert named(range(10_000)) == "0, 1, 2, 3 and 9,996 more"


def test_commands_reach_the_same_cluster():
    """Commands of Kafka's tools have address and security settings, and tailrace's have the arguments of this one."""
    plain = CommandLines("b:9092", "--app shop:billing")
    secure = CommandLines("b:9092", client_config=True, principal="User:alice")

    assert plain.tailrace("lag", "a group") == "tailrace lag 'a group' --app shop:billing"
    assert plain.set_topic("orders", "retention.ms=-1") == (
        "kafka-configs.sh --bootstrap-server b:9092 --alter --entity-type topics --entity-name orders --add-config"
        " retention.ms=-1"
    )
    assert secure.allow("Read", "group", "billing; rm -rf /") == (
        "kafka-acls.sh --bootstrap-server b:9092 --command-config client.properties --add --allow-principal User:alice"
        " --operation Read --group 'billing; rm -rf /'"
    )
    assert secure.allow("Create", "cluster", "").endswith("--operation Create --cluster")
