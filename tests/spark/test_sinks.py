"""Sinks: what is refused, and tables that are updated by key."""

import datetime as dt

import psycopg
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from tailrace import App, ConfigurationError
from tailrace.spark import SparkPipeline, delta_table, iceberg_table, overwritten_folders
from tests.spark.page import run_samples
from tests.support.postgresql import running_postgresql

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]


def test_a_wrong_sink_is_refused_before_a_record_is_read(spark, tmp_path):
    """A sink that cannot be called, or whose data source is missing, raises a typed error without a broker."""
    app = App(bootstrap_servers="localhost:1", group_id="g")

    @app.handler("trips")
    async def price(km: int) -> int:
        return 120 * km

    pipeline = SparkPipeline(app, spark, checkpoint=str(tmp_path / "checkpoint"))
    for sink, reason in (
        ("fares", "sink='fares' is not a function of two arguments"),
        (lambda rows: rows, "is not a function of two arguments: too many positional arguments"),
        (delta_table("/fares", "w"), "no data source 'delta'"),
        (iceberg_table("lake.fares", "w"), "no data source 'iceberg'"),
        (overwritten_folders("/fares", "parket"), "no data source 'parket'"),
    ):
        for run in (pipeline.start, pipeline.backfill):
            with pytest.raises(ConfigurationError, match=reason):
                run(price, sink=sink)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(F, "arrow_udf"), reason="Spark 4.0 has no Arrow UDFs")
def test_newest_rows_are_upserted_and_a_repeated_batch_changes_nothing(spark, few_partitions, monkeypatch, tmp_path):
    """The function of the page leaves the newest row of each key in PostgreSQL, even if a batch is repeated."""
    page = run_samples(monkeypatch, results_as_columns=2, write_rows=1)
    trips, batches = tmp_path / "trips", []
    trips.mkdir()

    def place(*km: tuple[str, int]) -> None:
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=len(list(trips.iterdir())))
        lines = [
            f'{{"city": "{city}", "km": {n}, "at": "{(at + dt.timedelta(minutes=index)).isoformat()}"}}\n'
            for index, (city, n) in enumerate(km)
        ]
        (trips / f"{at:%H}.txt").write_text("".join(lines))

    def upsert(fares, batch_id):
        batches.append(batch_id)
        page.upsert(fares, batch_id)

    with running_postgresql() as page.DATABASE, psycopg.connect(page.DATABASE, autocommit=True) as database:
        database.execute("CREATE TABLE newest_fares (city text PRIMARY KEY, cents bigint)")

        def run() -> dict[str, int]:
            rows = spark.readStream.text(str(trips)).select(page.results(page.shop, page.price))
            stream = rows.writeStream.foreachBatch(upsert).trigger(availableNow=True)
            stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
            return dict(database.execute("SELECT city, cents FROM newest_fares").fetchall())

        place(("oslo", 3), ("rome", 9), ("oslo", 1))
        assert run() == {"oslo": 120, "rome": 1080}
        place(("oslo", 2))
        assert run() == {"oslo": 240, "rome": 1080}
        # A crash before Spark has written the batch to its commit log.
        for file in (tmp_path / "checkpoint" / "commits").glob("*1*"):
            file.unlink()
        assert run() == {"oslo": 240, "rome": 1080}
    assert batches == [0, 1, 1]
