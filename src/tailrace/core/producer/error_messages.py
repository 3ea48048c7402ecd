"""What the user of a transactional producer is told when it cannot go on as it was asked to."""

from __future__ import annotations

from tailrace.core.producer.events import TransactionSettings
from tailrace.errors import ProducerFencedError, PublishError

__all__ = ["DOUBT", "fenced", "not_aborted", "not_begun", "not_committed", "not_in_time", "not_known"]

DOUBT = "; whether the commit that was sent before is done is not known"


def not_in_time(trouble: str) -> PublishError:
    """It took too long, and could be taken back."""
    return PublishError(f"the transaction was aborted: it was not through in time; last: {trouble}")


def not_known(trouble: str) -> PublishError:
    """It took too long, and could not."""
    return PublishError(
        "the commit was sent and not answered in time, so it is not known whether it is done"
        f" - commit() again, or begin(), finds out; last: {trouble}"
    )


def not_begun(trouble: str) -> PublishError:
    """There is no producer id."""
    return PublishError(f"no producer id was given in time; last: {trouble}")


def not_aborted(trouble: str) -> PublishError:
    """It is taken back sooner or later, and not yet."""
    return PublishError(f"the abort was not acknowledged in time; last: {trouble}")


def not_committed() -> PublishError:
    """Nobody waits for the commit any more, which was not sent yet."""
    return PublishError("the transaction was aborted: its commit was cancelled")


def fenced(settings: TransactionSettings, open_s: float | None, doubt: str, reason: str) -> ProducerFencedError:
    """Somebody is ahead of this producer: the broker, if the transaction was open for too long, or another process."""
    limit_s = settings.transaction_timeout_s
    if open_s is not None and open_s >= limit_s:
        why = (
            f"the transaction took {open_s:.1f} s, and the broker aborts those that take longer than"
            f" {limit_s:g} s - raise transaction_timeout_ms, or do less in one, and start this producer anew"
        )
    else:
        why = (
            f"another process has the same transactional_id {settings.transactional_id!r} and took this one's"
            " place - give each process one of its own"
        )
    return ProducerFencedError(f"{why}{doubt} ({reason})")
