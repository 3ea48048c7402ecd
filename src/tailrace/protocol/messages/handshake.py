"""The opening of a connection: which versions a broker speaks, and SASL."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.protocol.messages.request import Request

__all__ = [
    "ApiVersionRange",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
]


@dataclass(frozen=True, slots=True)
class ApiVersionRange:
    """The versions of one API that a broker offers."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class ApiVersionsResponse:
    error_code: int = 0
    api_keys: tuple[ApiVersionRange, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest(Request[ApiVersionsResponse]):
    client_software_name: str = ""
    client_software_version: str = ""


@dataclass(frozen=True, slots=True)
class SaslHandshakeResponse:
    error_code: int
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SaslHandshakeRequest(Request[SaslHandshakeResponse]):
    mechanism: str


@dataclass(frozen=True, slots=True)
class SaslAuthenticateResponse:
    error_code: int
    error_message: str | None
    auth_bytes: bytes = field(repr=False)
    session_lifetime_ms: int = 0


@dataclass(frozen=True, slots=True)
class SaslAuthenticateRequest(Request[SaslAuthenticateResponse]):
    auth_bytes: bytes = field(repr=False)
