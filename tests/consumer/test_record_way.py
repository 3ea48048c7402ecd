"""Length of a record's way: the functions and modules between a fetch response and the user's code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import FrameType

import confluent_kafka

from tailrace import App, Consumer
from tailrace.batches.record_batch import RecordDecoder
from tailrace.observe.events import OffsetsCommitted
from tailrace.testing import KafkaServer
from tests.support.event_recorder import EventRecorder
from tests.support.record_way import calls, frames_of, since_response

ROUNDS = 5

# Lower these numbers whenever a change shortens the way; a change that raises one of them needs a reason.
MOST_FUNCTIONS, MOST_MODULES = 66, 15
MOST_FUNCTIONS_OF_A_HANDLER, MOST_MODULES_OF_A_HANDLER = 218, 34
MOST_FRAMES = 9


@contextlib.asynccontextmanager
async def published(server: KafkaServer, topic: str) -> AsyncIterator[None]:
    """Publish a record from another thread, whose calls are not counted."""
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap_servers, "linger.ms": 0})
    producer.produce(topic, b"value")
    task = asyncio.create_task(asyncio.to_thread(producer.flush))
    yield
    await task


async def test_the_way_of_a_record_to_async_for_does_not_grow(kafka_server, name):
    """From the fetch response to the body of ``async for``, a record passes few functions and modules."""
    kafka_server.create_topic(name)
    ways, depths = [], []

    def note_depth(frame: FrameType) -> None:
        if frame.f_code is RecordDecoder.take.__code__:
            depths.append(frames_of(frame))

    async with Consumer(
        name, bootstrap_servers=kafka_server.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        for _ in range(ROUNDS):
            async with published(kafka_server, name):
                with calls(note_depth) as found:
                    await anext(consumer)
            ways.append(since_response(found))

    assert min(len(set(way)) for way in ways) <= MOST_FUNCTIONS
    assert min(len({module for module, _ in way}) for way in ways) <= MOST_MODULES
    assert not depths or min(depths) <= MOST_FRAMES


async def test_the_way_of_a_record_to_a_handler_and_its_commit_does_not_grow(kafka_server, name, group):
    """From the fetch response to the commit after the handler, a record passes few functions and modules."""
    kafka_server.create_topic(name)
    recorder, handled = EventRecorder(), asyncio.Event()
    app = App(
        bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, hooks=[recorder], auto_commit_interval_ms=100
    )

    @app.handler(name)
    async def handle(_: bytes) -> None:
        handled.set()

    ways = []
    async with app:
        await app.wait_ready()
        for _ in range(ROUNDS):
            handled.clear()
            commits = len(recorder.of(OffsetsCommitted))
            async with published(kafka_server, name):
                with calls() as found:
                    await handled.wait()
                    await recorder.wait_for(OffsetsCommitted, commits + 1)
            ways.append(found)

    assert min(len(set(way)) for way in ways) <= MOST_FUNCTIONS_OF_A_HANDLER
    assert min(len({module for module, _ in way}) for way in ways) <= MOST_MODULES_OF_A_HANDLER
