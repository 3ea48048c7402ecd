"""Every API that tailrace speaks, found by the message that asks, and which version of it to speak to whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from tailrace.errors import UnsupportedVersionError
from tailrace.protocol.encoding.api import Api
from tailrace.protocol.layouts import classic_group as group
from tailrace.protocol.layouts import committed_offsets as offsets
from tailrace.protocol.layouts import configs, produce, topics, transactions
from tailrace.protocol.layouts import consumer_group as reconciliation
from tailrace.protocol.layouts import fetch as log
from tailrace.protocol.layouts import group_descriptions as groups
from tailrace.protocol.layouts import handshake as session
from tailrace.protocol.layouts import metadata as cluster
from tailrace.protocol.messages import ApiVersionRange, ApiVersionsResponse, Request

__all__ = ["APIS", "CONSUMING", "Offered", "api_by_key", "api_of"]

ResponseT = TypeVar("ResponseT")

APIS: tuple[Api[Any], ...] = (
    session.API_VERSIONS,
    session.SASL_HANDSHAKE,
    session.SASL_AUTHENTICATE,
    cluster.METADATA,
    cluster.FIND_COORDINATOR,
    group.JOIN_GROUP,
    group.SYNC_GROUP,
    group.HEARTBEAT,
    group.LEAVE_GROUP,
    offsets.OFFSET_COMMIT,
    offsets.OFFSET_FETCH,
    log.LIST_OFFSETS,
    log.FETCH,
    reconciliation.CONSUMER_GROUP_HEARTBEAT,
    log.OFFSET_FOR_LEADER_EPOCH,
    topics.CREATE_TOPICS,
    topics.DELETE_TOPICS,
    topics.CREATE_PARTITIONS,
    topics.DELETE_RECORDS,
    configs.DESCRIBE_CONFIGS,
    configs.INCREMENTAL_ALTER_CONFIGS,
    groups.LIST_GROUPS,
    groups.DESCRIBE_GROUPS,
    groups.CONSUMER_GROUP_DESCRIBE,
    groups.DELETE_GROUPS,
    offsets.OFFSET_DELETE,
    produce.PRODUCE,
    transactions.INIT_PRODUCER_ID,
    transactions.ADD_PARTITIONS_TO_TXN,
    transactions.ADD_OFFSETS_TO_TXN,
    transactions.TXN_OFFSET_COMMIT,
    transactions.END_TXN,
)

_BY_MESSAGE: Mapping[type, Api[Any]] = {api.message: api for api in APIS}
_BY_KEY: Mapping[int, Api[Any]] = {api.key: api for api in APIS}

CONSUMING: tuple[Api[Any], ...] = (
    cluster.METADATA,
    cluster.FIND_COORDINATOR,
    group.JOIN_GROUP,
    group.SYNC_GROUP,
    group.HEARTBEAT,
    group.LEAVE_GROUP,
    offsets.OFFSET_COMMIT,
    offsets.OFFSET_FETCH,
    log.LIST_OFFSETS,
    log.FETCH,
)
"""What a consumer cannot do without; a broker that lacks one of them is refused when the connection opens."""


def api_of(request: Request[ResponseT]) -> Api[ResponseT]:
    """The API that ``request`` belongs to."""
    return _BY_MESSAGE[type(request)]


def api_by_key(key: int) -> Api[Any] | None:
    """The API of that number, or None when tailrace does not speak it."""
    return _BY_KEY.get(key)


class Offered:
    """What one broker offers, as it said when the connection opened."""

    def __init__(self, answer: ApiVersionsResponse) -> None:
        self._ranges: dict[int, ApiVersionRange] = {one.api_key: one for one in answer.api_keys}

    def __contains__(self, api: Api[Any]) -> bool:
        return self._common(api) is not None

    def version_of(self, api: Api[Any], newest: int | None = None) -> int:
        """Return the newest version of ``api`` that both sides speak, ``newest`` at most.

        Raises:
            UnsupportedVersionError: there is none.
        """
        version = self._common(api, newest)
        if version is None:
            raise UnsupportedVersionError(self._complaint(api))
        return version

    def check_consuming(self) -> None:
        """Refuse a broker that a consumer cannot work with.

        Raises:
            UnsupportedVersionError: naming each request that is missing, and what was offered.
        """
        missing = [self._complaint(api) for api in CONSUMING if self._common(api) is None]
        if missing:
            raise UnsupportedVersionError(
                "; ".join(missing) + " - tailrace consumes from Apache Kafka 2.1 and newer: upgrade the broker"
            )

    def _common(self, api: Api[Any], at_most: int | None = None) -> int | None:
        offered = self._ranges.get(api.key)
        if offered is None:
            return None
        newest = min(api.versions[-1], offered.max_version)
        if at_most is not None:
            newest = min(newest, at_most)
        return newest if newest >= max(api.versions[0], offered.min_version) else None

    def _complaint(self, api: Api[Any]) -> str:
        offered = self._ranges.get(api.key)
        has = "does not offer it" if offered is None else f"offers {offered.min_version} to {offered.max_version}"
        return f"{api.name}: tailrace speaks versions {api.versions[0]} to {api.versions[-1]}, the broker {has}"
