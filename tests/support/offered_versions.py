"""Edits of ApiVersions responses: a real broker behind a proxy offers fewer requests, or older versions."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from tailrace.protocol.handshake import ApiVersionRange, ApiVersionsResponse
from tailrace.protocol.message import Request

__all__ = ["Limits", "limited"]

Limits = dict[type[Request], int | None]
"""Newest version that is offered of each request; None if the request is not offered."""


def limited(limits: Limits) -> Callable[[ApiVersionsResponse], ApiVersionsResponse]:
    """Return an edit function for ``FaultProxy.edit_answer``."""
    newest = {request.api.key: version for request, version in limits.items()}

    def edit(answer: ApiVersionsResponse) -> ApiVersionsResponse:
        offered: list[ApiVersionRange] = []
        for one in answer.api_keys:
            limit = newest.get(one.api_key, one.max_version)
            if limit is not None:
                offered.append(replace(one, max_version=min(limit, one.max_version)))
        return replace(answer, api_keys=tuple(offered))

    return edit
