"""Blocking administration of topics, for use outside an event loop.

``TopicAdmin`` opens a new connection, without security, for each request.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Self, TypeVar

from tailrace.error_codes import ErrorCode
from tailrace.errors import KafkaServerError, MalformedMessageError, broker_error
from tailrace.net.offsets import EARLIEST, list_offsets_request
from tailrace.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    NewPartitions,
    NewTopic,
    RecordsToDelete,
    TopicConfig,
    TopicResult,
    TopicToDelete,
)
from tailrace.protocol.handshake import ApiVersionsRequest, BrokerVersions
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import MetadataRequest, MetadataResponse, MetadataTopic
from tailrace.records import TopicPartition

__all__ = ["TopicAdmin", "new_topic"]

ResponseT = TypeVar("ResponseT")

_RETRY_INTERVAL_S = 0.05
_LEADER_TIMEOUT_S = 5
"""Timeout of a request to a leader; by then, a leader that hangs has been replaced, and the request is repeated."""


class TopicAdmin:
    """Creates, changes and deletes topics.

    Args:
        addresses: function that returns the hosts and ports of the running brokers. For embedded brokers, these are
            the ports of the INTERNAL listeners.
        timeout_s: time after which a method that still waits raises KafkaServerError.
    """

    def __init__(self, addresses: Callable[[], list[tuple[str, int]]], timeout_s: float = 30) -> None:
        self._addresses = addresses
        self._timeout_s = timeout_s

    def wait_for_brokers(
        self, node_ids: Collection[int], is_ready: Callable[[], bool], timeout_s: float | None = None
    ) -> None:
        """Wait until the metadata of all brokers has ``node_ids`` and a controller, and ``is_ready`` returns True.

        Without ``timeout_s``, the timeout of the class applies. An exception that ``is_ready`` raises is not caught.
        """
        wanted = set(node_ids)

        def has_all(answer: MetadataResponse) -> bool:
            return wanted <= {broker.node_id for broker in answer.brokers} and answer.controller_id >= 0

        what = f"broker {', '.join(map(str, sorted(wanted)))}" if wanted else "any broker"
        self._wait_for_metadata(MetadataRequest(()), has_all, what, is_ready, timeout_s)

    def create(self, topic: NewTopic) -> None:
        """Create a topic and wait until the leaders serve all its partitions."""
        self._create_partitions(
            lambda: self._send_to_any(CreateTopicsRequest((topic,))).topics, topic.replication_factor
        )
        self._wait_for_leaders(topic.name, topic.num_partitions)

    def delete(self, name: str) -> None:
        """Delete a topic and wait until no broker has it in its metadata."""
        _check(self._send_to_any(DeleteTopicsRequest((TopicToDelete(name),))).topics)
        self._wait_for_metadata(
            MetadataRequest((MetadataTopic(name),)),
            lambda answer: answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"the deletion of {name}",
        )

    def add_partitions(self, name: str, total: int) -> None:
        """Increase the number of partitions of a topic to ``total``, and wait until the leaders serve them."""
        self._create_partitions(
            lambda: self._send_to_any(CreatePartitionsRequest((NewPartitions(name, total),))).topics
        )
        self._wait_for_leaders(name, total)

    def delete_records(self, name: str, before: Mapping[int, int]) -> None:
        """Delete the first records of partitions.

        ``before`` has, by partition number, the offset of the first record to keep; -1 deletes all records.
        """
        remaining = dict(before)
        for address, partitions in self._by_leader(name, before).items():
            to_delete = tuple(RecordsToDelete(name, one, before[one]) for one in partitions)
            with contextlib.suppress(OSError):
                for deleted in self._send(address, DeleteRecordsRequest(to_delete)).partitions:
                    if not deleted.error_code:
                        del remaining[deleted.partition]
        if remaining:
            raise KafkaServerError(f"could not delete records of {', '.join(f'{name}[{one}]' for one in remaining)}")

    def metadata(self, name: str) -> MetadataResponse:
        """Return the metadata of a topic."""
        return self._send_to_any(MetadataRequest((MetadataTopic(name),)))

    def _create_partitions(self, send: Callable[[], tuple[TopicResult, ...]], replication_factor: int = -1) -> None:
        """Call ``send``, which requests new partitions, and repeat the call while brokers are fenced.

        Do not repeat it if there are fewer running brokers than ``replication_factor``; -1 is the broker's default.
        """
        results: tuple[TopicResult, ...] = ()
        for _ in _attempts(self._timeout_s):
            results = send()
            # On a busy machine, a broker may miss heartbeats. The controller then fences the broker for some seconds,
            # and does not place replicas on it.
            lacks_brokers = any(one.error_code == ErrorCode.INVALID_REPLICATION_FACTOR for one in results)
            if not lacks_brokers or replication_factor > len(self._addresses()):
                break
        _check(results)

    def _wait_for_leaders(self, name: str, partitions: int) -> None:
        def have_leaders(answer: MetadataResponse) -> bool:
            found = answer.topics[0].partitions
            return len(found) >= partitions and all(p.leader_id >= 0 and not p.error_code for p in found)

        self._wait_for_metadata(MetadataRequest((MetadataTopic(name),)), have_leaders, f"leaders of {name}")
        self._wait_until_served(name, partitions)

    def _wait_until_served(self, name: str, partitions: int) -> None:
        # A leader is in the metadata shortly before it serves requests.
        unserved = set(range(partitions))
        for _ in _attempts(self._timeout_s):
            for address, of_leader in self._by_leader(name, sorted(unserved)).items():
                wanted = {TopicPartition(name, one): EARLIEST for one in of_leader}
                request = list_offsets_request(wanted, timeout_s=_LEADER_TIMEOUT_S)
                with contextlib.suppress(OSError):
                    answer = self._send(address, request, _LEADER_TIMEOUT_S)
                    unserved -= {listed.partition for listed in answer.partitions if not listed.error_code}
            if not unserved:
                return
        raise KafkaServerError(
            f"the leaders of {name} did not serve partitions {sorted(unserved)} within {self._timeout_s:.0f} s"
        )

    def _by_leader(self, name: str, partitions: Iterable[int]) -> Mapping[tuple[str, int], list[int]]:
        """Return the partitions by the address of their leader; leave out partitions without a leader."""
        found = self.metadata(name)
        addresses = {broker.node_id: (broker.host, broker.port) for broker in found.brokers}
        leaders = {one.partition: addresses.get(one.leader_id) for one in found.topics[0].partitions}
        by_address: dict[tuple[str, int], list[int]] = {}
        for partition in partitions:
            if (address := leaders.get(partition)) is not None:
                by_address.setdefault(address, []).append(partition)
        return by_address

    def _wait_for_metadata(
        self,
        request: Request[MetadataResponse],
        is_expected: Callable[[MetadataResponse], bool],
        what: str,
        is_ready: Callable[[], bool] = lambda: True,
        timeout_s: float | None = None,
    ) -> None:
        """Send ``request`` to all brokers until ``is_expected`` is true for each answer, and ``is_ready()`` is true.

        Raises:
            KafkaServerError: ``timeout_s`` has passed; the message contains ``what`` and the last answers.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        last: object = None
        for _ in _attempts(timeout_s):
            ready = is_ready()
            try:
                # All brokers must agree, or the next request may reach a broker that does not know the topic yet.
                last = answers = [self._send(address, request) for address in self._addresses()]
            except (OSError, MalformedMessageError) as error:
                last = error
                continue
            if ready and all(is_expected(answer) for answer in answers):
                return
        raise KafkaServerError(f"waited {timeout_s:.0f} s for {what}; last answer: {last}")

    def _send_to_any(self, request: Request[ResponseT]) -> ResponseT:
        last: OSError | None = None
        for _ in _attempts(self._timeout_s):
            for address in self._addresses():
                try:
                    return self._send(address, request)
                except OSError as error:
                    last = error
        raise KafkaServerError(f"no broker answered within {self._timeout_s:.0f} s") from last

    def _send(self, address: tuple[str, int], request: Request[ResponseT], timeout_s: float | None = None) -> ResponseT:
        with _Connection(address, timeout_s or self._timeout_s) as connection:
            return connection.send(request)


class _Connection:
    def __init__(self, address: tuple[str, int], timeout_s: float) -> None:
        self._socket = socket.create_connection(address, timeout_s)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        try:
            # Brokers of all versions accept version 0 of ApiVersions.
            self._offered = BrokerVersions(self._exchange(ApiVersionsRequest(), 0))
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, request: Request[ResponseT]) -> ResponseT:
        api = request.api
        version = self._offered.version_of(api) if api is not ApiVersionsRequest.api else 0
        return self._exchange(request, version)

    def _exchange(self, request: Request[ResponseT], version: int) -> ResponseT:
        api = request.api
        self._correlation_id += 1
        frame = api.encode_request(request, version, correlation_id=self._correlation_id, client_id="tailrace-testing")
        self._socket.sendall(frame)
        (size,) = struct.unpack(">i", self._receive(4))
        answer: ResponseT = api.decode_response(memoryview(self._receive(size)), version)
        return answer

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(size - len(parts))
            if not part:
                raise ConnectionResetError("the broker closed the connection")
            parts += part
        return bytes(parts)


def _attempts(timeout_s: float) -> Iterator[None]:
    """Yield before each attempt, with pauses, until ``timeout_s`` has passed."""
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        yield
        time.sleep(_RETRY_INTERVAL_S)


def _check(results: tuple[TopicResult, ...]) -> None:
    for result in results:
        if result.error_code:
            raise broker_error(result.error_code, f"{result.name}: {result.error_message or 'refused'}")


def new_topic(name: str, partitions: int, replication_factor: int, config: Mapping[str, str | float]) -> NewTopic:
    """Return a topic to create; ``replication_factor`` -1 is the broker's default."""
    configs = tuple(TopicConfig(key, str(value)) for key, value in config.items())
    return NewTopic(name, partitions, replication_factor, configs=configs)
