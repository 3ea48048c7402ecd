"""Groups as tools and tests see them from outside."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.messages.request import Request

__all__ = ["DeleteGroupsRequest", "DeleteGroupsResponse", "DeletedGroup"]


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    group_id: str
    error_code: int


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    groups: tuple[DeletedGroup, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest(Request[DeleteGroupsResponse]):
    group_ids: tuple[str, ...]
