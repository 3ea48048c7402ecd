"""A consumer from its making to its end: what it was made with, what runs of it, and whether it is stopped.

Rule of this file: a life is lived once. What was started cannot be started again, nor can what was stopped.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any, cast

from tailrace.config import ConsumerConfig, check_names, resolve
from tailrace.consumer.arguments import checked_subscription
from tailrace.consumer.group.reconciler import in_callback
from tailrace.consumer.runtime import ConsumerRuntime
from tailrace.consumer.shared_cluster import SharedCluster, opened
from tailrace.consumer.supervisor import Supervisor
from tailrace.errors import ConsumerStateError
from tailrace.observe.hooks import Hook, Observer
from tailrace.records import Record

__all__ = ["ConsumerLifecycle", "UnstartedReader"]

_STOPPED = "this consumer was stopped - make a new one"


class UnstartedReader:
    """Stands in for the reader before there is one."""

    advice = "this consumer is not started - use `async with Consumer(...)`, or await start() first"

    def __init__(self) -> None:
        self.slice: Iterator[Record] = iter(())

    async def next_record(self) -> Record:
        """Refuse."""
        raise ConsumerStateError(self.advice)

    async def next_records(self, _count: int) -> list[Record]:
        """Refuse."""
        raise ConsumerStateError(self.advice)


class ConsumerLifecycle:
    """One consumer's life.

    Args:
        topics: names of those to read.
        pattern: or what matches them.
        cluster: one that several consumers share.
        options: what the user says; the rest comes from the environment and from defaults.

    Attributes:
        topics: what is read, as far as it is named.
        pattern: or what matches it.
        optional: of the topics, those that need not be there at the start.
        whole: topics that ``auto_offset_reset`` does not speak of.
        config: the options, from the start on.
        engine: what runs, from the start on.

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
        self.optional: frozenset[str] = frozenset()
        self.whole: Container[str] = frozenset()
        self.config: ConsumerConfig | None = None
        self.engine: ConsumerRuntime | None = None
        self._is_stopped = False
        self._consumer: object = None
        self._supervisor: Supervisor | None = None

    def __str__(self) -> str:
        state = "stopped" if self._is_stopped else "new" if self.engine is None else "started"
        if self.engine is not None and self.engine.failure is not None:
            state = f"failed: {self.engine.failure}"
        group = self.config.group_id if self.config is not None else self._options.get("group_id")
        return f"{self._what} group={group} {state}"

    @property
    def _what(self) -> str:
        if self.pattern is not None:
            return f"of /{self.pattern.pattern}/"
        return ", ".join(sorted(self.topics)) or "of nothing"

    @property
    def was_left(self) -> bool:
        """Whether it was started and nobody has stopped it."""
        return self._supervisor is not None and not self._is_stopped

    def has_stopped(self) -> bool:
        """Whether it is over."""
        return self._is_stopped

    @property
    def started(self) -> ConsumerRuntime:
        """What runs; while it ends, for callbacks alone, which commit before partitions go.

        Raises:
            ConsumerStateError: nothing does, yet or any more.
        """
        if self.engine is None:
            raise ConsumerStateError(UnstartedReader.advice)
        if self._is_stopped and not (in_callback(self._consumer) and self._is_running):
            raise ConsumerStateError(_STOPPED)
        return self.engine

    @property
    def _is_running(self) -> bool:
        return self._supervisor is not None and not self._supervisor.is_over

    async def start(self, consumer: object) -> ConsumerRuntime:
        """Have the consumer run, ``consumer`` being what callbacks are given.

        Raises:
            ConsumerStateError: it was started or stopped before.
            TailraceError: it cannot be started, as ``Consumer.start`` says.
        """
        if self._is_stopped:
            raise ConsumerStateError(_STOPPED)
        if self._supervisor is not None:
            raise ConsumerStateError("this consumer is started already")
        self._consumer = consumer
        config = self.config = resolve(self._options)
        observer = Observer(cast("tuple[Hook, ...]", config.hooks), client_id=config.client_id)
        shared = None if self._cluster is None else opened(self._cluster)
        engine = ConsumerRuntime(
            config, self.topics, self.pattern, consumer, observer, self.optional, shared, self.whole
        )
        self._supervisor = Supervisor(engine.run, f"tailrace consumer {self._what}")
        self.engine = engine
        try:
            await self._supervisor.start()
        except BaseException:
            self._is_stopped = True
            raise
        return engine

    async def stop(self, *, commit: bool) -> None:
        """End it, within ``stop_timeout_ms``.

        Raises:
            ConsumerStateError: it is called from a rebalance callback, which has to end first.
        """
        if in_callback(self._consumer):
            raise ConsumerStateError("stop() in a rebalance callback would wait for itself - let another task call it")
        self._is_stopped = True
        if self._supervisor is None or self.config is None or self.engine is None:
            return
        if not commit and self.engine.committer is not None:
            self.engine.committer.end()
        self.engine.reader.close(ConsumerStateError(_STOPPED))
        await self._supervisor.stop(self.config.stop_timeout_ms / 1000)
