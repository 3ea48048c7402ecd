"""Promises of aiokafka's tests of ACLs, under the names of its tests (see docs/compat.md)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from tailrace import GroupAuthorizationFailedError, PublishError, TopicAuthorizationFailedError
from tailrace.testing import KafkaServer
from tests.compat.conftest import Compat
from tests.support.acls import ACLS, acl, admin_of, forbid


@pytest.fixture(scope="module")
def guarded_server() -> Iterator[KafkaServer]:
    """Start a broker with SASL and ACLs that creates missing topics."""
    config = {**ACLS, "auto.create.topics.enable": "true", "num.partitions": "2"}
    with KafkaServer(security="PLAIN", config=config) as started:
        yield started


class Guarded(Compat):
    """One test's topic, group, transactional id, consumers and producers, on a broker with ACLs."""

    def consumer(self, *topics: str, **options: object):
        return super().consumer(*topics, **{**self.server.client_options, "retry_backoff_ms": 20, **options})

    def producer(self, **options: object):
        return super().producer(**{**self.server.client_options, **options})

    def deny(self, operation: AclOperation, kind: ResourceType = ResourceType.TOPIC, name: str | None = None) -> None:
        """Allow everything but ``operation``, by default of the test's topic, which does not exist yet."""
        of = (kind, name or self.topic)
        rules = [(AclOperation.ALL, AclPermissionType.ALLOW), (operation, AclPermissionType.DENY)]
        forbid(admin_of(self.server), [acl(of, *rule) for rule in rules])


@pytest_asyncio.fixture
async def guarded(guarded_server) -> AsyncIterator[Guarded]:
    name = f"t-{uuid.uuid4().hex[:12]}"
    found = Guarded(guarded_server, name, f"g-{name}")
    yield found
    for one in (*found.producers, *found.made):
        await one.stop()


# ---- topics ----------------------------------------------------------------------------------------------------------


async def test_sasl_deny_topic_describe(guarded):
    """Without DESCRIBE, a record and a subscription are refused."""
    guarded.new_topic(guarded.topic)
    guarded.deny(AclOperation.DESCRIBE)
    producer = await guarded.started_producer(request_timeout_ms=10_000)
    with pytest.raises(PublishError, match="TOPIC_AUTHORIZATION_FAILED"):
        await producer.send_and_wait(guarded.topic, b"Super sasl msg")
    with pytest.raises(TopicAuthorizationFailedError):
        await guarded.reader()


async def test_sasl_deny_topic_read(guarded):
    """Without READ, a record is published, and reading is refused."""
    guarded.new_topic(guarded.topic)
    guarded.deny(AclOperation.READ)
    producer = await guarded.started_producer()
    await producer.send_and_wait(guarded.topic, b"Super sasl msg")
    reader = await guarded.reader()
    with pytest.raises(TopicAuthorizationFailedError):
        await reader.getone()


async def test_sasl_deny_topic_write(guarded):
    """Without WRITE, a record is refused, and the error says what to grant."""
    guarded.new_topic(guarded.topic)
    guarded.deny(AclOperation.WRITE)
    producer = await guarded.started_producer()
    with pytest.raises(PublishError, match=r"TOPIC_AUTHORIZATION_FAILED.*grant WRITE"):
        await producer.send_and_wait(guarded.topic, b"Super sasl msg")


async def test_sasl_deny_autocreate_cluster(guarded):
    """Without CREATE on topic and cluster, a record to a missing topic is refused."""
    guarded.deny(AclOperation.CREATE)
    guarded.deny(AclOperation.CREATE, ResourceType.BROKER, "kafka-cluster")
    producer = await guarded.started_producer(request_timeout_ms=5_000)
    with pytest.raises(PublishError, match=r"TOPIC_AUTHORIZATION_FAILED.*grant CREATE on the topic"):
        await producer.send_and_wait(guarded.topic, b"Super sasl msg")


# ---- groups ----------------------------------------------------------------------------------------------------------


async def refuse_member(guarded, operation: AclOperation) -> None:
    """Check that a consumer cannot join a group without this permission."""
    guarded.new_topic(guarded.topic)
    guarded.deny(operation, ResourceType.GROUP, guarded.group)
    with pytest.raises(GroupAuthorizationFailedError):
        await (await guarded.started()).getone()


async def test_sasl_deny_group_describe(guarded):
    """Without DESCRIBE of a group, a consumer cannot join it."""
    await refuse_member(guarded, AclOperation.DESCRIBE)


async def test_sasl_deny_group_read(guarded):
    """Without READ of a group, a consumer cannot join it."""
    await refuse_member(guarded, AclOperation.READ)


async def refuse_offsets(guarded, operation: AclOperation) -> None:
    """Check that a transaction with a group's offsets is refused at its commit, and that the next one succeeds."""
    guarded.new_topic(guarded.topic)
    await guarded.started(enable_auto_commit=False)
    producer = await guarded.transactional()
    guarded.deny(operation, ResourceType.GROUP, guarded.group)
    await producer.begin_transaction()
    await producer.send_offsets_to_transaction({guarded.first: 0}, guarded.group)
    with pytest.raises(PublishError, match="GROUP_AUTHORIZATION_FAILED"):
        await producer.commit_transaction()
    async with producer.transaction():
        await producer.send_and_wait(guarded.topic, b"TTTT")


async def test_sasl_deny_transaction_group_describe(guarded):
    """Without DESCRIBE of a group, a transaction cannot commit its offsets."""
    await refuse_offsets(guarded, AclOperation.DESCRIBE)


async def test_sasl_deny_transaction_group_read(guarded):
    """Without READ of a group, a transaction cannot commit its offsets, and the producer can be used further."""
    await refuse_offsets(guarded, AclOperation.READ)


# ---- transactional ids -----------------------------------------------------------------------------------------------


async def test_sasl_deny_txnid_describe(guarded):
    """Without DESCRIBE of its transactional id, a producer does not start."""
    guarded.deny(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
    with pytest.raises(PublishError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        await guarded.transactional()


async def test_sasl_deny_txnid_write(guarded):
    """Without WRITE of its transactional id, a producer does not start."""
    guarded.deny(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID)
    with pytest.raises(PublishError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        await guarded.transactional()


async def test_sasl_deny_txnid_during_transaction(guarded):
    """A record is refused when the permission for the transactional id has ended."""
    guarded.new_topic(guarded.topic)
    producer = await guarded.transactional()
    await producer.begin_transaction()
    await producer.send_and_wait(guarded.topic, b"123", partition=0)
    guarded.deny(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID)
    with pytest.raises(PublishError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        await producer.send_and_wait(guarded.topic, b"123", partition=1)
