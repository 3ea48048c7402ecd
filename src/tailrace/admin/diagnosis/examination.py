"""Examination of a cluster, and of the topics and groups of an app, with a time limit and without changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tailrace.admin.diagnosis.broker_findings import ClusterFacts, broker_findings
from tailrace.admin.diagnosis.facts import (
    GroupState,
    ReachedCluster,
    all_topics,
    group_facts,
    log_sizes,
    named_topics,
    reach_bootstrap,
    reach_brokers,
    read_group_state,
    reason_and_advice,
    topics_with_settings,
)
from tailrace.admin.diagnosis.findings import (
    ClusterNeeds,
    CommandLines,
    Finding,
    GroupNeeds,
    Subject,
    TopicRole,
)
from tailrace.admin.diagnosis.group_findings import GroupFacts, group_findings
from tailrace.admin.diagnosis.permissions import allowed
from tailrace.admin.diagnosis.topic_findings import TopicFacts, TopicsFacts, topic_findings
from tailrace.config import ConsumerConfig
from tailrace.error_codes import ErrorCode
from tailrace.errors import TailraceError
from tailrace.net.cluster import Cluster
from tailrace.protocol.metadata import OPERATIONS_NOT_REQUESTED

__all__ = ["Examination"]

ResultT = TypeVar("ResultT")

_REACH_S = 5.0
"""Maximum time to connect to a broker and to get a first response."""
_REQUEST_S = 10.0
"""Maximum time of other requests."""
_OFFSETS_TOPIC = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class Examination:
    """Examination of a cluster, whose findings are reported section by section."""

    config: ConsumerConfig
    """Options of the connections."""
    needs_of: Callable[[Collection[str]], ClusterNeeds]
    """Function that is called with the names of all topics, and returns the topics and groups to check."""
    commands: CommandLines
    """Command lines that the findings recommend."""
    report: Callable[[Iterable[Finding]], None]
    """Function that is called with the findings of each section."""
    now_ms: Callable[[], float]
    """Function that returns this host's time, in milliseconds since 1970."""
    timeout_s: float
    """Maximum time of the examination, in seconds; ``interval_s`` is added to it."""
    interval_s: float
    """Time in seconds after which the state of groups is read again, to see whether offsets change."""

    @property
    def _request_s(self) -> float:
        return min(self.timeout_s, _REQUEST_S)

    async def run(self) -> None:
        """Examine the cluster."""
        try:
            async with asyncio.timeout(self.timeout_s + self.interval_s):
                await self._examine()
        except TimeoutError:
            self._skip("remaining checks", f"not finished within {self.timeout_s:.0f} s: set a greater --timeout")

    async def _examine(self) -> None:
        reach_s = min(self._request_s, _REACH_S)
        bootstrap = await reach_bootstrap(self.config, reach_s)
        if all(one.failure for one in bootstrap):
            self.report(broker_findings(ClusterFacts(bootstrap), self.commands))
            return
        with closing(Cluster(self.config)) as cluster:
            await self._result("cluster", cluster.bootstrap())
            if not cluster.topology.brokers:
                return
            names: Mapping[str, TopicFacts] = await self._result("topics", all_topics(cluster)) or {}
            needs = self.needs_of(names)
            reached = await reach_brokers(cluster, bootstrap, reach_s, self._request_s, self.now_ms)
            self.report(broker_findings(reached.facts, self.commands, needs.capabilities))
            if reached.node_ids:
                await self._examine_groups_and_topics(reached, names, needs)

    async def _examine_groups_and_topics(
        self, reached: ReachedCluster, names: Mapping[str, TopicFacts], needs: ClusterNeeds
    ) -> None:
        loop = asyncio.get_running_loop()
        read_at = loop.time()
        has_groups = not needs.groups or _OFFSETS_TOPIC in names or await self._has_groups(reached.cluster)
        looks = await self._look_at(reached, needs.groups, has_groups=has_groups)
        group_topics = {name for states in looks.values() for name in states[0].topics}
        topics = await self._examine_topics(reached, names, needs, group_topics)
        if stalling := [one for one in needs.groups if looks[one.group_id][0].may_stall]:
            await asyncio.sleep(max(0.0, read_at + self.interval_s - loop.time()))
            for group_id, states in (await self._look_at(reached, stalling, has_groups=has_groups)).items():
                looks[group_id] += states
        ahead_ms = 0.0 if reached.facts.clock is None else reached.facts.clock.ahead_ms
        for need in needs.groups:
            facts = await group_facts(reached, looks[need.group_id], topics, int(self.now_ms() + ahead_ms))
            self.report(group_findings(facts, need, self.commands))

    async def _examine_topics(
        self,
        reached: ReachedCluster,
        names: Mapping[str, TopicFacts],
        needs: ClusterNeeds,
        group_topics: Collection[str],
    ) -> Mapping[str, TopicFacts]:
        """Report findings about the topics of ``needs`` and of groups, by default about all, and return their facts."""
        wanted = {*needs.topics, *group_topics}
        if wanted or needs.groups:
            found = await self._result("topics", named_topics(reached.cluster, wanted)) or {}
        else:
            found = dict(names)
        described = await self._result("topic settings", topics_with_settings(reached.cluster, list(found.values())))
        checked = {one.name: one for one in described or found.values()}
        checked |= await self._with_dead_letters(reached, checked, needs)
        others = [one for name, one in names.items() if name not in checked]
        is_unknown = reached.operations == OPERATIONS_NOT_REQUESTED
        facts = TopicsFacts(
            list(checked.values()),
            [one for one in others if one.leaderless or one.under_replicated],
            names,
            len(reached.facts.brokers) + len(reached.facts.fenced),
            None if is_unknown else "Create" in allowed(reached.operations),
        )
        self.report(topic_findings(facts, needs.topics, self.commands))
        return checked

    async def _with_dead_letters(
        self, reached: ReachedCluster, topics: Mapping[str, TopicFacts], needs: ClusterNeeds
    ) -> dict[str, TopicFacts]:
        """Return the dead-letter topics, with the number of their records."""
        counts = {
            name: topics[name].partitions
            for name, need in needs.topics.items()
            if TopicRole.DEAD_LETTER in need.roles and name in topics and topics[name].partitions
        }
        sizes = (await self._result("dead letters", log_sizes(reached, counts)) or {}) if counts else {}
        return {name: replace(topics[name], records=size) for name, size in sizes.items()}

    async def _has_groups(self, cluster: Cluster) -> bool:
        """Return False if the cluster has never had a group.

        The lookup of a coordinator would then create the topic of committed offsets, so it must be omitted.
        """
        found = await self._result("groups", named_topics(cluster, [_OFFSETS_TOPIC]))
        return found is None or found[_OFFSETS_TOPIC].error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    async def _look_at(
        self, reached: ReachedCluster, groups: Sequence[GroupNeeds], *, has_groups: bool
    ) -> dict[str, list[GroupState]]:
        looks: dict[str, list[GroupState]] = {}
        for need in groups:
            if not has_groups:
                state = GroupState(GroupFacts(need.group_id, is_missing=True), has_coordinator=False)
            else:
                try:
                    async with asyncio.timeout(self._request_s):
                        state = await read_group_state(reached, need.group_id, need.topics)
                except TimeoutError:
                    failure = f"no answer within {self._request_s:.0f} s"
                    state = GroupState(GroupFacts(need.group_id, failure=failure))
                except TailraceError as error:
                    state = GroupState(GroupFacts(need.group_id, failure=reason_and_advice(error)[0]))
            looks[need.group_id] = [state]
        return looks

    async def _result(self, what: str, attempt: Coroutine[Any, Any, ResultT]) -> ResultT | None:
        """Return the result of ``attempt``; if it fails, report that ``what`` was not checked, and return None."""
        try:
            async with asyncio.timeout(self._request_s):
                return await attempt
        except TimeoutError:
            self._skip(what, f"no answer within {self._request_s:.0f} s")
        except TailraceError as error:
            self._skip(what, reason_and_advice(error)[0])
        return None

    def _skip(self, what: str, reason: str) -> None:
        self.report([Subject(what).skipped("not-checked", f"not checked: {reason}")])
