"""Requests that open a connection: ApiVersions, SaslHandshake and SaslAuthenticate."""

from __future__ import annotations

from tailrace.protocol.encoding.fields import field
from tailrace.protocol.encoding.primitives import int16, int32, int64
from tailrace.protocol.message import ApiMessage, Request

__all__ = [
    "ApiVersionRange",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "FinalizedFeature",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SupportedFeature",
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
    finalized_features: tuple[FinalizedFeature, ...] = field(since=3, tag=2, ignorable=True, default=())


class ApiVersionsRequest(Request[ApiVersionsResponse], key=18, versions=(0, 4), flexible_from=3):
    client_software_name: str = field(since=3, ignorable=True, default="")
    client_software_version: str = field(since=3, ignorable=True, default="")


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
