"""Failures of a batch: of records that cannot be decoded, of records that the handler names, or of all records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tailrace.app.declare.prepared_handler import PreparedHandler
from tailrace.errors import DecodeError, HandlerFailedError, PartialFailureError
from tailrace.records import Record

__all__ = ["BatchCall", "FailuresByIndex", "call_batch", "raising_if_all_fail", "returning_failures"]

FailuresByIndex: TypeAlias = Mapping[int, Exception]
"""Errors of the failed records, by the index of the record in its batch."""
BatchCall: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Calls a handler for a batch; returns the failures, or raises an error with which all records of the batch fail."""


class _AllFailedError(Exception):
    """All records of a batch failed, each with its own error."""

    def __init__(self, failed: FailuresByIndex) -> None:
        self.failed = failed


async def call_batch(call: BatchCall, records: list[Record]) -> FailuresByIndex:
    """Call a handler for a batch and return the failures; if the call raises, all records have failed."""
    try:
        return await call(records) or {}
    except _AllFailedError as error:
        return error.failed
    except Exception as error:  # noqa: BLE001 - a handler may raise any exception
        return dict.fromkeys(range(len(records)), error)


def returning_failures(call: BatchCall, prepared: PreparedHandler, where: str) -> BatchCall:
    """Return a call that returns failures of single records instead of raising an error.

    A record fails alone if a PartialFailureError names it, or if it cannot be decoded. In the second case, the handler
    is called again for the other records. Any other error is raised.

    Args:
        call: calls the handler for a batch.
        prepared: decodes single records.
        where: name of the handler in errors.
    """

    async def call_returning_failures(records: list[Record]) -> FailuresByIndex:
        try:
            await call(records)
        except PartialFailureError as error:
            return _failures_named_by(error, len(records), where)
        except DecodeError:
            failed = _decode_failures(prepared, records)
            if not failed:
                # All records can be decoded, so the handler itself raised the DecodeError.
                raise
            decodable = [index for index in range(len(records)) if index not in failed]
            if decodable:
                later_failures = await call_batch(call_returning_failures, [records[index] for index in decodable])
                failed.update((decodable[index], error) for index, error in later_failures.items())
            return failed
        return {}

    return call_returning_failures


def raising_if_all_fail(call: BatchCall) -> BatchCall:
    """Return a call that raises an error if all records fail, so that nothing that the handler published is sent.

    If only some records fail, it is sent, because it contains the results of the other records.
    """

    async def call_raising_if_all_fail(records: list[Record]) -> FailuresByIndex:
        failed = await call_batch(call, records)
        if len(failed) == len(records):
            raise _AllFailedError(failed)
        return failed

    return call_raising_if_all_fail


def _decode_failures(prepared: PreparedHandler, records: Iterable[Record]) -> dict[int, Exception]:
    failed: dict[int, Exception] = {}
    for index, record in enumerate(records):
        try:
            prepared.decode_one(record)
        except DecodeError as error:
            failed[index] = error
    return failed


def _failures_named_by(error: PartialFailureError, count: int, where: str) -> FailuresByIndex:
    """Return the failures that a PartialFailureError names.

    A record that is named without an exception fails with the cause of the PartialFailureError, or with that error.

    Raises:
        HandlerFailedError: ``error`` names no record, or contains an invalid index or exception.
    """
    wrong = "" if error.failed else "no index"
    default = error.__cause__ if isinstance(error.__cause__, Exception) else error
    failed: dict[int, Exception] = {}
    for index, failure in _unchecked_entries(error):
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            wrong = f"index {index!r}"
        elif failure is None:
            failed[index] = default
        elif isinstance(failure, Exception):
            failed[index] = failure
        else:
            wrong = f"{failure!r}, which is not an exception, at index {index}"
    if wrong:
        raise HandlerFailedError(
            f"{where} raised PartialFailureError with {wrong}, for a batch of {count} records, so the whole batch has"
            f" failed - pass the index of each failed record, from 0 to {count - 1}, with its exception"
        ) from error
    return failed


def _unchecked_entries(error: PartialFailureError) -> Iterable[tuple[object, object]]:
    """Return the entries of ``error.failed`` as objects: the handler may have used other types than declared."""
    return error.failed.items()
