"""`tailrace lag`: lag of a group, once or repeatedly."""

from __future__ import annotations

import io
import json
import signal
import subprocess

import pytest
from confluent_kafka import Consumer
from rich.console import Console

from tailrace import TopicPartition
from tailrace.admin.offsets import GroupOffset, PartitionLag
from tailrace.cli.lag import _COLUMNS, _select_for_height
from tailrace.cli.output import rich_table
from tests.support.commands import COMMAND, end, environment

APP = """
from tailrace import App

billing = App(group_id="{group}", bootstrap_servers="{servers}")
audit = App(bootstrap_servers="{servers}")


@audit.handler("orders", group_id="one")
async def first(value: bytes) -> None: ...


@audit.handler("orders", group_id="two")
async def second(value: bytes) -> None: ...
"""


@pytest.fixture
def topic_with_lag(kafka) -> str:
    """Create a topic with a lag of 3 in one partition and no committed offset in the other."""
    topic = kafka.topic(2)
    kafka.produce(topic, *(b"%d" % n for n in range(5)))
    kafka.commit(topic, {0: 2})
    return topic


def test_lag_is_printed_by_partition_and_in_total(kafka, topic_with_lag):
    """A partition without a committed offset has no lag and is counted separately."""
    plain, of_json = kafka.call("lag", kafka.group), kafka.call("lag", kafka.group, "--json")

    assert (plain.code, of_json.code, plain.fits) == (0, 0, True)
    assert "lag 3 in 2 partitions, 1 of them without a committed offset" in plain.words
    assert [(one["topic"], one["partition"], one["committed"], one["end"], one["lag"]) for one in of_json.lines] == [
        (topic_with_lag, 0, 2, 5, 3),
        (topic_with_lag, 1, None, 0, None),
    ]


def test_lag_names_the_member_of_a_partition(kafka, topic_with_lag):
    """`lag` prints the member to which a partition is assigned."""
    with kafka.member(topic_with_lag):
        plain, of_json = kafka.call("lag", kafka.group), kafka.call("lag", kafka.group, "--json")

    assert {one["client_id"] for one in of_json.lines} == {"north"}
    assert "north at" in plain.out
    assert plain.fits


def test_lost_records_are_counted(kafka, topic_with_lag):
    """`lag` counts records that were deleted before they were read."""
    kafka.server.delete_records(topic_with_lag, {0: 4})

    assert "lost 2 records of the lag were deleted from the log" in kafka.call("lag", kafka.group).words
    assert kafka.call("lag", kafka.group, "--json").lines[0]["lost"] == 2


def test_group_comes_from_app_or_environment(kafka, topic_with_lag, tmp_path, monkeypatch):
    """--app or the environment provides the group, and an app with several groups is an error."""
    (tmp_path / "shop_of_lag.py").write_text(APP.format(group=kafka.group, servers=kafka.bootstrap_servers))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("os").environ, "TAILRACE_BOOTSTRAP_SERVERS")

    done = kafka.call("lag", "--app", "shop_of_lag:billing", "--json")
    several = kafka.call("lag", "--app", "shop_of_lag:audit")
    named = kafka.call("lag", kafka.group, "--app", "shop_of_lag:audit", "--json")
    monkeypatch.setitem(__import__("os").environ, "TAILRACE_GROUP_ID", kafka.group)
    environs = kafka.call("lag", "--bootstrap-servers", kafka.bootstrap_servers, "--json")

    assert [one["lag"] for one in done.lines] == [one["lag"] for one in named.lines] == [3, None]
    assert environs.out == done.out
    assert (several.code, several.out) == (2, "")
    assert "shop_of_lag:audit has several groups: give one of one, two as GROUP" in several.errors


def test_watch_repeats_until_a_signal(kafka, topic_with_lag):
    """--watch repeats until SIGTERM, with exit code 143, or SIGINT, with 130."""
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        arguments = ["lag", kafka.group, "--watch", "--interval", "0.05", "--json"]
        with subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(TAILRACE_BOOTSTRAP_SERVERS=kafka.bootstrap_servers),
        ) as process:
            rounds = [json.loads(process.stdout.readline()) for _ in range(4)]
            ended, rest = end(process, number)

        assert [one["partition"] for one in rounds] == [0, 1, 0, 1]
        assert rounds[0]["at"] < rounds[2]["at"]
        assert ended == code
        assert all(json.loads(line) for line in rest.splitlines())


def test_an_unknown_group_is_an_error(kafka):
    """An unknown group is an error without output on stdout."""
    done = kafka.call("lag", f"{kafka.group}-nowhere")

    assert (done.code, done.out) == (1, "")
    assert "there is no group" in done.errors


def test_names_are_wrapped_and_excess_partitions_are_summarized():
    """Long names are wrapped, and of too many partitions those with the greatest lag are printed."""
    names = [f"{'a-long-name-of-a-topic-' * 4}{end}" for end in ("first", "second")]
    console = Console(width=80, height=24, file=io.StringIO())
    console.print(
        rich_table(_COLUMNS, [[name, "0", "1,000", "2,000", "1,000", f"{name} at 10.0.0.1"] for name in names])
    )
    lines = console.file.getvalue().splitlines()
    topics = "".join(line[: lines[0].index("partition")].strip() for line in lines[2:])

    assert "…" not in console.file.getvalue()
    assert topics == "".join(names)

    lags = [PartitionLag(TopicPartition("t", n), GroupOffset(TopicPartition("t", n), 0), 0, n) for n in range(40)]
    shown, note = _select_for_height(lags, 10)
    assert [one.lag for one in shown] == list(range(39, 29, -1))
    assert "30 more partitions" in note
    assert _select_for_height(lags, 40) == (lags, "")


def test_a_group_without_commits_is_not_shown_as_up_to_date(kafka):
    """Before the first commit of a group, its lag is unknown, and the records that it may have to read are counted."""
    topic = kafka.topic(1)
    kafka.produce(topic, *(b"%d" % n for n in range(5)))
    member = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": kafka.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    member.subscribe([topic])
    try:
        while not member.assignment():
            member.poll(0.2)
        done = kafka.call("lag", kafka.group)
    finally:
        member.close()

    assert "lag unknown in 1 partition, 1 of them without a committed offset (up to 5 records to read)" in done.words
