"""One API of the protocol: its number, its two tables, the versions that tailrace speaks.

Rule of this file: what is around a message on the wire (the headers) stands here, what is inside in the tables.
The request header is version 2 and the answer's version 1 from an API's first flexible version on, with one
exception that the protocol makes itself: an ApiVersions answer keeps header 0, so that a client too new can read it.

A consumer encodes requests and decodes answers. The other two directions serve whoever stands between a client and
a broker, as the fault proxy of ``tailrace.testing`` does, and make round trips testable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, NamedTuple, TypeVar, cast

from tailrace.error_codes import ErrorCode
from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.frame_reader import FrameReader
from tailrace.protocol.encoding.primitives import STRING
from tailrace.protocol.encoding.schema import NEVER, Struct
from tailrace.protocol.messages import Request

__all__ = ["Api", "ApiLayout", "RequestHeader", "api", "read_request_header"]

ResponseT = TypeVar("ResponseT")

_SIZE = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhi")
_write_client_id = STRING.encoder(0, flexible=False, nullable=True)
_read_client_id = STRING.decoder(0, flexible=False, nullable=True)
_API_VERSIONS_KEY = 18
_UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class RequestHeader(NamedTuple):
    """What stands in front of every request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


@dataclass(frozen=True)
class ApiLayout:
    """A message's table from one version on, for the few whose shape changed altogether."""

    since: int
    struct: Struct


@dataclass(frozen=True)
class Api(Generic[ResponseT]):
    """One kind of request and its answer.

    ``versions`` are those tailrace can speak; which one it does is agreed on each connection.
    """

    key: int
    name: str
    versions: range
    flexible: int
    """The first flexible version; NEVER for the APIs that stayed as they were."""
    message: type[Request[ResponseT]]
    request: tuple[ApiLayout, ...]
    response: tuple[ApiLayout, ...]

    def encode_request(
        self, request: Request[ResponseT], version: int, *, correlation_id: int, client_id: str | None
    ) -> bytearray:
        """The whole frame, its length in front.

        Raises:
            UnsupportedVersionError: ``request`` carries something that ``version`` cannot.
            MalformedMessageError: a value does not fit its type.
        """
        out = bytearray(_SIZE.size)
        out += _REQUEST_HEADER.pack(self.key, version, correlation_id)
        _write_client_id(out, client_id)
        if version >= self.flexible:
            out.append(0)
        self._codecs(version).encode_request(out, request)
        _SIZE.pack_into(out, 0, len(out) - _SIZE.size)
        return out

    def decode_response(self, frame: memoryview, version: int) -> ResponseT:
        """The answer in ``frame`` (the correlation id in front, without the length).

        Raises:
            MalformedMessageError: the bytes are not what the protocol says.
        """
        reader = FrameReader(frame)
        reader.int32()
        if self._response_is_tagged(version):
            reader.skip_tagged_fields()
        return cast(ResponseT, self._whole(reader, self._codecs(version).decode_response, version))

    def version_of_answer(self, frame: memoryview, asked: int) -> int:
        """The version that an answer to a request of version ``asked`` is written in.

        That is the same, but for one: a broker that does not know so new an ApiVersions says so (code 35) in version 0.
        """
        refused = self.key == _API_VERSIONS_KEY and bytes(frame[4:6]) == _UNSUPPORTED
        return 0 if refused else asked

    def decode_request(self, frame: memoryview, version: int) -> Request[ResponseT]:
        """The request in ``frame`` (its header in front, without the length): what a broker would read.

        Raises:
            MalformedMessageError: the bytes are not what the protocol says.
        """
        reader = FrameReader(frame)
        reader.view(_REQUEST_HEADER.size)
        _read_client_id(reader)
        if version >= self.flexible:
            reader.skip_tagged_fields()
        return cast("Request[ResponseT]", self._whole(reader, self._codecs(version).decode_request, version))

    def encode_response(self, response: ResponseT, version: int, *, correlation_id: int) -> bytearray:
        """The whole frame of an answer, its length in front: what a broker would write."""
        out = bytearray(_SIZE.size)
        out += _SIZE.pack(correlation_id)
        if self._response_is_tagged(version):
            out.append(0)
        self._codecs(version).encode_response(out, response)
        _SIZE.pack_into(out, 0, len(out) - _SIZE.size)
        return out

    def _response_is_tagged(self, version: int) -> bool:
        return version >= self.flexible and self.key != _API_VERSIONS_KEY

    def _whole(self, reader: FrameReader, decode: Callable[[FrameReader], object], version: int) -> object:
        message = decode(reader)
        if reader.remaining:
            raise MalformedMessageError(f"{reader.remaining} bytes left over after a {self.name} message v{version}")
        return message

    @cached_property
    def _codecs(self) -> Callable[[int], _Codecs]:
        """The four functions of a version, compiled when it is first spoken."""

        def compile_version(version: int) -> _Codecs:
            flexible = version >= self.flexible
            request, response = _layout(self.request, version), _layout(self.response, version)
            return _Codecs(
                request.encoder(version, flexible=flexible),
                request.decoder(version, flexible=flexible),
                response.encoder(version, flexible=flexible),
                response.decoder(version, flexible=flexible),
            )

        return lru_cache(None)(compile_version)


class _Codecs(NamedTuple):
    encode_request: Callable[[bytearray, object], None]
    decode_request: Callable[[FrameReader], object]
    encode_response: Callable[[bytearray, object], None]
    decode_response: Callable[[FrameReader], object]


def _layout(layouts: Sequence[ApiLayout], version: int) -> Struct:
    return max((one for one in layouts if one.since <= version), key=lambda one: one.since).struct


def read_request_header(frame: memoryview) -> RequestHeader:
    """Which request a frame (without its length) holds.

    Raises:
        MalformedMessageError: it is too short to be one.
    """
    reader = FrameReader(frame)
    api_key, version, correlation_id = _REQUEST_HEADER.unpack(reader.view(_REQUEST_HEADER.size))
    return RequestHeader(api_key, version, correlation_id, _read_client_id(reader))


def api(  # noqa: PLR0913 - one block of a table
    key: int,
    name: str,
    *,
    versions: tuple[int, int],
    flexible: int = NEVER,
    message: type[Request[ResponseT]],
    request: Struct | tuple[ApiLayout, ...],
    response: Struct | tuple[ApiLayout, ...],
) -> Api[ResponseT]:
    """A block of a table; ``versions`` are the first and the last."""
    return Api(key, name, range(versions[0], versions[1] + 1), flexible, message, _layouts(request), _layouts(response))


def _layouts(tables: Struct | tuple[ApiLayout, ...]) -> tuple[ApiLayout, ...]:
    return (ApiLayout(0, tables),) if isinstance(tables, Struct) else tables
