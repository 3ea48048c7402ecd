"""Emission of events to hooks and to the log."""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from tailrace.observe.escaping import escaped, escaped_traceback
from tailrace.observe.events import Event
from tailrace.records import TopicPartition

if TYPE_CHECKING:
    import structlog

__all__ = ["Hook", "Observer"]


def _escape(record: logging.LogRecord) -> bool:
    """Escape the message of a log record, and store the escaped traceback in ``exc_text``, which formatters print.

    Return True, so that the logger, which calls this function as a filter, keeps the log record.
    """
    message = record.getMessage()
    if not message.isprintable():
        record.msg, record.args = escaped(message), ()
    if record.exc_info and not record.exc_text:
        record.exc_text = escaped_traceback(*record.exc_info)
    return True


logging.getLogger("tailrace").addFilter(_escape)


class Hook(Protocol):
    """Interface of hooks. A hook receives all events in the order in which they are emitted.

    ``on_event`` is called in the event loop, and must not block. Exceptions: for ``LoopBlocked`` and ``LoopUnblocked``,
    and in the driver of a Spark pipeline, it is called in another thread.
    """

    def on_event(self, event: Event, /) -> None: ...


class Observer:
    """Passes events to hooks and to the logger ``tailrace``.

    An exception that a hook raises is logged, and has no other effect.

    Args:
        hooks: hooks that receive the events.
        context: fields to add to each log line.
    """

    def __init__(self, hooks: Sequence[Hook] = (), **context: object) -> None:
        self._hooks = tuple(hooks)
        self._context = context
        self._logger = logging.getLogger("tailrace")

    @cached_property
    def _log(self) -> structlog.stdlib.BoundLogger:
        return _logger().bind(**self._context)

    def with_hooks(self, *hooks: Hook) -> Observer:
        """Return a copy that also passes events to ``hooks``."""
        extended = copy.copy(self)
        extended._hooks = (*self._hooks, *hooks)  # noqa: SLF001 - same class
        return extended

    @property
    def hooks(self) -> Sequence[Hook]:
        """Hooks that receive the events."""
        return self._hooks

    def emit(self, event: Event) -> None:
        """Pass ``event`` to the hooks, and log it at the event's level."""
        for hook in self._hooks:
            try:
                returned: object = cast("Any", hook).on_event(event)
            except Exception:  # noqa: BLE001 - user code; the exception is logged
                self._log.exception("a hook raised", hook=repr(hook), event_type=type(event).__name__)
            else:
                if returned is not None and inspect.isawaitable(returned):
                    self._log.error(
                        "a hook returned an awaitable, which is not awaited: make on_event a plain method",
                        hook=repr(hook),
                        event_type=type(event).__name__,
                    )
        if self._logger.isEnabledFor(event.level):
            self._log.log(
                event.level, _event_name(type(event).__name__), exc_info=event.exc_info, **_logged_fields(event)
            )


def _logger() -> structlog.stdlib.BoundLogger:
    # structlog is imported when the first line is logged, because it imports rich if available, which takes 0.1 s.
    import structlog  # noqa: PLC0415

    # The logger has its own processors: structlog's global configuration is neither used nor changed.
    return cast(
        structlog.stdlib.BoundLogger,
        structlog.wrap_logger(
            logging.getLogger("tailrace"),
            processors=[structlog.stdlib.filter_by_level, _for_standard_logging],
            wrapper_class=structlog.stdlib.BoundLogger,
        ),
    )


def _for_standard_logging(
    _logger: object, _method: str, values: structlog.typing.EventDict
) -> tuple[tuple[str], dict[str, object]]:
    """Return the arguments of a ``logging`` call: a line of text, and the values in JSON types for ``extra=``."""
    event, exc_info = values.pop("event"), values.pop("exc_info", None)
    line = " ".join([str(event), *(f"{key}={_readable(value)}" for key, value in values.items() if value is not None)])
    data = {key: _structured(value) for key, value in values.items()}
    return (line,), {"exc_info": exc_info, "extra": {"tailrace": {"event": event, **data}}}


def _event_name(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


def _logged_fields(event: Event) -> dict[str, object]:
    """Return the fields of an event except exceptions: the log shows an exception only as ``exc_info``."""
    return {name: getattr(event, name) for name in event.__struct_fields__ if not name.endswith("exception")}


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
            # Keys of JSON objects must be strings, so a mapping becomes an array of objects.
            return [
                {**key._asdict(), "offset": one} if isinstance(key, TopicPartition) else {"name": key, "value": one}
                for key, one in value.items()
            ]
        case bytes():
            return value.decode(errors="backslashreplace")
        case _:
            return value
