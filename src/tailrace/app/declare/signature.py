"""Reader of the signatures of handlers and providers.

Errors name the function and the parameter, and suggest a correction.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from tailrace.app.declare.annotations import described, metadata, parts, resolved
from tailrace.app.declare.parameters import (
    ArgumentSource,
    DefaultSource,
    DependencySource,
    Depends,
    Header,
    HeaderSource,
    Key,
    KeySource,
    Parameter,
    RecordSource,
    ValueSource,
)
from tailrace.app.function_kinds import called_by
from tailrace.errors import ConfigurationError
from tailrace.records import Record

__all__ = ["read_signature", "returns_nothing"]

_MARKING = "Annotated[T, Key], Annotated[T, Header('name')] or Annotated[T, Depends(provider)]"
_EMPTY = inspect.Parameter.empty
_Marker: TypeAlias = Key | Header | Depends


def returns_nothing(function: Callable[..., object]) -> bool:
    """Return True if a function is annotated to return None."""
    annotation = inspect.signature(function).return_annotation
    return annotation is None or annotation == "None"


def read_signature(function: Callable[..., object], where: str, *, is_provider: bool = False) -> tuple[Parameter, ...]:
    """Return the parameters that need an argument, in order, without those that a partial fills in.

    Args:
        function: Function, method, partial, class or callable object.
        where: Name of the function in errors.
        is_provider: True for a provider, which takes no value; its ``*args`` and ``**kwargs`` stay empty.

    Raises:
        ConfigurationError: A parameter has no source for its argument.
    """
    try:
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: its signature cannot be read ({error}) - wrap it in a function") from error
    namespace, filled_in = _namespace(function), _filled_in(function)
    value: str | None = None
    found: list[Parameter] = []
    for one in signature.parameters.values():
        of = f"{where}: parameter {one.name!r}"
        by_keyword = one.kind is one.KEYWORD_ONLY
        if one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD}:
            if is_provider:
                continue
            raise ConfigurationError(f"{of} takes any arguments - replace it by parameters marked with {_MARKING}")
        if one.name in filled_in:
            continue
        source = _source_of(one, namespace, of, can_keep_default=is_provider and one.default is not _EMPTY)
        if isinstance(source, ValueSource):
            if one.default is not _EMPTY and (is_provider or value is not None or by_keyword):
                source = DefaultSource(one.default)
            else:
                _check_value(of, one, value, is_provider=is_provider)
                value = one.name
        found.append(Parameter(one.name, source, by_keyword))
    return _needed(found)


def _source_of(
    parameter: inspect.Parameter, namespace: dict[str, Any], of: str, *, can_keep_default: bool
) -> ArgumentSource:
    """Return the source of a parameter's argument: by its marker, or the record or its value if there is no marker.

    With ``can_keep_default``, a parameter whose annotation cannot be resolved keeps its default.
    """
    default = parameter.default
    if _is_marker(default):
        raise ConfigurationError(f"{of} has a marker as its default - write it into the annotation: {_MARKING}")
    if parameter.annotation is _EMPTY:
        return ValueSource(_EMPTY)
    try:
        annotation = resolved(parameter.annotation, namespace, of)
    except ConfigurationError:
        if can_keep_default and "Annotated" not in str(parameter.annotation):
            return DefaultSource(default)  # probably a parameter of a library's class
        raise
    if any(typing.get_origin(part) is Record for part in parts(annotation)):
        raise ConfigurationError(
            f"{of}: write `Record` without types - a handler's record has bytes; a parameter annotated with the type"
            " takes the decoded value, one with `Annotated[T, Key]` the key"
        )
    extras = metadata(annotation)
    marks = [one for one in extras if _is_marker(one)]
    if len(marks) > 1:
        raise ConfigurationError(f"{of} has more than one marker - a parameter takes one")
    if not marks:
        if any(map(_is_marker, parts(annotation))):
            raise ConfigurationError(
                f"{of}: {described(annotation)} has a nested marker - write it outermost: Annotated[T | None, marker]"
            )
        bare = typing.get_args(annotation)[0] if extras else annotation
        return RecordSource() if bare is Record else ValueSource(annotation)
    others = tuple(one for one in extras if not _is_marker(one))
    inner = typing.get_args(annotation)[0]
    return _marked(marks[0], Annotated[(inner, *others)] if others else inner, default, of)


def _marked(marker: object, annotation: object, default: object, of: str) -> ArgumentSource:
    match marker:
        case Depends():
            return DependencySource(marker)
        case Header(str(name)) if name:
            return HeaderSource(name, annotation, default)
        case Header() | type() if marker is not Key:
            instead = "Depends(provider)" if marker is Depends else "Header('name')"
            raise ConfigurationError(f"{of}: its marker is incomplete - write Annotated[T, {instead}]")
        case _:
            return KeySource(annotation, default)


def _check_value(of: str, parameter: inspect.Parameter, other: str | None, *, is_provider: bool) -> None:
    """Refuse a parameter without a marker that cannot be the value."""
    if is_provider:
        raise ConfigurationError(f"{of} of a provider has no argument - mark it with {_MARKING}, or give it a default")
    if other is not None:
        raise ConfigurationError(
            f"{of} is a second value beside {other!r}, and a record has one - mark it with {_MARKING}"
        )
    if parameter.annotation is _EMPTY:
        instead = f"annotate it, as in `{parameter.name}: bytes`, or `Any` for any JSON"
        if parameter.name == "self":
            instead = "pass the method of an object, not of its class"
        raise ConfigurationError(f"{of} has no annotation - {instead}")
    if parameter.default is not _EMPTY:
        raise ConfigurationError(
            f"{of} is the value, which every record has - leave its default out, write `| None` for null values,"
            " or make it keyword-only to keep its default"
        )


def _needed(found: list[Parameter]) -> tuple[Parameter, ...]:
    """Remove parameters that keep their defaults: keyword-only ones, and the last positional ones."""
    positional = [one for one in found if not one.by_keyword]
    while positional and isinstance(positional[-1].source, DefaultSource):
        positional.pop()
    return (*positional, *(one for one in found if one.by_keyword and not isinstance(one.source, DefaultSource)))


def _is_marker(one: object) -> bool:
    return isinstance(one, _Marker) or any(one is bare for bare in (Key, Header, Depends))


# ---- partials, methods, objects, classes --------------------------------------------------------------


def _filled_in(function: object) -> set[str]:
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names |= function.keywords.keys()
        function = function.func
    return names


def _namespace(function: Callable[..., object]) -> dict[str, Any]:
    """Return the namespace of a function's annotations."""
    called: Any = called_by(function)
    if isinstance(called, type) and inspect.isfunction(init := getattr(called, "__init__", None)):
        called = init
    inner = inspect.unwrap(called)
    found: dict[str, Any] | None = getattr(inner, "__globals__", None)
    return vars(sys.modules[inner.__module__]) if found is None else found
