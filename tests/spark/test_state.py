"""State downstream of a handler's results."""

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from tests.spark.page import run_samples

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.slow,
    pytest.mark.timeout(280),
    pytest.mark.skipif(not hasattr(F, "arrow_udf"), reason="Spark 4.0 has neither Arrow UDFs nor transformWithState"),
]


def test_state_of_results_continues_in_the_next_query(spark, few_partitions, monkeypatch, tmp_path):
    """A processor of the page keeps the sum of each key from batch to batch, and from one query to the next."""
    page = run_samples(monkeypatch, results_as_columns=2, keep_state=1)
    trips, table = tmp_path / "trips", str(tmp_path / "table")
    trips.mkdir()

    def run(**km: int) -> set[tuple[str, int]]:
        lines = [f'{{"city": "{city}", "km": {n}, "at": "2026-01-01T12:00:00Z"}}\n' for city, n in km.items()]
        (trips / f"{len(list(trips.iterdir()))}.txt").write_text("".join(lines))
        stream = page.milestones(spark.readStream.text(str(trips))).writeStream.trigger(availableNow=True)
        stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(table).awaitTermination()
        return {
            (row.city, row.cents) for row in spark.read.schema("city string, cents bigint").parquet(table).collect()
        }

    try:
        assert run(oslo=3, rome=9) == {("rome", 1080)}
        assert run(oslo=6, rome=1, bern=1) == {("rome", 1080), ("oslo", 1080)}
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
