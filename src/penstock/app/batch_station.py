"""A batch handler put together: its call, its line, and what becomes of what fails."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

from penstock.app.batch_calling import batch_call, counting
from penstock.app.batch_failures import BatchFailures
from penstock.app.batch_line import BatchLine
from penstock.app.codecs import AnyCodec
from penstock.app.failures import Failures
from penstock.app.handlers import Handler
from penstock.app.plan import Defaults
from penstock.app.publisher import Publisher
from penstock.app.signatures.arguments import Opened
from penstock.app.signatures.prepared_batch import PreparedBatch
from penstock.app.sources import Transactions
from penstock.observe.hooks import Observer
from penstock.records import Record

__all__ = ["batch_station"]


def batch_station(  # noqa: PLR0913 - what a handler at work stands on
    handler: Handler,
    prepared: PreparedBatch,
    *,
    group_id: str,
    defaults: Defaults,
    opened: Opened,
    publisher: Publisher,
    transactions: Transactions | None,
    observer: Observer,
    origins: Collection[str],
    window: int,
    on_progress: Callable[[], None],
) -> tuple[BatchLine, BatchFailures]:
    """The line of a batch handler, and what sees to its failures."""
    assert handler.batches is not None
    codec = cast("AnyCodec", handler.codec or defaults.codec)
    attempt = batch_call(handler, prepared, opened=opened, publisher=publisher, codec=codec, origins=origins)
    if transactions is not None:
        attempt = counting(transactions, attempt)
    set_aside = None if transactions is None else transactions.set_aside
    retry = handler.retry or defaults.retry
    on_failure = handler.on_failure or defaults.on_failure
    dead_letter_topic = handler.dead_letter or defaults.dead_letter

    async def attempt_one(record: Record) -> object:
        return await attempt([record])

    async def pause_one(record: Record, seconds: float) -> bool:
        return await line.pause_one(record, seconds)

    def is_ours(record: Record) -> bool:
        return line.is_ours(record)

    single = Failures(
        handler,
        group_id=group_id,
        retry=retry,
        on_failure=on_failure,
        dead_letter_topic=dead_letter_topic,
        publisher=publisher,
        attempt=attempt_one,
        pause=pause_one,
        observer=observer,
        is_ours=is_ours,
        set_aside=set_aside,
    )
    failures = BatchFailures(
        handler.name,
        single,
        retry=retry,
        on_failure=on_failure,
        has_dead_letters=dead_letter_topic is not None,
        set_aside=set_aside,
        observer=observer,
    )
    line = BatchLine(
        attempt,
        failures.recover,
        order_by=handler.order_by,
        limits=handler.batches,
        concurrency=handler.concurrency,
        window=window,
        on_progress=on_progress,
    )
    return line, failures
