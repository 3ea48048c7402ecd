"""Parameters of handlers and providers: the markers in their annotations, and the source of each argument.

``declare.arguments`` and ``declare.dependencies`` create the functions that read the arguments from the sources.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from tailrace.awaitables import called_function
from tailrace.codecs.annotations import described, metadata, parts, resolve, signature_of
from tailrace.errors import ConfigurationError
from tailrace.records import Record

__all__ = [
    "ArgumentSource",
    "Depends",
    "Header",
    "Key",
    "Parameter",
    "Provider",
    "Scope",
    "read_signature",
    "returns_nothing",
]

Provider: TypeAlias = Callable[..., object]
"""Function, generator or class, sync or async, whose result is the value of a dependency."""
Scope: TypeAlias = Literal["record", "app"]
"""Duration for which a dependency stays open: one call of a handler, or from start to stop of the app."""


class Key:
    """Marker of the parameter for the record's key: ``customer: Annotated[str, Key]``.

    The key is passed unchanged to a parameter of type ``bytes``. ``str``, numbers, booleans, enums, dates, times and
    UUIDs are read from text in UTF-8, and other types from JSON; a codec with ``keys=True`` decodes all types but
    ``bytes``. If records may have no key, add ``| None`` to the type, or a default.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Header:
    """Marker of the parameter for a header: ``trace: Annotated[str | None, Header("trace-id")]``.

    Headers are read from text or JSON, as described for ``Key``. If a record has several headers of this name, the last
    one is used. If the header may be missing or null, add ``| None`` to the type, or a default.
    """

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Depends:
    """Marker of the parameter for a dependency: ``bank: Annotated[Bank, Depends(open_bank, scope="app")]``.

    Attributes:
        provider: Function, async function, generator, async generator or class. Its result, or the value that it
            yields, is the argument. A returned coroutine is awaited; other awaitable objects are passed on unchanged.
            The code after the ``yield`` of a generator closes the dependency. A sync provider runs in the event loop
            and must not block.
        scope: ``"record"`` opens the dependency for each call of the handler, ``"app"`` once when the app starts.
    """

    provider: Provider
    scope: Scope = "record"


ArgumentSource: TypeAlias = Literal["value", "record", "default"] | type[Key] | Header | Depends
"""Source of an argument: the marker of the parameter, or without a marker:

``"value"`` for the decoded value of the record, or the values of a batch; ``"record"`` for the record itself, not
decoded; ``"default"`` for the default, which is passed only if a later positional parameter needs an argument.
"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Parameter of a function, and the source of its argument.

    Attributes:
        annotation: Type of the argument, without the marker.
        default: Default; ``inspect.Parameter.empty`` if there is none.
        by_keyword: True for a keyword-only parameter.
    """

    name: str
    source: ArgumentSource
    annotation: object
    default: object
    by_keyword: bool


# ---- inspection of the signatures of handlers and providers, for the sources of their arguments ----------------------

_MARKER_EXAMPLES = "Annotated[T, Key], Annotated[T, Header('name')] or Annotated[T, Depends(provider)]"
_EMPTY = inspect.Parameter.empty
_OTHER_FRAMEWORKS = frozenset(
    {
        "aiogram",
        "dependency_injector",
        "dishka",
        "fast_depends",
        "fastapi",
        "fastapi_injector",
        "faststream",
        "litestar",
        "modern_di",
        "picodi",
        "starlette",
        "taskiq",
        "taskiq_dependencies",
        "that_depends",
        "wireup",
    }
)
"""Packages whose objects, as defaults or in annotations, mark parameters that only these packages fill in."""
_Marker: TypeAlias = Key | Header | Depends


def returns_nothing(function: Callable[..., object]) -> bool:
    """Return True if a function is annotated to return None."""
    annotation = signature_of(function).return_annotation
    return annotation is None or annotation == "None"


def read_signature(function: Callable[..., object], where: str, *, is_provider: bool = False) -> tuple[Parameter, ...]:
    """Return the parameters to which an argument must be passed, in order.

    Parameters that a ``functools.partial`` binds, and trailing parameters that keep their defaults, are left out.

    A provider cannot take the record's value, and may have ``*args`` and ``**kwargs``, which stay empty.

    Raises:
        ConfigurationError: A parameter has no source for its argument.
    """
    try:
        signature = signature_of(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{where}: the signature cannot be read ({error}) - wrap it in a function") from error
    namespace, filled_in = _namespace(function), _keywords_of_partial(function)
    value_parameter: str | None = None
    found: list[Parameter] = []
    for one in signature.parameters.values():
        label = f"{where}: parameter {one.name!r}"
        by_keyword = one.kind is one.KEYWORD_ONLY
        if one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD}:
            if is_provider:
                continue
            raise ConfigurationError(
                f"{label} takes any number of arguments - replace it with parameters marked with {_MARKER_EXAMPLES}"
            )
        if one.name in filled_in:
            continue
        can_keep_default = is_provider and one.default is not _EMPTY
        source, annotation = _source_of(one, namespace, label, can_keep_default=can_keep_default)
        if source == "value":
            if one.default is not _EMPTY and (is_provider or value_parameter is not None or by_keyword):
                source = "default"
            else:
                _check_value_parameter(label, one, value_parameter, is_provider=is_provider)
                value_parameter = one.name
        found.append(Parameter(one.name, source, annotation, one.default, by_keyword))
    return _without_trailing_defaults(found)


def _source_of(
    parameter: inspect.Parameter, namespace: dict[str, Any], label: str, *, can_keep_default: bool
) -> tuple[ArgumentSource, object]:
    """Return the source that the marker of a parameter names, and the type of the argument.

    Without a marker, the source is the record or its value. With ``can_keep_default``, a parameter whose annotation
    cannot be evaluated keeps its default.
    """
    _check_default(parameter.default, label)
    if parameter.annotation is _EMPTY:
        return "value", _EMPTY
    try:
        annotation = resolve(parameter.annotation, namespace, label)
    except ConfigurationError:
        if can_keep_default and "Annotated" not in str(parameter.annotation):
            return "default", _EMPTY  # The annotation may be in a library, where the user cannot change it.
        raise
    if any(typing.get_origin(part) is Record for part in parts(annotation)):
        raise ConfigurationError(
            f"{label}: the key and value of a handler's `Record` are bytes - write `Record` without type arguments; a"
            " parameter annotated with another type receives the decoded value"
        )
    extras = metadata(annotation)
    _check_not_foreign(extras, label)
    marks = [one for one in extras if _is_marker(one)]
    if len(marks) > 1:
        raise ConfigurationError(f"{label} has more than one marker - remove all but one")
    if not marks:
        _check_no_marker(annotation, label)
        bare = typing.get_args(annotation)[0] if extras else annotation
        return "record" if bare is Record else "value", annotation
    others = tuple(one for one in extras if not _is_marker(one))
    inner = typing.get_args(annotation)[0]
    return _checked_marker(marks[0], label), Annotated[(inner, *others)] if others else inner


def _checked_marker(marker: object, label: str) -> ArgumentSource:
    match marker:
        case Depends():
            return marker
        case Header(str(name)) if name:
            return marker
        case Header() | type() if marker is not Key:
            complete = "Depends(provider)" if marker is Depends else "Header('name')"
            raise ConfigurationError(f"{label}: the marker lacks its argument - write Annotated[T, {complete}]")
        case _:
            return Key


def _check_value_parameter(label: str, parameter: inspect.Parameter, earlier: str | None, *, is_provider: bool) -> None:
    """Check that a parameter without a marker can take the value of the record.

    ``earlier`` is the name of an earlier parameter that takes the value; None if there is none.
    """
    if is_provider:
        raise ConfigurationError(
            f"{label} of a provider gets no argument - mark it with {_MARKER_EXAMPLES}, or give it a default"
        )
    if earlier is not None:
        raise ConfigurationError(
            f"{label} gets no argument, because {earlier!r} takes the value - mark it with {_MARKER_EXAMPLES}"
        )
    if parameter.annotation is _EMPTY:
        advice = f"annotate it, as in `{parameter.name}: bytes`, or with `Any` for any JSON"
        if parameter.name == "self":
            advice = "pass the method of an object, not of its class"
        raise ConfigurationError(f"{label} has no annotation - {advice}")
    if parameter.default is not _EMPTY:
        raise ConfigurationError(
            f"{label} takes the value, so that its default is never used - remove the default, annotate the parameter"
            " with `| None` to accept null values, or make it keyword-only to keep the default"
        )


def _without_trailing_defaults(found: list[Parameter]) -> tuple[Parameter, ...]:
    """Remove parameters that keep their defaults: keyword-only ones, and the last positional ones."""
    positional = [one for one in found if not one.by_keyword]
    while positional and positional[-1].source == "default":
        positional.pop()
    return (*positional, *(one for one in found if one.by_keyword and one.source != "default"))


def _check_default(default: object, label: str) -> None:
    """Check that a default is no marker, because markers belong to annotations."""
    if _is_marker(default):
        raise ConfigurationError(
            f"{label} has a marker as its default - move the marker to the annotation: {_MARKER_EXAMPLES}"
        )
    _check_not_foreign((default,), label)


def _check_not_foreign(objects: Iterable[object], label: str) -> None:
    """Check that defaults, or metadata of annotations, are no markers of other frameworks."""
    for one in objects:
        kind = one if isinstance(one, type) else type(one)
        package = kind.__module__.partition(".")[0]
        if package in _OTHER_FRAMEWORKS or (kind.__name__ == "Depends" and kind is not Depends):
            raise ConfigurationError(
                f"{label} has a marker of {package}: {kind.__qualname__}, which tailrace would not replace by an"
                f" argument - mark the parameter in its annotation with {_MARKER_EXAMPLES}, from tailrace"
            )


def _is_marker(one: object) -> bool:
    return isinstance(one, _Marker) or any(one is bare for bare in (Key, Header, Depends))


def _check_no_marker(annotation: object, label: str) -> None:
    """Check that the annotation of a parameter without a marker has no marker in place of a type, or within one."""
    for one in (annotation, *typing.get_args(annotation)):
        if _is_marker(one):
            name = one.__name__ if isinstance(one, type) else type(one).__name__
            raise ConfigurationError(
                f"{label}: {name} is a marker, not a type - write the type and the marker: {_MARKER_EXAMPLES}"
            )
    if any(map(_is_marker, parts(annotation))):
        raise ConfigurationError(
            f"{label}: {described(annotation)} has a nested marker - move it to the outermost level:"
            " Annotated[T | None, marker]"
        )


# ---- partials, methods, objects, classes --------------------------------------------------------------


def _keywords_of_partial(function: object) -> set[str]:
    names: set[str] = set()
    while isinstance(function, functools.partial):
        names |= function.keywords.keys()
        function = function.func
    return names


def _namespace(function: Callable[..., object]) -> dict[str, Any]:
    """Return the namespace in which the annotations of a function are evaluated."""
    called: Any = called_function(function)
    if isinstance(called, type) and inspect.isfunction(init := getattr(called, "__init__", None)):
        called = init
    inner = inspect.unwrap(called)
    found: dict[str, Any] | None = getattr(inner, "__globals__", None)
    return vars(sys.modules[inner.__module__]) if found is None else found
