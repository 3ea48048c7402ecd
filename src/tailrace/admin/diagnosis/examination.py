"""Examination of a cluster, and of the topics and groups of an app, with a time limit and without changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from tailrace.admin.diagnosis.broker_findings import ClusterFacts, broker_findings
from tailrace.admin.diagnosis.brokers import ReachedCluster, reach_bootstrap, reach_brokers, reason_and_advice
from tailrace.admin.diagnosis.findings import Finding, Level
from tailrace.admin.diagnosis.group_findings import GroupFacts, group_findings
from tailrace.admin.diagnosis.groups import GroupState, group_facts, log_sizes, read_group_state
from tailrace.admin.diagnosis.needs import ClusterNeeds, GroupNeeds, TopicRole
from tailrace.admin.diagnosis.permissions import allowed
from tailrace.admin.diagnosis.topic_findings import TopicFacts, TopicsFacts, topic_findings
from tailrace.admin.diagnosis.topics import all_topics, named_topics, topics_with_settings
from tailrace.admin.diagnosis.wording import CommandLines
from tailrace.config import ConsumerConfig
from tailrace.error_codes import ErrorCode
from tailrace.errors import TailraceError
from tailrace.net.cluster import Cluster
from tailrace.protocol.metadata import OPERATIONS_NOT_REQUESTED

__all__ = ["examine"]

ResultT = TypeVar("ResultT")
Report: TypeAlias = Callable[[Iterable[Finding]], None]

_REACH_S = 5.0
"""Maximum time to connect to a broker and to get a first response."""
_REQUEST_S = 10.0
"""Maximum time of other requests."""
_OFFSETS_TOPIC = "__consumer_offsets"


class _Checks:
    """Reports findings, and runs requests with a time limit; the failure of a request becomes a finding.

    Args:
        report: function that is called with findings.
        request_s: maximum time of a request, in seconds.
    """

    def __init__(self, report: Report, request_s: float) -> None:
        self.report, self.request_s = report, request_s

    async def result(self, what: str, attempt: Coroutine[Any, Any, ResultT]) -> ResultT | None:
        """Return the result of ``attempt``; if it fails, report that ``what`` was not checked, and return None."""
        try:
            async with asyncio.timeout(self.request_s):
                return await attempt
        except TimeoutError:
            self.skip(what, f"no answer within {self.request_s:.0f} s")
        except TailraceError as error:
            self.skip(what, reason_and_advice(error)[0])
        return None

    def skip(self, what: str, reason: str) -> None:
        """Report that ``what`` was not checked."""
        self.report([Finding("not-checked", Level.SKIPPED, what, f"not checked: {reason}")])


async def examine(  # noqa: PLR0913 - all settings of an examination
    config: ConsumerConfig,
    needs_of: Callable[[Collection[str]], ClusterNeeds],
    commands: CommandLines,
    report: Report,
    *,
    now_ms: Callable[[], float],
    timeout_s: float,
    interval_s: float,
) -> None:
    """Examine a cluster and report the findings section by section.

    Args:
        config: options of the connections.
        needs_of: function that is called with the names of all topics, and returns the topics and groups to check.
        commands: command lines that the findings recommend.
        report: function that is called with the findings of each section.
        now_ms: function that returns this host's time, in milliseconds since 1970.
        timeout_s: maximum time of the examination, in seconds; ``interval_s`` is added to it.
        interval_s: time in seconds after which the state of groups is read again, to see whether offsets change.
    """
    checks = _Checks(report, min(timeout_s, _REQUEST_S))
    try:
        async with asyncio.timeout(timeout_s + interval_s):
            await _examine(config, needs_of, commands, checks, now_ms, interval_s)
    except TimeoutError:
        checks.skip("remaining checks", f"not finished within {timeout_s:.0f} s: set a greater --timeout")


async def _examine(  # noqa: PLR0913, PLR0917 - the parameters of examine
    config: ConsumerConfig,
    needs_of: Callable[[Collection[str]], ClusterNeeds],
    commands: CommandLines,
    checks: _Checks,
    now_ms: Callable[[], float],
    interval_s: float,
) -> None:
    bound_s = min(checks.request_s, _REACH_S)
    bootstrap = await reach_bootstrap(config, bound_s)
    if all(one.failure for one in bootstrap):
        checks.report(broker_findings(ClusterFacts(bootstrap), commands))
        return
    with closing(Cluster(config)) as cluster:
        await checks.result("cluster", cluster.bootstrap())
        if not cluster.topology.brokers:
            return
        names: Mapping[str, TopicFacts] = await checks.result("topics", all_topics(cluster)) or {}
        needs = needs_of(names)
        reached = await reach_brokers(cluster, bootstrap, bound_s, now_ms)
        wants_kip848 = any(one.group_protocol == "consumer" for one in needs.groups)
        checks.report(broker_findings(reached.facts, commands, needs_consumer_protocol=wants_kip848))
        if reached.node_ids:
            await _TopicsAndGroups(checks, commands, cluster, reached, names, needs, now_ms).examine(interval_s)


class _TopicsAndGroups:
    """Examination of topics and groups, which follows the examination of the brokers."""

    def __init__(  # noqa: PLR0913, PLR0917 - results of earlier sections
        self,
        checks: _Checks,
        commands: CommandLines,
        cluster: Cluster,
        reached: ReachedCluster,
        names: Mapping[str, TopicFacts],
        needs: ClusterNeeds,
        now_ms: Callable[[], float],
    ) -> None:
        self._checks, self._commands, self._now_ms = checks, commands, now_ms
        self._cluster, self._names, self._needs = cluster, names, needs
        self._node_ids, self._operations = reached.node_ids, reached.operations
        self._brokers = len(reached.facts.brokers) + len(reached.facts.fenced)
        clock = reached.facts.clock
        self._ahead_ms = 0.0 if clock is None else clock.ahead_ms

    async def examine(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        read_at = loop.time()
        states = await self._group_states(self._needs.groups)
        topics = await self._topics({name for state in states.values() for name in state.topics})
        later: dict[str, GroupState] = {}
        if stalling := [one for one in self._needs.groups if states[one.group_id].may_stall]:
            await asyncio.sleep(max(0.0, read_at + interval_s - loop.time()))
            later = await self._group_states(stalling)
        interval_ms = (loop.time() - read_at) * 1000
        for need in self._needs.groups:
            facts = await self._facts(states[need.group_id], later.get(need.group_id), topics, interval_ms)
            self._checks.report(group_findings(facts, need, self._commands))

    async def _topics(self, group_topics: Collection[str]) -> Mapping[str, TopicFacts]:
        wanted = {*self._needs.topics, *group_topics}
        is_whole_cluster = not wanted and not self._needs.groups
        if is_whole_cluster:
            found = dict(self._names)
        else:
            found = await self._checks.result("topics", named_topics(self._cluster, wanted)) or {}
        described = await self._checks.result(
            "topic settings", topics_with_settings(self._cluster, list(found.values()))
        )
        checked = {one.name: one for one in described or found.values()}
        checked |= await self._with_dead_letters(checked)
        others = [one for name, one in self._names.items() if name not in checked]
        may_create = None if self._operations == OPERATIONS_NOT_REQUESTED else "Create" in allowed(self._operations)
        facts = TopicsFacts(
            list(checked.values()),
            [one for one in others if one.leaderless or one.under_replicated],
            self._names,
            self._brokers,
            may_create,
        )
        self._checks.report(topic_findings(facts, self._needs.topics, self._commands))
        return checked

    async def _with_dead_letters(self, topics: Mapping[str, TopicFacts]) -> dict[str, TopicFacts]:
        counts = {
            name: topics[name].partitions
            for name, need in self._needs.topics.items()
            if TopicRole.DEAD_LETTER in need.roles and name in topics and topics[name].partitions
        }
        if not counts:
            return {}
        sizes = await self._checks.result(
            "dead letters", log_sizes(self._cluster, counts, self._node_ids, self._checks.request_s)
        )
        return {name: replace(topics[name], records=size) for name, size in (sizes or {}).items()}

    async def _group_states(self, groups: Sequence[GroupNeeds]) -> dict[str, GroupState]:
        if groups and await self._has_no_groups():
            return {
                one.group_id: GroupState(GroupFacts(one.group_id, is_missing=True), has_coordinator=False)
                for one in groups
            }
        return {one.group_id: await self._group_state(one) for one in groups}

    async def _group_state(self, need: GroupNeeds) -> GroupState:
        bound_s = self._checks.request_s
        try:
            async with asyncio.timeout(bound_s):
                return await read_group_state(self._cluster, need.group_id, need.topics, self._node_ids, bound_s)
        except TimeoutError:
            failure = f"no answer within {bound_s:.0f} s"
        except TailraceError as error:
            failure = reason_and_advice(error)[0]
        return GroupState(GroupFacts(need.group_id, failure=failure))

    async def _has_no_groups(self) -> bool:
        """Return True if the cluster has never had a group.

        The lookup of a coordinator would then create the topic of committed offsets, so it must be omitted.
        """
        if _OFFSETS_TOPIC in self._names:
            return False
        found = await self._checks.result("groups", named_topics(self._cluster, [_OFFSETS_TOPIC]))
        return found is not None and found[_OFFSETS_TOPIC].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def _facts(
        self, first: GroupState, second: GroupState | None, topics: Mapping[str, TopicFacts], interval_ms: float
    ) -> GroupFacts:
        return await group_facts(
            self._cluster,
            first,
            second,
            topics,
            interval_ms=interval_ms,
            now_ms=int(self._now_ms() + self._ahead_ms),
            node_ids=self._node_ids,
            timeout_s=self._checks.request_s,
        )
