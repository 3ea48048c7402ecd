"""Membership of groups of any kind, such as workers that share tasks instead of partitions."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, cast

import anyio
from typing_extensions import Unpack

from tailrace.awaitables import resolve_call
from tailrace.config import ConsumerConfig, ConsumerOptions, check_names, hide_secrets, resolve
from tailrace.consumer.group.classic import ClassicMember
from tailrace.consumer.group.membership import MembershipLoop, member_settings
from tailrace.consumer.group.reconciler import in_callback, mark_callback
from tailrace.consumer.group.requests import GroupRequests
from tailrace.consumer.group.role_protocol import Generation, GroupRole, RoleProtocol
from tailrace.consumer.group.vocabulary import Release, Resubscribed, StopMembership, TakeOver
from tailrace.consumer.supervisor import Supervisor
from tailrace.errors import ConfigurationError, ConsumerStateError, NoCommonAssignorError, RebalanceError, TailraceError
from tailrace.net.cluster import Cluster
from tailrace.observe.events import ConsumerFailed
from tailrace.observe.hooks import Hook, Observer
from tailrace.user_exceptions import error_text

__all__ = ["DEFAULT_GROUP", "GroupMember"]

DEFAULT_GROUP = "tailrace-default-group"
"""Group of a GroupMember without ``group_id``."""

_numbers = itertools.count(1)


class GroupMember:
    """Member of a group of any kind: workers that share tasks, a leader election, a set of caches.

    ``async with GroupMember(role, bootstrap_servers="localhost:9092", group_id="indexers") as member`` joins the group
    and leaves it. The role encodes the data that members exchange. The leader's role assigns a state to each member of
    a generation, and every role receives its own member's state.

    Args:
        role: the user's implementation of ``GroupRole``.
        options: options of a Consumer that concern the cluster and the group. Without ``group_id``, the group is
            ``tailrace-default-group``.

    Raises:
        ConfigurationError: the role lacks an attribute, or an option is invalid.
    """

    def __init__(self, role: GroupRole, **options: Unpack[ConsumerOptions]) -> None:
        options = hide_secrets(options)
        self._options = {"group_id": DEFAULT_GROUP, **options}
        check_names(self._options)
        if resolve(self._options).group_protocol != "classic":
            raise ConfigurationError(
                "group_protocol must be 'classic' for a GroupMember, not 'consumer', which is for consumers only"
                " - leave the option out"
            )
        self._role, self._protocol = role, RoleProtocol(role)
        self._supervisor: Supervisor | None = None
        self._membership: _Membership | None = None

    async def start(self) -> None:
        """Connect to the cluster and begin to join the group; ``joined()`` waits for the generation.

        Raises:
            ConsumerStateError: the member was started before.
            BrokerConnectionError: no broker answers within ``start_timeout_ms``.
        """
        if self._supervisor is not None:
            raise ConsumerStateError("this GroupMember was already started - create another GroupMember")
        self._membership = _Membership(resolve(self._options), self._role, self._protocol)
        self._supervisor = Supervisor(self._membership.run, f"tailrace member of {self._membership.group_id}")
        await self._supervisor.start()

    async def stop(self) -> None:
        """Leave the group and close all connections, within ``stop_timeout_ms``.

        Raises:
            ConsumerStateError: a method of the role called ``stop()``, which waits until that method has returned.
        """
        if self._membership is not None and in_callback(self._membership):
            raise ConsumerStateError(
                "a method of the role must not call stop(), which waits until that method has returned"
                " - call stop() from another task"
            )
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
        """Current generation of this member; None while the member joins, and after it has left."""
        return self._membership.generation if self._membership is not None else None

    async def joined(self) -> Generation:
        """Wait until this member is in a generation and return it; any number of tasks may wait.

        Raises:
            ConsumerStateError: the member is not started, or was stopped.
            TailraceError: an error has ended the membership.
        """
        if self._membership is None:
            raise ConsumerStateError("this member is not started - use `async with GroupMember(...)`")
        return await self._membership.joined()

    def rejoin(self) -> None:
        """Join again, so that the group begins another generation with the current result of ``protocols()``.

        Raises:
            ConsumerStateError: the member is not started.
        """
        if self._membership is None:
            raise ConsumerStateError("this member is not started - use `async with GroupMember(...)`")
        self._membership.rejoin()


class _Membership:
    """Running membership of a GroupMember."""

    def __init__(self, config: ConsumerConfig, role: GroupRole, protocol: RoleProtocol) -> None:
        assert config.group_id is not None
        self.group_id, self.stop_timeout_s = config.group_id, config.stop_timeout_ms / 1000
        self.generation: Generation | None = None
        self._config, self._role, self._protocol = config, role, protocol
        self._observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        self._cluster = Cluster(config, self._observer)
        member = f"{config.client_id}-member-{next(_numbers)}"
        requests = GroupRequests(config, self._cluster, self._observer, member, protocol)
        machine = ClassicMember(member_settings(config, topics=None), protocol.strategies, random.random)
        self._membership = MembershipLoop(config, machine, requests, self._cluster, self._observer, self)
        self._changed = asyncio.Condition()
        self._failure: TailraceError | None = None
        self._rejoin_count = 0

    # ---- for the user ------------------------------------------------------------------------------------------

    async def joined(self) -> Generation:
        async with self._changed:
            await self._changed.wait_for(lambda: self.generation or self._failure or self._membership.is_over)
        if self.generation is None:
            raise self._failure or ConsumerStateError("this GroupMember was stopped - create another GroupMember")
        return self.generation

    def rejoin(self) -> None:
        self._rejoin_count += 1
        # A role has no subscription. The state machine receives a topic that has not occurred before, so that it joins
        # again; if a join is in flight, it joins again after that join.
        self._membership.receive(Resubscribed(frozenset({str(self._rejoin_count)})))

    # ---- the loop ----------------------------------------------------------------------------------------------

    async def run(self, supervisor: Supervisor) -> None:
        """Join, stay a member until ``supervisor.stopping`` is set or the membership fails, then leave."""
        try:
            timeout_s = self._config.start_timeout_ms / 1000
            await self._cluster.reach(timeout_s)
            supervisor.ready.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._stop_when_requested, supervisor.stopping)
                await self._membership.run()
                tasks.cancel_scope.cancel()
        finally:
            self._cluster.close()
            await asyncio.sleep(0)  # the sockets are closed in the next iteration of the event loop
            await self._set_generation(None)

    async def _stop_when_requested(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._membership.receive(StopMembership())

    # ---- AssignmentOwner ---------------------------------------------------------------------------------------

    async def take_over(self, _effect: TakeOver) -> None:
        """Call ``on_joined()`` of the role, then make the new generation the current one."""
        generation = self._protocol.generation
        assert generation is not None
        await self._call("on_joined", generation)
        await self._set_generation(generation)

    async def release(self, _effect: Release) -> None:
        """Unset the current generation, then call ``on_rebalance()`` of the role."""
        generation = self.generation
        await self._set_generation(None)
        if generation is not None:
            await self._call("on_rebalance", generation)

    def report(self, error: TailraceError) -> None:
        """Do the same as ``fail``, although the membership continues."""
        self.fail(error)

    def fail(self, error: TailraceError) -> None:
        """Let ``joined()`` raise the error while there is no generation, and emit ConsumerFailed."""
        self._failure = self._with_protocols(error)
        self._observer.emit(ConsumerFailed(str(self._failure)))

    def _with_protocols(self, error: TailraceError) -> TailraceError:
        if not isinstance(error, NoCommonAssignorError):
            return error
        offered = ", ".join(repr(one.name) for one in self._protocol.strategies)
        mine = NoCommonAssignorError(
            f"group {self.group_id!r} has members that support none of the protocols {offered}, or its protocol type"
            f" is not {self._protocol.protocol_type!r} (INCONSISTENT_GROUP_PROTOCOL, code 23)"
            " - offer a protocol that all members have, or use another group_id"
        )
        mine.__cause__ = error
        return mine

    async def _set_generation(self, generation: Generation | None) -> None:
        async with self._changed:
            self.generation = generation
            self._changed.notify_all()

    async def _call(self, name: str, generation: Generation) -> None:
        callback: Callable[[Generation], Awaitable[Any] | None] | None = getattr(self._role, name, None)
        if callback is None:
            return
        try:
            with mark_callback(self):
                async with asyncio.timeout(self._config.max_poll_interval_ms / 1000):
                    await resolve_call(callback(generation), f"{name}()")
        except Exception as error:
            raise RebalanceError(f"{name}() of the group's role raised {error_text(error)}") from error
