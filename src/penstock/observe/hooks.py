"""Who is told of events, and how."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Protocol, cast

import structlog

from penstock.observe.events import Event
from penstock.records import TopicPartition

__all__ = ["Hook", "Observer"]

logging.getLogger("penstock").addHandler(logging.NullHandler())


class Hook(Protocol):
    """Told of every event, in the event loop and in order; it should be quick and must not block."""

    def on_event(self, event: Event, /) -> None: ...


class Observer:
    """Tells events to hooks and to the log ``penstock``.

    A hook that raises is logged and told of the next event all the same: to be watched never changes what happens.
    """

    def __init__(self, hooks: Sequence[Hook] = (), **context: object) -> None:
        self._hooks = tuple(hooks)
        self._log = _logger().bind(**context)
        self._logger = logging.getLogger("penstock")

    def with_hooks(self, *hooks: Hook) -> Observer:
        """The same, which tells these hooks, too."""
        more = copy.copy(self)
        more._hooks = (*self._hooks, *hooks)  # noqa: SLF001 - its own kind
        return more

    def tell(self, event: Event) -> None:
        """Tell ``event``."""
        for hook in self._hooks:
            try:
                hook.on_event(event)
            except Exception:  # noqa: BLE001 - whatever a hook raises, and it is logged
                self._log.exception("a hook raised", hook=repr(hook), told=type(event).__name__)
        if self._logger.isEnabledFor(event.level):
            self._log.log(event.level, _words(type(event).__name__), **_plain(event))


def _logger() -> structlog.stdlib.BoundLogger:
    # Bound to the standard library's logger with a chain of its own: nobody's global configuration is touched.
    return cast(
        structlog.stdlib.BoundLogger,
        structlog.wrap_logger(
            logging.getLogger("penstock"),
            processors=[structlog.stdlib.filter_by_level, _for_standard_logging],
            wrapper_class=structlog.stdlib.BoundLogger,
        ),
    )


def _for_standard_logging(
    _logger: object, _method: str, said: structlog.typing.EventDict
) -> tuple[tuple[str], dict[str, object]]:
    """One readable line; the values once more under ``record.penstock`` for whoever formats JSON."""
    event, exc_info = said.pop("event"), said.pop("exc_info", None)
    line = " ".join([str(event), *(f"{key}={value}" for key, value in said.items() if value is not None)])
    return (line,), {"exc_info": exc_info, "extra": {"penstock": {"event": event, **said}}}


def _words(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


def _plain(event: Event) -> dict[str, object]:
    return {f.name: _readable(getattr(event, f.name)) for f in fields(event)}


def _readable(value: object) -> object:
    match value:
        case TopicPartition():
            return str(value)
        case frozenset():
            return " ".join(sorted(map(str, value))) or "none"
        case Mapping():
            return {str(key): one for key, one in value.items()}
        case _:
            return value
