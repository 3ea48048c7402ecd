"""Offset maps sent to tasks as text."""

from __future__ import annotations

from pyspark import cloudpickle

from tailrace import App, TopicPartition
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap, decode_metadata, encode_metadata
from tailrace.spark.batches import BatchRunner
from tailrace.spark.handler_selection import select_handlers
from tailrace.spark.worker import task_runner
from tailrace.spark.worker.shipment import pack

_GAP = 64
_FORGED = encode_metadata(OffsetMap(0, 32_000 * _GAP, range(0, 32_000 * _GAP - 1, _GAP)), "", 4_096).text
"""A few bytes that claim a map of half a megabyte."""


def sent(app: App, maps: dict[TopicPartition, OffsetMap]) -> bytes:
    """Return the object after pickling, as Spark sends it to a task."""
    chosen = select_handlers(app, "enter", "g")
    shipment = pack(app, None, chosen, resolve(app.options), has_sink=False)
    batches = BatchRunner(chosen, shipment, None, None, None).with_offset_maps(maps)
    return cloudpickle.dumps(
        task_runner.task_function(shipment, batches.offset_maps, None, "t", has_one_partition=True)
    )


def app_of_one_handler() -> App:
    app = App(bootstrap_servers="localhost:9", group_id="g")

    @app.handler("t")
    async def enter(n: int) -> None: ...

    return app


def test_an_offset_map_is_sent_as_its_text():
    """An offset map is sent to a task as its short text, however large it is in memory."""
    maps = {}
    for number in range(20):
        known = decode_metadata(_FORGED, 0).offset_map
        assert known is not None
        maps[TopicPartition("t", number)] = known
    assert len(_FORGED) < 100
    assert len(cloudpickle.dumps(maps)) > 20 * 400_000

    app = app_of_one_handler()

    assert len(sent(app, maps)) - len(sent(app, {})) < 20 * (len(_FORGED) + 100)


def test_a_task_decodes_only_its_own_maps():
    """A task decodes the offset map of its partition only, and this one is unchanged."""
    maps = {TopicPartition("t", number): OffsetMap(number, 20, (number, 15)) for number in range(3)}
    batches = BatchRunner(None, None, None, None, None).with_offset_maps(maps)  # type: ignore[arg-type]
    done = cloudpickle.loads(cloudpickle.dumps(batches.offset_maps))

    found = done.get(TopicPartition("t", 1))

    assert [found.is_finished(offset) for offset in (0, 1, 2, 15, 19, 20)] == [True, False, True, False, True, False]
    assert done.get(TopicPartition("t", 9)) is None
    assert list(done._decoded) == [TopicPartition("t", 1)]
