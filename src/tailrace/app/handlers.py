"""Handlers as they are declared: which function for which topics, and what is said about it.

Rule of this file: declaring starts nothing and looks at nothing but its own arguments, so that a module of handlers can
be imported anywhere. Signatures are read when the app starts (``app.declare.parameters``).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from tailrace.app.argument_checks import check_codec, check_condition, check_middleware, check_text, compiled
from tailrace.app.function_kinds import check_hook, handler_kind
from tailrace.core.dispatch.batching import BatchLimits
from tailrace.core.dispatch.lanes import OrderBy
from tailrace.core.failures.retry import OnFailure, Retry
from tailrace.core.legal_topic_names import topic_name_fault
from tailrace.errors import ConfigurationError
from tailrace.records import Record

__all__ = [
    "BatchHandle",
    "BatchMiddleware",
    "Handle",
    "Handler",
    "Handlers",
    "Middleware",
    "Unmatched",
]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

Unmatched: TypeAlias = Literal["fail", "skip"]
Handle: TypeAlias = Callable[[Record], Awaitable[object]]
"""Runs a record to its end, or raises; what it returns is what the handler returned."""
Middleware: TypeAlias = Callable[[Handle], Handle]
"""Wraps what runs a record: ``def timed(call): ...`` returns an ``async def`` that awaits ``call(record)``."""
BatchHandle: TypeAlias = Callable[[list[Record]], Awaitable[object]]
"""The same of a batch."""
BatchMiddleware: TypeAlias = Callable[[BatchHandle], BatchHandle]
"""Wraps what runs a batch, as ``Middleware`` does what runs a record."""

DEFAULT_CONCURRENCY = 64
DEFAULT_BATCHES = 8


@dataclass(frozen=True, kw_only=True)
class Handler:
    """One decorated function. What is None is as the app says."""

    function: Callable[..., Any] = field(repr=False)
    name: str
    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None = None
    group_id: str | None = None
    when: Callable[[Record], bool] | None = None
    unmatched: Unmatched = "fail"
    order_by: OrderBy = "partition"
    concurrency: int = DEFAULT_CONCURRENCY
    timeout_ms: int | None = None
    retry: Retry | None = None
    retry_topics: tuple[int, ...] = ()
    overtaking: bool = False
    dead_letter: str | None = None
    on_failure: OnFailure | None = None
    publish: str | None = None
    codec: object = None
    middleware: tuple[Middleware, ...] = ()
    batches: BatchLimits | None = None
    """Of a handler of batches; None of one of single records."""
    batch_middleware: tuple[BatchMiddleware, ...] = ()


class Handlers:
    """A collection of handlers, to be included in an app; an app is one itself.

    Attributes:
        declared: the handlers.
        starting: what ``on_start`` was given, in this order.
        ending: what ``on_stop`` was given.
    """

    def __init__(self) -> None:
        self.declared: list[Handler] = []
        self.starting: list[Callable[[], object]] = []
        self.ending: list[Callable[[], object]] = []

    def on_start(self, function: FunctionT) -> FunctionT:
        """Have a function, plain or async and without arguments, called before the first record is handled.

        Dependencies of the app's scope are open then, and ``app.publish`` works. What it raises ends the start.
        """
        check_hook(function, "on_start")
        self.starting.append(function)
        return function

    def on_stop(self, function: FunctionT) -> FunctionT:
        """Have one called after the last record was handled, and committed; the last one declared goes first.

        ``app.publish`` still works. What it raises is what ``stop()`` raises, after all others were called. One that
        has not ended after three quarters of ``stop_timeout_ms`` is canceled, and ``stop()`` raises.
        """
        check_hook(function, "on_stop")
        self.ending.append(function)
        return function

    def handler(  # noqa: PLR0913 - the options of a handler
        self,
        *topics: str,
        pattern: str | re.Pattern[str] | None = None,
        group_id: str | None = None,
        when: Callable[[Record], bool] | None = None,
        unmatched: Unmatched = "fail",
        order_by: OrderBy = "partition",
        concurrency: int = DEFAULT_CONCURRENCY,
        timeout_ms: int | None = None,
        retry: Retry | None = None,
        retry_topics: Sequence[int] = (),
        overtaking: bool = False,
        dead_letter: str | None = None,
        on_failure: OnFailure | None = None,
        publish: str | None = None,
        codec: object = None,
        middleware: Sequence[Middleware] = (),
    ) -> Callable[[FunctionT], FunctionT]:
        """Have a function called for each record of ``topics``; it is returned as it is.

        Args:
            topics: names of the topics.
            pattern: or a regular expression: all topics whose whole name it matches.
            group_id: a consumer group of its own.
            when: which records it takes, where several handlers read the same topic.
            unmatched: what becomes of a record that no handler's ``when`` takes.
            order_by: records of one partition, or of one key, are handled one after the other; or in any order.
            concurrency: how many records at once.
            timeout_ms: how long one may take.
            retry: how often it is tried again, and after what pauses.
            retry_topics: delays in milliseconds: what failed then goes through a topic for each, and is tried again
                after its delay, while others go on; they overtake it.
            overtaking: that they may, although ``order_by="key"`` was asked for.
            dead_letter: the topic for records that fail for good; may name ``{topic}`` and ``{group}``.
            on_failure: what happens to them without one.
            publish: the topic to which what it returns goes; of a list each item.
            codec: how values are read and written.
            middleware: what wraps it, inside the app's own; the outermost first.

        Raises:
            ConfigurationError: an option is wrong, or excludes another.
        """
        options = {name: value for name, value in locals().items() if name not in {"self", "topics", "pattern"}}
        return self._declaring(topics, pattern, options)

    def batch_handler(  # noqa: PLR0913 - the options of a handler
        self,
        *topics: str,
        pattern: str | re.Pattern[str] | None = None,
        group_id: str | None = None,
        when: Callable[[Record], bool] | None = None,
        unmatched: Unmatched = "fail",
        max_records: int = 500,
        max_wait_ms: int = 200,
        max_bytes: int | None = None,
        order_by: OrderBy = "partition",
        concurrency: int = DEFAULT_BATCHES,
        timeout_ms: int | None = None,
        retry: Retry | None = None,
        retry_topics: Sequence[int] = (),
        overtaking: bool = False,
        dead_letter: str | None = None,
        on_failure: OnFailure | None = None,
        publish: str | None = None,
        codec: object = None,
        middleware: Sequence[BatchMiddleware] = (),
    ) -> Callable[[FunctionT], FunctionT]:
        """Have a function called for many records of ``topics`` at once, as a list; it is returned as it is.

        Args:
            topics: names of the topics.
            pattern: or a regular expression: all topics whose whole name it matches.
            group_id: a consumer group of its own.
            when: which records it takes, where several handlers read the same topic.
            unmatched: what becomes of a record that no handler's ``when`` takes.
            max_records: so many at most.
            max_wait_ms: how long the first record of a batch waits for others.
            max_bytes: of keys, values and headers, at most; a larger record is a batch by itself.
            order_by: a batch is of one partition, and the next one of it waits for that; by key, it waits only for
                batches that share a key with it; or batches are of all partitions and wait for nothing.
            concurrency: how many batches at once.
            timeout_ms: how long one may take.
            retry: how often one is tried again, or what failed of it, and after what pauses.
            retry_topics: delays in milliseconds: each record that failed then goes through a topic for each, and is in
                a batch again after its delay, while others go on; they overtake it.
            overtaking: that they may, although ``order_by="key"`` was asked for.
            dead_letter: the topic for records that fail for good; may name ``{topic}`` and ``{group}``.
            on_failure: what happens to them without one.
            publish: the topic to which what it returns goes; of a list each item.
            codec: how values are read and written.
            middleware: what wraps it, given lists of records; the outermost first. The app's own is for single records.

        Raises:
            ConfigurationError: an option is wrong, or excludes another.
        """
        said = locals()
        check_middleware(middleware)
        special = {"self", "topics", "pattern", "middleware", "max_records", "max_wait_ms", "max_bytes"}
        options = {name: value for name, value in said.items() if name not in special}
        options["batches"] = BatchLimits(max_records, max_wait_ms, max_bytes)
        options["batch_middleware"] = tuple(middleware)
        return self._declaring(topics, pattern, {**options, "middleware": ()})

    def include(self, handlers: Handlers) -> None:
        """Take over what ``handlers`` has declared so far, its hooks too.

        Raises:
            ConfigurationError: ``handlers`` is no collection of handlers.
        """
        if not isinstance(handlers, Handlers):
            raise ConfigurationError(f"include() takes a Handlers or an App, not {handlers!r}")
        self.declared += handlers.declared
        self.starting += handlers.starting
        self.ending += handlers.ending

    def _declaring(
        self,
        topics: Sequence[str],
        pattern: str | re.Pattern[str] | None,
        options: Mapping[str, Any],
    ) -> Callable[[FunctionT], FunctionT]:
        matching = None if pattern is None else compiled(pattern)
        if bool(topics) is (matching is not None):
            raise ConfigurationError('which topics? - @app.handler("orders"), or @app.handler(pattern="orders[.].*")')
        given: Sequence[object] = topics
        for topic in given:
            if not isinstance(topic, str) or not topic:
                raise ConfigurationError(
                    f"a topic is a name such as 'orders', not {topic!r} - write @app.handler('orders')"
                )
            if fault := topic_name_fault(topic):
                raise ConfigurationError(f"{topic!r} is no name of a topic: {fault}")
        _check(options)
        if matching is not None and options.get("retry_topics"):
            raise ConfigurationError(
                "retry_topics= needs topics by name - with pattern= nobody knows at the start what to read"
            )

        def declare(function: FunctionT) -> FunctionT:
            handler_kind(function)
            name = getattr(function, "__qualname__", type(function).__qualname__)
            self.declared.append(
                Handler(
                    function=function,
                    name=name,
                    topics=tuple(dict.fromkeys(topics)),
                    pattern=matching,
                    **{
                        **options,
                        "middleware": tuple(options["middleware"]),
                        "retry_topics": tuple(options.get("retry_topics", ())),
                    },
                )
            )
            return function

        return declare


def _check(options: Mapping[str, Any]) -> None:
    for name, choices in (("order_by", OrderBy), ("on_failure", OnFailure), ("unmatched", Unmatched)):
        value = options.get(name)
        if value is not None and value not in get_args(choices):
            known = ", ".join(map(repr, get_args(choices)))
            raise ConfigurationError(f"{name}={value!r} will not do: it has to be one of {known}")
    check_middleware(options["middleware"])
    for name in ("group_id", "dead_letter", "publish"):
        if options.get(name) is not None:
            check_text(name, options[name])
    if options.get("when") is not None:
        check_condition(options["when"])
    if options.get("codec") is not None:
        check_codec(options["codec"], "handler")
    _check_delays(options.get("retry_topics", ()), options)
    if (publish := options.get("publish")) is not None and (fault := topic_name_fault(publish)):
        raise ConfigurationError(f"publish={publish!r} is no name of a topic: {fault}")
    _check_count("concurrency", options["concurrency"], at_least=1)
    _check_count("timeout_ms", options["timeout_ms"], at_least=1)
    retry = options.get("retry")
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigurationError(f"retry={retry!r} will not do: it has to be Retry(attempts=...)")


def _check_delays(delays: object, options: Mapping[str, Any]) -> None:
    if not isinstance(delays, list | tuple) or any(type(one) is not int or one < 1 for one in delays):
        raise ConfigurationError(
            f"retry_topics={delays!r} will not do: it has to be a list of delays in ms, such as [5_000, 60_000]"
        )
    if len(set(delays)) < len(delays):
        raise ConfigurationError(f"retry_topics={delays!r} will not do: each delay is a topic, so none may come twice")
    if delays and options.get("order_by") == "key" and not options["overtaking"]:
        raise ConfigurationError(
            'retry_topics= and order_by="key" contradict each other: while a record waits in a retry topic, later ones'
            " of its key overtake it - say overtaking=True if they may, or have retry= try it again in its place"
        )


def _check_count(name: str, value: object, *, at_least: int) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < at_least):
        raise ConfigurationError(f"{name}={value!r} will not do: it has to be a whole number, at least {at_least}")
