"""A failure is told with the line of the user's own code that it came from."""

from __future__ import annotations

import asyncio
import inspect
import json

import pytest

from penstock import App, Retry
from penstock.observe.events import BatchFailed, HandlerFailed
from penstock.testing import TestApp


def line_of(text: str) -> int:
    """Where it stands in this file for the first time."""
    return inspect.getsource(inspect.getmodule(line_of)).split(text)[0].count("\n") + 1


async def in_a_coroutine(value: bytes) -> None:
    await asyncio.sleep(0)
    json.loads(value)  # here, and not where the library raises


def in_a_thread(value: bytes) -> None:
    raise OSError("there")


async def of_a_batch(values: list[bytes]) -> None:
    raise OSError("of many")


async def of_another_kind(value: dict[str, int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (in_a_coroutine, "json.loads(value)"),
        (in_a_thread, 'raise OSError("there")'),
        (of_a_batch, 'raise OSError("of many")'),
        (of_another_kind, None),
    ],
)
async def test_a_failure_says_where_it_came_from(recorder, function, text):
    """At each attempt, from coroutines, threads and batches; what did not decode came from no line of his."""
    app = App(group_id="g", on_failure="skip", retry=Retry(attempts=2), hooks=[recorder])
    declare = app.batch_handler if function is of_a_batch else app.handler
    declare("t")(function)

    async with TestApp(app) as kafka:
        await kafka.send("t", b"no JSON")

    told = recorder.of(HandlerFailed) + recorder.of(BatchFailed)
    wanted = None if text is None else f"test_frames.py:{line_of(text)} in {function.__name__}"
    assert {one.where for one in told} == {wanted}
    assert len(told) == (1 if text is None else 2)


async def test_a_letter_has_the_last_failure_alone():
    """The one before it, in whose wake it was raised, is no part of it; what the handler had caught itself is."""
    app, attempts = App(group_id="g", dead_letter="{topic}.dead", retry=Retry(attempts=3)), []

    @app.handler("t")
    async def handle(value: bytes) -> None:
        attempts.append(value)
        await asyncio.sleep(0)
        try:
            {}[len(attempts)]
        except KeyError:
            raise ValueError(len(attempts))  # noqa: B904 - that is the matter

    async with TestApp(app) as kafka:
        await kafka.send("t", b"x")
        (letter,) = kafka.dead_letters("t")

    told = [line for line in letter.traceback.splitlines() if line.startswith(("KeyError", "ValueError"))]
    assert told == ["KeyError: 3", "ValueError: 3"]
