"""APIs that a consumer needs, and the version to speak to a broker."""

from __future__ import annotations

from typing import Any, TypeVar

from tailrace.errors import UnsupportedVersionError
from tailrace.protocol.classic_group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tailrace.protocol.committed_offsets import OffsetCommitRequest, OffsetFetchRequest
from tailrace.protocol.encoding.api import Api
from tailrace.protocol.fetch import FetchRequest
from tailrace.protocol.handshake import ApiVersionRange, ApiVersionsResponse
from tailrace.protocol.list_offsets import ListOffsetsRequest
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import FindCoordinatorRequest, MetadataRequest

__all__ = ["CONSUMING", "Offered", "api_of"]

ResponseT = TypeVar("ResponseT")

CONSUMING: tuple[Api[Any], ...] = (
    MetadataRequest.api,
    FindCoordinatorRequest.api,
    JoinGroupRequest.api,
    SyncGroupRequest.api,
    HeartbeatRequest.api,
    LeaveGroupRequest.api,
    OffsetCommitRequest.api,
    OffsetFetchRequest.api,
    ListOffsetsRequest.api,
    FetchRequest.api,
)
"""APIs that a consumer needs; a broker that lacks one of them is refused when the connection opens."""


def api_of(request: Request[ResponseT]) -> Api[ResponseT]:
    """Return the API that ``request`` belongs to."""
    return request.api


class Offered:
    """APIs and versions that one broker offers, from its answer to ApiVersions."""

    def __init__(self, answer: ApiVersionsResponse) -> None:
        self._ranges: dict[int, ApiVersionRange] = {one.api_key: one for one in answer.api_keys}

    def __contains__(self, api: Api[Any]) -> bool:
        return self._common(api) is not None

    def version_of(self, api: Api[Any], newest: int | None = None) -> int:
        """Return the newest version of ``api`` that both sides speak, ``newest`` at most.

        Raises:
            UnsupportedVersionError: there is none.
        """
        version = self._common(api, newest)
        if version is None:
            raise UnsupportedVersionError(self._complaint(api))
        return version

    def check_consuming(self) -> None:
        """Refuse a broker that a consumer cannot work with.

        Raises:
            UnsupportedVersionError: naming each request that is missing, and what was offered.
        """
        missing = [self._complaint(api) for api in CONSUMING if self._common(api) is None]
        if missing:
            raise UnsupportedVersionError(
                "; ".join(missing) + " - tailrace consumes from Apache Kafka 2.1 and newer: upgrade the broker"
            )

    def _common(self, api: Api[Any], at_most: int | None = None) -> int | None:
        offered = self._ranges.get(api.key)
        if offered is None:
            return None
        newest = min(api.versions[-1], offered.max_version)
        if at_most is not None:
            newest = min(newest, at_most)
        return newest if newest >= max(api.versions[0], offered.min_version) else None

    def _complaint(self, api: Api[Any]) -> str:
        offered = self._ranges.get(api.key)
        has = "does not offer it" if offered is None else f"offers {offered.min_version} to {offered.max_version}"
        return f"{api.name}: tailrace speaks versions {api.versions[0]} to {api.versions[-1]}, the broker {has}"
