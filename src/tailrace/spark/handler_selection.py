"""Selection of the handlers that run on Spark, and of the topics that are read for them.

All handlers of a group share the committed offset of a partition. The handler that the user names therefore runs
together with all other handlers of the group that share a topic with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.app.app import App
from tailrace.app.function_kinds import identity_of
from tailrace.app.handlers import Handler
from tailrace.app.topics.routes import HandlerTopics
from tailrace.errors import ConfigurationError

__all__ = ["SelectedHandlers", "select_handlers"]


@dataclass(frozen=True)
class SelectedHandlers:
    """Handlers to run.

    Attributes:
        name: name of the handler that the user named.
        group_id: group of the handlers.
        named: declarations of the named handler.
        handlers: all handlers to run.
        indices: index of each handler in ``App.declared``.
        topics: names of topics that the named handler reads.
        patterns: patterns of topics that the named handler reads.
    """

    name: str
    group_id: str
    named: tuple[Handler, ...]
    handlers: tuple[Handler, ...]
    indices: tuple[int, ...]
    topics: tuple[str, ...]
    patterns: tuple[HandlerTopics, ...]

    @property
    def keeps_order(self) -> bool:
        """True if any of the handlers needs records in order."""
        return any(one.order_by != "none" for one in self.handlers)

    def check_alone(self) -> None:
        """Check that no other handler of the group would miss the records that a query of the handler commits.

        Raises:
            ConfigurationError: another handler of the group reads the same topics.
        """
        if others := sorted({one.name for one in self.handlers} - {self.name}):
            raise ConfigurationError(
                f"handler {others[0]!r} of group {self.group_id!r} reads the same topics, and would never receive the"
                " records that the query commits - give one of the handlers another group, or use SparkPipeline"
            )


def select_handlers(
    app: App, wanted: Callable[..., object] | str, group_id: str | None, matched_topics: Iterable[str] = ()
) -> SelectedHandlers:
    """Return the named handler and the handlers of its group that share a topic with it.

    Args:
        app: app that declares the handler.
        wanted: decorated function of the handler, or its name.
        group_id: group of handlers that are declared without a group.
        matched_topics: existing topics that the handler's patterns match, as far as they are known. Without them, two
            handlers that both have a pattern are not recognized to share a topic.

    Raises:
        ConfigurationError: the name is unknown or ambiguous, or the handler has no group or several groups.
    """
    named = [one for one in app.declared if _is_named(one, wanted)]
    found = [one for one in named if one.name == wanted] or named
    if not found:
        names = ", ".join(sorted({one.name for one in app.declared})) or "none"
        shown = wanted if isinstance(wanted, str) else getattr(wanted, "__qualname__", wanted)
        raise ConfigurationError(f"the app has no handler {shown!r} - its handlers are: {names}")
    if len({identity_of(one.function) for one in found}) > 1:
        names = " and ".join(f"{one.function.__module__}.{one.name}" for one in found)
        raise ConfigurationError(
            f"several handlers of the app are named {wanted!r}: {names} - pass the function instead of its name"
        )
    groups = {one.group_id or group_id for one in found}
    group = groups.pop()
    if groups:
        raise ConfigurationError(
            f"handler {found[0].name!r} is declared for several groups - use an app that declares it for one group"
        )
    if group is None:
        raise ConfigurationError(f"handler {found[0].name!r} has no group - set one, such as App(group_id='billing')")
    topics = tuple(dict.fromkeys(topic for one in found for topic in one.topics))
    read_topics = (*topics, *matched_topics)
    patterns = tuple(
        HandlerTopics(one.with_defaults(app.runtime.config), group) for one in found if one.pattern is not None
    )
    selected = [
        (index, one)
        for index, one in enumerate(app.declared)
        if (one.group_id or group_id) == group and (one in found or _shares_topic(one, read_topics, patterns))
    ]
    return SelectedHandlers(
        found[0].name,
        group,
        tuple(found),
        tuple(one for _, one in selected),
        tuple(index for index, _ in selected),
        topics,
        patterns,
    )


def _is_named(handler: Handler, wanted: Callable[..., object] | str) -> bool:
    if isinstance(wanted, str):
        return wanted in {handler.name, handler.name.rpartition(".")[2]}
    return identity_of(handler.function) == identity_of(wanted)


def _shares_topic(handler: Handler, topics: Sequence[str], patterns: Sequence[Any]) -> bool:
    return (
        any(topic in topics for topic in handler.topics)
        or any(handler.pattern is not None and handler.pattern.fullmatch(topic) for topic in topics)
        or any(pattern.fullmatch(topic) for pattern in patterns for topic in handler.topics)
    )
