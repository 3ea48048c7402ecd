"""Errors of the transactional producer."""

from __future__ import annotations

import copy

from tailrace.core.producer.events import TransactionSettings
from tailrace.errors import ProducerFencedError, PublishError, TailraceError

__all__ = ["DOUBT", "closed", "fenced", "not_aborted", "not_begun", "not_committed", "not_in_time", "not_known", "over"]

DOUBT = "; it is not known whether the commit that was sent before has succeeded"


def not_in_time(trouble: str) -> PublishError:
    """Return the error of a transaction that was aborted because it took too long."""
    return PublishError(f"the transaction was aborted: not through in time; last: {trouble}")


def not_known(trouble: str) -> PublishError:
    """Return the error of a commit that was sent and not answered."""
    return PublishError(
        "the commit was sent and not answered in time, so it is not known whether it has succeeded"
        f" - call commit() again, or begin(), to find out; last: {trouble}"
    )


def not_begun(trouble: str) -> PublishError:
    """Return the error of a start without a producer id."""
    return PublishError(f"the brokers gave no producer id in time; last: {trouble}")


def not_aborted(trouble: str) -> PublishError:
    """Return the error of an abort that was not answered."""
    return PublishError(f"the abort was not acknowledged in time; last: {trouble}")


def not_committed() -> PublishError:
    """Return the cause of the abort of a transaction whose commit was canceled before EndTxn."""
    return PublishError("the transaction was aborted: its commit was canceled")


def closed() -> PublishError:
    """Return the error of records in a transaction that the user aborted."""
    return PublishError("the transaction was aborted")


def over(cause: TailraceError) -> TailraceError:
    """Return an error of the type of ``cause`` for a call in a transaction that was aborted by ``cause``."""
    error = copy.copy(cause)
    error.args = (f"the transaction is over: {cause}",)
    return error


def fenced(settings: TransactionSettings, open_s: float | None, doubt: str, reason: str) -> ProducerFencedError:
    """Return the error of a fenced producer; ``open_s`` is the age of its transaction, or None without one."""
    limit_s = settings.transaction_timeout_s
    if open_s is not None and open_s >= limit_s:
        why = (
            f"the transaction took {open_s:.1f} s, and the broker aborts transactions that take longer than"
            f" {limit_s:g} s - raise transaction_timeout_ms, or do less in one transaction, and start a new producer"
        )
    else:
        why = (
            f"another process has the same transactional_id {settings.transactional_id!r} and fenced this producer"
            " - give each process a transactional_id of its own"
        )
    return ProducerFencedError(f"{why}{doubt} ({reason})")
