"""Base classes of messages, which are frozen structs (msgspec). A request class declares its fields and its API:

    class HeartbeatRequest(Request[HeartbeatResponse], key=12, versions=(0, 4), flexible_from=4):
        group_id: str
        generation_id: int32
        member_id: str
        group_instance_id: str | None = field(since=3, default=None)

Where the wire format nests partitions in topics, a message has one flat tuple, and each entry contains its topic and
partition. A field that is missing in an old version of a response has the default of Kafka's message definitions. Times
are in milliseconds.

From an API's first flexible version on, the request header has version 2, and the response header has version 1. The
exception is ApiVersions: its response header always has version 0, so that clients of all versions can read it
(KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast, dataclass_transform, get_args
from uuid import UUID

from msgspec import NODEFAULT, StructMeta

from tailrace.error_codes import ErrorCode
from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.codec import decoder, decoder_of, encoder, encoder_of
from tailrace.protocol.encoding.fields import NEVER, DeclaredField, by_topic, field
from tailrace.protocol.encoding.primitives import STRING, FrameReader
from tailrace.values import Value

__all__ = ["NO_TOPIC_ID", "Api", "ApiMessage", "Request", "RequestHeader", "read_request_header"]

# ---- frames ----------------------------------------------------------------------------------------------------------

ResponseT = TypeVar("ResponseT")

_SIZE = struct.Struct(">i")
_REQUEST_HEADER = struct.Struct(">hhi")
_write_client_id = encoder(STRING, flexible=False, nullable=True)
_read_client_id = decoder(STRING, flexible=False, nullable=True)
_API_VERSIONS_KEY = 18
_UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class RequestHeader(NamedTuple):
    """Header of a request, without its tagged fields."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


@dataclass(frozen=True)
class Api(Generic[ResponseT]):
    """API of the protocol: key, versions, and encoding of whole frames; the metaclass of a request class creates it."""

    key: int
    name: str
    versions: range
    """Versions that tailrace supports; each connection negotiates one."""
    flexible_from: int
    """First flexible version (KIP-482); ``NEVER`` if no version is flexible."""
    request_type: type
    response_type: type[ResponseT]
    tagged_responses_from: int
    """First version whose responses have tagged fields in the header."""

    def prepare(self, version: int) -> None:
        """Generate encoder and decoder of ``version`` now, not for the first request and response."""
        response_type: type = self.response_type
        encoder_of(self.request_type, version, flexible=version >= self.flexible_from)
        decoder_of(response_type, version, flexible=version >= self.flexible_from)

    def encode_request(self, request: object, version: int, *, correlation_id: int, client_id: str | None) -> bytearray:
        """Return the frame of a request, including its length.

        Raises:
            UnsupportedVersionError: a field of ``request`` is set that ``version`` does not contain.
            MalformedMessageError: a value does not fit its type.
        """
        out = bytearray(_SIZE.size)
        out += _REQUEST_HEADER.pack(self.key, version, correlation_id)
        _write_client_id(out, client_id)
        if version >= self.flexible_from:
            out.append(0)
        return self._encoded(out, request, self.request_type, version)

    def decode_response(self, frame: memoryview, version: int) -> ResponseT:
        """Return the response in ``frame``, which begins with the correlation id.

        Bytes after the response are ignored, as Java's client and librdkafka ignore them: not every broker encodes
        exactly the fields of a version.
        """
        if self.key == _API_VERSIONS_KEY and frame[_SIZE.size : _SIZE.size + len(_UNSUPPORTED)] == _UNSUPPORTED:
            version = 0  # In version 0, a broker refuses a version of ApiVersions that it does not support (KIP-511).
        reader = FrameReader(frame, _SIZE.size)
        if version >= self.tagged_responses_from:
            reader.skip_tagged_fields()
        return cast(ResponseT, self._decoder(self.response_type, version)(reader))

    def decode_request(self, frame: memoryview, version: int) -> object:
        """Return the request in ``frame``, which begins with the request header."""
        reader = FrameReader(frame, _REQUEST_HEADER.size)
        _read_client_id(reader)
        if version >= self.flexible_from:
            reader.skip_tagged_fields()
        message = self._decoder(self.request_type, version)(reader)
        if reader.remaining:
            raise MalformedMessageError(f"{reader.remaining} bytes left over after a {self.name} message v{version}")
        return message

    def encode_response(self, response: ResponseT, version: int, *, correlation_id: int) -> bytearray:
        """Return the frame of a response, including its length."""
        if self.key == _API_VERSIONS_KEY and getattr(response, "error_code", 0) == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
        out = bytearray(_SIZE.size)
        out += _SIZE.pack(correlation_id)
        if version >= self.tagged_responses_from:
            out.append(0)
        return self._encoded(out, response, self.response_type, version)

    def _encoded(self, out: bytearray, message: object, kind: type, version: int) -> bytearray:
        """Append ``message`` to ``out`` and write the length of the frame to its beginning."""
        encoder_of(kind, version, flexible=version >= self.flexible_from)(out, message)
        _SIZE.pack_into(out, 0, len(out) - _SIZE.size)
        return out

    def _decoder(self, kind: type, version: int) -> Callable[[FrameReader], object]:
        return decoder_of(kind, version, flexible=version >= self.flexible_from)


def read_request_header(frame: memoryview) -> RequestHeader:
    """Return the header of the request in ``frame``, which does not include the length."""
    reader = FrameReader(frame)
    api_key, version, correlation_id = reader.unpack(_REQUEST_HEADER)
    return RequestHeader(api_key, version, correlation_id, _read_client_id(reader))


# ---- messages --------------------------------------------------------------------------------------------------------


NO_TOPIC_ID = UUID(int=0)
"""Topic id in place of an unknown or missing one."""


class _MessageType(StructMeta):
    """Metaclass of messages: collects the declared fields, and creates the API of a request."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **api: Any) -> Any:  # noqa: ANN401
        own = {attribute: _declared(namespace.get(attribute, NODEFAULT)) for attribute in _field_names(namespace)}
        for attribute, declared in own.items():
            namespace.pop(attribute, None)
            if declared.default is not NODEFAULT:
                namespace[attribute] = declared.default
        # The parameters of the constructor are in the order of the annotations, so move fields with kw_only to the end.
        notes = namespace.get("__annotations__", {})
        for attribute in [attribute for attribute, declared in own.items() if declared.kw_only]:
            notes[attribute] = notes.pop(attribute)
        message: Any = super().__new__(mcs, name, bases, namespace, frozen=True)
        message.declared = {**getattr(message, "declared", {}), **own}
        if api:
            message.api = _api(message, **api)
        return message


def _field_names(namespace: dict[str, Any]) -> list[str]:
    notes = namespace.get("__annotations__", {})
    return [attribute for attribute, note in notes.items() if not note.startswith("ClassVar")]


def _declared(value: Any) -> DeclaredField:  # noqa: ANN401 - the default of any field
    return value if isinstance(value, DeclaredField) else DeclaredField(default=value)


def _api(request: type, *, key: int, versions: tuple[int, int], flexible_from: int = NEVER) -> Api[Any]:
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]
    (response,) = get_args(base)
    name = request.__name__.removesuffix("Request")
    tagged_responses_from = NEVER if key == _API_VERSIONS_KEY else flexible_from
    versions_of_api = range(versions[0], versions[1] + 1)
    return Api(key, name, versions_of_api, flexible_from, request, response, tagged_responses_from)


@dataclass_transform(frozen_default=True, field_specifiers=(field, by_topic))
class ApiMessage(Value, metaclass=_MessageType):
    """Request, response, or structure inside a message. The subclass declares the fields in wire order."""

    declared: ClassVar[dict[str, DeclaredField]]
    """Declarations of the fields by attribute, in wire order."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name, one in self.declared.items() if one.repr)
        return f"{type(self).__name__}({fields})"


class Request(ApiMessage, Generic[ResponseT]):
    """Request for which ``await broker.send(request)`` returns a ``ResponseT``.

    Subclasses pass the ``key`` of their API, the first and last of the supported ``versions``, and ``flexible_from``,
    the first flexible version (KIP-482), if there is one.
    """

    api: ClassVar[Api[Any]]

    @property
    def newest_version(self) -> int | None:
        """Newest version of the API in which this request may be sent; None for the newest version of the API."""
        return None

    @property
    def oldest_version(self) -> int | None:
        """Oldest version of the API in which this request may be sent; None for the oldest version of the API."""
        return None
