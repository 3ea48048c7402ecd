"""Plan of an app: its handlers by group, with their signatures read and their options resolved.

The plan is made at start. Every error in what a user declared is raised here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.app.declare.dependencies import Dependency, Overrides
from tailrace.app.declare.prepared_handler import PreparedHandler, prepare
from tailrace.app.handlers import Handler, Handlers
from tailrace.app.options import check_retry_topics
from tailrace.app.resolved_options import ResolvedOptions
from tailrace.app.topics.routes import Routes
from tailrace.errors import ConfigurationError

__all__ = ["BoundHandler", "Plan", "planned"]


@dataclass(frozen=True, slots=True)
class BoundHandler:
    """Handler with its signature read and its options resolved."""

    handler: Handler
    prepared: PreparedHandler
    resolved: ResolvedOptions


@dataclass(frozen=True)
class Plan:
    """Handlers of an app by group, and its hooks."""

    by_group: Mapping[str, Sequence[BoundHandler]]
    starting: Sequence[Callable[[], object]] = ()
    ending: Sequence[Callable[[], object]] = ()

    @property
    def dependencies(self) -> Iterable[Dependency]:
        """Dependencies of the app's scope; some occur more than once."""
        return (dep for ready in self.by_group.values() for one in ready for dep in one.prepared.app_dependencies)


def planned(handlers: Handlers, group_id: str | None, defaults: ResolvedOptions, overrides: Overrides) -> Plan:
    """Read the signatures of handlers and resolve their options.

    Args:
        handlers: Declared handlers and hooks.
        group_id: Group of handlers without one of their own.
        defaults: Options of the app.
        overrides: Providers to call instead of those that ``Depends`` names.

    Raises:
        ConfigurationError: A signature is invalid, a handler has no group, options contradict each other, or two
            handlers take the same records.
    """
    by_group: dict[str, list[BoundHandler]] = {}
    for handler in handlers.declared:
        group = handler.group_id or group_id
        if group is None:
            raise ConfigurationError(f"{handler.name} has no group - write App(group_id='billing')")
        resolved = defaults.of(handler)
        check_retry_topics(
            resolved.retry,
            order_by=handler.order_by,
            has_pattern=handler.pattern is not None,
            where=f"{handler.name}: ",
        )
        prepared = prepare(handler.function, resolved.codec, overrides=overrides, is_batch=handler.batch is not None)
        by_group.setdefault(group, []).append(BoundHandler(handler, prepared, resolved))
    for group, ready in by_group.items():
        Routes(group, [(one.handler, one.resolved) for one in ready])
    return Plan(by_group, tuple(handlers.starting), tuple(handlers.ending))
