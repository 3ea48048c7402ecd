"""Base classes of messages, which are frozen structs (msgspec). A request class declares its fields and its API:

    class HeartbeatRequest(Request[HeartbeatResponse], key=12, versions=(0, 4), flexible_from=4):
        group_id: str
        generation_id: int32
        member_id: str
        group_instance_id: str | None = field(since=3, default=None)

Where the wire format nests partitions in topics, a message has one flat tuple, and each entry contains its topic and
partition. A field that is missing in an old version of a response has the default of Kafka's message definitions. Times
are in milliseconds.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform, get_args
from uuid import UUID

from msgspec import NODEFAULT, StructMeta

from tailrace.protocol.encoding.api import Api
from tailrace.protocol.encoding.fields import NEVER, DeclaredField, by_topic, field
from tailrace.values import Value

__all__ = ["NO_TOPIC_ID", "ApiMessage", "Request"]

ResponseT = TypeVar("ResponseT")

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
    return Api(key, name, range(versions[0], versions[1] + 1), flexible_from, request, response)


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
