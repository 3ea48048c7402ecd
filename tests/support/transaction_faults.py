"""What may become of a transaction's requests and answers on their way, for a FaultProxy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tailrace.protocol.produce import ProduceRequest
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
"""All that is asked between the beginning of a transaction and its end, in that order."""

LOSSES = ("drop_answer", "reset_on_answer", "drop_request", "repeat_request")
"""Done and not heard of, by silence or by a broken connection; not done; done twice. Methods of the proxy."""


def with_code(code: int) -> Callable[[Any], Any]:
    """Edits an answer: that code, of all that it is about."""

    def edit(answer: Any) -> Any:
        if not hasattr(answer, "partitions"):
            return dataclasses.replace(answer, error_code=code)
        refused = tuple(dataclasses.replace(one, error_code=code) for one in answer.partitions)
        return dataclasses.replace(answer, partitions=refused)

    return edit
