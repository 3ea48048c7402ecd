"""Apps whose handlers write the start and end of each call to a file, for test_metric_witnesses."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace import App, Record, Retry

FOLDER = Path(os.environ["WITNESS_FOLDER"])
NAME = os.environ["WITNESS_NAME"]

till = App(
    group_id=NAME,
    client_id=NAME,
    heartbeat_interval_ms=400,
    auto_commit_interval_ms=200,
    max_queued_records=50,
    request_timeout_ms=3_000,
    retry=Retry(attempts=1),
)
bank = App(group_id=f"{NAME}-bank", delivery="exactly_once", transaction_timeout_ms=1_000)
pool = App(group_id=f"{NAME}-pool", session_timeout_ms=6_000)


def note(handler: str, **fields: object) -> None:
    """Append a line to the file of calls."""
    with (FOLDER / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"handler": handler, "at": time.time(), **fields}) + "\n")


@contextmanager
def noted(handler: str, records: int = 1) -> Iterator[None]:
    """Write the start and the end of a call."""
    note(handler, what="begin", records=records)
    began_at = time.perf_counter()
    try:
        yield
    finally:
        note(handler, what="end", records=records, took_s=time.perf_counter() - began_at)


failed: list[int] = []


@till.handler(f"{NAME}-charges", dead_letter="{topic}.dead", retry=Retry(attempts=3, backoff_ms=1, max_backoff_ms=2))
async def charge(n: int) -> None:
    """Fail for good at two records, and once at another."""
    with noted("charge"):
        await asyncio.sleep(0.002)
        if n in {10, 20} or (n == 30 and n not in failed):
            failed.append(n)
            raise ValueError(n)


@till.batch_handler(f"{NAME}-parcels", max_records=10, max_wait_ms=50)
async def ship(parcels: list[int]) -> None:
    """Handle batches."""
    with noted("ship", len(parcels)):
        await asyncio.sleep(0.005)


@till.handler(f"{NAME}-letters", retry=Retry(attempts=1, topic_delays_ms=[3_600_000]))
async def answer(n: int) -> None:
    """Fail at three records, which are written to the retry topic."""
    with noted("answer"):
        if n < 3:
            raise ValueError(n)


@till.handler(f"{NAME}-clicks", on_failure="skip")
async def count(n: int) -> None:
    """Fail at each tenth record, which is skipped."""
    with noted("count"):
        if n % 10 == 0:
            raise ValueError(n)


@till.handler(f"{NAME}-parts", order_by="none", concurrency=2)
async def wait(_: int) -> None:
    """Never return."""
    with noted("wait"):
        await asyncio.Event().wait()


@till.handler(f"{NAME}-mail", when=lambda record: record.key == b"ours", unmatched="skip")
async def pick(_: int) -> None:
    """Handle the records of one key."""
    with noted("pick"):
        pass


@till.handler(f"{NAME}-claims")
async def refuse(n: int) -> None:
    """Fail at each record, which blocks the partition."""
    with noted("refuse"):
        raise ValueError(n)


@till.handler(f"{NAME}-leftovers")
async def halt(_: int) -> None:
    """Handle nothing, since the handler is paused before there is a record."""
    with noted("halt"):
        pass


@till.handler(f"{NAME}-hoards", group_id=f"{NAME}-hoard", concurrency=1)
async def hoard(_: Record) -> None:
    """Never return, so that the buffers fill up."""
    with noted("hoard"):
        await asyncio.Event().wait()


@till.handler(f"{NAME}-commands")
async def obey(command: str) -> None:
    """Pause another handler, or block the event loop until a file exists."""
    with noted("obey"):
        if command == "pause":
            till.pause(halt)
        while command == "block" and not (FOLDER / "free").exists():
            time.sleep(0.01)  # noqa: ASYNC251 - blocks the event loop


@bank.handler(f"{NAME}-payments", publish=f"{NAME}-receipts")
async def receive(n: int) -> int:
    """Publish in a transaction."""
    return n


@pool.handler(f"{NAME}-jobs")
async def work(_: int) -> None:
    """Write the process id of the worker."""
    note("work", what="end", process=os.getpid())
