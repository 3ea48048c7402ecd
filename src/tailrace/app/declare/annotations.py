"""Annotations, looked at without any library that decodes them.

Rule of this file: questions about types; whether a type will do is for the codec to say.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Union

from tailrace.errors import ConfigurationError

__all__ = ["described", "metadata", "parts", "resolved", "split_none"]


def resolved(annotation: object, namespace: dict[str, Any], where: str) -> object:
    """An annotation as the type it means; text is evaluated among the names of its module.

    Raises:
        ConfigurationError: naming the name that is not there.
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
    """What is left of a type without ``| None``, and whether it was there.

    Names of types (``NewType``, ``type X = ...``) are looked through.
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
    # With one left, the name of a type may be behind it once more.
    left = split_none(others[0])[0] if len(others) == 1 else Union[others]  # noqa: UP007 - not known when written
    return left, len(others) < len(members)


def metadata(annotation: object) -> tuple[object, ...]:
    """What stands behind the type in ``Annotated[...]``; nothing for other types."""
    return typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()


def parts(annotation: object) -> Iterator[object]:
    """The type and every type and marker written within it, but not what its classes are made of."""
    waiting, seen = [annotation], list[object]()
    while waiting:
        part = waiting.pop()
        if any(part is one for one in seen):
            continue  # a type that is made of itself
        seen.append(part)
        yield part
        waiting += typing.get_args(part)
        if (alias := _alias(part)) is not None:
            waiting.append(alias)


def described(annotation: object) -> str:
    """A type in the words of whoever wrote it: ``shop.Order | None``."""
    return "None" if annotation is None else inspect.formatannotation(annotation)


def _alias(annotation: object) -> object:
    """What ``type X = ...`` stands for; None for anything else."""
    return getattr(annotation, "__value__", None) if type(annotation).__name__ == "TypeAliasType" else None
