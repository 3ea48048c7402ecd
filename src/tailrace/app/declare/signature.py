"""A signature, read once: which parameter asks for what, and what kind of function it is.

Rule of this file: no record and no codec is known here. What will not do is refused in words that name the function,
the parameter, and what to write instead.
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
    Asks,
    Constant,
    Depends,
    Header,
    Key,
    OfHeader,
    OfKey,
    Parameter,
    Provided,
    Value,
    WholeRecord,
)
from tailrace.app.function_kinds import called_by
from tailrace.errors import ConfigurationError
from tailrace.records import Record

__all__ = ["read_signature", "returns_nothing"]

_MARKING = "Annotated[T, Key], Annotated[T, Header('name')] or Annotated[T, Depends(provider)]"
_EMPTY = inspect.Parameter.empty
_Marker: TypeAlias = Key | Header | Depends


def returns_nothing(function: Callable[..., object]) -> bool:
    """Whether its annotation says that it returns nothing."""
    annotation = inspect.signature(function).return_annotation
    return annotation is None or annotation == "None"


def read_signature(function: Callable[..., object], where: str, *, is_provider: bool = False) -> tuple[Parameter, ...]:
    """The parameters to fill in, in order; those that a partial has filled in already are left to it.

    Args:
        function: a function, method, partial, class or callable object.
        where: what it is called in errors.
        is_provider: whether it takes no value, and may take any number of things (none of which it gets).

    Raises:
        ConfigurationError: the signature asks for what no record has.
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
            raise ConfigurationError(f"{of} takes whatever there is - name what it takes, with {_MARKING}")
        if one.name in filled_in:
            continue
        asks = _asks(one, namespace, of, may_stay=is_provider and one.default is not _EMPTY)
        if isinstance(asks, Value):
            if one.default is not _EMPTY and (is_provider or value is not None or by_keyword):
                asks = Constant(one.default)
            else:
                _check_value(of, one, value, is_provider=is_provider)
                value = one.name
        found.append(Parameter(one.name, asks, by_keyword))
    return _needed(found)


def _asks(parameter: inspect.Parameter, namespace: dict[str, Any], of: str, *, may_stay: bool) -> Asks:
    """What one parameter asks for; one without a marker asks for the value."""
    default = parameter.default
    if _is_marker(default):
        raise ConfigurationError(f"{of} has a marker as its default - write it into the annotation: {_MARKING}")
    if parameter.annotation is _EMPTY:
        return Value(_EMPTY)
    try:
        annotation = resolved(parameter.annotation, namespace, of)
    except ConfigurationError:
        if may_stay and "Annotated" not in str(parameter.annotation):
            return Constant(default)  # of a library's class, say; its types are its own business
        raise
    extras = metadata(annotation)
    marks = [one for one in extras if _is_marker(one)]
    if len(marks) > 1:
        raise ConfigurationError(f"{of} has more than one marker - a parameter takes one thing")
    if not marks:
        if any(map(_is_marker, parts(annotation))):
            raise ConfigurationError(
                f"{of}: {described(annotation)} has a marker within - write it outermost: Annotated[T | None, marker]"
            )
        bare = typing.get_args(annotation)[0] if extras else annotation
        return WholeRecord() if bare is Record else Value(annotation)
    others = tuple(one for one in extras if not _is_marker(one))
    inner = typing.get_args(annotation)[0]
    return _marked(marks[0], Annotated[(inner, *others)] if others else inner, default, of)


def _marked(marker: object, annotation: object, default: object, of: str) -> Asks:
    match marker:
        case Depends():
            return Provided(marker)
        case Header(str(name)) if name:
            return OfHeader(name, annotation, default)
        case Header() | type() if marker is not Key:
            instead = "Depends(provider)" if marker is Depends else "Header('name')"
            raise ConfigurationError(f"{of}: its marker does not say enough - write Annotated[T, {instead}]")
        case _:
            return OfKey(annotation, default)


def _check_value(of: str, parameter: inspect.Parameter, other: str | None, *, is_provider: bool) -> None:
    """Whether a parameter without a marker may be the value."""
    if is_provider:
        raise ConfigurationError(f"{of} of a provider is not filled in - mark it with {_MARKING}, or give it a default")
    if other is not None:
        raise ConfigurationError(
            f"{of} is a second value beside {other!r}, and a record has one - mark it with {_MARKING}"
        )
    if parameter.annotation is _EMPTY:
        instead = f"annotate it, as in `{parameter.name}: bytes`, or `Any` for whatever JSON there is"
        if parameter.name == "self":
            instead = "give the method of an object, not of its class"
        raise ConfigurationError(f"{of} does not say what it takes - {instead}")
    if parameter.default is not _EMPTY:
        raise ConfigurationError(
            f"{of} is the value, which every record has - leave its default out, write `| None` for null values,"
            " or make it keyword-only if it shall stay at its default"
        )


def _needed(found: list[Parameter]) -> tuple[Parameter, ...]:
    """Without those that may stay at their defaults: by keyword any, of the positional those with nothing behind."""
    positional = [one for one in found if not one.by_keyword]
    while positional and isinstance(positional[-1].asks, Constant):
        positional.pop()
    return (*positional, *(one for one in found if one.by_keyword and not isinstance(one.asks, Constant)))


def _is_marker(one: object) -> bool:
    return isinstance(one, _Marker) or any(one is bare for bare in (Key, Header, Depends))


# ---- what is behind partials, methods, objects, classes --------------------------------------------------------------


def _filled_in(function: object) -> set[str]:
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names |= function.keywords.keys()
        function = function.func
    return names


def _namespace(function: Callable[..., object]) -> dict[str, Any]:
    """The names among which its annotations were written."""
    called: Any = called_by(function)
    if isinstance(called, type) and inspect.isfunction(init := getattr(called, "__init__", None)):
        called = init
    inner = inspect.unwrap(called)
    found: dict[str, Any] | None = getattr(inner, "__globals__", None)
    return vars(sys.modules[inner.__module__]) if found is None else found
