"""Who is told of events, and how."""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from tailrace.observe.escaping import escaped, escaped_traceback
from tailrace.observe.events import Event
from tailrace.records import TopicPartition

if TYPE_CHECKING:
    import structlog

__all__ = ["Hook", "Observer"]


def _escape_traceback(record: logging.LogRecord) -> bool:
    """Format the traceback where formatters of the standard library look first."""
    if record.exc_info and not record.exc_text:
        record.exc_text = escaped_traceback(*record.exc_info)
    return True


logging.getLogger("tailrace").addFilter(_escape_traceback)


class Hook(Protocol):
    """Told of every event, in the event loop and in order; it should be quick and must not block."""

    def on_event(self, event: Event, /) -> None: ...


class Observer:
    """Tells events to hooks and to the log ``tailrace``.

    A hook that raises is logged and told of the next event all the same: to be watched never changes what happens.
    """

    def __init__(self, hooks: Sequence[Hook] = (), **context: object) -> None:
        self._hooks = tuple(hooks)
        self._context = context
        self._logger = logging.getLogger("tailrace")

    @cached_property
    def _log(self) -> structlog.stdlib.BoundLogger:
        return _logger().bind(**self._context)

    def with_hooks(self, *hooks: Hook) -> Observer:
        """The same, which tells these hooks, too."""
        more = copy.copy(self)
        more._hooks = (*self._hooks, *hooks)  # noqa: SLF001 - its own kind
        return more

    def emit(self, event: Event) -> None:
        """Tell ``event``."""
        for hook in self._hooks:
            try:
                returned: object = cast("Any", hook).on_event(event)
            except Exception:  # noqa: BLE001 - whatever a hook raises, and it is logged
                self._log.exception("a hook raised", hook=repr(hook), told=type(event).__name__)
            else:
                if returned is not None and inspect.isawaitable(returned):
                    self._log.error(
                        "a hook returned an awaitable that nobody awaits: make on_event a plain method",
                        hook=repr(hook),
                        told=type(event).__name__,
                    )
        if self._logger.isEnabledFor(event.level):
            self._log.log(event.level, _words(type(event).__name__), exc_info=event.exc_info, **_plain(event))


def _logger() -> structlog.stdlib.BoundLogger:
    # With the first line: structlog imports rich where that is installed, which takes a tenth of a second.
    import structlog  # noqa: PLC0415

    # Bound to the standard library's logger with a chain of its own: nobody's global configuration is touched.
    return cast(
        structlog.stdlib.BoundLogger,
        structlog.wrap_logger(
            logging.getLogger("tailrace"),
            processors=[structlog.stdlib.filter_by_level, _for_standard_logging],
            wrapper_class=structlog.stdlib.BoundLogger,
        ),
    )


def _for_standard_logging(
    _logger: object, _method: str, said: structlog.typing.EventDict
) -> tuple[tuple[str], dict[str, object]]:
    """Return one readable line, and the values as numbers, names and lists under ``record.tailrace`` for JSON."""
    event, exc_info = said.pop("event"), said.pop("exc_info", None)
    line = " ".join([str(event), *(f"{key}={_readable(value)}" for key, value in said.items() if value is not None)])
    data = {key: _structured(value) for key, value in said.items()}
    return (escaped(line),), {"exc_info": exc_info, "extra": {"tailrace": {"event": event, **data}}}


def _words(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


def _plain(event: Event) -> dict[str, object]:
    return {f.name: getattr(event, f.name) for f in fields(event) if f.repr}


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


def _structured(value: object) -> object:
    match value:
        case TopicPartition():
            return {"topic": value.topic, "partition": value.partition}
        case frozenset():
            return [_structured(one) for one in sorted(value)]
        case tuple() | list():
            return [_structured(one) for one in value]
        case Mapping():
            # JSON has no keys but text.
            return [
                {**key._asdict(), "offset": one} if isinstance(key, TopicPartition) else {"name": key, "value": one}
                for key, one in value.items()
            ]
        case bytes():
            return value.decode(errors="backslashreplace")
        case _:
            return value
