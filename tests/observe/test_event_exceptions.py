"""Exceptions in events, for hooks that report errors."""

from __future__ import annotations

import ast
import asyncio
import re
from pathlib import Path

import tailrace
from tailrace import Consumer
from tailrace.observe import events
from tailrace.observe.events import CommitCallbackFailed, CommitFailed, RecordUnreadable
from tests.support.event_recorder import EventRecorder

WITHOUT_EXCEPTION = {
    "ConsumerFailed",  # start() or joined() raises it
    "FetchFailed",  # a partition's error code is no exception
    "TopicMissing",  # a missing topic of publish= was not tried
}


async def test_hooks_get_the_exceptions_of_callbacks_and_deserializers(kafka_server, new_topic, group, witness):
    """The event has the user's exception, or one that has it as its cause."""
    topic, recorder = new_topic(), EventRecorder()
    witness.produce(topic, [b"x"])

    def refuse(_offsets: object, _error: object) -> None:
        raise KeyError("callback")

    def broken(_value: bytes) -> object:
        raise LookupError("value")

    async with Consumer(
        topic,
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=group,
        value_deserializer=broken,
        on_deserialize_error="skip",
        offset_commit_callback=refuse,
        hooks=[recorder],
    ) as consumer:
        async with asyncio.timeout(60):
            while not recorder.of(RecordUnreadable):
                await consumer.getone(timeout_ms=100)
        await consumer.commit()
        unreadable = await recorder.wait_for(RecordUnreadable)
        failed = await recorder.wait_for(CommitCallbackFailed)

    assert isinstance(unreadable.exception.__cause__, LookupError)
    assert isinstance(failed.exception, KeyError)
    assert failed.exc_info is not None


def test_failure_events_are_emitted_with_their_exceptions():
    """Each call that creates an event with an exception field gives it an exception."""
    fields = {
        name: kind.__struct_fields__.index("exception")
        for name in events.__all__
        if "exception" in (kind := getattr(events, name)).__struct_fields__
    }
    assert CommitFailed.__name__ in fields
    wrong = []
    any_call = re.compile(rf"\b({'|'.join(fields)})\(")
    for file in Path(tailrace.__file__).parent.rglob("*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if any_call.search(text) else ():
            match node:
                case ast.Call(ast.Name(name), arguments, keywords) if name in fields.keys() - WITHOUT_EXCEPTION:
                    is_given = len(arguments) > fields[name] or any(one.arg == "exception" for one in keywords)
                    is_pattern = not arguments and not keywords
                    if not is_given and not is_pattern:
                        wrong.append(f"{file.name}:{node.lineno}: {name}")

    assert wrong == []
