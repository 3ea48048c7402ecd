"""Connection to a cluster, and requests to a group's coordinator or to several brokers at once.

Requests to a coordinator are repeated after transient errors; other error codes are left to the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import TypeVar

import anyio
from typing_extensions import Unpack

from tailrace.config import ConsumerOptions, hide_secrets, resolve
from tailrace.context_managers import asynccontextmanager
from tailrace.core.group_requests import REACTIONS, GroupReaction, GroupRequestKind
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import BrokerConnectionError, ConfigurationError, TailraceError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.net.offsets import DEFAULT_TIMEOUT_S
from tailrace.protocol.message import Request

__all__ = ["DEFAULT_TIMEOUT_S", "TRANSIENT_CODES", "ask_coordinator", "ask_each", "check_codes", "reached"]

ResponseT = TypeVar("ResponseT")


TRANSIENT_CODES = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Error codes after which the request may soon succeed, at the same coordinator or at another one."""


@asynccontextmanager
async def reached(**options: Unpack[ConsumerOptions]) -> AsyncIterator[Cluster]:
    """Connect to a cluster for the duration of a context. The options are those of ``Consumer``.

    Raises:
        ConfigurationError: an option is missing or invalid.
        AuthenticationError: TLS or SASL failed.
        UnsupportedVersionError: the brokers are too old.
        BrokerConnectionError: no broker answered.
    """
    options = hide_secrets(options)
    cluster = Cluster(resolve(options))
    try:
        await cluster.bootstrap()
        yield cluster
    finally:
        cluster.close()


async def ask_coordinator(
    cluster: Cluster, group_id: str, request: Request[ResponseT], *, timeout_s: float, what: str
) -> ResponseT:
    """Send a request to the group's coordinator, retrying while the response has transient error codes.

    Args:
        cluster: a connected cluster.
        group_id: group.
        request: request to send.
        timeout_s: maximum time of all attempts and the pauses between them, in seconds.
        what: name of the operation for error messages, such as "listing offsets".

    Raises:
        ConfigurationError: ``group_id`` is empty.
        BrokerError: the principal may not describe the group, or a transient error lasted for ``timeout_s``.
        BrokerConnectionError: no broker answered in time.
        UnsupportedVersionError: the broker does not support the request.
    """
    if not group_id:
        raise ConfigurationError("group_id must not be empty - pass the id of the group")

    async def ask() -> ResponseT:
        coordinator = await cluster.coordinator(group_id)
        try:
            answer = await coordinator.send(request)
        except BrokerConnectionError as error:
            cluster.forget_coordinator(group_id, str(error))
            raise
        check_codes(cluster, group_id, _error_codes(answer), what)
        return answer

    return await cluster.retrying(ask, timeout_s=timeout_s, what=what)


def _error_codes(answer: object) -> Iterator[int]:
    """Yield the error code of a response, and those of its groups and partitions."""
    for part in (answer, *getattr(answer, "groups", ()), *getattr(answer, "partitions", ())):
        yield getattr(part, "error_code", ErrorCode.NONE)


def check_codes(cluster: Cluster, group_id: str, codes: Iterable[int], what: str) -> None:
    """Raise a retriable BrokerError for the first transient code; forget a coordinator that has moved."""
    for code in codes:
        if code in TRANSIENT_CODES:
            if REACTIONS.reaction_to(code, GroupRequestKind.OFFSETS) is GroupReaction.FIND_COORDINATOR:
                cluster.forget_coordinator(group_id, name_of(code))
            raise broker_error(code, what)


async def ask_each(cluster: Cluster, requests: Mapping[int, Request[ResponseT]]) -> dict[int, ResponseT]:
    """Send requests to several brokers at once, without retries, and return the responses.

    Args:
        cluster: a connected cluster.
        requests: request for each broker, by node id.

    Raises:
        TailraceError: a request failed; if several failed, this is the first error.
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
