"""Declaration of handlers and hooks.

A declaration starts nothing and checks only its own arguments, so a module with handlers can be imported anywhere.
Signatures of handlers are read when the app starts (``app.declare.parameters``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from typing_extensions import Unpack

from tailrace.app.declare.dependencies import Overrides
from tailrace.app.declare.prepared_handler import PreparedHandler, prepare
from tailrace.app.function_kinds import FunctionKind, check_hook, handler_kind
from tailrace.app.options import (
    AppConfig,
    BatchMiddleware,
    HandlerOptions,
    Unmatched,
    check_handler_options,
    check_retry_topics,
    compile_pattern,
)
from tailrace.app.policies import Batch, OnFailure, OrderBy, Retry
from tailrace.codecs.json_codec import JsonCodec
from tailrace.codecs.protocols import AnyCodec
from tailrace.core.cluster_metadata import topic_name_fault
from tailrace.errors import ConfigurationError
from tailrace.records import Record

__all__ = ["Handler", "HandlerFunction", "Handlers", "ResolvedHandler", "resolve_handler"]

HandlerFunction: TypeAlias = Callable[..., object]
"""Function that is declared as a handler; the annotations of its parameters determine its arguments."""
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
HookT = TypeVar("HookT", bound=Callable[[], Any])

_BATCH_CONCURRENCY = {FunctionKind.COROUTINE: 8, FunctionKind.PLAIN: 1}
"""Default of ``concurrency`` for handlers of batches. Plain functions run in threads, which may share a connection."""


@dataclass(frozen=True, kw_only=True)
class Handler:
    """Declared handler; ``HandlerOptions`` documents the options, and which options default to those of the app."""

    function: Callable[..., Any] = field(repr=False)
    name: str
    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None = None
    group_id: str | None = None
    when: Callable[[Record], bool] | None = None
    unmatched: Unmatched = "fail"
    order_by: OrderBy = "partition"
    concurrency: int = 64
    timeout_ms: int | None = None
    retry: Retry | None = None
    dead_letter: str | None = None
    on_failure: OnFailure | None = None
    publish: str | None = None
    codec: AnyCodec | None = None
    middleware: tuple[Callable[..., Any], ...] = ()
    """Functions of type ``BatchMiddleware`` if ``batch`` is set, otherwise of type ``Middleware``."""
    batch: Batch | None = None
    """Limits of a batch; None for a handler of single records."""
    delays_ms: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Delays in milliseconds of the topics whose records wait before the handler receives them."""

    def with_defaults(self, app: AppConfig) -> Handler:
        """Return the handler with the options of its app where it has none."""
        return replace(
            self,
            retry=self.retry or app.retry or Retry(),
            on_failure=self.on_failure or app.on_failure,
            dead_letter=self.dead_letter or app.dead_letter,
            codec=self.codec or app.codec or JsonCodec(),
            # The app's middleware takes single records, so it does not wrap handlers of batches.
            middleware=self.middleware if self.batch is not None else (*app.middleware, *self.middleware),
        )


@dataclass(frozen=True, kw_only=True)
class ResolvedHandler(Handler):
    """Handler as it runs: with the defaults of its app filled in, and with its signature read."""

    group_id: str
    retry: Retry
    on_failure: OnFailure
    codec: AnyCodec
    declared: Handler
    prepared: PreparedHandler
    collected: list[object] | None = field(default=None, compare=False)
    """List to which each record with a result that is not None is appended, and then its result, in place of pairs,
    which would take Python's garbage collector longer than the handler; None to collect no results."""


def resolve_handler(declared: Handler, app: AppConfig, group_id: str | None, overrides: Overrides) -> ResolvedHandler:
    """Fill in the options that a handler takes from its app, and read its signature.

    Args:
        declared: Declaration of the handler.
        app: Options of the app.
        group_id: Group of handlers that have no ``group_id``; None if each handler must have one.
        overrides: Replacements of the providers that ``Depends`` names.

    Raises:
        ConfigurationError: The signature is invalid, the handler has no group, or options contradict each other.
    """
    handler, group = declared.with_defaults(app), declared.group_id or group_id
    if group is None:
        raise ConfigurationError(
            f"{handler.name} has no group_id - set it for the app, such as App(group_id='billing')"
        )
    assert handler.retry is not None
    assert handler.codec is not None
    check_retry_topics(
        handler.retry, order_by=handler.order_by, has_pattern=handler.pattern is not None, where=f"{handler.name}: "
    )
    prepared = prepare(handler.function, handler.codec, overrides=overrides, is_batch=handler.batch is not None)
    return ResolvedHandler(**{**vars(handler), "group_id": group}, declared=declared, prepared=prepared)


class Handlers:
    """Collection of handlers and hooks to include in an app; an app is itself a collection.

    Attributes:
        declared: Declared handlers.
        start_hooks: Hooks of ``on_start``, in order of declaration.
        stop_hooks: Hooks of ``on_stop``, in order of declaration.
        included_in: Collections that include this one.
        check_change: Raises an error if handlers and hooks may not be added; an app refuses them once it is started.
    """

    def __init__(self) -> None:
        self.declared: list[Handler] = []
        self.start_hooks: list[Callable[[], Any]] = []
        self.stop_hooks: list[Callable[[], Any]] = []
        self.included_in: list[Handlers] = []
        self.check_change: Callable[[], None] = _accept_change

    def __getstate__(self) -> dict[str, object]:
        """Return the state to pickle, without the collections that include this one."""
        return {**self.__dict__, "included_in": []}

    def on_start(self, function: HookT) -> HookT:
        """Declare a start hook, which is called before the first record is handled; the function is returned unchanged.

        A hook is a plain or async function without required parameters. App-scoped dependencies are open when it is
        called, and ``app.publish`` works. If a hook raises an exception, the app stops, and ``start()`` raises a
        TailraceError if it has not returned yet (``require_broker=False``).

        Raises:
            ConfigurationError: The function requires arguments, or is a generator function.
            ConsumerStateError: The app is started.
        """
        check_hook(function, "on_start")
        self._add(start_hooks=(function,))
        return function

    def on_stop(self, function: HookT) -> HookT:
        """Declare a stop hook, which is called after the last commit; the function is returned unchanged.

        A hook is a plain or async function without required parameters. The hook declared last is called first, and
        ``app.publish`` still works. A hook that still runs after three quarters of ``stop_timeout_ms`` is canceled. If
        a hook raises an exception or is canceled, the other hooks are still called, and ``stop()`` then raises a
        TailraceError.
        """
        check_hook(function, "on_stop")
        self._add(stop_hooks=(function,))
        return function

    def handler(
        self, *topics: str, batch: Batch | None = None, **options: Unpack[HandlerOptions]
    ) -> Callable[[FunctionT], FunctionT]:
        """Declare a function as the handler of the records of ``topics``; the function is returned unchanged.

        An ``async def`` runs in the event loop. Up to ``concurrency`` calls of a plain ``def`` run at once, each in a
        thread: an object that they share must be safe for use by several threads, or ``concurrency`` must be 1.

        Args:
            topics: Names of the topics.
            batch: Limits of a batch; the function then takes a list or a table of several records.
            options: See below.

        Options; see ``tailrace.HandlerOptions`` and docs/options.md:
            pattern=None: Regular expression in place of topic names; it must match the whole name of a topic.
            group_id=None: Consumer group of this handler; None for the group_id of the app.
            when=None: Function that returns True for the records of this handler; None for all records.
            unmatched="fail": Policy for records that no handler's when selects: "fail" or "skip".
            order_by="partition": Scope in which records are handled in order: "partition", "key" or "none".
            concurrency=64: Maximum number of calls of the handler that run at the same time.
            timeout_ms=None: Maximum duration in milliseconds of a call; a longer call fails with TimeoutError.
            retry=None: Policy for retrying failed records, in place and through retry topics.
            dead_letter=None: Topic for records that have failed for good, such as "{topic}.{group}.dead".
            on_failure=None: Action for a record that has failed for good, if there is no dead-letter topic.
            publish=None: Topic to which the handler's results are published; a list is published item by item.
            codec=None: Codec that decodes values and encodes results; None for the codec of the app.
            middleware=(): Functions that wrap the call of the handler, the outermost first.

        Raises:
            ConfigurationError: An option is unknown, has an invalid value, or contradicts another.
        """
        matching = None if (pattern := options.get("pattern")) is None else compile_pattern(pattern)
        _check_topics(topics, matching)
        check_handler_options(options, batch)
        values: dict[str, Any] = {**options, "pattern": matching, "middleware": tuple(options.get("middleware", ()))}

        def declare(function: FunctionT) -> FunctionT:
            kind = handler_kind(function)
            defaults = {} if batch is None else {"concurrency": _BATCH_CONCURRENCY[kind]}
            name = getattr(function, "__qualname__", type(function).__qualname__)
            declared = Handler(
                function=function,
                name=name,
                topics=tuple(dict.fromkeys(topics)),
                batch=batch,
                **{**defaults, **values},
            )
            self._add((declared,))
            return function

        return declare

    def batch_handler(
        self,
        *topics: str,
        max_records: int = 500,
        max_wait_ms: int = 200,
        max_bytes: int | None = None,
        **options: Unpack[HandlerOptions[BatchMiddleware]],
    ) -> Callable[[FunctionT], FunctionT]:
        """Declare a handler of batches: ``handler(*topics, batch=Batch(max_records, max_wait_ms, max_bytes), ...)``.

        ``concurrency`` is 8 by default for an ``async def``, and 1 for a plain ``def``, whose calls run in threads.

        Raises:
            ConfigurationError: An option is unknown, has an invalid value, or contradicts another.
        """
        return self.handler(*topics, batch=Batch(max_records, max_wait_ms, max_bytes), **options)

    def include(self, handlers: Handlers) -> None:
        """Add the handlers and hooks of ``handlers``, and those that are declared there later, before the start.

        Raises:
            ConfigurationError: ``handlers`` is not a collection of handlers.
            ConsumerStateError: The app is started.
        """
        if not isinstance(handlers, Handlers):
            raise ConfigurationError(f"include() takes a Handlers or an App, not {handlers!r}")
        if any(handlers is one for one in self._with_including()):
            raise ConfigurationError("include() takes another collection, which does not include this one")
        self._add(tuple(handlers.declared), tuple(handlers.start_hooks), tuple(handlers.stop_hooks))
        handlers.included_in.append(self)

    def _add(
        self,
        declared: Sequence[Handler] = (),
        start_hooks: Sequence[Callable[[], Any]] = (),
        stop_hooks: Sequence[Callable[[], Any]] = (),
    ) -> None:
        """Add handlers and hooks to this collection and to those that include it.

        Raises:
            ConsumerStateError: A collection is an app that is started.
        """
        every = self._with_including()
        for one in every:
            one.check_change()
        for one in every:
            one.declared += declared
            one.start_hooks += start_hooks
            one.stop_hooks += stop_hooks

    def _with_including(self) -> list[Handlers]:
        """Return this collection and those that include it, directly or indirectly."""
        found = [self]
        for one in found:
            found += one.included_in
        return found


def _accept_change() -> None:
    """Accept handlers and hooks at any time."""


def _check_topics(topics: Sequence[object], pattern: re.Pattern[str] | None) -> None:
    if bool(topics) is (pattern is not None):
        raise ConfigurationError(
            "a handler needs either topics or a pattern"
            ' - write @app.handler("orders"), or @app.handler(pattern="orders[.].*")'
        )
    for topic in topics:
        if not isinstance(topic, str) or not topic:
            raise ConfigurationError(
                f"a topic must be a name such as 'orders', not {topic!r} - write @app.handler('orders')"
            )
        if fault := topic_name_fault(topic):
            raise ConfigurationError(f"{topic!r} is not a legal topic name: {fault}")
