"""The opening of a connection: which versions the broker offers, and who we are."""

from __future__ import annotations

from tailrace.protocol.encoding.api import api
from tailrace.protocol.encoding.primitives import BYTES, INT16, INT32, INT64, STRING
from tailrace.protocol.encoding.schema import Array, Struct, field
from tailrace.protocol.messages import (
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

__all__ = ["API_VERSIONS", "SASL_AUTHENTICATE", "SASL_HANDSHAKE"]

API_VERSIONS = api(
    18,
    "ApiVersions",
    versions=(0, 4),
    flexible=3,
    message=ApiVersionsRequest,
    request=Struct(
        ApiVersionsRequest,
        field("client_software_name", STRING, 3, ignorable=True),
        field("client_software_version", STRING, 3, ignorable=True),
    ),
    response=Struct(
        ApiVersionsResponse,
        field("error_code", INT16),
        field(
            "api_keys",
            Array.of(
                ApiVersionRange, field("api_key", INT16), field("min_version", INT16), field("max_version", INT16)
            ),
        ),
        field("throttle_time_ms", INT32, 1),
    ),
)

SASL_HANDSHAKE = api(
    17,
    "SaslHandshake",
    versions=(1, 1),
    message=SaslHandshakeRequest,
    request=Struct(SaslHandshakeRequest, field("mechanism", STRING)),
    response=Struct(SaslHandshakeResponse, field("error_code", INT16), field("mechanisms", Array(STRING))),
)

SASL_AUTHENTICATE = api(
    36,
    "SaslAuthenticate",
    versions=(0, 2),
    flexible=2,
    message=SaslAuthenticateRequest,
    request=Struct(SaslAuthenticateRequest, field("auth_bytes", BYTES)),
    response=Struct(
        SaslAuthenticateResponse,
        field("error_code", INT16),
        field("error_message", STRING, nullable=0),
        field("auth_bytes", BYTES),
        field("session_lifetime_ms", INT64, 1),
    ),
)
