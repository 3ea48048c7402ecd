"""Faults of transactional requests and responses for a FaultProxy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tailrace.protocol.records import ProduceRequest
from tailrace.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)

IN_TRANSACTION = (
    AddPartitionsToTxnRequest,
    ProduceRequest,
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
)
"""All that is asked between the beginning of a transaction of version 1 and its end, in that order."""

_ADDED_BY: dict[type[Any], type[Any]] = {
    AddPartitionsToTxnRequest: ProduceRequest,
    AddOffsetsToTxnRequest: TxnOffsetCommitRequest,
}


def sent_in(version: int, request: type[Any]) -> type[Any]:
    """Return the request of a transaction of ``version`` that has the effect of ``request`` in version 1."""
    return request if version == 1 else _ADDED_BY.get(request, request)


def requests_of(version: int) -> tuple[type[Any], ...]:
    """Return all requests between the beginning of a transaction and its end, in order."""
    return tuple(dict.fromkeys(sent_in(version, one) for one in IN_TRANSACTION))


LOSSES = ("drop_answer", "reset_on_answer", "drop_request", "repeat_request")
"""Done and not heard of, by silence or by a broken connection; not done; done twice. Methods of the proxy."""


def with_code(code: int) -> Callable[[Any], Any]:
    """Return an edit function that sets this error code throughout a response."""

    def edit(answer: Any) -> Any:
        if not hasattr(answer, "partitions"):
            return replace(answer, error_code=code)
        refused = tuple(replace(one, error_code=code) for one in answer.partitions)
        return replace(answer, partitions=refused)

    return edit
