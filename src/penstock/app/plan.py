"""What an app will run: its handlers by group, each with its signature read, and what holds for all of them.

Rule of this file: made at start and looked at only; all that can be wrong with what a user declared is told here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.app.handlers import Handler, Handlers
from penstock.app.routes import Routes
from penstock.app.signatures.dependencies import Dependency, Overrides
from penstock.app.signatures.prepared import Prepared, prepare
from penstock.app.signatures.prepared_batch import PreparedBatch, prepare_batch
from penstock.app.terms import Terms
from penstock.errors import ConfigurationError

__all__ = ["Plan", "Ready", "planned"]


@dataclass(frozen=True, slots=True)
class Ready:
    """A handler, its signature read, and what holds for it."""

    handler: Handler
    prepared: Prepared | PreparedBatch
    terms: Terms


@dataclass(frozen=True)
class Plan:
    """What to run."""

    by_group: Mapping[str, Sequence[Ready]]
    starting: Sequence[Callable[[], object]] = ()
    ending: Sequence[Callable[[], object]] = ()

    @property
    def dependencies(self) -> Iterable[Dependency]:
        """All of the app's scope; some stand there more than once."""
        return (dep for ready in self.by_group.values() for one in ready for dep in one.prepared.app_dependencies)


def planned(handlers: Handlers, group_id: str | None, defaults: Terms, overrides: Overrides) -> Plan:
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
    by_group: dict[str, list[Ready]] = {}
    for handler in handlers.declared:
        group = handler.group_id or group_id
        if group is None:
            raise ConfigurationError(f"{handler.name} has no group - say App(group_id='billing')")
        terms = defaults.of(handler)
        make = prepare if handler.batches is None else prepare_batch
        prepared = make(handler.function, terms.codec, overrides=overrides)
        by_group.setdefault(group, []).append(Ready(handler, prepared, terms))
    for group, ready in by_group.items():
        Routes(group, [(one.handler, one.terms.dead_letter) for one in ready])
    return Plan(by_group, tuple(handlers.starting), tuple(handlers.ending))
