"""Invalid user-supplied objects are refused at once, with their value and advice."""

from __future__ import annotations

import functools
import re

import msgspec
import pytest

from tailrace import App, ConfigurationError, Consumer, Message, OffsetAndMetadata, PublishError, TopicPartition
from tailrace.codecs.json_codec import JsonCodec


class Listener:
    """A valid listener."""

    def on_partitions_revoked(self, partitions) -> None: ...


class AsyncHook:
    """A hook whose coroutine would never be awaited."""

    async def on_event(self, event) -> None: ...


class AsyncCodec(JsonCodec):
    """A codec whose coroutines would never be awaited."""

    async def encode(self, value, /):
        return super().encode(value)


async def coroutine_function(call):
    return call


def of_two(record, call):
    return call(record)


def generator(call):
    yield call


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": 3}, "retry must be a Retry instance such as Retry(attempts=3), not 3"),
        ({"codec": msgspec.json}, "codec must be an object with decode(data, annotation, record)"),
        ({"codec": JsonCodec}, "codec must be an object"),
        ({"codec": AsyncCodec()}, "encode of the codec is `async def`"),
        ({"middleware": [coroutine_function]}, "coroutine_function must be a plain function of one parameter"),
        ({"middleware": [of_two]}, "of_two must be a plain function of one parameter"),
        ({"middleware": [generator]}, "generator must be a plain function of one parameter"),
        ({"dead_letter": 5}, "dead_letter must be a topic or a template"),
        ({"dead_letter": "{topci}.dead"}, "the only fields are {topic}, {group}, {delay}"),
        ({"dead_letter": "dead letters"}, "and '-', not ' '"),
        ({"hooks": [AsyncHook()]}, "on_event(event), a plain method"),
        ({"hooks": [AsyncHook]}, "on_event(event), a plain method"),
        ({"rebalance_listener": Listener}, "rebalance_listener"),
    ],
)
def test_an_app_checks_its_arguments(options, message):
    """App() checks retry, codec, middleware, templates and hooks."""
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        App(group_id="g", **options)


@pytest.mark.parametrize(
    ("topics", "options", "message"),
    [
        (["t"], {"codec": msgspec.json}, "codec must be an object"),
        (["t"], {"middleware": [of_two]}, "of_two must be a plain function of one parameter"),
        (["t"], {"when": coroutine_function}, "when must be a plain function of a record"),
        (["t"], {"when": functools.partial(coroutine_function)}, "when must be a plain function of a record"),
        (["t"], {"when": "refunds"}, "when must be a plain function of a record that returns a bool, not 'refunds'"),
        (["t"], {"when": lambda: True}, "when must be a plain function of a record"),
        (["t"], {"publish": 5}, "publish must be a non-empty string, not 5"),
        (["t"], {"dead_letter": b"dead"}, "dead_letter must be a non-empty string, not b'dead'"),
        (["t"], {"group_id": 5}, "group_id must be a non-empty string"),
        ([["a", "b"]], {}, "a topic must be a name such as 'orders', not ['a', 'b']"),
        ([5], {}, "a topic must be a name such as 'orders', not 5"),
        ([], {"pattern": "orders["}, "pattern='orders[' is not a valid regular expression"),
        ([], {"pattern": re.compile(b"orders")}, "pattern must be a regular expression"),
    ],
)
def test_a_handler_checks_its_arguments(topics, options, message):
    """@app.handler() checks topics, patterns, predicates, codecs and middleware."""
    app = App(group_id="g")
    for declare in (app.handler, app.batch_handler):
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            declare(*topics, **options)(print)


@pytest.mark.parametrize("given", [3, "hook", Listener().on_partitions_revoked, print])
def test_hooks_of_start_and_stop_are_checked(given):
    """A hook must be callable without arguments; C functions, which have no signature, are accepted."""
    app = App(group_id="g")
    if given is print:
        assert app.on_start(given) is given
        return
    with pytest.raises(ConfigurationError, match="on_start"):
        app.on_start(given)


def test_include_and_override_check_their_arguments():
    """include() accepts handlers only, and override() functions only."""
    app = App(group_id="g")

    with pytest.raises(ConfigurationError, match=r"include\(\) takes a Handlers or an App, not 'billing'"):
        app.include("billing")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"override\(\): replacement must be a function, not 5"):
        app.override(print, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "error_text"),
    [
        ({"headers": {"id": "1"}}, "headers must be a list of (name, value) pairs, not a mapping"),
        ({"headers": 5}, "headers must be a list of (name, value) pairs, not 5"),
        ({"headers": ["id"]}, "a header must be a pair of a name and a value, such as ('kind', b'refund'), not 'id'"),
        ({"headers": [(b"id", b"1")]}, "a header must be a pair of a name and a value"),
        ({"headers": [("id", 1)]}, "a header value must be bytes or str, not int"),
        ({"key": object()}, "object cannot be encoded as JSON"),
        ({"partition": "0"}, "partition must be a non-negative integer, not '0'"),
        ({"partition": -1}, "partition must be a non-negative integer, not -1"),
    ],
)
async def test_publish_refuses_invalid_keys_headers_and_partitions(kafka_server, new_topic, message, error_text):
    """app.publish() and a Message raise PublishError with the value, and publish nothing."""
    topic = new_topic()
    app = App(bootstrap_servers=kafka_server.bootstrap_servers, group_id=topic)

    @app.handler(topic)
    async def handle(value: bytes) -> None: ...

    async with app:
        with pytest.raises(PublishError, match=re.escape(error_text)):
            await app.publish(topic, b"0", **message)
        with pytest.raises(PublishError, match="topic must be a string such as 'orders', not 5"):
            await app.publish(5, b"0")  # type: ignore[arg-type]
    assert Message(b"0").headers == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (OffsetAndMetadata(0, 1000), "metadata of OffsetAndMetadata must be a string, not 1000"),  # type: ignore[arg-type]
        (OffsetAndMetadata(0, b"x"), "metadata of OffsetAndMetadata must be a string, not b'x'"),  # type: ignore[arg-type]
        (OffsetAndMetadata(0, "", "1"), "leader_epoch of OffsetAndMetadata must be a non-negative integer"),  # type: ignore[arg-type]
    ],
)
async def test_a_commit_refuses_metadata_that_is_not_a_string(kafka_server, new_topic, group, given, message):
    """commit() raises with the value, and the consumer continues."""
    topic = new_topic()
    async with Consumer(topic, bootstrap_servers=kafka_server.bootstrap_servers, group_id=group) as consumer:
        await consumer.assigned()
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            await consumer.commit({TopicPartition(topic, 0): given})
        await consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(0, "text")})
        found = await consumer.committed([TopicPartition(topic, 0)])

    assert found
