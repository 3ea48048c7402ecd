"""Exception with which a handler rejects a record."""

from __future__ import annotations

__all__ = ["Reject"]


class Reject(Exception):  # noqa: N818 - reads well in handlers: raise Reject("negative total")
    """Rejects a record: it fails without another attempt, and the message is the reason in its dead letter."""
