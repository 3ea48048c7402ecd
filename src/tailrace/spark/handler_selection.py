"""Which handlers of an app run on Spark when a user names one, and which topics are read for them.

Rule of this file: committing an offset says that the whole group is through with what lies below. So with a handler go
all of its group that share a topic with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.app.app import App
from tailrace.app.handlers import Handler
from tailrace.app.substitution import settings_of
from tailrace.app.topics.routes import HandlerTopics
from tailrace.errors import ConfigurationError

__all__ = ["SelectedHandlers", "select_handlers"]


@dataclass(frozen=True)
class SelectedHandlers:
    """What runs.

    Attributes:
        name: the handler that was named.
        numbers: the places of all that run, among those that the app has declared.
    """

    name: str
    group_id: str
    handlers: tuple[Handler, ...]
    numbers: tuple[int, ...]
    topics: tuple[str, ...]
    patterns: tuple[HandlerTopics, ...]

    @property
    def keeps_order(self) -> bool:
        """Whether any of them cares for the order of records."""
        return any(one.order_by != "none" for one in self.handlers)


def select_handlers(
    app: App, wanted: Callable[..., object] | str, group_id: str | None, there: Iterable[str] = ()
) -> SelectedHandlers:
    """The handler, by itself or by its name, and those that go with it.

    Args:
        app: that declares it.
        wanted: the decorated function, or its name.
        group_id: of handlers that name none.
        there: topics that its patterns match, once that is known: what two patterns share no text says.

    Raises:
        ConfigurationError: no handler has that name, or several have, it has no group, or is declared for several.
    """
    named = [one for one in app.declared if _is(one, wanted)]
    found = [one for one in named if one.name == wanted] or named
    if not found:
        names = ", ".join(sorted({one.name for one in app.declared})) or "none"
        shown = wanted if isinstance(wanted, str) else getattr(wanted, "__qualname__", wanted)
        raise ConfigurationError(f"this app has no handler {shown!r} - it has {names}")
    if any(one.function is not found[0].function for one in found):
        names = " and ".join(f"{one.function.__module__}.{one.name}" for one in found)
        raise ConfigurationError(
            f"several handlers of this app are called {wanted!r}: {names} - give the function itself"
        )
    groups = {one.group_id or group_id for one in found}
    group = groups.pop()
    if groups:
        raise ConfigurationError(
            f"{found[0].name!r} is declared for several groups - give the pipeline an app with one of them"
        )
    if group is None:
        raise ConfigurationError(f"{found[0].name} has no group - say App(group_id='billing')")
    topics = tuple(dict.fromkeys(topic for one in found for topic in one.topics))
    read = (*topics, *there)
    letters = settings_of(app).defaults.dead_letter
    patterns = tuple(HandlerTopics(one, group, one.dead_letter or letters) for one in found if one.pattern is not None)
    with_it = [
        (number, one)
        for number, one in enumerate(app.declared)
        if (one.group_id or group_id) == group and (one in found or _shares(one, read, patterns))
    ]
    return SelectedHandlers(
        found[0].name,
        group,
        tuple(one for _, one in with_it),
        tuple(number for number, _ in with_it),
        topics,
        patterns,
    )


def _is(handler: Handler, wanted: Callable[..., object] | str) -> bool:
    if isinstance(wanted, str):
        return wanted in {handler.name, handler.name.rpartition(".")[2]}
    return handler.function is wanted or handler.function == wanted


def _shares(handler: Handler, topics: Sequence[str], patterns: Sequence[Any]) -> bool:
    return (
        any(topic in topics for topic in handler.topics)
        or any(handler.pattern is not None and handler.pattern.fullmatch(topic) for topic in topics)
        or any(pattern.fullmatch(topic) for pattern in patterns for topic in handler.topics)
    )
