"""Lifecycle of a Consumer: new, started, stopped. A consumer is started and stopped once."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any, cast

from tailrace.config import ConsumerConfig, check_names, resolve
from tailrace.consumer.arguments import checked_subscription
from tailrace.consumer.group.reconciler import in_callback
from tailrace.consumer.runtime import ConsumerRuntime
from tailrace.consumer.shared_cluster import SharedCluster, open_cluster_of
from tailrace.consumer.supervisor import Supervisor
from tailrace.errors import ConsumerStateError
from tailrace.observe.hooks import Hook, Observer
from tailrace.records import AnyRecord

__all__ = ["ConsumerLifecycle", "UnstartedReader"]

_STOPPED = "this consumer was stopped - create a new one"


class UnstartedReader:
    """Reader of a consumer that is not started; every call raises ConsumerStateError."""

    advice = "this consumer is not started - use `async with Consumer(...)`, or await start() first"

    def __init__(self) -> None:
        self.remaining: Iterator[AnyRecord] = iter(())

    async def next_record(self) -> AnyRecord:
        """Raise ConsumerStateError."""
        raise ConsumerStateError(self.advice)

    async def next_records(self, _count: int) -> list[AnyRecord]:
        """Raise ConsumerStateError."""
        raise ConsumerStateError(self.advice)


class ConsumerLifecycle:
    """Lifecycle of one consumer.

    Args:
        topics: names of the topics to subscribe to.
        pattern: pattern of topic names, in place of ``topics``.
        cluster: cluster shared with other consumers; None to open a cluster for this consumer only.
        options: the user's options, without those from the environment and without defaults.

    Attributes:
        topics: names of the subscribed topics.
        pattern: pattern of topic names; None if ``topics`` are subscribed.
        optional_topics: subset of ``topics`` that need not exist at the start.
        own_topics: topics to which the group itself publishes records. Without a committed offset, they are read from
            their first record on, whatever ``auto_offset_reset`` is.
        config: current options; None before the start.
        runtime: runtime of the started consumer, also after it was stopped; None before the start.

    Raises:
        ConfigurationError: an option is unknown, mistyped, or contradicts another.
    """

    def __init__(
        self,
        topics: tuple[str, ...],
        pattern: str | re.Pattern[str] | None,
        cluster: SharedCluster | None,
        options: Mapping[str, Any],
    ) -> None:
        self._cluster = cluster
        self._options = dict(options) if cluster is None else {**cluster.options, **options}
        check_names(self._options)
        config = resolve(self._options)
        self.topics, self.pattern = checked_subscription(topics, pattern, config.group_protocol, may_be_none=True)
        self.optional_topics: frozenset[str] = frozenset()
        self.own_topics: Container[str] = frozenset()
        self.config: ConsumerConfig | None = None
        self.runtime: ConsumerRuntime | None = None
        self._is_stopped = False
        self._consumer: object = None
        self._supervisor: Supervisor | None = None

    def __str__(self) -> str:
        state = "stopped" if self._is_stopped else "new" if self.runtime is None else "started"
        if self.runtime is not None and self.runtime.failure is not None:
            state = f"failed: {self.runtime.failure}"
        group = self.config.group_id if self.config is not None else self._options.get("group_id")
        return f"{self._description} group={group} {state}"

    @property
    def _description(self) -> str:
        if self.pattern is not None:
            return f"of /{self.pattern.pattern}/"
        return ", ".join(sorted(self.topics)) or "of nothing"

    @property
    def supervisor(self) -> Supervisor | None:
        """Supervisor of the running consumer; None before the start."""
        return self._supervisor

    @property
    def is_unstopped(self) -> bool:
        """True if the consumer was started and never stopped."""
        return self._supervisor is not None and not self._is_stopped

    def has_stopped(self) -> bool:
        """Return True once ``stop`` was called or the start failed."""
        return self._is_stopped

    @property
    def started(self) -> ConsumerRuntime:
        """Runtime of the started consumer; after ``stop`` was called, only rebalance callbacks get it, for commits.

        Raises:
            ConsumerStateError: the consumer is not started, or was stopped.
        """
        if self.runtime is None:
            raise ConsumerStateError(UnstartedReader.advice)
        if self._is_stopped and not (in_callback(self._consumer) and self._is_running):
            raise ConsumerStateError(_STOPPED)
        if self._supervisor is not None:
            self._supervisor.check_loop("this consumer")
        return self.runtime

    @property
    def _is_running(self) -> bool:
        return self._supervisor is not None and not self._supervisor.is_over

    async def start(self, consumer: object) -> ConsumerRuntime:
        """Start the consumer and return its runtime; ``consumer`` is passed to callbacks.

        Raises:
            ConsumerStateError: the consumer was started or stopped before.
            TailraceError: the start failed; see ``Consumer.start``.
        """
        if self._is_stopped:
            raise ConsumerStateError(_STOPPED)
        if self._supervisor is not None:
            raise ConsumerStateError("this consumer is already started")
        self._consumer = consumer
        config = self.config = resolve(self._options)
        observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        shared = None if self._cluster is None else open_cluster_of(self._cluster)
        runtime = ConsumerRuntime(
            config, self.topics, self.pattern, consumer, observer, self.optional_topics, shared, self.own_topics
        )
        self._supervisor = Supervisor(runtime.run, f"tailrace consumer {self._description}")
        self.runtime = runtime
        try:
            await self._supervisor.start()
        except BaseException:
            self._is_stopped = True
            raise
        return runtime

    async def stop(self, *, commit: bool) -> None:
        """Stop the consumer within ``stop_timeout_ms``; if ``commit`` is False, send no more automatic commits.

        Raises:
            ConsumerStateError: a rebalance callback called ``stop``, which would wait for that callback to return.
        """
        if in_callback(self._consumer):
            raise ConsumerStateError(
                "a rebalance callback cannot await stop(), which waits for the callback - call it in another task"
            )
        if self._supervisor is not None:
            try:
                self._supervisor.check_loop("this consumer")
            except ConsumerStateError:
                if self._is_running:
                    raise
                self._is_stopped = True  # Its loop has ended, and the consumer with it.
                return
        self._is_stopped = True
        if self._supervisor is None or self.config is None or self.runtime is None:
            return
        if not commit and self.runtime.committer is not None:
            self.runtime.committer.end()
        self.runtime.reader.close(ConsumerStateError(_STOPPED))
        self.runtime.subscription.first_assignment_done.set()
        await self._supervisor.stop(self.config.stop_timeout_ms / 1000)
