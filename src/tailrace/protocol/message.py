"""Base classes of messages: a subclass becomes a frozen dataclass, and a request class has its API as attribute.

    class HeartbeatRequest(Request[HeartbeatResponse], key=12, versions=(0, 4), flexible_from=4):
        group_id: str
        generation_id: int32
        member_id: str
        group_instance_id: str | None = field(since=3, default=None)

Messages are flat where the wire format is nested: each entry contains its topic and partition. Defaults are those of
Kafka's definitions, so that a response of an old version is a complete message, too. Times are in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform, get_args
from uuid import UUID

from tailrace.protocol.encoding.api import Api
from tailrace.protocol.encoding.fields import NEVER, by_topic, field

__all__ = ["NO_TOPIC_ID", "ApiMessage", "Request"]

ResponseT = TypeVar("ResponseT")

NO_TOPIC_ID = UUID(int=0)
"""Topic id that stands for a missing id in the protocol."""


class _MessageType(type):
    """Metaclass that turns message classes into dataclasses, so that declarations need no decorator."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **api: Any) -> Any:  # noqa: ANN401
        made = super().__new__(mcs, name, bases, namespace)
        if "__slots__" in namespace:
            return made  # a base class, or the second call: dataclass() recreates the class with slots
        message: Any = dataclass(frozen=True, slots=True)(made)
        if api:
            message.api = _api(message, **api)
        return message


def _api(request: type, *, key: int, versions: tuple[int, int], flexible_from: int = NEVER) -> Api[Any]:
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]
    (answer,) = get_args(base)
    name = request.__name__.removesuffix("Request")
    return Api(key, name, range(versions[0], versions[1] + 1), flexible_from, request, answer)


@dataclass_transform(frozen_default=True, field_specifiers=(field, by_topic))
class ApiMessage(metaclass=_MessageType):
    """Request, response, or structure inside a message; fields are in wire order."""

    __slots__ = ()


class Request(ApiMessage, Generic[ResponseT]):
    """Request for which ``await broker.send(request)`` returns a ``ResponseT``.

    Subclasses declare the ``key`` of their API, the first and last of the supported ``versions``, and the first
    flexible version, ``flexible_from``, if there is one.
    """

    __slots__ = ()

    api: ClassVar[Api[Any]]

    @property
    def newest_version(self) -> int | None:
        """Newest version of the API that can carry this request; None for no limit."""
        return None
