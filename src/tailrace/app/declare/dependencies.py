"""Providers of handlers: their dependencies, and their opening and closing.

The order is planned at startup. A provider is opened once per scope, even if several parameters need it, and closed
after the providers that depend on it.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tailrace.app.codec_protocols import AnyCodec, FetchingCodec, TopicReader
from tailrace.app.declare.annotations import split_none
from tailrace.app.declare.arguments import NOTHING_OPENED, Bind, DependencyKey, Opened, Reader, binding
from tailrace.app.declare.codecs import topic_reader
from tailrace.app.declare.parameter_readers import part_reader
from tailrace.app.declare.parameters import (
    DefaultSource,
    DependencySource,
    Depends,
    HeaderSource,
    KeySource,
    Parameter,
    Provider,
    RecordSource,
    Scope,
    ValueSource,
)
from tailrace.app.declare.signature import read_signature
from tailrace.app.function_kinds import FunctionKind, kind_of, name_of
from tailrace.awaitables import awaited
from tailrace.errors import ConfigurationError, ConsumerStateError

__all__ = ["Dependency", "DependencyPlan", "Overrides", "open_dependencies", "open_into"]

Overrides: TypeAlias = Mapping[Provider, Provider]
"""Replacements of providers, by provider; compared by identity."""


@dataclass(frozen=True, slots=True, eq=False)
class Dependency:
    """Provider that is ready to be opened.

    Attributes:
        key: Key of its value; the same for every handler that names the provider in this scope.
        name: Name of the provider in errors.
        declared: Provider that ``Depends`` names, even if it is overridden.
        closes: True for a generator.
        open: Opens the provider on a stack, for a record (None in the scope of the app) and with the open providers.
    """

    key: DependencyKey
    name: str
    declared: Provider
    scope: Scope
    closes: bool
    open: Callable[[AsyncExitStack, Any, Opened], Any]


class DependencyPlan:
    """Providers that a handler needs, directly and indirectly, in the order in which they are opened.

    Args:
        where: Name of the handler in errors.
        overrides: Replacements of providers.
        is_batch: True for a handler of batches.
        codec: Codec that may decode keys.

    Attributes:
        fetching: Reader of the codec, if it may fetch something before a key is decoded.
    """

    def __init__(
        self, where: str, overrides: Overrides, *, is_batch: bool = False, codec: AnyCodec | None = None
    ) -> None:
        self._where, self._is_batch = where, is_batch
        has_keys = isinstance(codec, FetchingCodec) and codec.keys
        self._of_keys = topic_reader(codec, is_key=True) if has_keys else None
        self.fetching: TopicReader | None = None
        self._overrides = {_identity(provider): instead for provider, instead in overrides.items()}
        self._found: dict[DependencyKey, Dependency] = {}
        self._path: dict[DependencyKey, str] = {}
        """Providers whose parameters are being resolved, outermost first."""

    def of_scope(self, scope: Scope) -> tuple[Dependency, ...]:
        """Return the providers of a scope, each after those that it needs."""
        return tuple(one for one in self._found.values() if one.scope == scope)

    def reader(self, parameter: Parameter, where: str, scope: Scope = "record") -> Reader:
        """Return the reader of a parameter of a function that is called in ``scope``.

        Raises:
            ConfigurationError: The parameter needs something that the scope does not have, or its provider is invalid.
        """
        source, of = parameter.source, f"{where}: parameter {parameter.name!r}"
        match source:
            case DefaultSource(value):
                return lambda _subject, _opened: value
            case DependencySource(depends):
                return _of_opened(self._dependency(depends, of, where, scope))
            case ValueSource():
                raise ConfigurationError(f"{of} is a value, which providers do not get")
            case _ if scope == "app":
                raise ConfigurationError(
                    f"{of} needs a record, which a provider with scope='app' does not have"
                    " - use scope='record', or take it in the handler"
                )
            case _ if self._is_batch:
                raise ConfigurationError(
                    f"{of} needs a single record, and a batch has many - take `list[Record]` first"
                )
            case RecordSource():
                return lambda record, _opened: record
            case KeySource() if self._of_keys is not None and split_none(source.annotation)[0] is not bytes:
                self.fetching = self._of_keys
                return _of_record(part_reader(source, where, parameter.name, self._of_keys))
            case KeySource() | HeaderSource():
                return _of_record(part_reader(source, where, parameter.name))

    def _dependency(self, depends: Depends, of: str, user: str, user_scope: Scope) -> Dependency:
        declared, scope = depends.provider, depends.scope
        if not callable(declared):
            raise ConfigurationError(
                f"{of}: {declared!r} is not a provider - write Depends(provider), with the function and not its result"
            )
        if scope not in ("record", "app"):
            raise ConfigurationError(f"{of}: scope must be 'record' or 'app', not {scope!r}")
        if user_scope == "app" and scope != "app":
            raise ConfigurationError(
                f"{of}: {name_of(declared)} has scope='record', and {user}, which needs it, has scope='app'"
                " - use the same scope for both"
            )
        key = (*_identity(declared), scope)
        if key in self._path:
            circle = [*self._path.values(), self._path[key]]
            raise ConfigurationError(f"{of}: providers need each other in a circle: {' -> '.join(circle)}")
        if key not in self._found:
            self._path[key] = name_of(declared)
            self._found[key] = self._planned(declared, scope, key)
            del self._path[key]
        return self._found[key]

    def _planned(self, declared: Callable[..., object], scope: Scope, key: DependencyKey) -> Dependency:
        provider = self._overrides.get(_identity(declared), declared)
        name = name_of(provider)
        where = f"{self._where}: provider {name}"
        if not callable(provider):
            raise ConfigurationError(f"{where} overrides {name_of(declared)} and is not callable - pass a provider")
        parameters = read_signature(provider, where, is_provider=True)
        bind = binding(parameters, [self.reader(one, where, scope) for one in parameters]).bind
        kind = kind_of(provider, where)
        closes = kind in {FunctionKind.GENERATOR, FunctionKind.ASYNC_GENERATOR}
        return Dependency(key, name, declared, scope, closes, _opening(provider, kind, bind, where))


@asynccontextmanager
async def open_dependencies(
    dependencies: Iterable[Dependency], subject: object = None, opened: Opened = NOTHING_OPENED
) -> AsyncIterator[Opened]:
    """Open providers, each once, and close them in reverse order, even if one fails to open.

    As with nested ``with`` blocks, a generator may catch the error of the body.

    Args:
        dependencies: Providers, each after those that it needs.
        subject: Record or batch; None in the scope of the app.
        opened: Providers that are open already.
    """
    async with AsyncExitStack() as stack:
        yield await open_into(stack, dependencies, subject, opened)


async def open_into(
    stack: AsyncExitStack, dependencies: Iterable[Dependency], subject: object, opened: Opened
) -> Opened:
    """Open providers on a stack; return all that are open."""
    everything = dict(opened)
    for one in dependencies:
        if one.key not in everything:
            everything[one.key] = await one.open(stack, subject, everything)
    return everything


def _opening(
    provider: Callable[..., Any], kind: FunctionKind, bind: Bind, where: str
) -> Callable[[AsyncExitStack, Any, Opened], Any]:
    """Return a function that opens a provider of this kind."""
    manager: Callable[..., Any] = provider
    if kind is FunctionKind.GENERATOR:
        manager = contextmanager(provider)
    elif kind is FunctionKind.ASYNC_GENERATOR:
        manager = asynccontextmanager(provider)

    async def opened_by(stack: AsyncExitStack, subject: object, opened: Opened) -> object:
        args, kwargs = bind(subject, opened)
        given = manager(*args, **kwargs)
        if kind is FunctionKind.GENERATOR:
            given = stack.enter_context(given)
        elif kind is FunctionKind.ASYNC_GENERATOR:
            given = await stack.enter_async_context(given)
        return await awaited(given, where)

    return opened_by


def _of_record(read: Callable[[Any], object]) -> Reader:
    return lambda record, _opened: read(record)


def _of_opened(dependency: Dependency) -> Reader:
    key = dependency.key

    def read(_subject: object, opened: Opened) -> object:
        try:
            return opened[key]
        except KeyError:
            raise ConsumerStateError(f"{dependency.name} is not open - open the app's dependencies first") from None

    return read


def _identity(provider: object) -> tuple[int, ...]:
    """Return the identity of a function, or of a bound method."""
    if isinstance(provider, types.MethodType):
        return id(provider.__self__), id(provider.__func__)
    return (id(provider),)
