"""GroupMember: a member of a group that is kept together for something else than reading topics.

Rule of this file: as ``coordinator`` does for consumers, it performs what the machine of ``core.classic`` decides and
tells it what came of it. Heartbeats, pauses and errors are the same; what is dealt is the user's own.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, assert_never, cast

import anyio
from anyio.abc import TaskGroup
from typing_extensions import Unpack

from penstock.config import ConsumerConfig, ConsumerOptions, check_names, resolve
from penstock.consumer.group_dialect import Generation, GroupDialect, GroupRole
from penstock.consumer.group_requests import GroupRequests, outcome_of
from penstock.consumer.ownership import called_back, in_callback
from penstock.consumer.supervisor import Supervisor
from penstock.consumer.wake import Wake
from penstock.core.classic import ClassicMember
from penstock.core.membership import MemberSettings
from penstock.core.membership_effects import (
    Effect,
    Fail,
    FindPartitions,
    ForgetCoordinator,
    NameTopics,
    Release,
    SendGroupHeartbeat,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    TakeOver,
    Tell,
)
from penstock.core.membership_events import (
    Beat,
    Failed,
    GroupEvent,
    PartitionsFound,
    Released,
    Resubscribed,
    Start,
    Stop,
    TakenOver,
)
from penstock.errors import ConfigurationError, ConsumerStateError, NoCommonAssignorError, PenstockError, RebalanceError
from penstock.net.cluster import Cluster
from penstock.observe.events import ConsumerFailed, GroupJoined, RebalanceStarted
from penstock.observe.hooks import Hook, Observer

__all__ = ["DEFAULT_GROUP", "GroupMember"]

DEFAULT_GROUP = "penstock-default-group"

_numbers = itertools.count(1)


class GroupMember:
    """One member of a group of any kind: workers that share duties, an election, a set of caches.

    ``async with GroupMember(role, bootstrap_servers="localhost:9092", group_id="indexers") as member`` joins and
    leaves; the role says what members tell each other, and is told of each generation.

    Args:
        role: what the group is for.
        options: those of a Consumer that are about the cluster and the group; ``group_id`` may be left out.

    Raises:
        ConfigurationError: the role lacks something, or an option will not do.
    """

    def __init__(self, role: GroupRole, **options: Unpack[ConsumerOptions]) -> None:
        self._options = {"group_id": DEFAULT_GROUP, **options}
        check_names(self._options)
        if resolve(self._options).group_protocol != "classic":
            raise ConfigurationError("group_protocol: only 'classic' groups may be of other kinds than consumers")
        self._role, self._dialect = role, GroupDialect(role)
        self._supervisor: Supervisor | None = None
        self._membership: _Membership | None = None

    async def start(self) -> None:
        """Reach the cluster and begin to join.

        Raises:
            ConsumerStateError: it was started before.
            BrokerConnectionError: no broker answers within ``start_timeout_ms``.
        """
        if self._supervisor is not None:
            raise ConsumerStateError("this member was started already - make a new one")
        self._membership = _Membership(resolve(self._options), self._role, self._dialect)
        self._supervisor = Supervisor(self._membership.run, f"penstock member of {self._membership.group_id}")
        await self._supervisor.start()

    async def stop(self) -> None:
        """Leave the group and close all connections, within ``stop_timeout_ms``.

        Raises:
            ConsumerStateError: it is called by the role, which has to return first.
        """
        if self._membership is not None and in_callback(self._membership):
            raise ConsumerStateError("stop() in a role's method would wait for itself - let another task call it")
        if self._supervisor is not None and self._membership is not None:
            await self._supervisor.stop(self._membership.stop_timeout_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def generation(self) -> Generation | None:
        """The generation this member is in; None while it joins, and after the end."""
        return self._membership.generation if self._membership is not None else None

    async def joined(self) -> Generation:
        """Wait until this member is in a generation; however many wait, there is one join.

        Raises:
            ConsumerStateError: not started, or stopped.
            PenstockError: what has ended the membership.
        """
        if self._membership is None:
            raise ConsumerStateError("this member is not started - use `async with GroupMember(...)`")
        return await self._membership.joined()

    def rejoin(self) -> None:
        """Have the group begin another generation: what ``protocols()`` says is different now.

        Raises:
            ConsumerStateError: not started.
        """
        if self._membership is None:
            raise ConsumerStateError("this member is not started - use `async with GroupMember(...)`")
        self._membership.rejoin()


class _Membership:
    """What a GroupMember starts and stops."""

    def __init__(self, config: ConsumerConfig, role: GroupRole, dialect: GroupDialect) -> None:
        assert config.group_id is not None
        self.group_id, self.stop_timeout_s = config.group_id, config.stop_timeout_ms / 1000
        self.generation: Generation | None = None
        self._config, self._role, self._dialect = config, role, dialect
        self._observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        self._cluster = Cluster(config, self._observer)
        member = f"{config.client_id}-member-{next(_numbers)}"
        self._requests = GroupRequests(config, self._cluster, self._observer, member, dialect)
        self._machine = ClassicMember(_settings(config), dialect.strategies, random.random)
        self._loop = asyncio.get_running_loop()
        self._news, self._changed = Wake(), asyncio.Condition()
        self._failure: PenstockError | None = None
        self._times_asked = 0
        self._own_work: anyio.CancelScope | None = None
        """The callback that runs; a later one ends it."""
        self._working = asyncio.Lock()

    # ---- for the user ------------------------------------------------------------------------------------------

    async def joined(self) -> Generation:
        async with self._changed:
            await self._changed.wait_for(lambda: self.generation or self._failure or self._machine.is_over)
        if self.generation is None:
            raise self._failure or ConsumerStateError("this member was stopped - make a new one")
        return self.generation

    def rejoin(self) -> None:
        self._times_asked += 1
        # To the machine it is another subscription, so that a join under way is followed by one that says the new.
        self._receive(Resubscribed(frozenset({str(self._times_asked)})))

    # ---- the loop ----------------------------------------------------------------------------------------------

    async def run(self, supervisor: Supervisor) -> None:
        """Join, stay until asked to stop or until that is impossible, then leave."""
        try:
            timeout_s = self._config.start_timeout_ms / 1000
            await self._cluster.retrying(self._cluster.bootstrap, timeout_s=timeout_s, what="reaching the cluster")
            supervisor.ready.set()
            await self._stay(supervisor.stopping)
        finally:
            self._cluster.close()
            await asyncio.sleep(0)  # the sockets are closed in the loop's next turn
            await self._enter(None)

    async def _stay(self, stopping: asyncio.Event) -> None:
        self._receive(Start())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_when_asked, stopping)
            while not self._machine.is_over:
                self._machine.handle_timer(self._loop.time())
                self._perform_all(tasks)
                await self._news.wait(self._machine.next_deadline())
            self._perform_all(tasks)
            while self._own_work is not None:
                await self._news.wait()
            tasks.cancel_scope.cancel()

    async def _stop_when_asked(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._receive(Stop())

    def _receive(self, event: GroupEvent) -> None:
        self._machine.receive(event, self._loop.time())
        self._news.set()

    def _perform_all(self, tasks: TaskGroup) -> None:
        for effect in self._machine.effects():
            self._perform(effect, tasks)

    def _perform(self, effect: Effect, tasks: TaskGroup) -> None:
        match effect:
            case SendJoin() | SendSync() | SendLeave():
                tasks.start_soon(self._report, effect)
            case SendHeartbeat():
                tasks.start_soon(self._beat, effect)
            case FindPartitions():
                self._receive(PartitionsFound({}))
            case TakeOver() | Release():
                if self._own_work is not None:
                    self._own_work.cancel()
                scope = self._own_work = anyio.CancelScope()
                tasks.start_soon(self._work, effect, scope)
            case ForgetCoordinator():
                self._cluster.forget_coordinator(self.group_id, effect.reason)
            case Tell() | Fail():
                self._failure = self._in_our_words(effect.error)
                self._observer.tell(ConsumerFailed(str(self._failure)))
            case SendGroupHeartbeat() | NameTopics():
                raise AssertionError(f"{effect} is of another protocol")
            case _:
                assert_never(effect)

    def _in_our_words(self, error: PenstockError) -> PenstockError:
        if not isinstance(error, NoCommonAssignorError):
            return error
        offered = ", ".join(repr(one.name) for one in self._dialect.strategies)
        mine = NoCommonAssignorError(
            f"group {self.group_id!r} has members that know none of {offered}, or is not of the kind"
            f" {self._dialect.protocol_type!r} (INCONSISTENT_GROUP_PROTOCOL, code 23)"
            " - offer a protocol that the others have, or use another group_id"
        )
        mine.__cause__ = error
        return mine

    async def _report(self, effect: SendJoin | SendSync | SendLeave) -> None:
        if isinstance(effect, SendJoin):
            self._observer.tell(RebalanceStarted(self.group_id, effect.reason))
        event = await self._requests.outcome(effect)
        if self._machine.awaits(effect):
            self._receive(event)

    async def _beat(self, effect: SendHeartbeat) -> None:
        self._receive(Beat(effect.identity, await self._requests.outcome(effect)))

    async def _work(self, effect: TakeOver | Release, scope: anyio.CancelScope) -> None:
        with scope:
            async with self._working:
                event = await outcome_of(self._begin() if isinstance(effect, TakeOver) else self._end())
            if self._own_work is scope:
                self._own_work = None
            if self._machine.awaits(effect) or isinstance(event, Failed):
                self._receive(event)
        self._news.set()

    # ---- generations -------------------------------------------------------------------------------------------

    async def _begin(self) -> GroupEvent:
        generation = self._dialect.generation
        assert generation is not None
        self._observer.tell(
            GroupJoined(
                self.group_id, generation.number, generation.member_id, generation.protocol, generation.is_leader
            )
        )
        await self._call("on_joined", generation)
        await self._enter(generation)
        return TakenOver()

    async def _end(self) -> GroupEvent:
        generation = self.generation
        await self._enter(None)
        if generation is not None:
            await self._call("on_rebalance", generation)
        return Released()

    async def _enter(self, generation: Generation | None) -> None:
        async with self._changed:
            self.generation = generation
            self._changed.notify_all()

    async def _call(self, name: str, generation: Generation) -> None:
        callback: Callable[[Generation], Awaitable[Any] | None] | None = getattr(self._role, name, None)
        if callback is None:
            return
        try:
            with called_back(self):
                async with asyncio.timeout(self._config.max_poll_interval_ms / 1000):
                    answer = callback(generation)
                    if inspect.isawaitable(answer):
                        await answer
        except Exception as error:
            raise RebalanceError(f"{name}() of the group's role raised {type(error).__name__}: {error}") from error


def _settings(config: ConsumerConfig) -> MemberSettings:
    assert config.group_id is not None
    return MemberSettings(
        group_id=config.group_id,
        topics=frozenset(),
        session_timeout_s=config.session_timeout_ms / 1000,
        heartbeat_interval_s=config.heartbeat_interval_ms / 1000,
        rebalance_timeout_s=config.max_poll_interval_ms / 1000,
        request_timeout_s=config.request_timeout_ms / 1000,
        retry_first_s=config.retry_backoff_ms / 1000,
        retry_longest_s=config.retry_backoff_max_ms / 1000,
        leaves_on_stop=config.leaves_on_stop,
        instance_id=config.group_instance_id,
    )
