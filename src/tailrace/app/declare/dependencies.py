"""Providers: what each needs, in which order they are opened, and that all of them are closed.

Rule of this file: the plan is made at start and refuses what cannot be; opening follows it. A provider is opened once
a scope, however many need it, and closed after all that do.
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
    Constant,
    Depends,
    OfHeader,
    OfKey,
    Parameter,
    Provided,
    Scope,
    Value,
    WholeRecord,
)
from tailrace.app.declare.signature import read_signature
from tailrace.app.function_kinds import FunctionKind, kind_of, name_of
from tailrace.awaitables import awaited
from tailrace.errors import ConfigurationError, ConsumerStateError

__all__ = ["Dependency", "DependencyPlan", "Overrides", "open_dependencies", "open_into"]

Overrides: TypeAlias = Mapping[Callable[..., object], Callable[..., object]]
"""Providers, and what is called instead of each; told apart by identity."""


@dataclass(frozen=True, slots=True, eq=False)
class Dependency:
    """A provider, ready to be opened.

    Attributes:
        key: what it gave stands under this; the same for every handler that names the provider in this scope.
        name: what it is called in errors.
        declared: the provider that ``Depends`` names, whatever takes its place.
        closes: True for a generator, whose end closes what it gave.
        open: opens it, for a record (None in the scope of the app) and with what it needs open already.
    """

    key: DependencyKey
    name: str
    declared: Callable[..., object]
    scope: Scope
    closes: bool
    open: Callable[[AsyncExitStack, Any, Opened], Any]


class DependencyPlan:
    """The providers that one handler needs, and those that they need, in the order in which they are opened.

    Args:
        where: the handler, as errors name it.
        overrides: what takes the place of a provider.
        is_batch: its calls have no one record to look at.
        codec: decodes keys, if they are its.

    Attributes:
        fetching: reader of the codec, where it may have to fetch something before a key is decoded.
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
        """Those whose needs are being looked at, outermost first."""

    def of_scope(self, scope: Scope) -> tuple[Dependency, ...]:
        """Those of one scope, each behind what it needs."""
        return tuple(one for one in self._found.values() if one.scope == scope)

    def reader(self, parameter: Parameter, where: str, scope: Scope = "record") -> Reader:
        """What gives ``parameter`` of something that lives as long as ``scope``.

        Raises:
            ConfigurationError: it asks for what is not there for so long, or its provider will not do.
        """
        asks, of = parameter.asks, f"{where}: parameter {parameter.name!r}"
        match asks:
            case Constant(value):
                return lambda _subject, _opened: value
            case Provided(depends):
                return _of_opened(self._dependency(depends, of, where, scope))
            case Value():
                raise ConfigurationError(f"{of} is a value, and a provider is given none")
            case _ if scope == "app":
                raise ConfigurationError(
                    f"{of} asks for a record, and there is none when what has scope='app' is opened"
                    " - open it with scope='record', or take this in the handler"
                )
            case _ if self._is_batch:
                raise ConfigurationError(f"{of} asks for one record, and a batch has many - take `list[Record]` first")
            case WholeRecord():
                return lambda record, _opened: record
            case OfKey() if self._of_keys is not None and split_none(asks.annotation)[0] is not bytes:
                self.fetching = self._of_keys
                return _of_record(part_reader(asks, where, parameter.name, self._of_keys))
            case OfKey() | OfHeader():
                return _of_record(part_reader(asks, where, parameter.name))

    def _dependency(self, depends: Depends, of: str, user: str, user_scope: Scope) -> Dependency:
        declared, scope = depends.provider, depends.scope
        if not callable(declared):
            raise ConfigurationError(
                f"{of}: {declared!r} is no provider - write Depends(provider), the function itself and not its result"
            )
        if scope not in ("record", "app"):
            raise ConfigurationError(f"{of}: scope={scope!r} will not do - it is 'record' or 'app'")
        if user_scope == "app" and scope != "app":
            raise ConfigurationError(
                f"{of}: {name_of(declared)} is opened for each record, and {user} once for all (scope='app')"
                " - give both the same scope"
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
            raise ConfigurationError(f"{where} overrides {name_of(declared)} and cannot be called - give a provider")
        parameters = read_signature(provider, where, is_provider=True)
        bind = binding(parameters, [self.reader(one, where, scope) for one in parameters]).bind
        kind = kind_of(provider, where)
        closes = kind in {FunctionKind.GENERATOR, FunctionKind.ASYNC_GENERATOR}
        return Dependency(key, name, declared, scope, closes, _opening(provider, kind, bind, where))


@asynccontextmanager
async def open_dependencies(
    dependencies: Iterable[Dependency], subject: object = None, opened: Opened = NOTHING_OPENED
) -> AsyncIterator[Opened]:
    """Open providers, those that stand twice once, and close them in reverse, also when one does not open.

    What a generator does not catch of the body's error goes on to the next; what closing raises is raised.

    Args:
        dependencies: each behind what it needs, as ``Prepared`` has them.
        subject: the record, or the batch; None in the scope of the app.
        opened: what is open already.
    """
    async with AsyncExitStack() as stack:
        yield await open_into(stack, dependencies, subject, opened)


async def open_into(
    stack: AsyncExitStack, dependencies: Iterable[Dependency], subject: object, opened: Opened
) -> Opened:
    """Open providers; closing them is the stack's. Gives all that is open then."""
    everything = dict(opened)
    for one in dependencies:
        if one.key not in everything:
            everything[one.key] = await one.open(stack, subject, everything)
    return everything


def _opening(
    provider: Callable[..., Any], kind: FunctionKind, bind: Bind, where: str
) -> Callable[[AsyncExitStack, Any, Opened], Any]:
    """How a provider of this kind is opened."""
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
    """The same for the same object, and for the same method of the same object."""
    if isinstance(provider, types.MethodType):
        return id(provider.__self__), id(provider.__func__)
    return (id(provider),)
