"""Findings about groups, from facts of one look or of two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.admin.diagnosis.findings import CommandLines, Finding, GroupNeeds, Level
from tailrace.admin.diagnosis.group_findings import (
    OLD,
    VERY_OLD,
    Commit,
    GroupFacts,
    MemberFacts,
    PartitionFacts,
    group_findings,
)
from tailrace.records import TopicPartition

APP = GroupNeeds("billing", frozenset({"orders"}), "classic", ("cooperative-sticky",), "tailrace run shop:billing")
NAMED = GroupNeeds("billing")
NORTH, SOUTH = (MemberFacts(name, f"{name} at 10.0.0.1", ("orders",), 1) for name in ("north", "south"))


def partition(number: int = 0, committed: int | None = 10, later: int | None = 10, **more) -> PartitionFacts:
    """Return a partition whose end offset is 10, or ``later_end`` at the second look."""
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
    """A sound group is one line with state, protocol, assignor, members and lag."""
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
    """A member that commits nothing is a problem while its lag grows, and otherwise a warning."""
    (one,) = bad(group(partition(committed=4, later=4, later_end=later_end)))

    assert (one.check, one.level) == ("group.stalled", level)
    assert one.text == f"north at 10.0.0.1 committed nothing in 6 s for orders[0]; its {change}"
    assert one.command == "tailrace lag billing --watch"


def test_progress_in_one_partition_is_progress_of_the_member():
    """A member with progress in one partition is not stalled in others, as it reads partitions in turn."""
    assert bad(group(partition(0, 4, 4), partition(1, 4, 9))) == []


def test_only_the_stalled_member_is_named():
    """If several members read, only those without progress are named."""
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
    """A partition that was just assigned, has no owner or had nothing to read is not reported as stalled."""
    assert "group.stalled" not in {one.check for one in bad(group(facts))}


def test_a_member_seen_once_is_not_reported_as_stalled():
    """After a single look no member is reported as stalled."""
    assert bad(group(partition(committed=4, later=None, later_end=None), interval_ms=0, later_state="")) == []


def test_a_record_that_holds_back_the_commit_is_named():
    """If the committed offset stays and its offset map changes, the record at that offset is named."""
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
def test_records_close_to_deletion_are_reported(age, level, text):
    """Unread records are a warning from half of the retention on, and a problem from nine tenths on."""
    (one,) = bad(group(partition(committed=4, later=5, age=age)))

    assert (one.check, one.level) == ("group.retention", level)
    assert text in one.text
    assert "retention.ms=1209600000" in one.command


def test_records_deleted_unread_are_counted():
    """Records that were deleted unread are a problem, with their number."""
    (one,) = bad(group(partition(committed=4, later=5, begin=8, age=VERY_OLD)))

    assert (one.check, one.level) == ("group.lost", Level.PROBLEM)
    assert one.text == "the log no longer contains 3 records of orders[0] that the group had not read"


def test_a_lag_of_most_of_a_limited_log_is_a_warning():
    """A lag of most of a log with limited size is a warning, since its oldest records are deleted as it grows."""
    (one,) = bad(group(partition(committed=2, later=3, begin=2, end=10, retention_bytes=1_000_000)))

    assert (one.check, one.level) == ("group.retention-bytes", Level.WARNING)


def test_unassigned_partitions_are_a_problem_of_a_stable_group():
    """Partitions without an owner are a problem of a stable group, and not reported during a rebalance."""
    facts = group(partition(0), partition(1, owner=""))
    (one,) = bad(facts)

    assert (one.check, one.level) == ("group.unassigned", Level.PROBLEM)
    assert one.text.endswith("no member owns 1 partition of the subscribed topics: orders[1]")
    assert bad(replace(facts, later_state="PreparingRebalance")) == []


def test_a_long_rebalance_is_a_warning():
    """A group that rebalances at both looks is a warning."""
    (one,) = bad(group(state="PreparingRebalance", later_state="CompletingRebalance"))

    assert (one.check, one.level) == ("group.rebalancing", Level.WARNING)
    assert "was PreparingRebalance, and 6 s later CompletingRebalance" in one.text


def test_a_group_without_members_is_a_warning():
    """A group without members is a warning, with its lag and the time after which its offsets are deleted."""
    (one,) = bad(group(partition(committed=4, later=4, owner=""), members=(), state="Empty", later_state=""))

    assert (one.check, one.level, one.command) == ("group.empty", Level.WARNING, "tailrace run shop:billing")
    assert "lag of 6; its offsets are deleted 7 d after the last member left" in one.text


def test_a_short_offsets_retention_is_a_warning():
    """A retention of offsets of less than a day is a warning, since a pause over a weekend loses them."""
    (one,) = bad(group(offsets_retention_ms=3_600_000))

    assert (one.check, one.level) == ("group.offsets-retention", Level.WARNING)
    assert one.text.startswith("offsets.retention.minutes=60: after 1 h without members")


def test_members_with_another_assignor_are_a_problem():
    """Members with an assignor that the app does not have are a problem, as the app cannot join."""
    (one,) = bad(group(assignor="range"))

    assert (one.check, one.level) == ("group.assignor", Level.PROBLEM)
    assert "use the assignor 'range', the app has cooperative-sticky" in one.text
    assert bad(group(assignor="range"), NAMED) == []


def test_members_with_another_protocol_are_a_warning():
    """Members with another group protocol than the app's are a warning."""
    (one,) = bad(group(), replace(APP, group_protocol="consumer"))

    assert (one.check, one.level) == ("group.protocol", Level.WARNING)


def test_a_topic_that_no_member_reads_is_reported():
    """A topic of the app to which no member subscribes is reported, unless members subscribe by pattern."""
    (one,) = bad(group(members=(replace(NORTH, topics=("clicks", "orders")),)), replace(APP, topics=frozenset({"new"})))

    assert one.text == "no member subscribes to new, which the app reads; the members subscribe to clicks, orders"
    assert bad(group(has_pattern=True), replace(APP, topics=frozenset({"new"}))) == []


def test_a_missing_group_is_a_problem_if_it_was_named():
    """A missing group is a problem if it was named on the command line; an app creates its own group."""
    missing = GroupFacts("billing", is_missing=True, similar="billing-2")

    assert [one.level for one in findings(missing)] == [Level.OK]
    (one,) = findings(missing, NAMED)
    assert (one.level, one.text) == (
        Level.PROBLEM,
        "does not exist, or its offsets have expired; billing-2 exists",
    )


def test_groups_that_cannot_be_checked_are_reported():
    """A group without permission, without an answer or of another kind is reported with the reason."""
    (forbidden,) = findings(GroupFacts("billing", is_forbidden=True))
    (silent,) = findings(GroupFacts("billing", failure="no answer within 10 s"))
    (connect,) = findings(group(protocol_type="connect"))

    assert forbidden.command.endswith("--operation Read --group billing")
    assert (silent.level, silent.text) == (Level.PROBLEM, "not checked: no answer within 10 s")
    assert "protocol type 'connect'" in connect.text


def test_a_missing_permission_to_read_is_reported():
    """A group that may be described but not read is reported, as reading is required to join."""
    (one,) = bad(group(operations=1 << 8))

    assert one.text == "User:alice is not authorized to Read this group, only to Describe"


def test_partial_facts_are_skipped_with_their_reason():
    """Facts that are missing are one skipped check with the reason, and the other checks are made."""
    found = findings(group(problems={"lag": "the leaders of 3 partitions did not answer"}))

    assert [(one.level, one.text) for one in found[1:]] == [
        (Level.SKIPPED, "lag not checked: the leaders of 3 partitions did not answer")
    ]
