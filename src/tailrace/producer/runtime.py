"""Parts of a running producer, idempotent or transactional."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import cast

from tailrace.config import ConsumerConfig
from tailrace.errors import PublishError
from tailrace.net.cluster import Cluster
from tailrace.observe.hooks import Hook, Observer
from tailrace.producer.partitions import PartitionResolver
from tailrace.producer.publisher import check_topic_name
from tailrace.producer.record_sender import RecordSender
from tailrace.records import TopicPartition

__all__ = ["ProducerRuntime", "new_cluster"]

_GRACE_S = 1.0
"""Seconds by which a call outlasts its look-up, so that the look-up fails first, with a more detailed error."""


def new_cluster(config: ConsumerConfig) -> Cluster:
    """Create a cluster that emits its events to the hooks of ``config``."""
    return Cluster(config, Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id))


class ProducerRuntime:
    """Parts of a producer from its start until it is closed, and the task that sends its records.

    Args:
        cluster: connections to the brokers, which ``end`` closes.
        sender: sender of the records.
        resolver: resolver of partitions.
        timeout_s: maximum time in seconds for which a record waits for metadata.
        background: coroutine functions to run as long as the sender runs.

    Attributes:
        is_closed: True once ``end`` was called.
        loop: event loop.
        sender: sender of the records.
        resolver: resolver of partitions.
    """

    def __init__(
        self,
        cluster: Cluster,
        sender: RecordSender,
        resolver: PartitionResolver,
        timeout_s: float,
        *background: Callable[[], Coroutine[object, object, None]],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.sender, self.resolver = sender, resolver
        self._cluster, self._timeout_s = cluster, timeout_s
        self._timeouts: set[asyncio.Timeout] = set()
        """Timeouts of the calls that wait for metadata."""
        self.is_closed = False
        sender.on_batch = resolver.change_partition
        self._task = asyncio.create_task(sender.run(*background), name="tailrace producer")
        self._task.add_done_callback(self._report_failure)

    async def resolve(self, topic: str, key: bytes | None, partition: int | None) -> TopicPartition:
        """Return the partition of a record; look up the topic if necessary.

        Raises:
            PublishError: the topic or partition does not exist, no metadata came in time, or the producer was closed.
        """
        check_topic_name(topic)
        limit = asyncio.timeout(self._timeout_s + _GRACE_S)
        self._timeouts.add(limit)
        try:
            async with limit:
                return await self.resolver.resolve(topic, key, partition)
        except TimeoutError:
            if self.is_closed:
                raise PublishError(f"{topic}: the producer was closed before the record was sent") from None
            raise PublishError(
                f"{topic}: no metadata within {self._timeout_s:.0f} s - check that the brokers are reachable"
            ) from None
        finally:
            self._timeouts.discard(limit)

    async def flush(self) -> None:
        """Wait until every record is delivered or has failed."""
        if not self._task.done():
            await self.sender.flush()

    async def end(self) -> None:
        """Stop the sender, fail the undelivered records, and close the connections."""
        self._task.cancel()
        self.is_closed = True
        for limit in self._timeouts:
            limit.reschedule(self.loop.time())
        try:
            await asyncio.wait({self._task})
        finally:
            self._cluster.close()

    def _report_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.loop.call_exception_handler({"message": "a producer has failed", "exception": error, "task": task})
