"""Reading of exceptions that user code has raised, which may be unusual and are never changed.

``__str__`` of such an exception may raise, its message may be long, and its causes and contexts may be many or a cycle.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from types import TracebackType

__all__ = [
    "error_text",
    "first_error",
    "has_many_related",
    "message_of",
    "shortened",
    "traceback_of",
    "traceback_parts",
    "with_group_members",
]

_MAX_CHARS = 2_000
_MAX_LOGGED_CHARS = 20_000
_MAX_RELATED = 1_000


def message_of(error: BaseException, max_chars: int | None = None) -> str:
    """Return the message of an error, or a placeholder if its ``__str__`` raises.

    A message that is longer than ``max_chars`` is shortened in the middle.
    """
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - the user's __str__ may raise any exception
        return f"(no message: __str__ raised {type(broken).__name__})"
    if max_chars is None or len(text) <= max_chars:
        return text
    first = max_chars * 3 // 4
    return f"{text[:first]} ... {len(text) - max_chars} characters omitted ... {text[first - max_chars :]}"


def shortened(error: BaseException) -> BaseException:
    """Return an exception to log: ``error`` itself, or if its message or notes are long, one with a shortened message.

    The latter has the name, traceback, cause and context of ``error``, but not its class, which might refuse the text.
    """
    if isinstance(error, BaseExceptionGroup) or _logged_chars(error) <= _MAX_LOGGED_CHARS:
        return error
    kind = type(error)
    named = type(kind.__name__, (Exception,), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})
    found: BaseException = named(message_of(error, _MAX_CHARS)).with_traceback(error.__traceback__)
    found.__cause__, found.__context__ = error.__cause__, error.__context__
    found.__suppress_context__ = error.__suppress_context__
    return found


def _logged_chars(error: BaseException) -> int:
    try:
        return len(message_of(error)) + sum(len(str(one)) for one in getattr(error, "__notes__", ()))
    except Exception:  # noqa: BLE001 - the user's attributes may raise any exception
        return 0


def error_text(error: BaseException) -> str:
    """Return the type and the message of an error, shortened, for events and for messages of other errors."""
    return f"{type(error).__name__}: {message_of(error, _MAX_CHARS)}"


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error as text, with its causes, contexts and members of groups."""
    return "".join(traceback_parts(error, error.__traceback__))


def traceback_parts(error: BaseException, trace: TracebackType | None, *, compact: bool = False) -> Iterable[str]:
    """Return the texts of ``TracebackException.format()``.

    If there are too many related exceptions, or one cannot be read, only the error itself is contained.
    """
    try:
        if not has_many_related(error):
            return list(traceback.TracebackException(type(error), error, trace, compact=compact).format())
        omitted = f"more than {_MAX_RELATED} causes, contexts and members of groups are omitted"
    except Exception as broken:  # noqa: BLE001 - attributes of the user's exception may raise any exception
        omitted = f"causes and contexts are omitted, because formatting them raised {type(broken).__name__}"
    return ["Traceback (most recent call last):\n", *traceback.format_tb(trace), f"{error_text(error)} ({omitted})\n"]


def has_many_related(error: BaseException) -> bool:
    """Return True if formatting the causes, contexts and members of groups of an error would take long.

    A member that several groups share counts several times, as it is formatted several times.
    """
    pending, seen, count = [error], set[int](), 0
    while pending:
        one = pending.pop()
        seen.add(id(one))
        count += 1
        if count > _MAX_RELATED:
            return True
        pending += [other for other in (one.__cause__, one.__context__) if other is not None and id(other) not in seen]
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions
    return False


def first_error(error: BaseException) -> BaseException:
    """Return the first error of an exception group, at any depth; return another error unchanged."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def with_group_members(
    error: BaseException, *, leave_out: tuple[type[BaseException], ...] = ()
) -> Iterator[BaseException]:
    """Yield an error and, if it is an exception group, all its members at all levels, each once.

    Args:
        error: error or exception group.
        leave_out: classes of exceptions that are left out, with the members of such groups.
    """
    pending, seen = [error], {id(error)}
    while pending:
        one = pending.pop()
        if isinstance(one, leave_out):
            continue
        yield one
        if isinstance(one, BaseExceptionGroup):
            for member in one.exceptions:
                if id(member) not in seen:
                    seen.add(id(member))
                    pending.append(member)
