"""APIs of the protocol: key, versions, and encoding of whole frames.

From an API's first flexible version on, the request header has version 2 and the response header version 1. The
exception is ApiVersions, whose response header always has version 0, so that newer clients can read it (KIP-511).

Clients encode requests and decode responses. The other two directions serve FaultProxy and tests.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar, cast

from tailrace.error_codes import ErrorCode
from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.codec import decoder_of, encoder_of
from tailrace.protocol.encoding.frame_reader import FrameReader
from tailrace.protocol.encoding.primitives import STRING

__all__ = ["Api", "RequestHeader", "read_request_header"]

ResponseT = TypeVar("ResponseT")

_SIZE = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhi")
_write_client_id = STRING.encoder(flexible=False, nullable=True)
_read_client_id = STRING.decoder(flexible=False, nullable=True)
_API_VERSIONS_KEY = 18
_UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class RequestHeader(NamedTuple):
    """Header of a request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


@dataclass(frozen=True)
class Api(Generic[ResponseT]):
    """Request type with its response type, created by the declaration of the request."""

    key: int
    name: str
    versions: range
    """Supported versions; each connection negotiates one."""
    flexible: int
    """First flexible version; NEVER if no version is flexible."""
    message: type
    """Class of the request."""
    answer: type[ResponseT]
    """Class of the response."""

    def encode_request(self, request: object, version: int, *, correlation_id: int, client_id: str | None) -> bytearray:
        """Return the frame of a request, including its length.

        Raises:
            UnsupportedVersionError: ``version`` cannot carry a value of ``request``.
            MalformedMessageError: a value does not fit its type.
        """
        out = bytearray(_SIZE.size)
        out += _REQUEST_HEADER.pack(self.key, version, correlation_id)
        _write_client_id(out, client_id)
        if version >= self.flexible:
            out.append(0)
        return self._encoded(out, request, self.message, version)

    def decode_response(self, frame: memoryview, version: int) -> ResponseT:
        """Return the response in ``frame``, which begins with the correlation id."""
        reader = FrameReader(frame)
        reader.int32()
        if self._response_is_tagged(version):
            reader.skip_tagged_fields()
        return cast(ResponseT, self._decoded(reader, self.answer, version))

    def version_of_answer(self, frame: memoryview, asked: int) -> int:
        """Return the version of the response to a request of version ``asked``.

        The versions differ only for ApiVersions: a broker that does not support version ``asked`` responds in version 0
        with error code 35.
        """
        refused = self.key == _API_VERSIONS_KEY and bytes(frame[4:6]) == _UNSUPPORTED
        return 0 if refused else asked

    def decode_request(self, frame: memoryview, version: int) -> object:
        """Return the request in ``frame``, which begins with the request header."""
        reader = FrameReader(frame)
        reader.view(_REQUEST_HEADER.size)
        _read_client_id(reader)
        if version >= self.flexible:
            reader.skip_tagged_fields()
        return self._decoded(reader, self.message, version)

    def encode_response(self, response: ResponseT, version: int, *, correlation_id: int) -> bytearray:
        """Return the frame of a response, including its length."""
        out = bytearray(_SIZE.size)
        out += _SIZE.pack(correlation_id)
        if self._response_is_tagged(version):
            out.append(0)
        return self._encoded(out, response, self.answer, version)

    def _response_is_tagged(self, version: int) -> bool:
        return version >= self.flexible and self.key != _API_VERSIONS_KEY

    def _encoded(self, out: bytearray, message: object, kind: type, version: int) -> bytearray:
        encoder_of(kind, version, flexible=version >= self.flexible)(out, message)
        _SIZE.pack_into(out, 0, len(out) - _SIZE.size)
        return out

    def _decoded(self, reader: FrameReader, kind: type, version: int) -> object:
        message: object = decoder_of(kind, version, flexible=version >= self.flexible)(reader)
        if reader.remaining:
            raise MalformedMessageError(f"{reader.remaining} bytes left over after a {self.name} message v{version}")
        return message


def read_request_header(frame: memoryview) -> RequestHeader:
    """Return the header of the request in ``frame``, which does not include the length."""
    reader = FrameReader(frame)
    api_key, version, correlation_id = reader.unpack(_REQUEST_HEADER)
    return RequestHeader(api_key, version, correlation_id, _read_client_id(reader))
