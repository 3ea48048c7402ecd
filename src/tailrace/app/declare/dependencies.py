"""Planning, opening and closing of the dependencies of handlers.

A dependency is opened by calling its provider: once for a call of a handler, or once for the app, even if several
parameters need it. It is closed after the dependencies that need it. The order is planned when the app starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tailrace.app.declare.arguments import (
    Bind,
    DependencyKey,
    Opened,
    Reader,
    create_binding,
    create_key_or_header_reader,
    ignoring_opened,
)
from tailrace.app.declare.parameters import (
    Depends,
    Header,
    Parameter,
    Provider,
    Scope,
    read_signature,
)
from tailrace.app.function_kinds import FunctionKind, identity_of, kind_of, name_of
from tailrace.awaitables import is_coroutine
from tailrace.codecs.annotations import split_none
from tailrace.codecs.json_codec import topic_reader
from tailrace.codecs.protocols import AnyCodec, FetchingCodec, TopicReader
from tailrace.context_managers import AsyncExitStack, asynccontextmanager, contextmanager
from tailrace.errors import ConfigurationError, ConsumerStateError

__all__ = ["Dependency", "DependencyPlan", "Overrides", "open_into"]

Overrides: TypeAlias = Mapping[Provider, Provider]
"""Replacement for each overridden provider; providers are compared by identity."""


@dataclass(frozen=True, slots=True, eq=False)
class Dependency:
    """Dependency whose provider was inspected, so that the dependency can be opened.

    Attributes:
        key: Key of the value in ``Opened``; equal for all parameters that name the same provider and scope.
        name: Name of the provider, or of its replacement if it is overridden, for error messages.
        declared: Provider that ``Depends`` names, even if it is overridden.
        closes: True if the provider is a generator; the code after its ``yield`` closes the dependency.
        open: Async function that opens the dependency and returns its value; called with the exit stack that will close
            the dependency, the record or batch (None with ``scope="app"``) and the dependencies that are open already.
    """

    key: DependencyKey
    name: str
    declared: Provider
    scope: Scope
    closes: bool
    open: Callable[[AsyncExitStack, Any, Opened], Any]


class DependencyPlan:
    """Dependencies that a handler needs, directly and indirectly, in the order in which they are opened.

    Args:
        codec: Codec that decodes keys if its ``keys`` is True; otherwise ``text_decoder`` decodes them.

    Attributes:
        prefetch_reader: Reader whose ``fetch`` may have to be awaited before a key is decoded; None if no parameter
            needs a key that the codec decodes.
    """

    def __init__(
        self, where: str, overrides: Overrides, *, is_batch: bool = False, codec: AnyCodec | None = None
    ) -> None:
        self._where, self._is_batch = where, is_batch
        has_keys = isinstance(codec, FetchingCodec) and codec.keys
        self._key_reader = topic_reader(codec, is_key=True) if has_keys else None
        self.prefetch_reader: TopicReader | None = None
        self._overrides = {identity_of(provider): replacement for provider, replacement in overrides.items()}
        self._planned: dict[DependencyKey, Dependency] = {}
        self._in_progress: dict[DependencyKey, str] = {}
        """Names of providers whose parameters are being inspected, outermost first."""

    def dependencies(self, scope: Scope) -> tuple[Dependency, ...]:
        """Return the dependencies with ``scope``, each after those that it needs."""
        return tuple(one for one in self._planned.values() if one.scope == scope)

    def reader(self, parameter: Parameter, where: str, scope: Scope = "record") -> Reader:
        """Plan the dependencies that a parameter needs, and return the reader of the parameter.

        Raises:
            ConfigurationError: The parameter needs something that the scope does not have, or its provider is invalid.
        """
        label = f"{where}: parameter {parameter.name!r}"
        match parameter.source:
            case "default":
                return lambda _unit, _opened: parameter.default
            case Depends() as depends:
                return _dependency_reader(self._dependency(depends, label, where, scope))
            case "value":
                raise ConfigurationError(f"{label} takes the value, which only handlers receive")
            case _ if scope == "app":
                raise ConfigurationError(
                    f"{label} needs a record, which a provider with scope='app' does not receive"
                    " - use scope='record', or move the parameter to the handler"
                )
            case _ if self._is_batch:
                raise ConfigurationError(
                    f"{label} needs a single record, but a batch handler receives many - add a parameter for the batch,"
                    " annotated with `list[Record]`, and read the keys and headers of its records"
                )
            case "record":
                return lambda record, _opened: record
            case Header():
                return ignoring_opened(create_key_or_header_reader(parameter, where))
            case _:
                reader = None if split_none(parameter.annotation)[0] is bytes else self._key_reader
                if reader is not None:
                    self.prefetch_reader = reader
                return ignoring_opened(create_key_or_header_reader(parameter, where, reader))

    def _dependency(self, depends: Depends, label: str, dependent: str, dependent_scope: Scope) -> Dependency:
        """Return the dependency for a parameter of the function ``dependent``; plan it if it is not planned yet."""
        declared, scope = depends.provider, depends.scope
        if not callable(declared):
            raise ConfigurationError(
                f"{label}: {declared!r} is not callable - write Depends(provider) with the function, not its result"
            )
        if scope not in ("record", "app"):
            raise ConfigurationError(f"{label}: scope must be 'record' or 'app', not {scope!r}")
        if dependent_scope == "app" and scope != "app":
            raise ConfigurationError(
                f"{label}: {name_of(declared)} has scope='record', but {dependent}, which needs it, has scope='app'"
                " - use the same scope for both"
            )
        key = (*identity_of(declared), scope)
        if key in self._in_progress:
            cycle = " -> ".join([*self._in_progress.values(), self._in_progress[key]])
            raise ConfigurationError(
                f"{label}: providers depend on each other in a cycle: {cycle} - remove one Depends"
            )
        if key not in self._planned:
            self._in_progress[key] = name_of(declared)
            self._planned[key] = self._plan(declared, scope, key)
            del self._in_progress[key]
        return self._planned[key]

    def _plan(self, declared: Callable[..., object], scope: Scope, key: DependencyKey) -> Dependency:
        """Return a new dependency, after planning the dependencies that its provider needs."""
        provider = self._overrides.get(identity_of(declared), declared)
        name = name_of(provider)
        where = f"{self._where}: provider {name}"
        if not callable(provider):
            raise ConfigurationError(
                f"{where} overrides {name_of(declared)} and is not callable - pass a function, generator or class"
            )
        parameters = read_signature(provider, where, is_provider=True)
        bind = create_binding(parameters, [self.reader(one, where, scope) for one in parameters]).bind
        kind = kind_of(provider, where)
        closes = kind in {FunctionKind.GENERATOR, FunctionKind.ASYNC_GENERATOR}
        return Dependency(key, name, declared, scope, closes, _opener(provider, kind, bind))


async def open_into(stack: AsyncExitStack, dependencies: Iterable[Dependency], unit: object, opened: Opened) -> Opened:
    """Open the dependencies that are not in ``opened``, and return all open dependencies.

    ``stack`` closes the dependencies that this call has opened, in reverse order. As in nested ``with`` blocks, a
    generator provider may suppress an exception raised inside the context.
    """
    all_opened = dict(opened)
    for one in dependencies:
        if one.key not in all_opened:
            all_opened[one.key] = await one.open(stack, unit, all_opened)
    return all_opened


def _opener(
    provider: Callable[..., Any], kind: FunctionKind, bind: Bind
) -> Callable[[AsyncExitStack, Any, Opened], Any]:
    """Return the function ``Dependency.open`` for a provider."""
    manager: Callable[..., Any] = provider
    if kind is FunctionKind.GENERATOR:
        manager = contextmanager(provider)
    elif kind is FunctionKind.ASYNC_GENERATOR:
        manager = asynccontextmanager(provider)

    async def open_dependency(stack: AsyncExitStack, unit: object, opened: Opened) -> object:
        args, kwargs = bind(unit, opened)
        value = manager(*args, **kwargs)
        if kind is FunctionKind.GENERATOR:
            value = stack.enter_context(value)
        elif kind is FunctionKind.ASYNC_GENERATOR:
            value = await stack.enter_async_context(value)
        elif is_coroutine(value):
            # Other awaitables are passed on: clients such as redis.asyncio.Redis can be awaited, and return themselves.
            value = await value
        return value

    return open_dependency


def _dependency_reader(dependency: Dependency) -> Reader:
    key = dependency.key

    def read(_unit: object, opened: Opened) -> object:
        try:
            return opened[key]
        except KeyError:
            raise ConsumerStateError(
                f"{dependency.name} is not open - open the dependencies with scope='app' first"
            ) from None

    return read
