"""How tools ask: the broker that coordinates a group, found anew when it moved, or every broker at once.

Rule of this file: it tries again what heals by itself and nothing else. What an answer says beyond that is its
reader's, outside of any retrying, so that a refusal is told at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

import anyio

from tailrace.core.group.error_reactions import REACTIONS, GroupReaction, GroupRequestKind
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import BrokerConnectionError, ConfigurationError, TailraceError, broker_error
from tailrace.net.broker import Broker
from tailrace.net.cluster import Cluster
from tailrace.protocol.message import Request

__all__ = ["NOT_NOW", "PATIENCE_S", "ask_coordinator", "ask_each"]

ResponseT = TypeVar("ResponseT")

PATIENCE_S = 30.0
"""How long a tool waits for one thing, unless it is told otherwise."""

NOT_NOW = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""What the same request, or the next coordinator, may not say any more in a moment."""


async def ask_coordinator(  # noqa: PLR0913 - what, whom, and for how long
    cluster: Cluster,
    group_id: str,
    request: Request[ResponseT],
    codes: Callable[[ResponseT], Iterable[int]],
    *,
    timeout_s: float,
    what: str,
    check: Callable[[Broker], Awaitable[None]] | None = None,
) -> ResponseT:
    """What the group's coordinator answers, once none of the answer's ``codes`` is of those that pass.

    ``check`` is called with the coordinator before each attempt.

    Raises:
        ConfigurationError: the group has no name.
        BrokerError: we may not look the coordinator up, or it could not answer in all that time.
        BrokerConnectionError: nobody answers in time.
        UnsupportedVersionError: the brokers do not know the request.
    """
    if not group_id:
        raise ConfigurationError("an empty text is no group's name - say which group")

    async def ask() -> ResponseT:
        coordinator = await cluster.coordinator(group_id)
        try:
            if check is not None:
                await check(coordinator)
            answer = await coordinator.send(request)
        except BrokerConnectionError as error:
            cluster.forget_coordinator(group_id, str(error))
            raise
        for code in codes(answer):
            if code in NOT_NOW:
                if REACTIONS.reaction_to(code, GroupRequestKind.OFFSETS) is GroupReaction.FIND_COORDINATOR:
                    cluster.forget_coordinator(group_id, name_of(code))
                raise broker_error(code, what)
        return answer

    return await cluster.retrying(ask, timeout_s=timeout_s, what=what)


async def ask_each(cluster: Cluster, requests: Mapping[int, Request[ResponseT]]) -> dict[int, ResponseT]:
    """What each broker answers to its request, all asked at once. One attempt.

    Raises:
        TailraceError: one of them does not answer; it is the others' too.
    """
    answers: dict[int, ResponseT] = {}
    failures: list[TailraceError] = []

    async def ask(node_id: int, request: Request[ResponseT]) -> None:
        try:
            answers[node_id] = await cluster.broker(node_id).send(request)
        except TailraceError as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        for node_id, request in requests.items():
            tasks.start_soon(ask, node_id, request)
    if failures:
        raise failures[0]
    return answers
