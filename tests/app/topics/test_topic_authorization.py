"""Missing permissions for a group's own topics are reported with advice, and no record is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, ResourceType

from tailrace import App, BrokerError, Record, Retry
from tailrace.observe.events import AppFailed, DeadLetterFailed, RecordDeadLettered, TopicMissing
from tailrace.testing import KafkaServer
from tests.support.acls import ACLS, acl, admin_of, forbid
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

ANY_TOPIC, CLUSTER = (ResourceType.TOPIC, "*"), (ResourceType.BROKER, "kafka-cluster")
ONCE = Retry(attempts=1, backoff_ms=1, max_backoff_ms=100)


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    """Broker on which topics cannot be created."""
    with KafkaServer(security="PLAIN", config=ACLS) as server:
        for name in ("orders", "orders.dead"):
            server.create_topic(name, 2)
        rules = [
            rule
            for of in (ANY_TOPIC, CLUSTER)
            for rule in (
                acl(of, AclOperation.ALL, AclPermissionType.ALLOW),
                acl(of, AclOperation.CREATE, AclPermissionType.DENY),
            )
        ]
        forbid(admin_of(server), rules)
        yield server


async def test_a_retry_topic_that_cannot_be_created_fails_the_start(server, group):
    """A start without permission to create a retry topic raises an error with the topic and number of partitions."""
    app = App(group_id=group, **server.client_options)

    @app.handler("orders", retry=Retry(topic_delays_ms=[1_000]))
    async def handle(value: bytes) -> None: ...

    with pytest.raises(BrokerError, match=rf"orders\.{group}\.retry\.1s' does not exist - create it with 2 partitions"):
        await app.start()


async def test_a_topic_of_delayed_messages_that_cannot_be_created_fails_the_start(server, group):
    """A start without permission to create the topic of a delay raises an error with the topic and its partitions."""
    app = App(group_id=group, publish_delays_ms=[1_000], **server.client_options)
    text = (
        rf"'{group}\.delayed-publish\.1s' of publish_delays_ms does not exist - create it with 1 partition, or permit"
    )
    with pytest.raises(BrokerError, match=text):
        await app.start()


async def test_a_dead_letter_topic_that_cannot_be_created_is_reported(server, group):
    """An app without permission to create its dead-letter topic starts, and an event names the topic."""
    recorder = EventRecorder()
    app = App(group_id=group, dead_letter="{topic}.missing", hooks=[recorder], **server.client_options)

    @app.handler("orders")
    async def handle(value: bytes) -> None: ...

    async with app:
        await app.wait_ready()

    (missing,) = recorder.of(TopicMissing)
    assert missing.topic == "orders.missing"
    assert "2 partitions" in missing.advice


async def test_a_record_waits_until_its_dead_letter_may_be_written(server, group):
    """A record whose dead letter is denied blocks its key only, until the permission is granted."""
    recorder, handled = EventRecorder(), []
    app = App(group_id=group, dead_letter="{topic}.dead", hooks=[recorder], **server.client_options)
    admin, dead = admin_of(server), (ResourceType.TOPIC, "orders.dead")

    @app.handler("orders", order_by="key", retry=ONCE)
    async def handle(record: Record) -> None:
        if record.key == b"bad":
            raise ValueError("poison")
        handled.append(record.value)

    forbid(admin, [acl(dead, AclOperation.WRITE, AclPermissionType.DENY)])
    async with app:
        await app.publish("orders", b"1", key=b"bad")
        refused = await recorder.wait_for(DeadLetterFailed)
        await app.publish("orders", b"2", key=b"good")
        await until(lambda: handled == [b"2"])
        await until(lambda: app.health().status == "degraded")
        lifted = admin.delete_acls([acl(dead, AclOperation.WRITE, AclPermissionType.DENY, AclBindingFilter)])
        for done in lifted.values():
            done.result(20)
        await recorder.wait_for(RecordDeadLettered)

    assert "TOPIC_AUTHORIZATION_FAILED" in refused.error
    assert "grant WRITE on the topic" in refused.error
    assert "may write" in refused.advice


@pytest.mark.parametrize("denied", ["commit", "fetch"])
async def test_a_revoked_permission_ends_the_app_with_an_event(server, group, name, denied):
    """A commit or fetch that an ACL denies ends the app with an AppFailed event, and health is failed."""
    recorder, handled = EventRecorder(), []
    server.create_topic(name)
    app = App(group_id=group, hooks=[recorder], auto_commit_interval_ms=100, **server.client_options)

    @app.handler(name)
    async def handle(value: bytes) -> None:
        handled.append(value)

    of = (ResourceType.TOPIC, name) if denied == "fetch" else (ResourceType.GROUP, group)
    await app.start()
    try:
        await app.wait_ready()
        forbid(admin_of(server), [acl(of, AclOperation.READ, AclPermissionType.DENY)])
        await app.publish(name, b"1")
        failed = await recorder.wait_for(AppFailed)
        health = app.health()
    finally:
        with pytest.raises(BrokerError, match="AUTHORIZATION_FAILED"):
            await app.stop()

    assert "AUTHORIZATION_FAILED" in failed.error
    assert isinstance(failed.exception, BrokerError)
    assert not health.is_live
    assert len(recorder.of(AppFailed)) == 1
