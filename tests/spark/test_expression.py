"""Results of a handler as an expression, on rows and on Kafka."""

import asyncio
import datetime as dt
import os
import re
import sys
import types
from decimal import Decimal

import msgspec
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from tailrace import App, ConfigurationError, Record, Retry
from tailrace.app.failures.dead_letters import read_dead_letter
from tailrace.spark import results
from tests.spark.page import run_samples

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(180),
    pytest.mark.skipif(not hasattr(F, "arrow_udf"), reason="Spark 4.0 has no Arrow UDFs"),
]


class Leg(msgspec.Struct):
    miles: float
    gate: str | None = None


class Fare(msgspec.Struct):
    city: str
    cents: int
    paid: Decimal
    at: dt.datetime
    legs: list[Leg]
    tags: dict[str, int]
    note: str | None = None


AT = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))


@pytest.fixture
def app() -> App:
    """Return an app whose broker does not exist."""
    return App(bootstrap_servers="localhost:1", group_id="g", dead_letter="dead", retry=Retry(attempts=1))


def test_rows_made_in_a_test_have_typed_results_without_kafka(spark, app):
    """A record gives zero, one or many rows, whose columns have the types and nullability of the annotation."""

    @app.handler("trips")
    async def price(count: int) -> list[Fare]:
        return [Fare("Oslo", n, Decimal("1.5"), AT, [Leg(2.5)], {"a": 1}) for n in range(count)]

    records = spark.createDataFrame([("0", 7), ("1", 8), ("2", 9)], "value string, id int")
    rows = records.select("id", results(app, price))

    # In the session's time zone, which is the machine's.
    at = AT.astimezone().replace(tzinfo=None)
    assert rows.schema.simpleString() == (
        "struct<id:int,city:string,cents:bigint,paid:decimal(38,18),at:timestamp,"
        "legs:array<struct<miles:double,gate:string>>,tags:map<string,bigint>,note:string>"
    )
    assert [one.name for one in rows.schema if one.nullable] == ["id", "note"]
    assert [(one.id, one.cents) for one in rows.collect()] == [(8, 0), (9, 0), (9, 1)]
    first = rows.filter("id = 8").first()
    assert (first.paid, first.at, first.tags, first.note) == (Decimal("1.5"), at, {"a": 1}, None)
    assert [one.asDict() for one in first.legs] == [{"miles": 2.5, "gate": None}]


def test_the_handler_is_called_once_for_a_record(spark, app, tmp_path):
    """Filters, unused columns and constant columns do not make Spark copy, move or drop the call of the handler."""
    calls = tmp_path / "calls"

    @app.handler("trips", order_by="none")
    async def double(record: Record) -> list[int]:
        file = os.open(calls, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(file, record.value + b"\n")
        os.close(file)
        return [int(record.value), 2 * int(record.value)]

    records = spark.createDataFrame([(str(n), n) for n in range(9)], "value string, id int")
    records = records.withColumn("topic", F.lit("trips")).withColumn("timestamp", F.current_timestamp())
    rows = records.select("id", results(app, double))
    found = rows.selectExpr("string(id)", "string(value)").filter("value > 5 AND id < 8").limit(100).collect()

    expected = [(n, m) for n in range(8) for m in (n, 2 * n) if m > 5]
    assert [(int(one.id), int(one.value)) for one in found] == expected
    assert sorted(map(int, calls.read_bytes().split())) == list(range(9))


def test_a_handler_receives_what_the_columns_contain(spark, app):
    """Key, headers, position and timestamp are those of the row; a partition is handled in order of its offsets."""

    @app.handler("a", "b")
    async def show(record: Record) -> str:
        return repr((*record, record.timestamp, list(record.headers)))

    rows = [
        ("a", 0, 5, b"k", b"1", dt.datetime(2026, 1, 1, tzinfo=dt.UTC), [("h", b"x"), ("i", None)]),
        ("a", 0, 3, None, None, None, None),
        ("b", 1, 3, b"", b"", dt.datetime(1970, 1, 1, tzinfo=dt.UTC), []),
        ("a", 0, 5, b"k", b"again", None, None),
    ]
    columns = "topic string, partition int, offset long, key binary, value binary, timestamp timestamp"
    records = spark.createDataFrame(rows, f"{columns}, headers array<struct<key: string, value: binary>>").coalesce(1)
    found = [one.value for one in records.select(results(app, "show")).collect()]

    headers = [("h", b"x"), ("i", None)]
    assert found == [
        repr(("a", 0, 5, b"k", b"1", 1767225600000, headers)),
        repr(("a", 0, 3, None, None, -1, [])),
        repr(("b", 1, 3, b"", b"", 0, [])),
        repr(("a", 0, 5, b"k", b"again", -1, [])),
    ]


def test_records_of_kafka_give_results_and_dead_letters(world):
    """A batch of Spark's Kafka source is handled as in the live app: with retries, dead letters and ``when``."""
    world.make_topic(2)
    dead = world.make_topic(name=f"{world.topic}.dead")
    world.produce([b"%d" % n for n in range(60)], keys=[b"%d" % (n % 7) for n in range(60)], headers=[("h", b"1")])
    app = world.app(dead_letter="{topic}.dead", retry=Retry(attempts=2, backoff_ms=1))
    taken = world.folder / "taken"

    @app.handler(world.topic, when=lambda record: int(record.value) >= 50)
    async def take(record: Record) -> None:
        taken.touch()

    @app.handler(world.topic, when=lambda record: bool(record.value), order_by="key", concurrency=10)
    async def triple(number: int, record: Record) -> list[int] | None:
        if number == 7:
            raise ValueError("no sevens")
        await asyncio.sleep(0.01 if number % 2 else 0)
        return [3 * number, len(record.headers)] if number else None

    options = {"kafka.bootstrap.servers": world.server.bootstrap_servers, "subscribe": world.topic}
    records = world.spark.read.format("kafka").options(includeHeaders="true", **options).load()
    rows = records.select("partition", "offset", results(app, triple)).collect()

    assert sorted(one.value for one in rows) == sorted(m for n in range(1, 50) if n != 7 for m in (3 * n, 1))
    assert not taken.exists()
    (letter,) = world.read(dead)
    parsed = read_dead_letter(Record(dead, 0, 0, letter.key(), letter.value(), 0, tuple(letter.headers())))
    assert (parsed.reason, parsed.attempts, parsed.group_id, parsed.value) == ("no sevens", 2, world.group, b"7")
    assert world.committed == {}


def test_the_status_of_each_record_is_counted(world):
    """Records have a status and a list of results, and Spark's observed metrics are the counts by status."""
    world.make_topic(name=f"{world.group}.dead")
    topic = world.make_topic()
    later_topic = f"{world.group}-later"
    world.make_topic(name=f"{later_topic}.{world.group}.retry.1h")
    app = world.app(dead_letter=f"{world.group}.dead", retry=Retry(attempts=1))

    @app.handler(topic, when=lambda record: record.value != b"3", unmatched="skip")
    async def divide(number: int) -> list[int]:
        return [6 // number] * number

    @app.handler(later_topic, retry=Retry(attempts=1, topic_delays_ms=[3_600_000]))
    async def later(number: int) -> int:
        return 6 // number

    def counts(handler, topic: str, *values: str) -> tuple[list[tuple[str, int]], dict[str, int]]:
        records = world.spark.createDataFrame([(one, topic) for one in values], "value string, topic string")
        observation = Observation()
        handled = records.coalesce(1).select(results(app, handler, with_status=True))
        counted = handled.observe(
            observation,
            F.count(F.lit(1)).alias("records"),
            F.sum(F.size("results")).alias("rows"),
            *(F.count_if(F.col("status") == one).alias(one) for one in ("skipped", "dead_lettered", "delayed")),
        )
        numbers = [row.value for row in counted.select(F.inline("results")).collect()]
        rows = handled.collect()
        assert numbers == [one.value for row in rows for one in row.results]
        return [(row.status, len(row.results)) for row in rows], observation.get

    found = [("handled", 2), ("dead_lettered", 0), ("skipped", 0), ("handled", 1)]
    metrics = {"records": 4, "rows": 3, "skipped": 1, "dead_lettered": 1, "delayed": 0}
    assert counts(divide, topic, "2", "0", "3", "1") == (found, metrics)
    assert counts(later, later_topic, "0", "1")[0] == [("delayed", 0), ("handled", 1)]


def failure(frame) -> str:
    """Return the message of the error with which Spark ends."""
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    return str(caught.value)


def test_permanent_errors_end_the_query_with_their_own_message(spark):
    """The error of the query contains type and message of the error, and the handler's own error."""
    app = App(bootstrap_servers="localhost:1", group_id="g", retry=Retry(attempts=1), on_failure="stop")

    @app.handler("trips")
    async def half(number: int) -> list[int]:
        return [None if number == 3 else 6 // number, 2**64 if number == 4 else 0]

    rows = spark.createDataFrame([("1",), ("2",), ("0",)], "value string").coalesce(1).select(results(app, "half"))
    text = failure(rows)
    assert re.search(r"HandlerFailedError: \S+half failed at trips\[0\] offset 2: ZeroDivisionError", text)
    assert "6 // number" in text
    text = failure(spark.createDataFrame([("4",)], "value string").select(results(app, half)))
    assert "HandlerFailedError: trips[0] offset 0: the handler's result does not match its annotation" in text
    assert spark.createDataFrame([("3",)], "value string").select(results(app, half)).collect()[0].value == 0


def test_bad_columns_are_refused_before_a_record_is_handled(spark, app, tmp_path):
    """Columns that are missing, have another type or contain null raise an error that names the column."""
    touched = tmp_path / "touched"

    @app.handler("a", "b")
    async def touch(record: Record) -> int:
        touched.touch()
        return 1

    def refused(columns: str, *rows: tuple) -> str:
        return failure(spark.createDataFrame(list(rows), columns).coalesce(1).select(results(app, touch)))

    with pytest.raises(AnalysisException, match="`value` cannot be resolved"):
        spark.createDataFrame([(b"1",)], "vale binary").select(results(app, touch))
    assert "ConfigurationError: the column 'value' has the Arrow type double" in refused(
        "value double, topic string", (1.0, "a")
    )
    assert "has no column 'topic'" in refused("value string", ("1",))
    assert "the column 'offset' contains null" in refused(
        "value string, topic string, offset long", ("1", "a", 1), ("2", "a", None)
    )
    assert "does not read the topic 'c'" in refused("value string, topic string", ("1", "a"), ("1", "c"))
    assert not touched.exists()


def test_an_app_that_workers_cannot_import_is_named(spark, monkeypatch):
    """If a worker cannot import the module of the app, the error names it and says what to do."""
    module = types.ModuleType("only_in_the_driver")
    module.app = App(group_id="g", bootstrap_servers="localhost:1")
    monkeypatch.setitem(sys.modules, "only_in_the_driver", module)

    @module.app.handler("t")
    async def handle(value: bytes) -> int:
        return 1

    text = failure(spark.createDataFrame([("1",)], "value string").select(results("only_in_the_driver:app", "handle")))

    assert "ConfigurationError: Spark's workers cannot import only_in_the_driver:app" in text


def test_handlers_without_columns_are_refused_at_once(spark, app):
    """An expression that cannot have columns raises a typed error when it is built."""

    @app.handler("a")
    async def untyped(value: bytes): ...

    @app.handler("b")
    async def empty(value: bytes) -> msgspec.Struct: ...

    @app.batch_handler("c")
    async def several(values: list[bytes]) -> int: ...

    @app.handler("d")
    async def unknown(value: bytes) -> complex: ...

    for name, reason in (
        ("untyped", "has no return annotation, which defines the columns"),
        ("empty", "has no fields and thus no columns"),
        ("several", "is a batch handler"),
        ("unknown", "is complex, which has no Spark type"),
        ("other", "the app has no handler 'other'"),
    ):
        with pytest.raises(ConfigurationError, match=reason):
            results(app, name)


def test_the_first_samples_of_the_page_run(spark, monkeypatch, capsys):
    """The samples of the page that need no broker run in order, and show the rows that the page states."""
    module = run_samples(monkeypatch, results_as_columns=2, count_records=1)

    (row,) = module.fares.collect()
    assert module.fares.columns == ["city", "cents", "at", "note"]
    assert (row.city, row.cents, row.note) == ("Oslo", 360, None)
    assert "|cents|" in capsys.readouterr().out
    assert [(one.status, one.results[0].cents) for one in module.handled.collect()] == [("handled", 360)]
