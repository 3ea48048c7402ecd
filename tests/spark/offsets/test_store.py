"""Commits of a pipeline on the real broker."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import TailraceError, TopicPartition
from tailrace.config import resolve
from tailrace.observe.hooks import Observer
from tailrace.spark.offsets.store import PartitionCommit, SparkOffsetStore


def test_a_commit_to_a_recreated_topic_is_refused(kafka_server, witness, new_topic, group, monkeypatch):
    """The coordinator refuses a commit if the topic is recreated after its id was checked."""
    topic, other = new_topic(1), new_topic(1)
    config = resolve({"bootstrap_servers": kafka_server.bootstrap_servers}, {})

    async def has_just_been_compared(_store: SparkOffsetStore) -> None:
        """Pass the check of topic ids."""

    with SparkOffsetStore(config, group, Observer(())) as store:
        store.cluster_state([topic, other], [])
        kafka_server.delete_topic(topic)
        kafka_server.create_topic(topic, 1)
        monkeypatch.setattr(SparkOffsetStore, "_check_logs", has_just_been_compared)
        offsets = {TopicPartition(one, 0): PartitionCommit(5) for one in (topic, other)}
        with pytest.raises(TailraceError, match=f"'{topic}' was recreated, .* - start again"):
            store.commit(offsets, "spark")

    assert asyncio.run(witness.committed(group, topic, 1)) == {}
