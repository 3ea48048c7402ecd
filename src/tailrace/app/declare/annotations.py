"""Inspection of type annotations, without regard to what a codec accepts."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Union

from tailrace.errors import ConfigurationError

__all__ = ["described", "metadata", "parts", "resolved", "split_none"]


def resolved(annotation: object, namespace: dict[str, Any], where: str) -> object:
    """Return the type of an annotation; a string is evaluated in the namespace of its module.

    Raises:
        ConfigurationError: Names what cannot be resolved.
    """
    carrier = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        found: object = typing.get_type_hints(carrier, namespace, include_extras=True)["it"]
    except NameError as error:
        raise ConfigurationError(
            f"{where}: the name {error.name!r} of its annotation {described(annotation)} cannot be resolved - define"
            " or import it at the top of the module, not within a function and not under TYPE_CHECKING"
        ) from error
    except (AttributeError, SyntaxError, TypeError) as error:
        raise ConfigurationError(
            f"{where}: its annotation {described(annotation)} cannot be resolved: {error}"
        ) from error
    return found


def split_none(annotation: object) -> tuple[object, bool]:
    """Return a type without ``| None``, and True if it had that.

    Names of types (``NewType``, ``type X = ...``) are resolved.
    """
    bare = annotation
    while (under := getattr(bare, "__supertype__", None) or _alias(bare)) is not None:
        bare = under
    if extras := metadata(bare):
        inner, is_nullable = split_none(typing.get_args(bare)[0])
        return (Annotated[(inner, *extras)], True) if is_nullable else (bare, False)
    if typing.get_origin(bare) not in {Union, types.UnionType}:
        return bare, bare is None or bare is type(None)
    members = typing.get_args(bare)
    others = tuple(one for one in members if one is not type(None))
    # A single member may be the name of a type, which has to be resolved as well.
    left = split_none(others[0])[0] if len(others) == 1 else Union[others]  # noqa: UP007 - not known when written
    return left, len(others) < len(members)


def metadata(annotation: object) -> tuple[object, ...]:
    """Return the metadata of ``Annotated[...]``; empty for other types."""
    return typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()


def parts(annotation: object) -> Iterator[object]:
    """Yield a type and every type and marker written in it, but not the fields of its classes."""
    waiting, seen = [annotation], list[object]()
    while waiting:
        part = waiting.pop()
        if any(part is one for one in seen):
            continue  # a recursive type
        seen.append(part)
        yield part
        waiting += typing.get_args(part)
        if (alias := _alias(part)) is not None:
            waiting.append(alias)


def described(annotation: object) -> str:
    """Return a type as it is written: ``shop.Order | None``."""
    return "None" if annotation is None else inspect.formatannotation(annotation)


def _alias(annotation: object) -> object:
    """Return the type that ``type X = ...`` names; None for other types."""
    return getattr(annotation, "__value__", None) if type(annotation).__name__ == "TypeAliasType" else None
