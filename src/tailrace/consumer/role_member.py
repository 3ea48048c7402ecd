"""Members of groups of roles, such as workers that share tasks; not used by consumers, which read partitions.

A consumer's member is ``ConsumerMembership`` (``consumer.group.membership``), with ``ClassicMember``
(``consumer.group.classic``) or ``Kip848Member`` (``consumer.group.kip848``).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, cast

import anyio
from typing_extensions import Unpack

from tailrace.awaitables import resolve_call
from tailrace.config import ConsumerConfig, ConsumerOptions, check_names, hide_secrets, resolve
from tailrace.consumer.group.assignors import Strategy
from tailrace.consumer.group.classic import ClassicMember
from tailrace.consumer.group.group_machine import (
    GroupEvent,
    Release,
    Resubscribed,
    SendJoin,
    SendSync,
    StopMembership,
    Synced,
    TakeOver,
)
from tailrace.consumer.group.membership import Membership, member_settings
from tailrace.consumer.group.rebalance import in_callback, mark_callback
from tailrace.consumer.group.requests import GroupRequests, joined_event
from tailrace.consumer.supervisor import Supervisor
from tailrace.errors import ConfigurationError, ConsumerStateError, NoCommonAssignorError, RebalanceError, TailraceError
from tailrace.net.cluster import Cluster
from tailrace.observe.events import ConsumerFailed
from tailrace.observe.hooks import Hook, Observer
from tailrace.protocol.groups import (
    JoinGroupProtocol,
    JoinGroupResponse,
    MemberAssignment,
    MemberSubscription,
    OwnedPartitions,
    SyncGroupAssignment,
)
from tailrace.user_exceptions import error_text

__all__ = ["DEFAULT_GROUP", "Encodable", "Generation", "GroupMember", "GroupRole", "HasEncode", "RoleProtocol"]

# ---- group protocol of a ``GroupRole``: protocol type, member data and assigned states are the user's ----------------


class HasEncode(Protocol):
    """Object that encodes itself as bytes."""

    def encode(self) -> bytes: ...


Encodable: TypeAlias = bytes | HasEncode

_PLACEHOLDER = MemberAssignment((OwnedPartitions("placeholder", (0,)),))


class Generation(NamedTuple):
    """Generation of a group, as one member sees it."""

    number: int
    member_id: str
    protocol: str
    is_leader: bool
    state: bytes
    """State that the leader assigned to this member."""


class GroupRole(Protocol):
    """Behavior of a ``GroupMember``: its member data, assignments and reactions; implemented by the user.

    A role may also have a method ``on_rebalance(generation)``, which is called when a generation ends for this member,
    before the member joins another.
    """

    @property
    def protocol_type(self) -> str:
        """Protocol type of the group, such as ``connect``; the broker refuses members with another protocol type."""

    def protocols(self) -> Sequence[tuple[str, Encodable]]:
        """Return name and member data of each protocol, most preferred first.

        The broker chooses a protocol that all members have.
        """

    def assign(self, leader_id: str, protocol: str, members: Mapping[str, bytes]) -> Mapping[str, Encodable]:
        """Return the state of each member, by member id; called on the leader only.

        Args:
            leader_id: member id of the leader.
            protocol: name of the protocol that the broker chose.
            members: data of each member for this protocol, by member id.
        """

    def on_joined(self, generation: Generation) -> Awaitable[None] | None:
        """Handle a new generation and this member's state in it."""


class RoleProtocol:
    """Group protocol of a role.

    Raises:
        ConfigurationError: the role lacks an attribute, or offers no protocol.
    """

    def __init__(self, role: GroupRole) -> None:
        self._role = _checked(role)
        self.generation: Generation | None = None
        """Generation of the last sync; None before the first."""
        self._answer = JoinGroupResponse(0)
        """Answer to the last join."""

    @property
    def protocol_type(self) -> str:
        """Protocol type of the group."""
        return self._role.protocol_type

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """Strategies with the names of the protocols; they assign nothing, because the role assigns the states."""
        return tuple(Strategy(name, lambda _members, _partitions, _racks: {}) for name, _ in self._protocols())

    def offers(self, _effect: SendJoin) -> tuple[JoinGroupProtocol, ...]:
        """Return the role's current protocols."""
        return tuple(JoinGroupProtocol(name, data) for name, data in self._protocols())

    def joined(self, answer: JoinGroupResponse) -> GroupEvent:
        """Return the event of the join, and store the answer for the method ``shares``."""
        self._answer = answer
        return joined_event(answer, lambda _data, _protocol: MemberSubscription(()))

    def shares(self, effect: SendSync) -> tuple[SyncGroupAssignment, ...]:
        """Return the state that the role assigns to each member, if this member is the leader."""
        if not effect.assignments:
            return ()
        members = {one.member_id: bytes(one.metadata) for one in self._answer.members}
        try:
            states = dict(self._role.assign(self._answer.leader, effect.protocol, members))
        except Exception as error:
            raise RebalanceError(f"assign() of the group's role raised {error_text(error)}") from error
        if unknown_ids := states.keys() - members.keys():
            raise RebalanceError(
                f"assign() of the group's role returned a state for {min(unknown_ids, key=str)!r}, which is not a"
                " member - return states for the member ids in `members` only"
            )
        return tuple(SyncGroupAssignment(one, _bytes_of(states.get(one, b""), "assign()")) for one in members)

    def synced(self, assignment: bytes) -> Synced:
        """Store the generation with the state that was assigned to this member, and return the event of the sync."""
        join = self._answer
        is_leader = join.leader == join.member_id
        self.generation = Generation(
            join.generation_id, join.member_id, join.protocol_name or "", is_leader, bytes(assignment)
        )
        return Synced(_PLACEHOLDER)

    def _protocols(self) -> list[tuple[str, bytes]]:
        return [(name, _bytes_of(data, "protocols()")) for name, data in self._role.protocols()]


def _bytes_of(data: object, where: str) -> bytes:
    if isinstance(data, bytes):
        return data
    encode = getattr(data, "encode", None)
    encoded = encode() if callable(encode) else None
    if not isinstance(encoded, bytes):
        raise ConfigurationError(
            f"{where} of the group's role must return bytes or objects whose encode() returns bytes, not {data!r}"
        )
    return encoded


def _checked(role: GroupRole) -> GroupRole:
    missing = [name for name in ("protocols", "assign", "on_joined") if not callable(getattr(role, name, None))]
    if not isinstance(getattr(role, "protocol_type", None), str):
        missing.insert(0, "protocol_type")
    if missing:
        raise ConfigurationError(f"a group's role must have {', '.join(missing)}, but {role!r} has not - see GroupRole")
    if not list(role.protocols()):
        raise ConfigurationError(f"protocols() of {role!r} must return at least one protocol")
    return role


# ---- membership of groups of any kind, such as workers that share tasks instead of partitions ------------------------

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
        self._membership: _RoleMembership | None = None

    async def start(self) -> None:
        """Connect to the cluster and begin to join the group; ``joined()`` waits for the generation.

        Raises:
            ConsumerStateError: the member was started before.
            BrokerConnectionError: no broker answers within ``start_timeout_ms``.
        """
        if self._supervisor is not None:
            raise ConsumerStateError("this GroupMember was already started - create another GroupMember")
        self._membership = _RoleMembership(resolve(self._options), self._role, self._protocol)
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


class _RoleMembership:
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
        self._membership = Membership(machine, requests, self)
        self._changed = asyncio.Condition()
        self._failure: TailraceError | None = None
        self._rejoin_count = 0

    # ---- for the user --------------------------------------------------------------------------------------------

    async def joined(self) -> Generation:
        async with self._changed:
            await self._changed.wait_for(lambda: self.generation or self._failure or self._membership.machine.is_over)
        if self.generation is None:
            raise self._failure or ConsumerStateError("this GroupMember was stopped - create another GroupMember")
        return self.generation

    def rejoin(self) -> None:
        self._rejoin_count += 1
        # A role has no subscription. The state machine receives a topic that has not occurred before, so that it joins
        # again; if a join is in flight, it joins again after that join.
        self._membership.receive(Resubscribed(frozenset({str(self._rejoin_count)})))

    # ---- the loop ------------------------------------------------------------------------------------------------

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

    # ---- AssignmentOwner -----------------------------------------------------------------------------------------

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

    def report(self, error: TailraceError, *, is_fatal: bool) -> None:  # noqa: ARG002 - part of the interface
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
