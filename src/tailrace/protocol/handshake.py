"""Requests that open a connection: ApiVersions, SaslHandshake and SaslAuthenticate; versions that a broker supports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.errors import UnsupportedVersionError
from tailrace.protocol.encoding.fields import field
from tailrace.protocol.encoding.primitives import int16, int32, int64
from tailrace.protocol.groups import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tailrace.protocol.message import Api, ApiMessage, Request
from tailrace.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from tailrace.protocol.records import FetchRequest, ListOffsetsRequest

__all__ = [
    "CONSUMER_PROTOCOL",
    "CONSUMING",
    "TOPIC_IDS",
    "ApiVersionRange",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "BrokerVersions",
    "Capability",
    "FinalizedFeature",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SupportedFeature",
    "any_version",
    "since_version",
]


class ApiVersionRange(ApiMessage):
    """Versions of an API that a broker supports."""

    api_key: int16
    min_version: int16
    max_version: int16


class SupportedFeature(ApiMessage):
    """Levels of a feature that a broker supports (KIP-584)."""

    name: str
    min_version: int16
    max_version: int16


class FinalizedFeature(ApiMessage):
    """Level of a feature that is in effect in the cluster (KIP-584)."""

    name: str
    max_version_level: int16
    min_version_level: int16


class ApiVersionsResponse(ApiMessage):
    error_code: int16 = 0
    api_keys: tuple[ApiVersionRange, ...] = ()
    throttle_time_ms: int32 = field(since=1, default=0)
    supported_features: tuple[SupportedFeature, ...] = field(since=3, tag=0, ignorable=True, default=())
    finalized_features_epoch: int64 = field(since=3, tag=1, ignorable=True, default=-1)
    """Number that rises with each change of the finalized features; -1 if they are unknown."""
    finalized_features: tuple[FinalizedFeature, ...] = field(since=3, tag=2, ignorable=True, default=())


class ApiVersionsRequest(Request[ApiVersionsResponse], key=18, versions=(0, 5), flexible_from=3):
    client_software_name: str = field(since=3, ignorable=True, default="")
    client_software_version: str = field(since=3, ignorable=True, default="")
    cluster_id: str | None = field(since=5, nullable_from=5, ignorable=True, default=None)
    """Id of the cluster that the client means to reach, with ``node_id``; None if unknown (KIP-1242)."""
    node_id: int32 = field(since=5, ignorable=True, default=-1)


class SaslHandshakeResponse(ApiMessage):
    error_code: int16
    mechanisms: tuple[str, ...]


class SaslHandshakeRequest(Request[SaslHandshakeResponse], key=17, versions=(1, 1)):
    mechanism: str


class SaslAuthenticateResponse(ApiMessage):
    error_code: int16
    error_message: str | None
    auth_bytes: bytes = field(repr=False)
    session_lifetime_ms: int64 = field(since=1, default=0)


class SaslAuthenticateRequest(Request[SaslAuthenticateResponse], key=36, versions=(0, 2), flexible_from=2):
    auth_bytes: bytes = field(repr=False)


# ---- negotiation of versions -----------------------------------------------------------------------------------------

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
"""APIs that a consumer needs; a connection to a broker that lacks one of them fails."""


@dataclass(frozen=True, slots=True, eq=False)
class Capability:
    """Capability that not all brokers have."""

    name: str
    needed: Mapping[Api[Any], range]
    """Versions of each API that the capability needs; one of them is enough."""
    advice: str
    """Next step for a user whose brokers lack the capability."""
    short_name: str
    """Name in tables."""


def any_version(*apis: Api[Any]) -> dict[Api[Any], range]:
    """Return the versions of ``apis`` that tailrace supports."""
    return {api: api.versions for api in apis}


def since_version(oldest: int, api: Api[Any]) -> dict[Api[Any], range]:
    """Return the versions of ``api`` from ``oldest`` on that tailrace supports."""
    return {api: range(oldest, api.versions[-1] + 1)}


CONSUMER_PROTOCOL = Capability(
    "the consumer group protocol (KIP-848)",
    any_version(ConsumerGroupHeartbeatRequest.api),
    "set group_protocol='classic', or upgrade the brokers to Apache Kafka 4.0 or newer",
    "KIP-848",
)
TOPIC_IDS = Capability(
    "topic ids (KIP-516)",
    since_version(10, MetadataRequest.api),
    "after a topic was deleted and created again, set the offsets of its groups with `tailrace offsets reset`, or"
    " upgrade the brokers to Apache Kafka 2.8 or newer",
    "topic ids",
)


class BrokerVersions:
    """APIs, versions and features that a broker supports, from its ApiVersions response.

    Attributes:
        supported: highest supported level of each feature (KIP-584); empty if the broker does not support version 3 of
            ApiVersions, the first version with features.
        finalized: level of each feature that is in effect in the cluster; features at level 0 are missing.
        finalized_epoch: number that rises with each change of ``finalized``; -1 if unknown.
    """

    def __init__(self, answer: ApiVersionsResponse) -> None:
        self._ranges: dict[int, ApiVersionRange] = {one.api_key: one for one in answer.api_keys}
        self.supported: Mapping[str, int] = {one.name: one.max_version for one in answer.supported_features}
        self.finalized: Mapping[str, int] = {one.name: one.max_version_level for one in answer.finalized_features}
        self.finalized_epoch: int = answer.finalized_features_epoch

    def __contains__(self, api: Api[Any]) -> bool:
        return self._common_version(api, api.versions) is not None

    def range_of(self, api: Api[Any]) -> range:
        """Return the versions of ``api`` that the broker supports; empty if it does not list the API."""
        found = self._ranges.get(api.key)
        return range(0) if found is None else range(found.min_version, found.max_version + 1)

    def version_of(self, api: Api[Any], newest: int | None = None, oldest: int | None = None) -> int:
        """Return the newest version of ``api``, from ``oldest`` to ``newest``, that the broker and tailrace support.

        Raises:
            UnsupportedVersionError: there is no such version.
        """
        newest = api.versions[-1] if newest is None else min(newest, api.versions[-1])
        versions = range(api.versions[0] if oldest is None else oldest, newest + 1)
        version = self._common_version(api, versions)
        if version is None:
            raise UnsupportedVersionError(self._mismatch(api, versions))
        return version

    def prepare(self, api: Api[Any]) -> None:
        """Generate encoder and decoder of the newest common version of ``api``."""
        if (version := self._common_version(api, api.versions)) is not None:
            api.prepare(version)

    def lacks(self, capability: Capability) -> str:
        """Return the APIs that the broker lacks for a capability, with the versions on both sides; empty if none."""
        return "; ".join(
            self._mismatch(api, versions)
            for api, versions in capability.needed.items()
            if self._common_version(api, versions) is None
        )

    def check(self, capability: Capability) -> None:
        """Check that the broker has a capability.

        Raises:
            UnsupportedVersionError: APIs are missing; the message names them and the versions on both sides.
        """
        if missing := self.lacks(capability):
            raise UnsupportedVersionError(
                f"the broker does not support {capability.name}: {missing} - {capability.advice}"
            )

    def check_consuming(self) -> None:
        """Check that the broker supports all APIs that a consumer needs.

        Raises:
            UnsupportedVersionError: APIs are missing; the message names them and the versions on both sides.
        """
        missing = [self._mismatch(api, api.versions) for api in CONSUMING if api not in self]
        if missing:
            raise UnsupportedVersionError(
                "; ".join(missing)
                + " - tailrace requires Apache Kafka 2.1 or newer: upgrade the broker, or tailrace for a newer broker"
            )

    def _common_version(self, api: Api[Any], versions: range) -> int | None:
        supported = self._ranges.get(api.key)
        if supported is None:
            return None
        newest = min(versions[-1], supported.max_version)
        return newest if newest >= max(versions[0], supported.min_version) else None

    def _mismatch(self, api: Api[Any], versions: range) -> str:
        supported = self._ranges.get(api.key)
        support = (
            "does not support this API"
            if supported is None
            else f"supports {supported.min_version} to {supported.max_version}"
        )
        is_one = len(versions) == 1
        listed = f"version {versions[0]}" if is_one else f"versions {versions[0]} to {versions[-1]}"
        required = "required is" if is_one else "required are"
        wanted = "tailrace supports" if versions[0] == api.versions[0] else required
        return f"{api.name}: {wanted} {listed}, the broker {support}"
