"""Dependencies and hooks that write when they are closed, before the commit."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest

from tailrace import App, Depends, HandlerFailedError, Record

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]


def buffering(world, *, breaks: bool = False) -> App:
    """Return an app that buffers values and writes them when it is closed."""
    app, folder = world.app(), str(world.folder)

    def buffer() -> Iterator[list[str]]:
        kept: list[str] = []
        Path(folder, f"opened-{uuid.uuid4().hex}").touch()
        yield kept
        if breaks:
            raise OSError("the disk is full")
        Path(folder, f"flushed-{uuid.uuid4().hex}").write_text("\n".join(kept))

    @app.on_stop
    def stopped() -> None:
        Path(folder, f"stopped-{os.getpid()}-{uuid.uuid4().hex}").touch()

    @app.handler(world.topic)
    async def keep(record: Record, kept: Annotated[list[str], Depends(buffer, scope="app")]) -> None:
        kept.append(f"{record.partition} {record.offset}")

    return app


def flushed(world) -> list[str]:
    files = world.folder.glob("flushed-*")
    return sorted(line for file in files for line in file.read_text().splitlines())


@pytest.mark.parametrize("engine", ["backfill", "stream"])
def test_committed_records_are_flushed(world, engine):
    """After a backfill or a stream, dependencies are closed and have written each record once."""
    world.make_topic(2)
    for partition in range(2):
        world.produce([b"a"] * 50, partition=partition)
    pipeline = world.pipeline(buffering(world))

    if engine == "backfill":
        assert pipeline.backfill("keep", max_records_per_batch=40).records == 100
    else:
        assert pipeline.start("keep", trigger="available_now", max_records_per_batch=40).await_termination(120)

    assert world.committed == {0: 50, 1: 50}
    assert flushed(world) == sorted(f"{p} {n}" for p in range(2) for n in range(50))
    opened, stopped = (len(list(world.folder.glob(f"{name}-*"))) for name in ("opened", "stopped"))
    assert opened == stopped > 0


def test_an_error_at_the_stop_of_the_app_prevents_the_commit(world):
    """An error while the app stops ends the backfill, and the next one handles the records again."""
    world.make_topic()
    world.produce([b"a"] * 5)

    with pytest.raises(HandlerFailedError, match=r"failed to stop, .*the disk is full"):
        world.pipeline(buffering(world, breaks=True)).backfill("keep")

    assert world.committed == {0: 0}
