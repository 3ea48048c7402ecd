"""What every request is: typed by its answer."""

from __future__ import annotations

from typing import Generic, TypeVar
from uuid import UUID

__all__ = ["NO_TOPIC_ID", "Request"]

ResponseT = TypeVar("ResponseT")

NO_TOPIC_ID = UUID(int=0)
"""How the protocol spells an absent topic id."""


class Request(Generic[ResponseT]):
    """A request, typed by its answer: ``await broker.send(request)`` gives a ``ResponseT``."""

    __slots__ = ()

    @property
    def newest_version(self) -> int | None:
        """Newest version of the API that can carry this request; None if each can."""
        return None
