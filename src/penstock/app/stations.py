"""Handlers put together: the call, its line, and what becomes of what fails.

Rule of this file: it only joins; what the parts do is theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from dataclasses import dataclass

from penstock.app.batch_calling import batch_call, counting
from penstock.app.batch_failures import BatchFailures
from penstock.app.batch_line import BatchLine
from penstock.app.calling import record_call
from penstock.app.dead_letters import first_read
from penstock.app.failures import Failures
from penstock.app.handlers import Handle, Handler
from penstock.app.line import Line
from penstock.app.mail import Mail
from penstock.app.outcomes import Outcomes
from penstock.app.plan import Ready
from penstock.app.publisher import Publisher
from penstock.app.signatures.arguments import Opened
from penstock.app.signatures.prepared import Prepared
from penstock.app.signatures.prepared_batch import PreparedBatch
from penstock.app.sources import Transactions
from penstock.observe.hooks import Observer
from penstock.records import Record

__all__ = ["Site", "Station", "station"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a group has that all its handlers stand on."""

    opened: Opened
    """What dependencies of the app's scope have given."""
    publisher: Publisher
    """For results."""
    mail: Mail
    transactions: Transactions | None
    observer: Observer
    origins: Container[str]
    """The topics of the group's own, whose records are to look as they did in their first one."""
    delay_of: Callable[[str], int | None]
    """The delay of a retry topic in milliseconds; None of other topics."""
    window: int
    """How many records may wait in a line."""
    on_progress: Callable[[], None]
    """Told when something is done."""
    on_full: Callable[[Handler, Record, int], None]
    """Told of the last record that a lane or a partition takes, and how many wait there."""


@dataclass(frozen=True, slots=True, eq=False)
class Station:
    """One handler at work."""

    handler: Handler
    line: Line | BatchLine
    failures: Failures | BatchFailures


def station(ready: Ready, site: Site) -> Station:
    """A handler on its site."""
    if isinstance(ready.prepared, PreparedBatch):
        return _batch_station(ready, ready.prepared, site)
    return _record_station(ready, ready.prepared, site)


def _record_station(ready: Ready, prepared: Prepared, site: Site) -> Station:
    handler, terms = ready.handler, ready.terms
    handle = record_call(
        handler,
        prepared,
        opened=site.opened,
        publisher=site.publisher,
        codec=terms.codec,
        middleware=terms.middleware,
    )

    if not prepared.is_simple or terms.middleware or handler.when is not None:
        handle = _as_first_read(handle, site.origins)
    if site.transactions is not None:
        handle = site.transactions.around(handle)
    failures = Failures(handler.name, _outcomes(ready, site), site.observer)
    line = Line(
        handle,
        lambda record, error: failures.recover(line, record, error),
        order_by=handler.order_by,
        concurrency=handler.concurrency,
        window=site.window,
        on_progress=site.on_progress,
        on_full=functools.partial(site.on_full, handler),
        is_shared=handler.when is not None,
    )
    return Station(handler, line, failures)


def _batch_station(ready: Ready, prepared: PreparedBatch, site: Site) -> Station:
    handler = ready.handler
    assert handler.batches is not None
    attempt = batch_call(
        handler,
        prepared,
        opened=site.opened,
        publisher=site.publisher,
        codec=ready.terms.codec,
        origins=site.origins,
    )
    if site.transactions is not None:
        attempt = counting(site.transactions, attempt)
    failures = BatchFailures(handler.name, _outcomes(ready, site), site.observer)
    line = BatchLine(
        attempt,
        failures.recover,
        order_by=handler.order_by,
        limits=handler.batches,
        concurrency=handler.concurrency,
        window=site.window,
        on_progress=site.on_progress,
        on_full=functools.partial(site.on_full, handler),
    )
    return Station(handler, line, failures)


def _outcomes(ready: Ready, site: Site) -> Outcomes:
    return Outcomes(
        ready.handler,
        ready.terms,
        mail=site.mail,
        observer=site.observer,
        transactions=site.transactions,
        delay_of=site.delay_of,
    )


def _as_first_read(handle: Handle, origins: Container[str]) -> Handle:
    """For handlers that may see more of a record than its value: from a topic of the group's own it looks as before."""
    return lambda record: handle(first_read(record) if record.topic in origins else record)
