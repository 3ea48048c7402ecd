"""Exception with which a handler rejects a record."""

from __future__ import annotations

__all__ = ["Reject"]


class Reject(Exception):  # noqa: N818 - reads well in handlers: raise Reject("negative total")
    """Rejects a record: the record fails without another attempt. Its dead letter contains the exception's message."""
