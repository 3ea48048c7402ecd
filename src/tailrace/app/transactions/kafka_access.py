"""Access of an exactly-once app to Kafka: options of transactions, sources of its groups, publisher."""

from __future__ import annotations

import os
import platform
import re
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

from tailrace.app.dispatch.group_runtime import Connect
from tailrace.app.handlers import Handler
from tailrace.app.options import Delivery
from tailrace.app.sources import ConsumerSource
from tailrace.app.topics.routes import Routes
from tailrace.app.transactions.attempts import current_publisher
from tailrace.app.transactions.exactly_once import TransactionalSource
from tailrace.app.transactions.renewing_producer import RenewingProducer
from tailrace.app.transactions.window import WindowSettings
from tailrace.config import ConsumerConfig, ProducerConfig, check_positive, producer_config
from tailrace.context_managers import asynccontextmanager
from tailrace.errors import ConfigurationError
from tailrace.observe.hooks import Observer
from tailrace.observe.statistics import ProducerStatistics
from tailrace.producer.publisher import OutgoingRecord, Published, Publisher

__all__ = [
    "ContextPublisher",
    "KafkaAccess",
    "TransactionOptions",
    "check_transactions",
    "transaction_options",
    "with_transactions",
]

_CONSUMER_OPTIONS: Mapping[str, object] = {
    "enable_auto_commit": False,
    "isolation_level": "read_committed",
    # TransactionPartitions encodes the offset maps.
    "offset_metadata_max_bytes": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """Options of an app's transactions; see ``App``."""

    transactional_id: str | None = None
    transaction_timeout_ms: int = 10_000
    transaction_interval_ms: int = 100
    transaction_max_records: int = 10_000

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ConfigurationError: an option is invalid.
        """
        name: object = self.transactional_id
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigurationError(
                "transactional_id must be a name that no other process has, such as '{group}-{hostname}-{worker}', not"
                f" {name!r}"
            )
        for option in ("transaction_timeout_ms", "transaction_interval_ms", "transaction_max_records"):
            check_positive(option, getattr(self, option))
        if self.transaction_interval_ms * 2 > self.transaction_timeout_ms:
            raise ConfigurationError(
                f"transaction_interval_ms={self.transaction_interval_ms} must be at most half of"
                f" transaction_timeout_ms={self.transaction_timeout_ms}, to leave time for the handlers"
            )

    def window_settings(self, handlers: Sequence[Handler]) -> WindowSettings:
        """Return the limits of the transactions of these handlers."""
        batch_waits_s = [0.0 if one.batch is None else one.batch.max_wait_ms / 1000 for one in handlers]
        settings = WindowSettings(
            interval_s=self.transaction_interval_ms / 1000,
            max_records=self.transaction_max_records,
            timeout_s=self.transaction_timeout_ms / 1000,
            batch_wait_s=max(batch_waits_s, default=0.0),
        )
        timeouts_s = [
            settings.default_handler_timeout_s(wait_s) if one.timeout_ms is None else one.timeout_ms / 1000
            for one, wait_s in zip(handlers, batch_waits_s, strict=True)
        ]
        return replace(settings, max_handler_s=max(timeouts_s, default=0.0))

    def transactional_id_for(self, group_id: str, config: ConsumerConfig) -> str:
        """Return the transactional id of a group's producer; a template without ``{group}`` gets the group as suffix.

        Raises:
            ConfigurationError: the template has an unknown field, or contains ``{instance}`` although
                ``group_instance_id`` is not set.
        """
        fields = {
            "group": group_id,
            "instance": config.group_instance_id or "",
            "client_id": config.client_id,
            "hostname": platform.node(),
            "worker": os.environ.get("TAILRACE_WORKER", "0"),
            "pid": str(os.getpid()),
        }
        template = self.transactional_id
        if template is None:
            # Without group_instance_id, each start uses a new id and cannot abort a transaction that the previous run
            # left open. The broker aborts that transaction after its timeout.
            return f"{group_id}-{config.group_instance_id or uuid.uuid4().hex}"
        if re.search(r"\{instance\}", template) and config.group_instance_id is None:
            raise ConfigurationError(
                f"transactional_id={template!r} contains {{instance}}, but this app has no group_instance_id"
                " - set group_instance_id, too"
            )
        try:
            name = template.format_map(fields)
        except (KeyError, ValueError, IndexError, AttributeError):
            raise ConfigurationError(
                f"transactional_id={template!r} has an unknown field - the fields are {', '.join(fields)}"
            ) from None
        return name if "{group}" in template else f"{name}-{group_id}"


class KafkaAccess(NamedTuple):
    """Sources and publisher through which an app uses Kafka during one run."""

    connect: Connect
    """Returns the source for the topics of one group."""
    open_publisher: Callable[[], AbstractAsyncContextManager[Publisher]]
    """Returns the context manager of the publisher."""
    producers: Callable[[], tuple[ProducerStatistics, ...]] = tuple
    """Returns the statistics of the producers that are started."""


def transaction_options(delivery: object, **options: object) -> TransactionOptions | None:
    """Return the options of an app's transactions; None for ``delivery="at_least_once"``.

    Args:
        delivery: value of the option ``delivery``.
        options: other options of transactions, as the user has set them; None for an option that is not set.

    Raises:
        ConfigurationError: an option is invalid, or needs ``delivery="exactly_once"``.
    """
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if delivery not in get_args(Delivery):
        known = " or ".join(map(repr, get_args(Delivery)))
        raise ConfigurationError(f"delivery must be {known}, not {delivery!r}")
    if delivery == "exactly_once":
        return TransactionOptions(**chosen)
    if chosen:
        names = " and ".join(chosen)
        raise ConfigurationError(
            f"{names} cannot be used with delivery='at_least_once' - set delivery='exactly_once', or leave out {names}"
        )
    return None


def with_transactions(
    kafka: KafkaAccess,
    read: Callable[..., ConsumerSource],
    options: TransactionOptions,
    configs: tuple[ConsumerConfig, ProducerConfig],
    observer: Observer,
) -> KafkaAccess:
    """Return an access to Kafka whose sources handle records in transactions.

    Args:
        kafka: access without transactions; its publisher serves code outside of handlers.
        read: returns the source that reads the topics of a group; keywords replace options of the user.
        options: options of the app's transactions.
        configs: resolved options of the consumers, and of the producers.
        observer: receives events.
    """
    config, base = configs
    sources: list[TransactionalSource] = []
    producers: list[RenewingProducer] = []

    def connect(routes: Routes) -> TransactionalSource:
        group_id = routes.group_id
        of_group = producer_config(
            base,
            transactional_id=options.transactional_id_for(group_id, config),
            transaction_timeout_ms=options.transaction_timeout_ms,
        )
        producer = RenewingProducer(
            of_group, group_id, max_metadata_bytes=config.offset_metadata_max_bytes, observer=observer
        )
        producers.append(producer)
        settings = options.window_settings(routes.handlers)
        source = TransactionalSource(read(routes, **_CONSUMER_OPTIONS), producer, settings, observer)
        sources.append(source)
        return source

    @asynccontextmanager
    async def open_publisher() -> AsyncIterator[Publisher]:
        async with kafka.open_publisher() as outside:
            yield ContextPublisher(outside, sources)

    def statistics() -> tuple[ProducerStatistics, ...]:
        of_groups = (one.statistics() for one in producers)
        return *kafka.producers(), *(one for one in of_groups if one is not None)

    return KafkaAccess(connect, open_publisher, statistics)


class ContextPublisher:
    """Publisher that adds messages of a handler to the open transaction of the handler's group.

    Args:
        outside: publisher for code outside of handlers, which publishes without a transaction.
        sources: sources of the groups; the list may grow later.
    """

    def __init__(self, outside: Publisher, sources: Sequence[TransactionalSource]) -> None:
        self._outside, self._sources = outside, sources

    async def publish(self, record: OutgoingRecord) -> Published | None:
        """Publish one message as ``Publisher.publish`` does; return None in a transaction."""
        publisher = current_publisher()
        for source in self._sources:
            if source.transactions is not None and source.transactions is publisher:
                await source.transactions.publish(record)
                return None
        # The caller is no handler, or a handler of another app.
        return await self._outside.publish(record)


def check_transactions(
    options: TransactionOptions,
    config: ConsumerConfig,
    consumer_options: Mapping[str, Any],
    handlers: Sequence[Handler],
) -> None:
    """Check that the options of consumers and handlers allow transactions.

    Args:
        options: options of the app's transactions.
        config: resolved options of the consumers.
        consumer_options: options that the user has set for the consumers.
        handlers: handlers of the app.

    Raises:
        ConfigurationError: an option contradicts transactions.
    """
    default_level = os.environ.get("TAILRACE_ISOLATION_LEVEL", "read_committed")
    isolation_level = consumer_options.get("isolation_level", default_level)
    if isolation_level != "read_committed":
        raise ConfigurationError(
            f"isolation_level={isolation_level!r} contradicts delivery='exactly_once': records of aborted transactions"
            " would be handled - remove isolation_level, or the variable TAILRACE_ISOLATION_LEVEL"
        )
    if config.enable_auto_commit:
        raise ConfigurationError(
            "enable_auto_commit=True contradicts delivery='exactly_once': transactions commit the offsets"
            " - remove enable_auto_commit, or the variable TAILRACE_ENABLE_AUTO_COMMIT"
        )
    if not config.offset_metadata_max_bytes:
        raise ConfigurationError(
            "offset_metadata_max_bytes=0 contradicts delivery='exactly_once': its commits contain offset maps"
            " - leave out offset_metadata_max_bytes, or set it to the broker's offset.metadata.max.bytes"
        )
    longest_ms = options.window_settings(handlers).abort_age_s * 1000
    for handler in handlers:
        batch = handler.batch
        wait_ms, timeout_ms = 0 if batch is None else batch.max_wait_ms, handler.timeout_ms or 0
        if wait_ms + timeout_ms >= longest_ms:
            times = [f"max_wait_ms={wait_ms}"] if wait_ms else []
            times += [f"timeout_ms={timeout_ms}"] if timeout_ms else []
            in_total = " in total" if len(times) > 1 else ""
            raise ConfigurationError(
                f"{handler.name}: {' and '.join(times)} must be below {longest_ms:.0f} ms{in_total}, four fifths of"
                f" transaction_timeout_ms={options.transaction_timeout_ms}, because slower transactions"
                " are aborted - lower the handler's times, or raise transaction_timeout_ms"
            )
