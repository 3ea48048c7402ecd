"""Output of handlers on Spark: records, dead letters and rows."""

import asyncio
import importlib
import os
from pathlib import Path
from typing import Annotated

import msgspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tailrace import Depends, HandlerFailedError, Handlers, Message, PartialFailureError, Record, Retry
from tailrace.app.failures.dead_letters import read_dead_letter
from tailrace.spark import SparkPipeline, overwritten_folders
from tailrace.spark.worker.shipment import import_path_of

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]


def test_results_and_dead_letters_are_published(world):
    """Results of handlers are published with the trace headers, and failures as dead letters."""
    world.make_topic(2)
    out, dead = world.make_topic(name=f"{world.group}-out"), f"{world.topic}.{world.group}.dead"
    world.produce(
        [b"%d" % n for n in range(40)], headers=[("traceparent", b"00-1-2-3"), ("mine", b"\xff\x00"), ("none", None)]
    )
    app = world.app(dead_letter="{topic}.{group}.dead", retry=Retry(attempts=2, backoff_ms=10))

    @app.handler(world.topic, publish=out, order_by="none")
    async def double(number: int) -> int:
        if number == 7:
            raise ValueError("no sevens")
        return 2 * number

    report = world.pipeline(app).backfill(double)

    published, letters = world.read(out), world.read(dead, 2)
    assert (report.records, report.failures, report.dead_letters) == (40, 1, 1)
    assert sorted(int(one.value()) for one in published) == sorted(2 * n for n in range(40) if n != 7)
    assert {tuple(one.headers()) for one in published} == {(("traceparent", b"00-1-2-3"),)}
    (letter,) = letters
    headers = tuple(letter.headers())
    parsed = read_dead_letter(Record(dead, 0, 0, letter.key(), letter.value(), 0, headers))
    assert (parsed.reason, parsed.attempts, parsed.group_id, parsed.value) == ("no sevens", 2, world.group, b"7")
    assert parsed.headers == (("traceparent", b"00-1-2-3"), ("mine", b"\xff\x00"), ("none", None))


def test_records_of_a_retry_topic_are_left_to_the_app(world):
    """A record that failed on Spark goes to the retry topic, and the app handles it."""
    world.make_topic()
    world.produce([b"%d" % n for n in range(5)])
    app, healed = world.app(auto_offset_reset="latest", auto_commit_interval_ms=200), world.folder / "healed"
    lines = world.folder / "lines"

    async def pick(record: Record) -> None:
        if record.value == b"3" and not healed.exists():
            raise ValueError("not yet")
        with lines.open("ab") as file:
            file.write(record.value)

    app.handler(world.topic, retry=Retry(attempts=1, topic_delays_ms=[100]))(pick)
    report = world.pipeline(app).backfill("pick", since="earliest")
    healed.touch()

    async def live() -> None:
        async with app:
            while len(lines.read_bytes()) < 5:  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(live(), 120))

    assert (report.records, report.failures, report.dead_letters) == (5, 1, 0)
    assert lines.read_bytes() == b"01243"


def test_delayed_messages_are_left_to_the_app(world):
    """Messages that handlers delay on Spark wait in the topic of their delay, and the app publishes them."""
    world.make_topic()
    world.produce([b"%d" % n for n in range(5)])
    app, out = (
        world.app(auto_offset_reset="latest", publish_delays_ms=[100]),
        world.make_topic(name=f"{world.group}-out"),
    )

    @app.handler(world.topic, publish=out)
    async def remind(record: Record) -> Message:
        return Message(record.value, delay_ms=100)

    report = world.pipeline(app).backfill("remind", since="earliest")
    waiting = world.read(f"{world.group}.delayed-publish.100ms")
    at_first = world.read(out)

    async def live() -> None:
        async with app:
            while len(await asyncio.to_thread(world.read, out)) < 5:  # noqa: ASYNC110 - an offset sets no event
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(live(), 120))

    assert (report.records, report.failures) == (5, 0)
    assert (len(waiting), at_first) == (5, [])
    assert sorted(one.value() for one in world.read(out)) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("chosen", ["true", "value > 3"])
@pytest.mark.slow
def test_a_failure_of_a_recomputed_task_fails_the_batch(world, chosen):
    """If persisted rows are lost and a task that runs again fails, the batch is not committed."""
    world.make_topic()
    world.produce([b"%d" % n for n in range(10)])
    app, seen, table = world.app(retry=Retry(attempts=1), on_failure="stop"), world.folder / "seen", world.folder / "t"

    @app.handler(world.topic)
    async def once(number: int) -> int:
        if number == 5:
            seen.touch(exist_ok=False)
        return number

    def loses_what_was_kept(rows, batch_id: int) -> None:
        world.spark.catalog.clearCache()
        rows.filter(chosen).write.parquet(str(table))

    with pytest.raises(HandlerFailedError, match="offset 5"):
        world.pipeline(app).backfill(once, sink=loses_what_was_kept)

    assert world.committed == {0: 0}


def test_a_result_of_another_type_ends_the_batch(world):
    """A result that does not have the annotated type ends the batch with an error that names the record."""
    world.make_topic()
    world.produce([b"1", b"2", b"3"])
    app = world.app()

    @app.handler(world.topic)
    async def double(number: int) -> int:
        return 2**64 if number == 2 else 2 * number

    with pytest.raises(HandlerFailedError, match=rf"{world.topic}\[0\] offset 1: .* does not match its annotation"):
        world.pipeline(app).backfill(double, sink=overwritten_folders(str(world.folder / "table")))

    assert world.committed == {0: 0}


def test_a_repeated_batch_has_the_same_number(world):
    """A batch that is repeated has the same number, so that the sink writes its rows once."""

    class Fare(msgspec.Struct):
        cents: int
        tags: list[str]
        note: str | None = None

    world.make_topic(2)
    world.produce([b"%d" % n for n in range(50)], keys=[b"%d" % n for n in range(50)])
    app, table, batches = world.app(on_failure="skip", retry=Retry(attempts=1)), world.folder / "table", []

    @app.handler(world.topic)
    async def price(number: int) -> list[Fare]:
        if number == 9:
            raise ValueError("no nines")
        return [Fare(number, ["a"]), Fare(-number, [], "back")] if number else []

    write = overwritten_folders(str(table))

    def fails_once(rows, batch_id: int) -> None:
        write(rows, batch_id)
        batches.append((batch_id, rows.columns))
        if len(batches) == 1:
            raise OSError("written, but not committed")

    with pytest.raises(OSError, match="not committed"):
        world.pipeline(app).backfill(price, sink=fails_once, max_records_per_batch=30)
    assert world.committed == {0: 0, 1: 0}
    world.produce([b"100"])
    world.pipeline(app).backfill(price, sink=fails_once, max_records_per_batch=30)

    rows = world.spark.read.parquet(str(table)).collect()
    assert [batch_id for batch_id, _ in batches] == [0, 0, 1]
    assert batches[0][1] == ["cents", "tags", "note", "topic", "partition", "offset"]
    wanted = [*range(1, 9), *range(10, 50), 100]
    assert sorted(row.cents for row in rows) == sorted([*wanted, *(-n for n in wanted)])
    assert {row.note for row in rows if row.cents < 0} == {"back"}
    assert len({(row.partition, row.offset) for row in rows}) == len(wanted)


def test_a_dependency_is_opened_once_per_worker(world):
    """An app-scoped dependency without cleanup is opened once for all tasks of a worker."""
    world.make_topic(4)
    world.produce([b"%d" % n for n in range(400)], keys=[b"%d" % n for n in range(400)])
    folder, app = world.folder / "opened", world.app()
    folder.mkdir()

    async def opening():
        with Path(folder / str(os.getpid())).open("a") as file:  # noqa: ASYNC230 - a line
            file.write("opened\n")
        return os.getpid()

    @app.handler(world.topic)
    async def handle(record: Record, pid: Annotated[int, Depends(opening, scope="app")]) -> None:
        assert pid == os.getpid()

    report = world.pipeline(app).backfill(handle, max_records_per_batch=100)

    assert report.records == 400
    assert report.batches > 2
    assert 1 <= len(list(folder.iterdir())) <= 2
    assert {file.read_text() for file in folder.iterdir()} == {"opened\n"}


def test_parallelism_keeps_the_order_of_a_key(world):
    """With several tasks for each partition, the records of a key are handled in order by one task."""
    world.make_topic()
    world.produce([b"%d" % n for n in range(600)], keys=[b"%d" % (n % 7) for n in range(600)])
    app, folder = world.app(), world.folder / "order"
    folder.mkdir()

    @app.handler(world.topic, order_by="key")
    async def handle(record: Record) -> None:
        await asyncio.sleep(0)
        with Path(folder / record.key.decode()).open("a") as file:  # noqa: ASYNC230 - a line
            file.write(f"{record.offset}\n")

    report = world.pipeline(app).backfill(handle, parallelism=3)

    orders = [[int(line) for line in file.read_text().splitlines()] for file in folder.iterdir()]
    assert report.records == 600
    assert len(orders) == 7
    assert all(order == sorted(order) for order in orders)
    assert sum(map(len, orders)) == 600


@pytest.mark.parametrize("is_by_name", [True, False], ids=["names", "patterns"])
def test_handlers_that_share_a_topic_run_together(world, is_by_name):
    """Handlers with a common topic run in one pipeline, also if only their patterns share it."""
    topic = world.make_topic()
    world.produce([b"%d" % n for n in range(10)])
    out, handlers = world.make_topic(name=f"{world.group}-both"), Handlers()
    one, other = ((topic,), {}), ((topic,), {})
    if not is_by_name:
        one, other = ((), {"pattern": f"{topic[:-1]}."}), ((), {"pattern": f".{topic[1:]}"})

    @handlers.handler(*one[0], **one[1], when=lambda record: record.offset % 2 == 0, publish=out)
    async def even(number: int) -> str:
        return f"even {number}"

    @handlers.handler(*other[0], **other[1], when=lambda record: record.offset % 2 == 1, publish=out)
    async def odd(number: int) -> str:
        return f"odd {number}"

    app = world.app()
    app.include(handlers)
    world.pipeline(app).backfill(even)

    assert [one.value() for one in world.read(out)] == [b"odd %d" % n if n % 2 else b"even %d" % n for n in range(10)]


def test_plain_functions_and_batch_handlers_run(world):
    """Plain functions run in threads, and batch handlers do not wait for a full batch."""
    world.make_topic()
    second = world.make_topic(name=f"{world.group}-second")
    world.produce([b"%d" % n for n in range(25)])
    world.witness.produce(second, [b"%d" % n for n in range(25)])
    app, folder = world.app(), world.folder / "sizes"
    folder.mkdir()

    @app.handler(world.topic)
    def plain(number: int) -> None:
        Path(folder / f"plain-{number}").touch()

    @app.batch_handler(second, max_records=10, max_wait_ms=60_000)
    async def store(numbers: list[int]) -> None:
        Path(folder / f"batch-{numbers[0]}-{len(numbers)}").touch()  # noqa: ASYNC240 - a file

    one = world.pipeline(app, "one").backfill(plain)
    many = world.pipeline(app, "many").backfill(store)

    names = {file.name for file in folder.iterdir()}
    assert (one.records, many.records) == (25, 25)
    assert names == {*(f"plain-{n}" for n in range(25)), "batch-0-10", "batch-10-10", "batch-20-5"}


@pytest.mark.parametrize("kind", [pa.RecordBatch, pl.DataFrame, pd.DataFrame])
def test_batch_handlers_may_receive_tables(world, kind):
    """A batch handler on Spark receives the same tables as in a live app, and names failed rows in the same way."""
    world.make_topic()
    world.produce([b"%d" % n for n in range(25)])
    app, folder = world.app(retry=Retry(attempts=2, backoff_ms=1)), world.folder / "tables"
    folder.mkdir()

    @app.batch_handler(world.topic, max_records=10)
    async def store(table) -> None:
        offsets = [int(str(offset)) for offset in table["offset"]]
        Path(folder / f"{type(table).__name__}-{offsets[0]}-{len(offsets)}").touch()  # noqa: ASYNC240 - a file
        if offsets[0] == 0 and len(offsets) > 1:
            raise PartialFailureError([7]) from ConnectionError("away")

    store.__annotations__["table"] = kind
    report = world.pipeline(app).backfill(store)

    names = {file.name.removeprefix(f"{kind.__name__}-") for file in folder.iterdir()}
    assert report.records == 25
    assert names == {"0-10", "7-1", "10-10", "20-5"}


def test_an_importable_app_is_imported_by_workers(world, monkeypatch):
    """Workers import an importable app, and its handlers may publish with it."""
    world.make_topic()
    out, name = world.make_topic(name=f"{world.group}-module"), f"shop_{world.topic.replace('-', '_')}"
    world.produce([b"%d" % n for n in range(5)])
    (world.folder / f"{name}.py").write_text(
        f"""
from tailrace import App
billing = App(bootstrap_servers="{world.server.bootstrap_servers}", group_id="{world.group}")

@billing.handler("{world.topic}")
async def charge(number: int) -> None:
    await billing.publish("{out}", number * 10)
"""
    )
    monkeypatch.syspath_prepend(world.folder)

    report = SparkPipeline(f"{name}:billing", world.spark).backfill("charge")
    again = import_path_of(importlib.import_module(name).billing)

    assert again == f"{name}:billing"
    assert report.records == 5
    assert [one.value() for one in world.read(out)] == [b"%d" % (10 * n) for n in range(5)]
