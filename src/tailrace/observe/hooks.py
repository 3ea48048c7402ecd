"""Emission of events to hooks and to the log; hooks that also wrap handlers and the publisher, for example in spans."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from tailrace.observe.events import Event, TelemetryFailed
from tailrace.observe.log_format import escaped, escaped_traceback
from tailrace.records import TopicPartition
from tailrace.user_exceptions import error_text

if TYPE_CHECKING:
    import structlog

__all__ = ["HandlerInfo", "Hook", "Instrumentation", "Observer", "Publish", "TelemetryGuard", "instrumentations_of"]

_DECIMALS = 6
"""Maximum number of decimals of a number in the log."""
_MAX_REPEATED = 100
"""Maximum number of different repeated events that an observer counts."""


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


class _Repeated(NamedTuple):
    next_at: float
    """Time from which an equal event is logged again."""
    skipped: int
    """Number of equal events that were not logged."""


class Observer:
    """Passes events to hooks and to the logger ``tailrace``.

    An exception that a hook raises is logged, and has no other effect.

    Args:
        hooks: hooks that receive the events.
        context: fields to add to each log line.
    """

    def __init__(self, hooks: Sequence[Hook] = (), **context: object) -> None:
        self.hooks: Sequence[Hook] = tuple(hooks)
        self._context = context
        self._logger = logging.getLogger("tailrace")
        self._repeated: dict[object, _Repeated] = {}

    @cached_property
    def _log(self) -> structlog.stdlib.BoundLogger:
        return _logger().bind(**self._context)

    def with_hooks(self, *hooks: Hook) -> Observer:
        """Return a copy that also passes events to ``hooks``."""
        extended = copy.copy(self)
        extended.hooks = (*self.hooks, *hooks)
        return extended

    def emit(self, event: Event) -> None:
        """Pass ``event`` to the hooks, and log it at the event's level."""
        for hook in self.hooks:
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
            fields = _logged_fields(event)
            if event.repeated_s and not self._count_repeated(event, fields):
                return
            self._log.log(event.level, _event_name(type(event).__name__), exc_info=event.exc_info, **fields)

    def _count_repeated(self, event: Event, fields: dict[str, object]) -> bool:
        """Return True if ``event`` is to be logged; add the number of equal events since the last line to ``fields``.

        The number includes this event.
        """
        try:
            now = asyncio.get_running_loop().time()
        except RuntimeError:  # Only event loops have the clock.
            return True
        names = fields if event.repeated_fields is None else event.repeated_fields
        key = (type(event), *(str(fields[name]) for name in names))
        known = self._repeated.get(key)
        if known is not None and now < known.next_at:
            self._repeated[key] = known._replace(skipped=known.skipped + 1)
            return False
        if known is None and len(self._repeated) >= _MAX_REPEATED:
            self._repeated.clear()
        self._repeated[key] = _Repeated(now + event.repeated_s, 0)
        if known is not None:
            fields["times"] = known.skipped + 1
        return True


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
    readable = {key: _readable(value) for key, value in values.items() if value is not None}
    line = " ".join([str(event), *(f"{key}={_quoted(text)}" for key, text in readable.items() if text)])
    data = {key: _structured(value) for key, value in values.items()}
    return (line,), {"exc_info": exc_info, "extra": {"tailrace": {"event": event, **data}}}


def _event_name(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()


def _logged_fields(event: Event) -> dict[str, object]:
    """Return the fields of an event except exceptions: the log shows an exception only as ``exc_info``."""
    return {name: getattr(event, name) for name in event.__struct_fields__ if not name.endswith("exception")}


def _readable(value: object) -> str:
    match value:
        case frozenset():
            return " ".join(sorted(map(str, value))) or "none"
        case tuple() | list() if not hasattr(value, "_fields"):
            return " ".join(map(_readable, value)) or "none"
        case float():
            return f"{round(value, _DECIMALS):g}" if abs(value) < 1 else str(round(value, _DECIMALS))
        case Mapping():
            return " ".join(f"{key}:{_readable(one)}" for key, one in value.items()) or "none"
        case _:
            return str(value)


def _quoted(text: str) -> str:
    """Return the text of a value, in quotes if it has spaces or quotes, so that a line can be split at its fields."""
    if not any(one.isspace() or one == '"' for one in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


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
            return round(value, _DECIMALS) if isinstance(value, float) else value


# ---- protection against errors of tracing and metrics ----------------------------------------------------------------


class TelemetryGuard:
    """Context manager that suppresses exceptions of OpenTelemetry, and logs the first one.

    A guard can be entered any number of times.

    Args:
        step: name of the guarded step for the log.
    """

    __slots__ = ("_has_failed", "_step")

    def __init__(self, step: str) -> None:
        self._step, self._has_failed = step, False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._has_failed:
            self._has_failed = True
            Observer().emit(TelemetryFailed(self._step, error_text(error), error))
        return True


# ---- wrapping of handlers and the publisher --------------------------------------------------------------------------

Publish: TypeAlias = Callable[..., Awaitable[Any]]
"""Function that publishes a record: ``(topic, value, *, key, headers, partition, timestamp_ms)``, encoded."""


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """Handler that an ``Instrumentation`` wraps."""

    name: str
    group_id: str
    is_batch: bool


@runtime_checkable
class Instrumentation(Hook, Protocol):
    """Hook that also wraps the handlers and the publisher of an app.

    At its start, an app calls ``around_handler`` once for each handler, and ``around_publish`` once.
    """

    def around_handler(
        self, call: Callable[[Any], Awaitable[Any]], handler: HandlerInfo, /
    ) -> Callable[[Any], Awaitable[Any]]:
        """Return the function that the app calls instead of ``call`` for each attempt to handle a record or batch.

        For a batch handler, the argument of both functions is a list of records, and ``call`` returns the exceptions of
        the failed records by their index. For other handlers, the argument is a record, and ``call`` raises if the
        record fails.
        """

    def around_publish(self, publish: Publish, /) -> Publish:
        """Return the function that the app calls instead of ``publish``.

        The app calls it for results of handlers, ``app.publish``, retry topics and dead-letter topics.
        """


def instrumentations_of(observer: Observer) -> Sequence[Instrumentation]:
    """Return the hooks of an observer that are instrumentations."""
    return tuple(hook for hook in observer.hooks if isinstance(hook, Instrumentation))
