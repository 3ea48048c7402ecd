"""Length of a record's way: the functions and modules between a fetch response and the user's code."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType

import confluent_kafka

import tailrace
from tailrace import App, Consumer
from tailrace.batches.record_batch import RecordDecoder
from tailrace.observe.events import OffsetsCommitted
from tailrace.testing import KafkaServer
from tests.support.event_recorder import EventRecorder

SOURCE = str(Path(tailrace.__file__).parent)
ROUNDS = 5

# Lower these numbers whenever a change shortens the way; a change that raises one of them needs a reason.
MOST_FUNCTIONS, MOST_MODULES = 64, 15
MOST_FUNCTIONS_OF_A_HANDLER, MOST_MODULES_OF_A_HANDLER = 228, 42
MOST_FRAMES = 9


@contextlib.contextmanager
def calls(on_call: Callable[[FrameType], None] = lambda _: None) -> Iterator[list[tuple[str, str]]]:
    """Collect the file and the name of each function of tailrace that this thread calls or resumes."""
    found: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SOURCE):
            found.append((code.co_filename.removeprefix(SOURCE), code.co_qualname))
            on_call(frame)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


@contextlib.asynccontextmanager
async def published(server: KafkaServer, topic: str) -> AsyncIterator[None]:
    """Publish a record from another thread, whose calls are not counted."""
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap_servers, "linger.ms": 0})
    producer.produce(topic, b"value")
    task = asyncio.create_task(asyncio.to_thread(producer.flush))
    yield
    await task


def since_response(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the calls since bytes of the last response arrived."""
    last = max(at for at, (_, name) in enumerate(found) if name.endswith(".buffer_updated"))
    return found[last:]


def frames_of(frame: FrameType | None) -> int:
    """Return the number of frames of tailrace from ``frame`` outward."""
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith(SOURCE)
        frame = frame.f_back
    return count


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
