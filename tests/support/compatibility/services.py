"""Versions that services offer according to public sources, and a proxy that offers them in front of a real broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tailrace.error_codes import ErrorCode
from tailrace.protocol.handshake import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
from tailrace.testing import FaultProxy, KafkaServer
from tailrace.testing.faults import Direction, Fault, decode_frame
from tailrace.testing.proxy import LENGTH, ConnectionPair, ProxiedRequest
from tests.support.compatibility.capabilities import Cluster

__all__ = ["SERVICES", "Service", "VersionProxy", "running_service"]

_API_VERSIONS = ApiVersionsRequest.api


@dataclass(frozen=True)
class Service:
    """Versions that a service offers.

    Attributes:
        version: version of the service, or the date of the record.
        source: address of the public source.
        ranges: oldest and newest version by API key.
        refused: capabilities that tailrace refuses, because the service lacks them.
        resets: True if an unknown version of ApiVersions resets the connection; False if it is answered (KIP-511).
    """

    version: str
    source: str
    ranges: Mapping[int, tuple[int, int]]
    refused: frozenset[str] = frozenset()
    resets: bool = False


SERVICES: Mapping[str, Service] = {
    "Redpanda": Service(
        version="24.3",
        source="https://github.com/redpanda-data/redpanda/tree/1c6cff34ea8b4b65db02eb603d21dfef59c0f61c/src/v/kafka/server/handlers",
        refused=frozenset({"KIP-848"}),
        ranges={
            0: (0, 7),
            1: (4, 11),
            2: (0, 4),
            3: (0, 8),
            8: (1, 8),
            9: (1, 7),
            10: (0, 3),
            11: (0, 6),
            12: (0, 4),
            13: (0, 4),
            14: (0, 4),
            15: (0, 5),
            16: (0, 4),
            17: (0, 1),
            18: (0, 3),
            19: (0, 6),
            20: (0, 5),
            21: (0, 2),
            22: (0, 3),
            23: (0, 4),
            24: (0, 3),
            25: (0, 1),
            26: (0, 3),
            28: (0, 3),
            29: (0, 2),
            30: (0, 2),
            31: (0, 2),
            32: (0, 4),
            33: (0, 2),
            35: (0, 2),
            36: (0, 2),
            37: (0, 3),
            42: (0, 2),
            44: (0, 1),
            45: (0, 0),
            46: (0, 0),
            47: (0, 0),
            48: (0, 1),
            49: (0, 1),
            61: (0, 0),
            65: (0, 0),
            66: (0, 0),
        },
    ),
    # The ranges of requests 15 and higher are those of issues 69 and 209 of Azure/azure-event-hubs-for-kafka; the only
    # record that has InitProducerId says that it is not supported. The connection was reset on version 4 of ApiVersions
    # (pull request 1022 of twmb/franz-go).
    "Azure Event Hubs": Service(
        version="2023 to 2025",
        source="https://github.com/oliveigah/klife/issues/13",
        refused=frozenset({"KIP-848", "exactly once", "deleting commands"}),
        resets=True,
        ranges={
            0: (3, 7),
            1: (4, 6),
            2: (0, 8),
            3: (0, 5),
            8: (0, 8),
            9: (0, 8),
            10: (0, 4),
            11: (0, 9),
            12: (0, 4),
            13: (0, 5),
            14: (0, 5),
            15: (0, 1),
            16: (0, 1),
            17: (0, 1),
            18: (0, 3),
            19: (0, 2),
            20: (0, 2),
            32: (0, 2),
            36: (0, 2),
            37: (0, 1),
            42: (0, 0),
        },
    ),
}
"""Services by name."""


class VersionProxy(FaultProxy):
    """Proxy that offers the versions of a service, and resets the connection on a request in any other version.

    Attributes:
        refused: API key and version of each request that was refused, except ApiVersions.
    """

    def __init__(self, upstream_host: str, upstream_port: int, service: Service) -> None:
        super().__init__(upstream_host, upstream_port)
        self._service = service
        self._offer = self._add(Fault(ApiVersionsRequest, "answer", "edit", times=None))
        self.refused: list[tuple[int, int]] = []

    def _record(
        self, direction: Direction, pair: ConnectionPair, request: ProxiedRequest, correlation_id: int, data: bytes
    ) -> None:
        super()._record(direction, pair, request, correlation_id, data)
        if direction == "answer":
            return
        oldest, newest = self._service.ranges.get(request.api_key, (0, -1))
        if oldest <= request.version <= newest:
            return
        if request.api_key == _API_VERSIONS.key:
            if not self._service.resets:
                return
        else:
            self.refused.append((request.api_key, request.version))
        raise ConnectionResetError

    async def _apply(
        self, fault: Fault, pair: ConnectionPair, request: ProxiedRequest, correlation_id: int, data: bytes
    ) -> bytes:
        if fault is not self._offer:
            return await super()._apply(fault, pair, request, correlation_id, data)
        answer = decode_frame(_API_VERSIONS, "answer", memoryview(data), request.version)
        ranges = self._service.ranges
        offered = tuple(
            ApiVersionRange(one.api_key, max(oldest, one.min_version), min(newest, one.max_version))
            for one in answer.api_keys
            if one.api_key in ranges
            for oldest, newest in [ranges[one.api_key]]
        )
        is_known = request.version <= ranges[_API_VERSIONS.key][1]
        code = answer.error_code if is_known else ErrorCode.UNSUPPORTED_VERSION
        version = request.version if is_known else 0
        limited = ApiVersionsResponse(code, offered)
        return bytes(_API_VERSIONS.encode_response(limited, version, correlation_id=correlation_id)[LENGTH.size :])


@contextmanager
def running_service(service: Service) -> Iterator[tuple[Cluster, VersionProxy]]:
    """Run a broker behind a proxy that offers the versions of a service; yield both.

    librdkafka uses the broker's internal listener, without the proxy.
    """
    proxies: list[VersionProxy] = []

    def advertise(_node_id: int, port: int) -> int:
        proxy = VersionProxy("127.0.0.1", port, service)
        proxies.append(proxy)
        proxy.start()
        return proxy.port

    try:
        with KafkaServer(advertise=advertise) as server:
            internal = server.nodes[0].ports.internal
            yield Cluster(server.bootstrap_servers, f"127.0.0.1:{internal}"), proxies[-1]
    finally:
        for proxy in proxies:
            proxy.close()
