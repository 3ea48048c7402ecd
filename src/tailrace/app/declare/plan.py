"""What an app will run: its handlers by group, each with its signature read, and what holds for all of them.

Rule of this file: made at start and looked at only; all that can be wrong with what a user declared is told here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.app.declare.dependencies import Dependency, Overrides
from tailrace.app.declare.prepared_handler import PreparedHandler, prepare
from tailrace.app.declare.resolved_options import ResolvedOptions
from tailrace.app.handlers import Handler, Handlers
from tailrace.app.topics.routes import Routes
from tailrace.errors import ConfigurationError

__all__ = ["BoundHandler", "Plan", "planned"]


@dataclass(frozen=True, slots=True)
class BoundHandler:
    """A handler, its signature read, and what holds for it."""

    handler: Handler
    prepared: PreparedHandler
    resolved: ResolvedOptions


@dataclass(frozen=True)
class Plan:
    """What to run."""

    by_group: Mapping[str, Sequence[BoundHandler]]
    starting: Sequence[Callable[[], object]] = ()
    ending: Sequence[Callable[[], object]] = ()

    @property
    def dependencies(self) -> Iterable[Dependency]:
        """All of the app's scope; some stand there more than once."""
        return (dep for ready in self.by_group.values() for one in ready for dep in one.prepared.app_dependencies)


def planned(handlers: Handlers, group_id: str | None, defaults: ResolvedOptions, overrides: Overrides) -> Plan:
    """Read the signatures, and see who handles what.

    Args:
        handlers: those that are declared, and hooks.
        defaults: of handlers that say nothing.
        group_id: of handlers that name none.
        overrides: providers to call instead of those that ``Depends`` names.

    Raises:
        ConfigurationError: a signature will not do, a handler has no group, or two take the same records.
    """
    if not handlers.declared:
        raise ConfigurationError("this app has no handlers - declare one with @app.handler('topic')")
    by_group: dict[str, list[BoundHandler]] = {}
    for handler in handlers.declared:
        group = handler.group_id or group_id
        if group is None:
            raise ConfigurationError(f"{handler.name} has no group - say App(group_id='billing')")
        resolved = defaults.of(handler)
        is_batch = handler.batches is not None
        prepared = prepare(handler.function, resolved.codec, overrides=overrides, is_batch=is_batch)
        by_group.setdefault(group, []).append(BoundHandler(handler, prepared, resolved))
    for group, ready in by_group.items():
        Routes(group, [(one.handler, one.resolved.dead_letter) for one in ready])
    return Plan(by_group, tuple(handlers.starting), tuple(handlers.ending))
