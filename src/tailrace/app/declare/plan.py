"""Plan of an app: its handlers by group, with signatures read and options resolved.

An app makes its plan when it starts. Invalid or contradictory declarations raise an error at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.app.declare.dependencies import Dependency, Overrides
from tailrace.app.declare.prepared_handler import PreparedHandler, prepare
from tailrace.app.handlers import Handler, Handlers, ResolvedOptions
from tailrace.app.options import check_retry_topics
from tailrace.app.topics.routes import Routes
from tailrace.errors import ConfigurationError

__all__ = ["BoundHandler", "Plan", "make_plan"]


@dataclass(frozen=True, slots=True)
class BoundHandler:
    """Handler with its signature read and its options resolved."""

    handler: Handler
    prepared: PreparedHandler
    resolved: ResolvedOptions


@dataclass(frozen=True)
class Plan:
    """Handlers of an app by consumer group, and its hooks.

    Attributes:
        start_hooks: functions declared by ``on_start``, in order of declaration.
        stop_hooks: functions declared by ``on_stop``, in order of declaration.
    """

    by_group: Mapping[str, Sequence[BoundHandler]]
    start_hooks: Sequence[Callable[[], object]] = ()
    stop_hooks: Sequence[Callable[[], object]] = ()

    @property
    def dependencies(self) -> Iterable[Dependency]:
        """Dependencies with ``scope="app"``; a dependency of several handlers occurs several times."""
        return (
            dependency
            for bound_handlers in self.by_group.values()
            for bound in bound_handlers
            for dependency in bound.prepared.app_dependencies
        )


def make_plan(handlers: Handlers, group_id: str | None, defaults: ResolvedOptions, overrides: Overrides) -> Plan:
    """Return the plan of the declared handlers and hooks.

    Args:
        handlers: Declared handlers and hooks.
        group_id: Group of handlers that have no ``group_id``; None if each handler must have one.
        defaults: Values of the app for options that a handler does not set.
        overrides: Replacements of the providers that ``Depends`` names.

    Raises:
        ConfigurationError: A signature is invalid, a handler has no group, options contradict each other, a topic
            template is invalid, or several handlers of a group read the same topic and not all of them have ``when=``.
    """
    by_group: dict[str, list[BoundHandler]] = {}
    for handler in handlers.declared:
        group = handler.group_id or group_id
        if group is None:
            raise ConfigurationError(
                f"{handler.name} has no group_id - set it for the app, such as App(group_id='billing')"
            )
        resolved = defaults.for_handler(handler)
        check_retry_topics(
            resolved.retry,
            order_by=handler.order_by,
            has_pattern=handler.pattern is not None,
            where=f"{handler.name}: ",
        )
        prepared = prepare(handler.function, resolved.codec, overrides=overrides, is_batch=handler.batch is not None)
        by_group.setdefault(group, []).append(BoundHandler(handler, prepared, resolved))
    for group, bound_handlers in by_group.items():
        # Created only for its checks: Routes raises an error if handlers conflict.
        Routes(group, [(bound.handler, bound.resolved) for bound in bound_handlers])
    return Plan(by_group, tuple(handlers.start_hooks), tuple(handlers.stop_hooks))
