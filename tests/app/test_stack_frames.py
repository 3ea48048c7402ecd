"""Failures name the line of the user's code that raised them."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import traceback

import pytest
import structlog

from tailrace import App, Retry
from tailrace.observe.events import (
    BatchFailed,
    BatchFailedPermanently,
    HandlerFailed,
    HandlerFailedPermanently,
    RecordSkipped,
)
from tailrace.testing import TestApp
from tests.support.event_recorder import EventRecorder


def line_of(text: str) -> int:
    """Return the first line of this file that contains the text."""
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
async def test_a_failure_names_the_users_file_and_line(recorder, function, text):
    """Each failed attempt names the user's file and line; a DecodeError of tailrace names none."""
    app = App(group_id="g", on_failure="skip", retry=Retry(attempts=2), hooks=[recorder])
    declare = app.batch_handler if function is of_a_batch else app.handler
    declare("t")(function)

    async with TestApp(app) as kafka:
        await kafka.send("t", b"no JSON")

    failures = recorder.of(HandlerFailed) + recorder.of(BatchFailed)
    wanted = None if text is None else f"test_stack_frames.py:{line_of(text)} in {function.__name__}"
    assert {one.where for one in failures} == {wanted}
    assert len(failures) == (1 if text is None else 2)


async def test_a_dead_letter_has_only_the_last_failure():
    """The traceback of a dead letter has only the last attempt, and any error that the handler itself caught."""
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

    errors = [line for line in letter.traceback.splitlines() if line.startswith(("KeyError", "ValueError"))]
    assert errors == ["KeyError: 3", "ValueError: 3"]


@pytest.mark.parametrize("kind", ["record", "batch"])
async def test_the_log_has_the_traceback_once_and_hooks_have_the_error(recorder, caplog, kind):
    """Only the last attempt is logged with a traceback, which has the user's frames; hooks receive each error."""
    app = App(group_id="g", on_failure="skip", retry=Retry(attempts=3, backoff_ms=1), hooks=[recorder])
    if kind == "batch":
        app.batch_handler("t")(of_a_batch)
    else:
        app.handler("t")(in_a_coroutine)

    with caplog.at_level(logging.WARNING, "tailrace"):
        async with TestApp(app) as kafka:
            await kafka.send("t", b"no JSON")

    failed = recorder.of(HandlerFailed) + recorder.of(BatchFailed)
    logged = [one for one in caplog.records if one.exc_info]
    assert [isinstance(one.exception, ValueError | OSError) for one in failed] == [True] * 3
    assert [isinstance(one, HandlerFailedPermanently | BatchFailedPermanently) for one in failed] == [
        False,
        False,
        True,
    ]
    (given_up,) = logged
    assert given_up.levelno == logging.ERROR
    for text in (
        logging.Formatter().format(given_up),
        structlog.processors.format_exc_info(None, "error", {"exc_info": given_up.exc_info})["exception"],
    ):
        assert "Traceback" in text
        assert "test_stack_frames.py" in text
        assert "src/tailrace" not in text
    assert recorder.of(RecordSkipped)[0].exception is failed[-1].exception


class OrderRefusedError(Exception):
    """Error that cannot be constructed from its ``args``."""

    def __init__(self, order: int, *, reason: str) -> None:
        self.order, self.reason = order, reason
        super().__init__(f"order {order}: {reason}")


async def with_a_cause(value: bytes) -> None:
    try:
        json.loads(value)
    except ValueError as error:
        raise OrderRefusedError(7, reason="no JSON") from error


async def with_a_context(value: bytes) -> None:
    try:
        json.loads(value)
    except ValueError:
        OrderRefusedError.missing  # noqa: B018 - it raises


async def in_a_group(value: bytes) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(in_a_coroutine(value))


@pytest.mark.parametrize("function", [with_a_cause, with_a_context, in_a_group])
async def test_causes_are_logged_with_only_the_users_frames(kafka_server, group, new_topic, witness, function):
    """Causes, contexts and grouped errors are logged without tailrace's frames; hooks receive the whole error."""
    recorder, topic = EventRecorder(), new_topic()
    witness.produce(topic, [b"no JSON"])
    app = App(bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, on_failure="skip", hooks=[recorder])
    app.handler(topic, retry=Retry(attempts=1))(function)

    async with app:
        failed = await recorder.wait_for(HandlerFailedPermanently)

    event = {"exc_info": failed.exc_info}
    for text in (
        logging.Formatter().formatException(failed.exc_info),
        structlog.processors.format_exc_info(None, "error", event)["exception"],
    ):
        assert "JSONDecodeError: Expecting value" in text
        assert text.count("Traceback (most recent call last)") == 2
        # Each error has one frame of the user's code, and the frames of the library that raised.
        files = [line.split('"')[1].rpartition("/")[2] for line in text.splitlines() if "  File " in line]
        assert set(files) <= {"test_stack_frames.py", "decoder.py", "taskgroups.py"}, text
        assert len(files) <= 4
    assert isinstance(failed.exc_info[1], type(failed.exception))
    assert failed.exception is not failed.exc_info[1]
    assert len(traceback.extract_tb(failed.exception.__traceback__)) > 1


def around(call):
    """Wrap a call, so that each record passes the lines of this middleware."""

    async def called(record):
        return await call(record)

    return called


def validate(value: bytes) -> object:
    raise ValueError("no such order")


class Codec:
    """Codec that decodes with the user's own function."""

    def decode(self, data, _annotation, _record):
        return validate(data)

    def encode(self, value):
        return value


@pytest.mark.parametrize(("codec", "where"), [(None, None), (Codec(), "validate")])
async def test_a_value_that_does_not_decode_does_not_name_the_middleware(recorder, codec, where):
    """A DecodeError names the user's decoder or no line at all, and never the middleware."""
    app = App(group_id="g", on_failure="skip", middleware=[around], codec=codec, hooks=[recorder])
    app.handler("t")(of_another_kind)

    async with TestApp(app) as kafka:
        await kafka.send("t", b"no JSON")

    (failed,) = recorder.of(HandlerFailed)
    assert (failed.where or "").rpartition(" ")[2] == (where or "")
