"""Producer of encoded records, idempotent where the brokers offer it."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from tailrace.config import ConsumerConfig, ProducerConfig, producer_config
from tailrace.core.capabilities import ClusterVersions
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerError, ConsumerStateError, PublishError
from tailrace.net.cluster import Cluster
from tailrace.observe.events import IdempotenceDisabled
from tailrace.observe.statistics import ProducerStatistics
from tailrace.producer.accumulator import RecordAccumulator, idempotence_obstacle
from tailrace.producer.publisher import OutgoingRecord, Published
from tailrace.producer.runtime import (
    DEFAULT_LOOKUP_S,
    PartitionResolver,
    ProducerRuntime,
    content_of,
    new_cluster,
    new_observer,
    settings_of,
)
from tailrace.producer.sender import RecordSender
from tailrace.protocol.transactions import PUBLISHING
from tailrace.values import robust_repr

__all__ = ["RecordProducer"]

_AFTER_ERROR_S = 5
"""Maximum time in seconds to deliver the remaining records after the ``async with`` body has failed."""
_WITHOUT_IDEMPOTENCE = "a record whose answer is lost is sent again, and may be stored twice"


class RecordProducer:
    """Publishes encoded records until the end of an ``async with``.

    The producer is idempotent: a record is stored once, even if its request is repeated, and the records of a partition
    are stored in the order of the calls. Without idempotence, which IdempotenceDisabled reports, a record whose answer
    is lost may be stored twice. The end of the ``async with`` waits until all records are acknowledged, for at most
    five seconds after an error in its body.

    Args:
        config: options of the producer; or of a consumer, whose brokers, security and timeouts the producer uses.
        options: options to change.

    Attributes:
        creates_topics: True to let brokers create missing topics.
        sender: sender of the records, from the start on.
        shared_cluster: started cluster to use; None for a cluster of its own.
        enable_idempotence: False to publish without idempotence; True to fail the start if a broker does not offer it;
            None for idempotence if all brokers offer it.
        check_versions: called at the start with the versions that the brokers offer; may raise an error, which fails
            the start.

    Raises:
        ConfigurationError: an option is invalid, or a TLS file cannot be read.
    """

    def __init__(self, config: ConsumerConfig | ProducerConfig, **options: object) -> None:
        self._config: ProducerConfig = producer_config(config, **options)
        self._timeout_s = self._config.delivery_timeout_ms / 1000
        self._max_block_s = self._config.max_block_ms / 1000
        self._settings = settings_of(self._config)
        self._running: ProducerRuntime | None = None
        self.sender: RecordSender
        self.enable_idempotence: bool | None = self._config.enable_idempotence if self._config.acks == "all" else False
        self.check_versions: Callable[[ClusterVersions], None] = lambda _versions: None
        self.creates_topics: bool = False
        self.shared_cluster: Cluster | None = None

    @robust_repr
    def __repr__(self) -> str:
        state = "not started" if self._running is None else repr(self._running.sender)
        return f"<RecordProducer {','.join(self._config.bootstrap_servers)} {state}>"

    # ---- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reach the brokers, check the versions that they offer, and request a producer id.

        Raises:
            ConfigurationError: ``bootstrap_servers`` is empty.
            AuthenticationError: TLS or SASL failed.
            BrokerConnectionError: no broker answers in ``start_timeout_ms``.
            ConsumerStateError: the producer is started already.
            UnsupportedVersionError: a broker does not support publishing; or idempotence, with
                ``enable_idempotence=True``.
            PublishError: the brokers give no producer id.
        """
        if self._running is not None:
            raise ConsumerStateError("this producer is started already")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.start_timeout_ms / 1000
        cluster = self.shared_cluster or new_cluster(self._config)
        # Events of shared connections go to the hooks of their cluster, those of records to the hooks of this producer.
        observer = cluster.observer if self.shared_cluster is None else new_observer(self._config)
        try:
            if self.shared_cluster is None:
                await cluster.reach(deadline - loop.time())
            versions = await cluster.versions()
            self.check_versions(versions)
            versions.check(PUBLISHING)
            accumulator = RecordAccumulator(self._settings, content_of(self._config), random.random)
            sender = RecordSender(cluster, accumulator, self._settings)
            if obstacle := idempotence_obstacle(versions, asked=self.enable_idempotence):
                if self._config.acks == "all":
                    observer.emit(IdempotenceDisabled(obstacle, _WITHOUT_IDEMPOTENCE))
            else:
                await sender.initialize(max(deadline - loop.time(), 1.0))
        except BaseException as error:
            if self.shared_cluster is None:
                cluster.close()
            if isinstance(error, BrokerError):
                raise PublishError(f"the brokers gave no producer id: {error}{_advice(error)}") from error
            raise
        # The look-up of a topic fails after ``request_timeout_ms``, if it is the shorter time.
        lookup_timeout_s = min(self._max_block_s or DEFAULT_LOOKUP_S, self._config.request_timeout_ms / 1000)
        resolver = PartitionResolver(
            cluster, lookup_timeout_s, self._config.partitioner, creates_topics=self.creates_topics
        )
        sender.observer = resolver.observer = observer
        self.sender = sender
        self._running = ProducerRuntime(cluster, sender, resolver, self._max_block_s or DEFAULT_LOOKUP_S)
        self._running.owns_cluster = self.shared_cluster is None

    async def close(self, timeout_s: float | None = None) -> None:
        """Wait until all records are acknowledged, for at most ``timeout_s`` seconds, and close the connections.

        If None, the option ``stop_timeout_ms`` applies. Records that are not acknowledged in time fail.
        """
        running, self._running = self._running, None
        if running is None:
            return
        try:
            async with asyncio.timeout(self._config.stop_timeout_ms / 1000 if timeout_s is None else timeout_s):
                await running.flush()
        except TimeoutError:
            pass
        finally:
            await running.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self.close(None if error is None else _AFTER_ERROR_S)

    # ---- publishing --------------------------------------------------------------------------------------------

    async def publish(self, record: OutgoingRecord, timeout_s: float | None = None) -> Published:
        """Publish one record and wait until all in-sync replicas have it.

        ``timeout_s`` is the maximum time in seconds; None for ``delivery_timeout_ms``.

        Records of concurrent calls share batches; those of one partition are stored in the order of the calls. If the
        broker refuses a record, the other records of its batch are stored. A call that is canceled while it waits for
        metadata or for ``buffer_memory`` publishes nothing; if it is canceled later, the record is published
        nevertheless.

        Raises:
            PublishTooLargeError: the record is larger than the topic allows.
            PublishTimeoutError: the record was not acknowledged in time, and may be stored nevertheless.
            PublishError: the record was refused.
        """
        return await (await self.send(record, timeout_s))

    async def send(self, record: OutgoingRecord, timeout_s: float | None = None) -> asyncio.Future[Published]:
        """Add one record to a batch, as ``publish`` does, and return the future of its partition and offset.

        The call waits while ``buffer_memory`` of records are undelivered. The offset is -1 in the rare case that
        an earlier attempt has stored the record and the broker no longer knows its offset.

        Raises:
            PublishError: the topic or partition is not found in ``request_timeout_ms``, the record cannot be encoded,
                or ``buffer_memory`` were undelivered for ``delivery_timeout_ms``.
        """
        running = self._started()
        loop = running.loop
        deadline = loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
        until = loop.time() + self._max_block_s
        topic_partition = running.resolver.resolve_known(record.topic, record.key, record.partition)
        if topic_partition is None:
            topic_partition = await running.resolve(record.topic, record.key, record.partition, timeout_s)
        future: asyncio.Future[Published] = loop.create_future()
        await running.sender.append(topic_partition, record, future, deadline, until)
        return future

    def send_now(self, record: OutgoingRecord) -> asyncio.Future[Published] | None:
        """Add a record to a batch as ``send`` does, if no wait for metadata or memory is necessary, else return None.

        The caller awaits ``yield_to_batch`` of the sender if ``is_batch_due``.
        """
        running = self._running or self._started()
        topic_partition = running.resolver.resolve_known(record.topic, record.key, record.partition)
        if topic_partition is None:
            return None
        return running.sender.append_now(topic_partition, record, self._timeout_s)

    @property
    def running(self) -> ProducerRuntime:
        """Parts of the started producer."""
        return self._started()

    def statistics(self) -> ProducerStatistics | None:
        """Return the statistics of the started producer, even if it has failed; None if it is not started."""
        return None if self._running is None else self._running.sender.statistics()

    async def publish_many(
        self, topic: str, partition: int, records: Iterable[tuple[bytes | None, bytes | None]]
    ) -> None:
        """Publish keys and values to one partition, in order, without a future for each record.

        Return when the last record is in a batch; ``flush`` raises if a record was not stored.

        Raises:
            PublishError: a record of an earlier call was not stored, the partition does not exist, a record cannot be
                encoded, or ``buffer_memory`` were undelivered for ``delivery_timeout_ms``.
        """
        running = self._started()
        if running.sender.first_error is not None:
            raise copy.copy(running.sender.first_error)
        topic_partition = await running.resolve(topic, None, partition)
        for key, value in records:
            record = OutgoingRecord(topic, value, key)
            now = running.loop.time()
            await running.sender.append(topic_partition, record, None, now + self._timeout_s, now + self._max_block_s)

    async def flush(self) -> None:
        """Wait until all records published before this call are acknowledged or have failed.

        Raises:
            PublishError: a record of ``publish_many`` was refused, or not acknowledged in ``delivery_timeout_ms``.
        """
        running = self._started()
        await running.flush()
        if running.sender.first_error is not None:
            raise copy.copy(running.sender.first_error)

    def _started(self) -> ProducerRuntime:
        if self._running is None:
            raise ConsumerStateError("this producer is not started - use it in an `async with`")
        return self._running


def _advice(error: BrokerError) -> str:
    """Return the next step after InitProducerId was refused; empty if the message of the error has it."""
    if error.code != ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        return ""
    return (
        " - grant WRITE on a topic (Kafka 2.8 or newer), or IDEMPOTENT_WRITE on the cluster, to this principal; or set"
        " enable_idempotence=False"
    )
