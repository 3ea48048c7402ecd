"""Findings about groups, from facts of one look or two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.core.diagnosis.findings import Finding, Level
from tailrace.core.diagnosis.groups import (
    OLD,
    VERY_OLD,
    Commit,
    GroupFacts,
    MemberFacts,
    PartitionFacts,
    group_findings,
)
from tailrace.core.diagnosis.needs import GroupNeeds
from tailrace.core.diagnosis.wording import CommandLines
from tailrace.records import TopicPartition

APP = GroupNeeds("billing", frozenset({"orders"}), "classic", ("cooperative-sticky",), "tailrace run shop:billing")
NAMED = GroupNeeds("billing")
NORTH, SOUTH = (MemberFacts(name, f"{name} at 10.0.0.1", ("orders",), 1) for name in ("north", "south"))


def partition(number: int = 0, committed: int | None = 10, later: int | None = 10, **more) -> PartitionFacts:
    """Return a partition that ends at offset 10, or at ``later_end`` at the second look."""
    facts = PartitionFacts(
        TopicPartition("orders", number),
        None if committed is None else Commit(committed),
        begin=0,
        end=10,
        later_committed=None if later is None else Commit(later),
        later_end=10,
        owner="north",
        retention_ms=604_800_000,
    )
    return replace(facts, **more)


def group(*partitions: PartitionFacts, **more) -> GroupFacts:
    facts = GroupFacts(
        "billing",
        group_type="classic",
        state="Stable",
        later_state="Stable",
        assignor="cooperative-sticky",
        members=(NORTH,),
        partitions=partitions or (partition(),),
        interval_ms=6_000,
        offsets_retention_ms=604_800_000,
    )
    return replace(facts, **more)


def findings(facts: GroupFacts, need: GroupNeeds = APP) -> list[Finding]:
    found = list(group_findings(facts, need, CommandLines("kafka:9092", principal="User:alice")))
    for one in found:
        assert (one.advice and one.command) or one.level in {Level.OK, Level.SKIPPED}
    return found


def bad(facts: GroupFacts, need: GroupNeeds = APP) -> list[Finding]:
    return [one for one in findings(facts, need) if one.level in {Level.WARNING, Level.PROBLEM}]


def test_a_sound_group_is_one_line():
    """State, protocol, assignor, members and lag."""
    (one,) = findings(group(members=(NORTH, replace(SOUTH, partitions=0))))

    assert (one.level, one.subject) == (Level.OK, "group billing")
    assert one.text == (
        "Stable, classic protocol, cooperative-sticky; 2 members, 1 of them without partitions; lag 0 in 1 partition"
    )


@pytest.mark.parametrize(
    ("later_end", "level", "change"),
    [(25, Level.PROBLEM, "lag of 21 grew by 15"), (10, Level.WARNING, "lag of 6 did not change")],
)
def test_a_member_without_progress_is_stalled(later_end, level, change):
    """A problem while the lag grows, otherwise a warning, for a handler may be slow."""
    (one,) = bad(group(partition(committed=4, later=4, later_end=later_end)))

    assert (one.check, one.level) == ("group.stalled", level)
    assert one.text == f"north at 10.0.0.1 committed nothing in 6 s for orders[0]; its {change}"
    assert one.command == "tailrace lag billing --watch"


def test_progress_in_one_partition_is_progress_of_the_member():
    """Members read their partitions in turn."""
    assert bad(group(partition(0, 4, 4), partition(1, 4, 9))) == []


def test_only_the_stalled_member_is_named():
    """Each member is judged by its own partitions."""
    facts = group(partition(0, 4, 4), partition(1, 4, 9, owner="south"), members=(NORTH, SOUTH))

    assert [one.text.partition(" committed")[0] for one in bad(facts)] == ["north at 10.0.0.1"]


@pytest.mark.parametrize(
    "facts",
    [
        partition(committed=4, later=4, later_end=20, has_same_owner=False),
        partition(committed=4, later=4, later_end=20, owner=""),
        partition(committed=10, later=10, later_end=20),
    ],
    ids=["new owner", "no owner", "nothing to read at the first look"],
)
def test_a_new_or_empty_partition_is_not_reported_as_stalled(facts):
    """A member that was just assigned a partition, or had nothing to read, is not judged."""
    assert "group.stalled" not in {one.check for one in bad(group(facts))}


def test_a_member_seen_once_is_not_reported_as_stalled():
    """Without a second look, progress is unknown."""
    assert bad(group(partition(committed=4, later=None, later_end=None), interval_ms=0, later_state="")) == []


def test_a_record_that_holds_back_the_commit():
    """Tailrace lists later finished records in the metadata, so that the offset stays and the metadata changes."""
    waiting = partition(later_end=12)
    (one,) = bad(group(replace(waiting, committed=Commit(4, "map a"), later_committed=Commit(4, "map b"))))

    assert (one.check, one.level) == ("group.held-back", Level.WARNING)
    assert "waits for an earlier record: offset 4 of orders[0]" in one.text
    assert one.command == "tailrace tail orders --partition 0 --from 4 --max 1"


@pytest.mark.parametrize(
    ("age", "level", "text"),
    [
        (
            OLD,
            Level.WARNING,
            "older than 50% of retention.ms=604800000 (7 d): it may be deleted unread in less than 4 d",
        ),
        (VERY_OLD, Level.PROBLEM, "older than 90% of retention.ms=604800000 (7 d)"),
    ],
)
def test_records_that_are_deleted_before_they_are_read(age, level, text):
    """The age of the oldest unread record is compared with the retention."""
    (one,) = bad(group(partition(committed=4, later=5, age=age)))

    assert (one.check, one.level) == ("group.retention", level)
    assert text in one.text
    assert "retention.ms=1209600000" in one.command


def test_records_that_were_deleted_unread():
    """The number of lost records is given, instead of the age of the oldest one."""
    (one,) = bad(group(partition(committed=4, later=5, begin=8, age=VERY_OLD)))

    assert (one.check, one.level) == ("group.lost", Level.PROBLEM)
    assert one.text == "the log no longer contains 3 records of orders[0] that the group had not read"


def test_a_lag_of_most_of_a_log_with_a_limited_size():
    """The oldest records are deleted first when the log grows."""
    (one,) = bad(group(partition(committed=2, later=3, begin=2, end=10, retention_bytes=1_000_000)))

    assert (one.check, one.level) == ("group.retention-bytes", Level.WARNING)


def test_unassigned_partitions_of_a_stable_group():
    """No member reads them; a group that rebalances is not judged."""
    facts = group(partition(0), partition(1, owner=""))
    (one,) = bad(facts)

    assert (one.check, one.level) == ("group.unassigned", Level.PROBLEM)
    assert one.text.endswith("no member owns 1 partition of the subscribed topics: orders[1]")
    assert bad(replace(facts, later_state="PreparingRebalance")) == []


def test_a_rebalance_that_does_not_end():
    """Both looks find the group in a rebalance."""
    (one,) = bad(group(state="PreparingRebalance", later_state="CompletingRebalance"))

    assert (one.check, one.level) == ("group.rebalancing", Level.WARNING)
    assert "was PreparingRebalance, and 6 s later CompletingRebalance" in one.text


def test_a_group_without_members():
    """Lag, and the time after which its offsets are deleted."""
    (one,) = bad(group(partition(committed=4, later=4, owner=""), members=(), state="Empty", later_state=""))

    assert (one.check, one.level, one.command) == ("group.empty", Level.WARNING, "tailrace run shop:billing")
    assert "lag of 6; its offsets are deleted 7 d after the last member left" in one.text


def test_offsets_that_are_deleted_soon():
    """Less than a day is a warning: a weekend's pause loses the offsets."""
    (one,) = bad(group(offsets_retention_ms=3_600_000))

    assert (one.check, one.level) == ("group.offsets-retention", Level.WARNING)
    assert one.text.startswith("offsets.retention.minutes=60: after 1 h without members")


def test_members_with_another_assignor():
    """The app could not join."""
    (one,) = bad(group(assignor="range"))

    assert (one.check, one.level) == ("group.assignor", Level.PROBLEM)
    assert "use the assignor 'range', the app has cooperative-sticky" in one.text
    assert bad(group(assignor="range"), NAMED) == []


def test_members_with_another_protocol():
    """The group is converted, if the brokers permit it."""
    (one,) = bad(group(), replace(APP, group_protocol="consumer"))

    assert (one.check, one.level) == ("group.protocol", Level.WARNING)


def test_members_that_read_other_topics():
    """An older version of the app, or two apps in one group."""
    (one,) = bad(group(members=(replace(NORTH, topics=("clicks", "orders")),)), replace(APP, topics=frozenset({"new"})))

    assert one.text == "no member subscribes to new, which the app reads; the members subscribe to clicks, orders"
    assert bad(group(has_pattern=True), replace(APP, topics=frozenset({"new"}))) == []


def test_missing_groups():
    """An app creates its group; a group named on the command line has to exist."""
    missing = GroupFacts("billing", is_missing=True, similar="billing-2")

    assert [one.level for one in findings(missing)] == [Level.OK]
    (one,) = findings(missing, NAMED)
    assert (one.level, one.text) == (
        Level.PROBLEM,
        "does not exist, or its offsets have expired; billing-2 exists",
    )


def test_groups_that_cannot_be_checked():
    """A missing permission, no answer, and groups of other kinds."""
    (forbidden,) = findings(GroupFacts("billing", is_forbidden=True))
    (silent,) = findings(GroupFacts("billing", failure="no answer within 10 s"))
    (connect,) = findings(group(protocol_type="connect"))

    assert forbidden.command.endswith("--operation Read --group billing")
    assert (silent.level, silent.text) == (Level.PROBLEM, "not checked: no answer within 10 s")
    assert "protocol type 'connect'" in connect.text


def test_missing_permission_to_read():
    """Describe alone does not permit to join."""
    (one,) = bad(group(operations=1 << 8))

    assert one.text == "User:alice is not authorized to Read this group, only to Describe"


def test_partial_facts_are_skipped_with_their_reason():
    """The rest is judged."""
    found = findings(group(problems={"lag": "the leaders of 3 partitions did not answer"}))

    assert [(one.level, one.text) for one in found[1:]] == [
        (Level.SKIPPED, "lag not checked: the leaders of 3 partitions did not answer")
    ]
