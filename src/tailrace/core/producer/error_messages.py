"""Errors of the transactional producer; ``last_error`` is the reason why the last request has failed."""

from __future__ import annotations

import copy

from tailrace.core.producer.events import TransactionSettings
from tailrace.errors import ProducerFencedError, PublishError, TailraceError

__all__ = [
    "DOUBT",
    "abort_unanswered_error",
    "commit_canceled_error",
    "fenced_error",
    "no_producer_id_error",
    "timeout_error",
    "transaction_over_error",
    "unknown_outcome_error",
    "user_aborted_error",
]

DOUBT = "; it is not known whether the last commit has succeeded, because its request was not answered"


def timeout_error(last_error: str) -> PublishError:
    """Return the error of a transaction that was aborted because its requests were not answered in time."""
    return PublishError(
        "the transaction was aborted, because it was not completed in time - check that the brokers are reachable, or"
        f" raise default_api_timeout_ms; last error: {last_error}"
    )


def unknown_outcome_error(last_error: str) -> PublishError:
    """Return the error of a commit that was sent and not answered."""
    return PublishError(
        "the commit was sent and not answered in time, so it is not known whether it has succeeded"
        f" - call commit() again, or begin(), to find out; last error: {last_error}"
    )


def no_producer_id_error(last_error: str) -> PublishError:
    """Return the error of a call that got no producer id in time."""
    return PublishError(
        f"the brokers gave no producer id in time - check that they are reachable; last error: {last_error}"
    )


def abort_unanswered_error(last_error: str) -> PublishError:
    """Return the error of an abort that was not acknowledged in time."""
    return PublishError(
        "the abort was not acknowledged in time - call abort() again, or begin(), to complete it; last error:"
        f" {last_error}"
    )


def commit_canceled_error() -> PublishError:
    """Return the error of a transaction that was aborted because its commit was canceled before EndTxn was sent."""
    return PublishError("the transaction was aborted: its commit was canceled")


def user_aborted_error() -> PublishError:
    """Return the error of the records in a transaction that the user has aborted."""
    return PublishError("the transaction was aborted")


def transaction_over_error(cause: TailraceError) -> TailraceError:
    """Return the error of a call after the transaction was aborted by ``cause``; it has the type of ``cause``."""
    error = copy.copy(cause)
    error.args = (f"the transaction is over: {cause}",)
    return error


def fenced_error(settings: TransactionSettings, open_s: float | None, doubt: str, reason: str) -> ProducerFencedError:
    """Return the error of a fenced producer.

    Args:
        settings: settings of the producer.
        open_s: age of the transaction in seconds; None if the coordinator knows of none.
        doubt: ``DOUBT`` if a commit was sent and not answered; otherwise empty.
        reason: error of the broker.
    """
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
