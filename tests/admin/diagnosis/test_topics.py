"""Findings about topics, from given facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.admin.diagnosis.findings import CommandLines, Finding, Level, TopicNeeds, TopicRole
from tailrace.admin.diagnosis.topic_findings import TopicFacts, TopicsFacts, topic_findings
from tailrace.error_codes import ErrorCode
from tailrace.protocol.metadata import PartitionMetadata, TopicMetadata

SOUND = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
READ, DESCRIBE = 1 << 3, 1 << 8


def topic(name: str = "orders", **more) -> TopicFacts:
    settings = {**SOUND, **{key.replace("_", "."): str(value) for key, value in more.pop("settings", {}).items()}}
    facts = TopicFacts(name, partitions=3, replication_factor=3, smallest_isr=3, settings=settings)
    return replace(facts, **more)


def findings(*topics: TopicFacts, needs: dict[str, TopicNeeds] | None = None, **more) -> list[Finding]:
    facts = TopicsFacts(topics, **{"names": [one.name for one in topics], "brokers": 3, **more})
    found = list(topic_findings(facts, needs or {}, CommandLines("kafka:9092", principal="User:alice")))
    for one in found:
        assert (one.advice and one.command) or one.level in {Level.OK, Level.SKIPPED}
    return found


def only(found: list[Finding], check: str) -> Finding:
    (one,) = [one for one in found if one.check == check]
    return one


def test_sound_topics_are_one_line():
    """Sound topics are one line with their partitions, leaders, replicas and replication factor."""
    (one,) = findings(topic(), topic("invoices"))

    assert one.level is Level.OK
    assert one.text == (
        "orders, invoices: 6 partitions, all with a leader and all replicas in sync, replication factor 3"
    )


def test_facts_are_taken_from_metadata():
    """Metadata yields the partitions without a leader and those with replicas that are not in sync."""
    partitions = (
        PartitionMetadata(0, 0, 1, replicas=(1, 2, 3), isr=(1, 2, 3)),
        PartitionMetadata(0, 1, 1, replicas=(1, 2, 3), isr=(1,)),
        PartitionMetadata(5, 2, -1, replicas=(3,), isr=(3,)),
    )
    facts = TopicFacts.of(TopicMetadata(0, "orders", partitions=partitions))

    assert (facts.partitions, facts.replication_factor, facts.smallest_isr) == (3, 1, 1)
    assert (facts.leaderless, facts.under_replicated, facts.out_of_sync) == ((2,), (1,), {2, 3})


@pytest.mark.parametrize(
    ("change", "check", "level", "text"),
    [
        ({"leaderless": (1, 2)}, "topic.leaderless", Level.PROBLEM, "has no leader for 2 of 3 partitions (1, 2)"),
        (
            {"under_replicated": (0,), "smallest_isr": 2, "out_of_sync": frozenset({3})},
            "topic.under-replicated",
            Level.WARNING,
            "1 of 3 partitions under-replicated (0), not in sync on broker 3; each has at least 2 of 3 replicas",
        ),
        (
            {"under_replicated": (0,), "smallest_isr": 1, "out_of_sync": frozenset({2, 3})},
            "topic.under-min-isr",
            Level.PROBLEM,
            "a partition has 1 replica in sync, below min.insync.replicas=2: writes with acks=all are refused",
        ),
        (
            {"settings": {"min_insync_replicas": 4}},
            "topic.min-isr",
            Level.PROBLEM,
            "min.insync.replicas=4 is above its replication factor 3",
        ),
        (
            {"settings": {"min_insync_replicas": 3}},
            "topic.min-isr-equal",
            Level.WARNING,
            "min.insync.replicas=3 equals its replication factor",
        ),
        ({"settings": {"min_insync_replicas": 1}}, "topic.min-isr-low", Level.WARNING, "min.insync.replicas=1 with 3"),
        (
            {"replication_factor": 1, "smallest_isr": 1, "settings": {"min_insync_replicas": 1}},
            "topic.single-replica",
            Level.WARNING,
            "replication factor 1 in a cluster of 3 brokers",
        ),
        (
            {"settings": {"unclean_leader_election_enable": "true"}},
            "topic.unclean-election",
            Level.WARNING,
            "unclean.leader.election.enable=true",
        ),
    ],
)
def test_unsafe_replicas_and_settings_are_reported(change, check, level, text):
    """Each finding about replicas and their settings has the topic, the value and a level."""
    one = only(findings(topic(**change)), check)

    assert (one.level, one.subject) == (level, "topic orders")
    assert text in one.text


def test_replication_factor_1_is_sound_with_one_broker():
    """In a cluster of one broker, a replication factor of 1 is sound."""
    one = topic(replication_factor=1, smallest_isr=1, settings={"min_insync_replicas": 1})

    assert [found.level for found in findings(one, brokers=1)] == [Level.OK]


def test_a_missing_topic_is_reported_with_a_similar_name():
    """A missing topic is a problem that names an existing topic with a similar name."""
    missing = TopicFacts("order", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    one = only(findings(missing, names=["orders", "clicks"]), "topic.missing")

    assert (one.level, one.text, one.advice) == (
        Level.PROBLEM,
        "does not exist, but orders exists",
        "use orders, or create the topic",
    )


OWN = {
    role: TopicNeeds("orders.g.own", frozenset({role}), frozenset({"orders"}), delay_ms=3_600_000)
    for role in (TopicRole.RETRY, TopicRole.PUBLISH_DELAY, TopicRole.DEAD_LETTER, TopicRole.REPLAY)
}


@pytest.mark.parametrize(
    ("role", "may_create", "level"),
    [
        (TopicRole.RETRY, True, Level.OK),
        (TopicRole.RETRY, None, Level.OK),
        (TopicRole.RETRY, False, Level.PROBLEM),
        (TopicRole.PUBLISH_DELAY, True, Level.OK),
        (TopicRole.PUBLISH_DELAY, False, Level.PROBLEM),
        (TopicRole.DEAD_LETTER, True, Level.OK),
        (TopicRole.DEAD_LETTER, False, Level.WARNING),
        (TopicRole.REPLAY, False, Level.WARNING),
    ],
)
def test_a_missing_group_topic_is_a_problem_if_it_cannot_be_created(role, may_create, level):
    """A missing retry, replay or dead-letter topic is sound if the app may create it; otherwise it is reported."""
    missing = TopicFacts("orders.g.own", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    found = findings(topic(), missing, needs={"orders.g.own": OWN[role]}, may_create=may_create)
    one = only(found, "topic.own-missing")

    assert one.level is level
    assert "3 partitions" in one.text + one.advice


def test_a_missing_topic_of_delayed_messages_needs_no_other_topic():
    """An app without handlers creates the topics of its delays with one partition."""
    needs = TopicNeeds("g.delayed-publish.1h", frozenset({TopicRole.PUBLISH_DELAY}), delay_ms=3_600_000)
    missing = TopicFacts(needs.name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    one = only(findings(missing, needs={needs.name: needs}, may_create=False), "topic.own-missing")

    assert one.advice == "create it with 1 partition, or grant Create"


def test_group_topics_of_a_missing_topic_are_not_reported():
    """The retry topic of a missing topic is not reported beside the missing topic itself."""
    missing = [TopicFacts(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for name in ("orders", "orders.g.own")]
    found = findings(*missing, needs={"orders.g.own": OWN[TopicRole.RETRY]})

    assert [one.subject for one in found] == ["topic orders"]


@pytest.mark.parametrize(
    ("role", "settings", "check", "level", "text"),
    [
        (TopicRole.RETRY, {"cleanup_policy": "compact"}, "topic.compacted", Level.PROBLEM, "cleanup.policy=compact"),
        (TopicRole.DEAD_LETTER, {"cleanup_policy": "compact,delete"}, "topic.compacted", Level.PROBLEM, "equal keys"),
        (
            TopicRole.RETRY,
            {"retention_ms": 3_600_000},
            "topic.retry-retention",
            Level.PROBLEM,
            "retention.ms=3600000 (1 h) for a delay of 1 h",
        ),
        (
            TopicRole.PUBLISH_DELAY,
            {"retention_ms": 7_199_999},
            "topic.delay-retention",
            Level.PROBLEM,
            "for a delay of 1 h: messages may be deleted before they are published",
        ),
        (
            TopicRole.DEAD_LETTER,
            {},
            "topic.dead-letter-retention",
            Level.WARNING,
            "retention.ms=604800000: dead letters are deleted after 7 d",
        ),
        (
            TopicRole.DEAD_LETTER,
            {"max_message_bytes": 1000, "retention_ms": -1},
            "topic.message-size",
            Level.WARNING,
            "max.message.bytes=1000 is below the 1048588 of orders",
        ),
    ],
)
def test_settings_that_lose_records_are_reported(role, settings, check, level, text):
    """Settings with which a retry, replay or dead-letter topic loses records are reported."""
    own = topic("orders.g.own", settings=settings)
    one = only(findings(topic(), own, needs={"orders.g.own": OWN[role]}), check)

    assert one.level is level
    assert text in one.text


def test_a_compacted_topic_that_is_only_read_is_sound():
    """A compacted topic that the app only reads is sound."""
    needs = {"orders": TopicNeeds("orders", frozenset({TopicRole.READ}))}

    assert [one.level for one in findings(topic(settings={"cleanup_policy": "compact"}), needs=needs)] == [Level.OK]


def test_results_to_a_compacted_topic_need_keys():
    """A compacted topic to which the app publishes is a warning: results without a key are refused."""
    needs = {"orders": TopicNeeds("orders", frozenset({TopicRole.PUBLISH}))}
    one = only(findings(topic(settings={"cleanup_policy": "compact"}), needs=needs), "topic.compacted")

    assert (one.level, "results without a key are refused" in one.text) == (Level.WARNING, True)


def test_a_topic_of_delayed_messages_may_have_fewer_partitions():
    """Topics of delayed messages need neither the partitions nor the sizes of other topics."""
    own = topic("orders.g.own", partitions=1, settings={"retention_ms": 7_200_000})
    found = findings(topic(), own, needs={"orders.g.own": OWN[TopicRole.PUBLISH_DELAY]})

    assert [one.check for one in found] == ["topic"]


def test_fewer_partitions_limit_only_topics_that_are_read():
    """A retry topic with fewer partitions than its topic is reported, and a dead-letter topic is not."""
    own = topic("orders.g.own", partitions=1, settings={"retention_ms": -1})

    assert only(findings(topic(), own, needs={"orders.g.own": OWN[TopicRole.RETRY]}), "topic.partitions")
    assert [one.check for one in findings(topic(), own, needs={"orders.g.own": OWN[TopicRole.DEAD_LETTER]})] == [
        "topic"
    ]


def test_dead_letters_are_counted():
    """The number of records is shown with the command that lists them."""
    own = topic("orders.g.own", records=17, settings={"retention_ms": -1})
    one = only(findings(topic(), own, needs={"orders.g.own": OWN[TopicRole.DEAD_LETTER]}), "topic.dead-letters")

    assert one.level is Level.OK
    assert "holds 17 records: dead letters, and marks of those that were replayed" in one.text
    assert "tailrace dead-letters list orders.g.own" in one.text


def test_missing_permissions_name_operation_and_command():
    """A missing permission is reported with the allowed operations and a command; unknown operations are ignored."""
    needs = {"orders": TopicNeeds("orders", frozenset({TopicRole.READ, TopicRole.PUBLISH}))}
    one = only(findings(topic(operations=READ | DESCRIBE), needs=needs), "topic.permission")

    assert one.text == "User:alice is not authorized to Write this topic, only to Read, Describe"
    assert one.command.endswith("--add --allow-principal User:alice --operation Write --topic orders")
    assert [found.level for found in findings(topic(), needs=needs)] == [Level.OK]


def test_a_topic_that_may_not_be_described_is_one_problem():
    """A topic that may not be described is a single problem, as nothing else can be checked."""
    forbidden = TopicFacts("orders", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    needs = {"orders": TopicNeeds("orders", frozenset({TopicRole.READ}))}
    (one,) = findings(forbidden, needs=needs)

    assert (one.check, one.level) == ("topic.permission", Level.PROBLEM)
    assert "--operation Read --topic orders" in one.command


def test_unknown_settings_are_skipped_together():
    """Unknown settings of several topics with the same reason are one skipped check."""
    unknown = [replace(topic(f"t{n}"), settings={}, no_settings="not authorized to DescribeConfigs") for n in range(9)]
    one = only(findings(*unknown), "topic.settings")

    assert one.level is Level.SKIPPED
    assert one.text.startswith("t0, t1, t2, t3 and 5 more: retention, ")


def test_other_topics_are_summarized():
    """Topics that were not named are one line, if any of them is not sound."""
    others = [topic("a", under_replicated=(0, 1)), topic("b", leaderless=(2,))]
    one = only(findings(topic(), unhealthy=others), "topic.others")

    assert (one.level, one.text) == (
        Level.WARNING,
        "1 partition without a leader and 2 partitions under-replicated in a, b",
    )
