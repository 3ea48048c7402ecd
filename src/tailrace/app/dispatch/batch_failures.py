"""Failed records of a batch: records that cannot be decoded, records that the handler names, or all records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tailrace.app.declare.prepared_handler import PreparedHandler
from tailrace.errors import DecodeError, HandlerFailedError, PartialFailureError
from tailrace.records import Record

__all__ = ["BatchCall", "Failed", "failures_of", "naming_failures", "raising_if_all_fail"]

Failed: TypeAlias = Mapping[int, Exception]
"""Indices of the records that failed, each with its error."""
BatchCall: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Calls a handler for a batch; returns the failed records, or raises the error with which all of them failed."""


class _AllFailedError(Exception):
    """Raised if all records of a batch failed, each with its own error."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed


async def failures_of(call: BatchCall, records: list[Record]) -> Failed:
    """Call a handler for a batch, and return the failed records."""
    try:
        return await call(records) or {}
    except _AllFailedError as error:
        return error.failed
    except Exception as error:  # noqa: BLE001 - a handler may raise any
        return dict.fromkeys(range(len(records)), error)


def naming_failures(call: BatchCall, prepared: PreparedHandler, where: str) -> BatchCall:
    """Return a ``call`` that returns the failed records.

    These are the records that a PartialFailureError names, and the records that cannot be decoded.
    """

    async def named(records: list[Record]) -> Failed:
        try:
            await call(records)
        except PartialFailureError as error:
            return _named(error, len(records), where)
        except DecodeError:
            failed = _undecodable(prepared, records)
            if not failed:
                # The handler itself decoded something else and raised the DecodeError.
                raise
            good = [index for index in range(len(records)) if index not in failed]
            if good:
                of_good = await failures_of(named, [records[index] for index in good])
                failed.update((good[index], one) for index, one in of_good.items())
            return failed
        return {}

    return named


def raising_if_all_fail(call: BatchCall) -> BatchCall:
    """Return a ``call`` that raises if all records failed.

    The transaction discards the messages of a call that raises. If only some records failed, the published messages
    belong to the other records and are kept.
    """

    async def raising(records: list[Record]) -> Failed:
        failed = await failures_of(call, records)
        if len(failed) == len(records):
            raise _AllFailedError(failed)
        return failed

    return raising


def _undecodable(prepared: PreparedHandler, records: Iterable[Record]) -> dict[int, Exception]:
    failed: dict[int, Exception] = {}
    for index, record in enumerate(records):
        try:
            prepared.decode_one(record)
        except DecodeError as error:
            failed[index] = error
    return failed


def _named(error: PartialFailureError, count: int, where: str) -> Failed:
    """Return the failures named in a PartialFailureError.

    Raises:
        HandlerFailedError: the error names no record, or an index or exception in it is invalid.
    """
    wrong = "" if error.failed else "no index"
    instead = error.__cause__ if isinstance(error.__cause__, Exception) else error
    failed: dict[int, Exception] = {}
    for index, one in _entries(error):
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            wrong = f"index {index!r}"
        elif one is None:
            failed[index] = instead
        elif isinstance(one, Exception):
            failed[index] = one
        else:
            wrong = f"{one!r}, which is not an exception, at index {index}"
    if wrong:
        raise HandlerFailedError(
            f"{where} raised PartialFailureError with {wrong}, for a batch of {count} records - name those that failed,"
            f" from 0 to {count - 1}, each with its exception; until then all of them count as failed"
        ) from error
    return failed


def _entries(error: PartialFailureError) -> Iterable[tuple[object, object]]:
    """Return the entries of the handler's mapping, typed as unchecked objects."""
    return error.failed.items()
