"""`tailrace groups`: list, show and delete."""

from __future__ import annotations

import os

import pytest

from tailrace.cli.groups import partition_ranges
from tailrace.records import TopicPartition


def test_list_prints_state_type_and_members(kafka):
    """`list` prints state, type and number of members of each group within 80 columns."""
    topic = kafka.topic(2)
    kafka.commit(topic, {0: 0}, group=f"{kafka.group}-idle-{'x' * 60}")
    with kafka.member(topic):
        plain, of_json = kafka.call("groups"), kafka.call("groups", "list", "--json")

    found = {one["group"]: one for one in of_json.lines if one["group"].startswith(kafka.group)}
    assert (plain.code, of_json.code) == (0, 0)
    assert plain.fits
    assert f"{kafka.group} Stable classic 1" in plain.words
    assert found.keys() <= kafka.groups()
    assert {(one["state"], one["type"], one["members"]) for one in found.values()} == {
        ("Stable", "classic", 1),
        ("Empty", "classic", 0),
    }


def test_show_prints_members_and_partitions(kafka):
    """`show` prints client, host and partitions of each member, and --json has all fields."""
    topic = kafka.topic(3)
    with kafka.member(topic):
        plain, of_json = kafka.call("groups", "show", kafka.group), kafka.call("groups", "show", kafka.group, "--json")

    (shown,) = of_json.lines
    (member,) = shown["members"]
    assert (plain.code, plain.fits) == (0, True)
    assert "members 1" in plain.words
    assert topic in plain.out.replace("\n", "")
    assert (member["client_id"], member["host"], member["topics"]) == ("north", "127.0.0.1", [topic])
    assert member["partitions"] == [{"topic": topic, "partition": number} for number in range(3)]
    assert (shown["state"], shown["type"]) == ("Stable", "classic")
    assert shown["coordinator"] == kafka.bootstrap_servers


def test_a_similar_group_name_is_suggested(kafka):
    """An unknown group is one error line with a similar name."""
    kafka.commit(kafka.topic(), {0: 0})

    done = kafka.call("groups", "show", f"{kafka.group}s")

    assert (done.code, done.out) == (1, "")
    assert f"did you mean '{kafka.group}'?" in done.errors
    assert done.errors.count("\n") == 1


def test_groups_are_deleted_all_or_none(kafka):
    """`delete` deletes no group if one has members or is unknown, or without --execute."""
    topic = kafka.topic()
    other = f"{kafka.group}-other"
    kafka.commit(topic, {0: 0}, group=other)
    with kafka.member(topic):
        refused = kafka.call("groups", "delete", other, kafka.group, "--execute")
        unknown = kafka.call("groups", "delete", other, f"{kafka.group}-nowhere", "--execute")
        assert {other, kafka.group} <= kafka.groups()
    shown = kafka.call("groups", "delete", other, kafka.group)
    still = kafka.call("groups", "show", other)
    done = kafka.call("groups", "delete", other, kafka.group, "--execute")

    assert (refused.code, unknown.code, done.code) == (1, 1, 0)
    assert "1 live member: north at 127.0.0.1 - stop them" in refused.errors
    assert "there is no group" in unknown.errors
    assert f"deleted {other}, with 1 committed offset" in done.words
    assert "dry run nothing changed - add --execute to delete 2 groups" in shown.words
    assert still.code == 0
    assert not {other, kafka.group} & kafka.groups()


def test_brokers_come_from_argument_set_or_environment(kafka, monkeypatch):
    """--bootstrap-servers, --set and the environment select the brokers."""
    assert kafka.call("groups", "--json").code == 0
    monkeypatch.delitem(os.environ, "TAILRACE_BOOTSTRAP_SERVERS")
    for arguments in (
        ["--bootstrap-servers", kafka.bootstrap_servers],
        ["--set", f"bootstrap_servers={kafka.bootstrap_servers}"],
    ):
        assert kafka.call("groups", "--json", *arguments).code == 0
    nowhere = kafka.call("groups")

    assert nowhere.code == 1
    assert "TAILRACE_BOOTSTRAP_SERVERS" in nowhere.errors


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["groups", "delete"], 2, "GROUP"),
        (["groups", "shwo"], 2, "invalid choice"),
        (["groups", "show"], 2, "a group is required"),
        (["groups", "--timeout", "0"], 2, "greater than 0"),
        (["groups", "--set", "group_id"], 1, "OPTION=VALUE"),
        (["groups", "--set", "grup_id=x"], 1, "did you mean 'group_id'?"),
        (["groups", "--app", "nowhere:app"], 1, "there is no module 'nowhere'"),
    ],
)
def test_usage_errors_exit_with_2_and_failures_with_1(kafka, arguments, code, message):
    """Usage errors exit with 2 and failures with 1, without output on stdout."""
    done = kafka.call(*arguments)

    assert (done.code, done.out) == (code, "")
    assert message in done.errors


def test_tables_are_plain_without_rich(kafka, monkeypatch):
    """Without rich, tables are columns of text."""
    kafka.commit(kafka.topic(), {0: 0})
    monkeypatch.setitem(__import__("sys").modules, "tailrace.cli.screen", None)

    done = kafka.call("groups")

    assert done.code == 0
    assert f"{kafka.group} Empty classic 0" in done.words


def test_consecutive_partitions_are_ranges():
    """Consecutive partitions are printed as a range."""
    of_orders = [TopicPartition("orders", n) for n in (0, 1, 2, 3, 7, 9, 10)]

    assert partition_ranges([TopicPartition("payments", 1), *of_orders]) == "orders 0-3, 7, 9-10; payments 1"
    assert not partition_ranges([])
