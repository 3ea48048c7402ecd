"""Topics, groups and permissions that an app needs, from its handlers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from tailrace.admin.diagnosis.needs import ClusterNeeds, GroupNeeds, TopicNeeds, TopicRole
from tailrace.app.app import App
from tailrace.app.lifecycle import Plan, make_plan
from tailrace.app.topics.routes import HandlerTopics, Routes
from tailrace.cli.doctor.named_needs import NeedsOf
from tailrace.config import ConsumerConfig

__all__ = ["needs_of_app"]


def needs_of_app(app: App, config: ConsumerConfig, start: str) -> tuple[Plan, NeedsOf]:
    """Return the plan of an app, and a function that returns the app's needs in a cluster.

    Args:
        app: an app that is not started.
        config: options of the app's consumers.
        start: command that starts the app, which findings give as the next step.

    Raises:
        ConfigurationError: a handler is declared wrongly.
    """
    plan = make_plan(app, config.group_id, app.runtime)
    routes = {group_id: Routes(group_id, handlers) for group_id, handlers in plan.by_group.items()}

    def needs(existing: Collection[str]) -> ClusterNeeds:
        topics: dict[str, TopicNeeds] = {}
        for group_id, group_routes in routes.items():
            matched = _matched_topics(plan, group_id, existing)
            for name, role, origins, delay_ms in _topic_uses(group_routes, matched, existing):
                known = topics.get(name, TopicNeeds(name))
                topics[name] = replace(
                    known,
                    roles=known.roles | {role},
                    origins=known.origins | origins,
                    delay_ms=max(known.delay_ms, delay_ms),
                )
        groups = tuple(
            GroupNeeds(
                group_id,
                group_routes.topics,
                config.group_protocol,
                tuple(map(_strategy_name, config.partition_assignment_strategy)),
                start,
            )
            for group_id, group_routes in routes.items()
        )
        return ClusterNeeds(groups, topics)

    return plan, needs


def _matched_topics(plan: Plan, group_id: str, existing: Collection[str]) -> list[str]:
    """Return the existing topics that patterns of the group's handlers match."""
    patterns = [
        HandlerTopics(one, group_id, one.dead_letter) for one in plan.by_group[group_id] if one.pattern is not None
    ]
    return [name for name in existing if any(name in one for one in patterns)]


def _topic_uses(
    routes: Routes, matched: Iterable[str], existing: Collection[str]
) -> Iterable[tuple[str, TopicRole, frozenset[str], int]]:
    """Yield name, role, origins and delay of each topic that a group uses.

    The origins are the topics whose records are written to a retry, replay or dead-letter topic; empty for other roles.
    The delay in milliseconds is that of a retry topic; 0 for other roles.
    """
    for name in (*sorted(routes.topics), *matched):
        yield name, TopicRole.READ, frozenset(), 0
    for name, retry in routes.retries.items():
        yield name, TopicRole.RETRY, frozenset({retry.origin}), retry.delay_ms
    uses: dict[TopicRole, dict[str, set[str]]] = defaultdict(dict)
    dead, replays = routes.dead_letters(existing)
    uses[TopicRole.DEAD_LETTER] |= dead
    uses[TopicRole.REPLAY] |= replays
    for role, names in uses.items():
        for name, origins in names.items():
            yield name, role, frozenset(origins), 0
    for name in routes.publish_topics:
        yield name, TopicRole.PUBLISH, frozenset(), 0


def _strategy_name(strategy: object) -> str:
    return strategy if isinstance(strategy, str) else str(getattr(strategy, "name", strategy))
