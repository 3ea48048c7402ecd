"""Options of handlers and apps: their types, documentation and checks."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, cast, get_args

from typing_extensions import TypedDict, TypeVar

from tailrace.app.function_kinds import FunctionKind, kind_of, name_of
from tailrace.app.policies import Batch, OnFailure, OrderBy, Retry
from tailrace.awaitables import is_coroutine_function
from tailrace.codecs.annotations import signature_of
from tailrace.codecs.protocols import AnyCodec
from tailrace.config import (
    ConsumerConfig,
    ConsumerOptions,
    ProducerConfig,
    ProducerOptions,
    app_producer_config,
    check_positive,
)
from tailrace.config.resolution import place_of, similar
from tailrace.consumer.delivery.unreadable_batches import OnCorruptBatch
from tailrace.core.cluster_metadata import topic_name_fault
from tailrace.errors import ConfigurationError
from tailrace.records import Record

__all__ = [
    "AppConfig",
    "AppOptions",
    "BatchHandle",
    "BatchMiddleware",
    "Delivery",
    "Handle",
    "HandlerOptions",
    "Middleware",
    "Unmatched",
    "accepts",
    "check_codec",
    "check_handler_options",
    "check_middleware",
    "check_retry_topics",
    "check_text",
    "check_when",
    "compile_pattern",
]

# ---- checks of arguments that users pass -----------------------------------------------------------------------------


def check_codec(codec: object, where: str) -> None:
    """Check that ``codec`` has ``encode``, and ``decoder`` or ``decode``; the error message begins with ``where``.

    Raises:
        ConfigurationError: ``codec`` is a class, or one of its methods is missing, takes other arguments or is a
            coroutine function.
    """
    argument_counts = {"encode": 1, **({"decoder": 1} if hasattr(codec, "decoder") else {"decode": 3})}
    if isinstance(codec, type) or not all(
        callable(method := getattr(codec, name, None)) and accepts(method, count)
        for name, count in argument_counts.items()
    ):
        raise ConfigurationError(
            f"{where}: codec must be an object with decode(data, annotation, record) or decoder(annotation), and with"
            f" encode(value), not {codec!r} - correct it, or leave out codec= for JSON"
        )
    for name in argument_counts:
        if is_coroutine_function(getattr(codec, name)):
            raise ConfigurationError(
                f"{where}: {name} of the codec is `async def` and would not be awaited - make it a plain function"
            )


def check_middleware(middleware: object) -> None:
    """Check that ``middleware`` is a list or tuple of plain functions of one parameter.

    Raises:
        ConfigurationError: ``middleware`` is not a list or tuple of functions, or one of the functions has other
            parameters, or is a coroutine function or a generator.
    """
    if not isinstance(middleware, list | tuple) or not all(map(callable, middleware)):
        raise ConfigurationError(
            f"middleware must be a list of functions, each of which wraps the handler's call, not {middleware!r}"
        )
    for function in middleware:
        where = f"middleware {name_of(function)}"
        if kind_of(function, where) is not FunctionKind.PLAIN or not accepts(function, 1):
            raise ConfigurationError(
                f"{where} must be a plain function of one parameter that returns an `async def` - write"
                " `def timed(call):` with `async def called(record): return await call(record)` inside, and end it with"
                " `return called`"
            )


def check_when(when: object) -> None:
    """Check that a ``when=`` predicate is a plain function of a record.

    Raises:
        ConfigurationError: ``when`` cannot be called with one argument, or is a coroutine function.
    """
    if not callable(when) or not accepts(when, 1) or is_coroutine_function(when):
        raise ConfigurationError(f"when must be a plain function of a record that returns a bool, not {when!r}")


def check_text(name: str, value: object) -> None:
    """Check that the value of the option ``name`` is a non-empty string.

    Raises:
        ConfigurationError: ``value`` is empty or not a string.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} must be a non-empty string, not {value!r}")


def compile_pattern(pattern: object) -> re.Pattern[str]:
    """Compile a regular expression; return ``pattern`` unchanged if it is compiled already.

    Raises:
        ConfigurationError: ``pattern`` is not a regular expression, or matches bytes instead of strings.
    """
    try:
        expression: Any = re.compile(pattern) if isinstance(pattern, str) else pattern
    except re.error as error:
        raise ConfigurationError(f"pattern={pattern!r} is not a valid regular expression: {error}") from error
    if not isinstance(expression, re.Pattern) or not isinstance(expression.pattern, str):
        raise ConfigurationError(f"pattern must be a regular expression such as 'orders[.].*', not {pattern!r}")
    return expression


def accepts(function: Callable[..., object], count: int) -> bool:
    """Return True unless ``function`` is known not to accept ``count`` positional arguments."""
    try:
        signature_of(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True  # Some functions written in C have no signature.
    return True


# ---- options of handlers and apps: their types, documentation and checks ---------------------------------------------

Delivery: TypeAlias = Literal["at_least_once", "exactly_once"]
Unmatched: TypeAlias = Literal["fail", "skip"]
Handle: TypeAlias = Callable[[Record], Awaitable[object]]
"""Calls a handler for a record; returns the result of the handler."""
Middleware: TypeAlias = Callable[[Handle], Handle]
"""Wraps the call of a handler: ``def timed(call): ...`` returns an ``async def`` that awaits ``call(record)``."""
BatchHandle: TypeAlias = Callable[[list[Record]], Awaitable[object]]
"""Calls a handler for a batch of records; returns the result of the handler."""
BatchMiddleware: TypeAlias = Callable[[BatchHandle], BatchHandle]
"""Wraps the call of a handler of batches, as ``Middleware`` does for single records."""
MiddlewareT = TypeVar("MiddlewareT", default=Middleware | BatchMiddleware)


class HandlerOptions(TypedDict, Generic[MiddlewareT], total=False):
    """Options of ``@app.handler`` and ``@app.batch_handler``, for ``**options: Unpack[HandlerOptions]``."""

    pattern: str | re.Pattern[str] | None
    """Regular expression in place of topic names; it must match the whole name of a topic.

    Default: None.
    """
    group_id: str | None
    """Consumer group of this handler; None for the ``group_id`` of the app.

    Default: None.
    """
    when: Callable[[Record], bool] | None
    """Function that returns True for the records of this handler; None for all records.

    If several handlers of a group read a topic, each needs ``when``, and a record goes to the first handler whose
    ``when`` returns True.

    Default: None.
    """
    unmatched: Unmatched
    """Policy for records that no handler's ``when`` selects: ``"fail"`` or ``"skip"``.

    ``"fail"`` treats such a record as failed for good, ``"skip"`` finishes it without a call.

    Default: "fail".
    """
    order_by: OrderBy
    """Scope in which records are handled in order: ``"partition"``, ``"key"`` or ``"none"``.

    ``"partition"`` handles the records of a partition one after another, ``"key"`` the records of a partition that have
    the same key; ``"none"`` sets no order. A batch contains records of one partition, except with ``"none"``. With
    ``"key"``, a batch waits only for running batches that contain one of its keys.

    Default: "partition".
    """
    concurrency: int
    """Maximum number of calls of the handler that run at the same time.

    The default of batch handlers is 8, and 1 for a plain ``def``. Calls of a plain ``def`` run in threads: an object
    that they share must be safe for use by several threads.

    Default: 64.
    """
    timeout_ms: int | None
    """Maximum duration in milliseconds of a call; a longer call fails with ``TimeoutError``.

    None sets no limit; with ``delivery="exactly_once"``, it sets a limit of at most half of ``transaction_timeout_ms``.

    Default: None.
    """
    retry: Retry | None
    """Policy for retrying failed records, in place and through retry topics.

    None for the ``retry`` of the app.

    Default: None.
    """
    dead_letter: str | None
    """Topic for records that have failed for good, such as ``"{topic}.{group}.dead"``.

    None for the ``dead_letter`` of the app.

    Default: None.
    """
    on_failure: OnFailure | None
    """Action for a record that has failed for good, if there is no dead-letter topic.

    The actions are those of the app's ``on_failure``. None for the ``on_failure`` of the app.

    Default: None.
    """
    publish: str | None
    """Topic to which the handler's results are published; a list is published item by item.

    Default: None.
    """
    codec: AnyCodec | None
    """Codec that decodes values and encodes results; None for the ``codec`` of the app.

    Default: None.
    """
    middleware: Sequence[MiddlewareT]
    """Functions that wrap the call of the handler, the outermost first.

    The app's middleware wraps these functions, too, unless the handler is a batch handler.

    Default: ().
    """


class AppOptions(ConsumerOptions, total=False):
    """Options of ``App``: its own options, some of which are defaults for handlers, and the options of ``Consumer``."""

    retry: Retry | None
    """Policy for retrying failed records, in place and through retry topics.

    None means ``Retry()``.

    Default: None.
    """
    dead_letter: str | None
    """Topic for records that have failed for good, such as ``"{topic}.{group}.dead"``.

    ``{topic}`` is the topic that the record was first read from, ``{group}`` the consumer group. With None, there is no
    dead-letter topic.

    Default: None.
    """
    on_failure: OnFailure
    """Action for a record that has failed for good, if there is no dead-letter topic.

    ``"pause"`` keeps retrying the record, at intervals of ``Retry.max_backoff_ms``; later records that must be handled
    after it (``order_by``) wait. ``"stop"`` stops the app. ``"skip"`` logs and counts the failure and finishes the
    record.

    Default: "pause".
    """
    on_corrupt_batch: OnCorruptBatch
    """Action if a record batch cannot be read: ``"pause"``, ``"stop"`` or ``"skip"``.

    A batch cannot be read if it is damaged, or larger than ``max_decompressed_batch_bytes`` or ``max_batch_bytes``.
    ``"pause"`` makes its partition wait, and fetches the batch again at intervals of up to 30 seconds; other partitions
    are read on. ``"stop"`` stops the app. ``"skip"`` loses the records of the batch: it logs an error and continues
    after the batch, or waits as ``"pause"`` does if the end of the batch is unknown.

    Default: "pause".
    """
    codec: AnyCodec | None
    """Codec that decodes values and encodes results; None for JSON.

    Default: None.
    """
    middleware: Sequence[Middleware]
    """Functions that wrap the call of every handler of single records, the outermost first.

    Default: ().
    """
    require_broker: bool
    """Fail to start if no broker answers within ``start_timeout_ms``.

    With False, the app starts, reports that it is ready, and tries again until a broker answers. Use it in a service
    that has other tasks, too.

    Default: True.
    """
    producer: ProducerOptions[Any, Any] | None
    """Options of the app's producer, such as ``ProducerOptions(compression_type="zstd", linger_ms=5)``.

    The producer publishes the results of handlers, messages of ``app.publish``, retries and dead letters. Connections,
    security and timeouts of requests are those of the app, ``acks`` is "all", and values are encoded by ``codec``.
    ``delivery_timeout_ms`` and ``max_block_ms`` are ``default_api_timeout_ms`` unless they are set. An option that is
    not set comes from its ``TAILRACE_...`` variable.

    Default: None.
    """
    publish_timeout_ms: int
    """Maximum time in milliseconds of ``app.publish`` outside of handlers.

    It limits, for example, the time for which a request of a web service waits. A record that is not acknowledged in
    time raises ``PublishTimeoutError``, whose ``may_be_stored`` is False if the record was not sent and will not be.
    Records that handlers publish, retries and dead letters wait for ``delivery_timeout_ms`` of the producer instead,
    because a failure would call the handler again.

    Default: 10_000.
    """
    publish_delays_ms: Sequence[int]
    """Delays in milliseconds of messages that are published with ``delay_ms=`` or ``at=``.

    Each delay has a topic ``{group}.delayed-publish.{delay}``, in which messages wait. Every started app that declares
    the delay, also one without handlers, reads the topic as a member of ``group_id`` and publishes the messages when
    they are due. A message may have any delay up to the longest declared one. A declared delay is kept exactly, another
    one may be exceeded by up to the shortest declared delay.

    Default: ().
    """
    delivery: Delivery
    """Delivery guarantee: ``"at_least_once"``, or ``"exactly_once"`` by transactions.

    With ``"exactly_once"``, the results of handlers, dead letters and offsets become visible together or not at all.

    Default: "at_least_once".
    """
    transactional_id: str | None
    """Transactional id of this process, for example ``"{group}-{hostname}-{worker}"``.

    The fields are ``{group}``, ``{hostname}``, ``{worker}``, ``{instance}`` (``group_instance_id``), ``{client_id}``
    and ``{pid}``; without ``{group}``, the group is appended. A process that starts with the id of a former process
    aborts the transaction that the former process left open. None means ``"{group}-{instance}"`` if
    ``group_instance_id`` is set, and otherwise a new id at each start, so that the broker aborts a transaction left
    open only after ``transaction_timeout_ms``. Only with ``delivery="exactly_once"``.

    Default: None.
    """
    transaction_timeout_ms: int | None
    """Time in milliseconds after which the broker aborts an open transaction.

    Only with ``delivery="exactly_once"``.

    Default: 10_000.
    """
    transaction_interval_ms: int | None
    """Maximum time in milliseconds for which a transaction collects records.

    The transaction is committed when the handlers of these records have returned. Only with
    ``delivery="exactly_once"``.

    Default: 100.
    """
    transaction_max_records: int | None
    """Maximum number of records in a transaction.

    Only with ``delivery="exactly_once"``.

    Default: 10_000.
    """


@dataclass(frozen=True, kw_only=True)
class AppConfig:
    """Checked options of an app, without the options of its consumers; ``AppOptions`` documents them.

    Raises:
        ConfigurationError: An option has an invalid value.
    """

    retry: Retry | None = None
    dead_letter: str | None = None
    on_failure: OnFailure = "pause"
    on_corrupt_batch: OnCorruptBatch = "pause"
    codec: AnyCodec | None = None
    middleware: Sequence[Middleware] = ()
    require_broker: bool = True
    producer: ProducerOptions[Any, Any] | None = None
    publish_timeout_ms: int = 10_000
    publish_delays_ms: Sequence[int] = ()
    delivery: Delivery = "at_least_once"

    def __post_init__(self) -> None:
        for name in ("on_failure", "on_corrupt_batch", "delivery"):
            _check_choice(name, getattr(self, name))
        _check_retry(self.retry)
        dead_letter: object = self.dead_letter
        if dead_letter is not None and not isinstance(dead_letter, str):
            raise ConfigurationError(
                f"dead_letter must be a topic or a template such as '{{topic}}.{{group}}.dead', not {dead_letter!r}"
            )
        if self.codec is not None:
            check_codec(self.codec, "App")
        check_middleware(self.middleware)
        required: object = self.require_broker
        if not isinstance(required, bool):
            raise ConfigurationError(f"require_broker must be True or False, not {required!r}")
        check_positive("publish_timeout_ms", self.publish_timeout_ms)
        delays: object = self.publish_delays_ms
        if not isinstance(delays, list | tuple) or any(type(one) is not int or one < 1 for one in delays):
            raise ConfigurationError(
                f"publish_delays_ms must be a list of positive integers such as [30_000, 300_000], not {delays!r}"
            )
        producer: object = self.producer
        if producer is not None and not isinstance(producer, Mapping):
            raise ConfigurationError(
                "producer must be ProducerOptions(...) or a dict of options, such as {'compression_type': 'zstd'}, not"
                f" {producer!r}"
            )

    def producer_config(self, config: ConsumerConfig) -> ProducerConfig:
        """Return the options of the producer of an app whose consumers have the options ``config``.

        Raises:
            ConfigurationError: see ``app_producer_config``; or the producer has no idempotence, which transactions
                need.
        """
        producer = app_producer_config(config, cast("Mapping[str, object]", self.producer or {}))
        if producer.linger_ms >= self.publish_timeout_ms:
            raise ConfigurationError(
                f"linger_ms={producer.linger_ms} must be less than publish_timeout_ms={self.publish_timeout_ms}, which"
                " includes it - lower the first or raise the second"
            )
        if producer.enable_idempotence is False and self.delivery == "exactly_once":
            raise ConfigurationError(
                "enable_idempotence=False contradicts delivery='exactly_once': transactions need idempotence"
                " - leave out enable_idempotence, or remove the variable TAILRACE_ENABLE_IDEMPOTENCE"
            )
        return producer


_REPLACEMENTS: Mapping[str, str] = {
    "retry_topics": "retry=Retry(topic_delays_ms=[5_000, 60_000])",
    "overtaking": "retry=Retry(allow_reordering=True)",
    "max_records": "batch=Batch(max_records=500)",
    "max_wait_ms": "batch=Batch(max_wait_ms=200)",
    "max_bytes": "batch=Batch(max_bytes=1_000_000)",
}
"""Names that users may expect as options of a handler, each with the option to use instead."""

_CHOICES: Mapping[str, Any] = {
    "delivery": Delivery,
    "on_corrupt_batch": OnCorruptBatch,
    "on_failure": OnFailure,
    "order_by": OrderBy,
    "unmatched": Unmatched,
}


def check_handler_options(options: Mapping[str, object], batch: object) -> None:
    """Check the options of a handler.

    Raises:
        ConfigurationError: An option is unknown, has an invalid value, or contradicts another option.
    """
    _check_names(options)
    for name in ("order_by", "unmatched"):
        if name in options:
            _check_choice(name, options[name])
    if options.get("on_failure") is not None:
        _check_choice("on_failure", options["on_failure"])
    for name in ("group_id", "dead_letter", "publish"):
        if options.get(name) is not None:
            check_text(name, options[name])
    _check_callables(options)
    publish = options.get("publish")
    if isinstance(publish, str) and (fault := topic_name_fault(publish)):
        raise ConfigurationError(f"publish={publish!r} is not a legal topic name: {fault}")
    check_positive("concurrency", options.get("concurrency", 1))
    if options.get("timeout_ms") is not None:
        check_positive("timeout_ms", options["timeout_ms"])
    if batch is not None and not isinstance(batch, Batch):
        raise ConfigurationError(f"batch must be a Batch instance such as Batch(max_records=500), not {batch!r}")
    retry = options.get("retry")
    _check_retry(retry)
    if isinstance(retry, Retry):
        check_retry_topics(retry, order_by=options.get("order_by"), has_pattern=options.get("pattern") is not None)


def check_retry_topics(retry: Retry, *, order_by: object, has_pattern: bool, where: str = "") -> None:
    """Check that a handler may have the retry topics of ``retry``.

    Raises:
        ConfigurationError: The handler has a pattern, so its topics are not known at the start, or retry topics would
            break the order of the records of a key.
    """
    if not retry.topic_delays_ms:
        return
    if has_pattern:
        raise ConfigurationError(
            f"{where}Retry(topic_delays_ms=...) cannot be used with pattern=, because the retry topics of each topic"
            " are created at the start - replace pattern= by topic names, or use a Retry without topic_delays_ms"
        )
    if order_by == "key" and not retry.allow_reordering:
        raise ConfigurationError(
            f'{where}Retry(topic_delays_ms=...) and order_by="key" contradict each other: later records of a key'
            " overtake a record in a retry topic - add Retry(allow_reordering=True) to accept that, or retry in place"
        )


def _check_names(options: Mapping[str, object]) -> None:
    known = HandlerOptions.__annotations__
    for name in options:
        if name in known:
            continue
        if name in _REPLACEMENTS:
            hint = f"use {_REPLACEMENTS[name]}"
        elif place := place_of(name):
            hint = f"it is {place}"
        else:
            hint = similar(name, known) or f"the options are {', '.join(known)}"
        raise ConfigurationError(f"handlers have no option {name!r} - {hint}")


def _check_callables(options: Mapping[str, object]) -> None:
    check_middleware(options.get("middleware", ()))
    if options.get("when") is not None:
        check_when(options["when"])
    if options.get("codec") is not None:
        check_codec(options["codec"], "handler")


def _check_choice(name: str, value: object) -> None:
    choices = get_args(_CHOICES[name])
    if value not in choices:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def _check_retry(retry: object) -> None:
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigurationError(f"retry must be a Retry instance such as Retry(attempts=3), not {retry!r}")
