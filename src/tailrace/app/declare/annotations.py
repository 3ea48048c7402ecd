"""Inspection of type annotations, independent of the types that a codec supports."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Union

from tailrace.errors import ConfigurationError

__all__ = ["described", "metadata", "parts", "resolve", "split_none"]


def resolve(annotation: object, namespace: dict[str, Any], where: str) -> object:
    """Return the type of an annotation; evaluate a string in ``namespace``.

    Args:
        annotation: Type, or its source text.
        namespace: Global names of the module that contains the annotation.
        where: Name of the function and parameter in errors.

    Raises:
        ConfigurationError: A name in the annotation does not exist, or the annotation is not a type.
    """
    carrier = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        found: object = typing.get_type_hints(carrier, namespace, include_extras=True)["it"]
    except NameError as error:
        raise ConfigurationError(
            f"{where}: the name {error.name!r} in the annotation {described(annotation)} cannot be resolved - define"
            " or import it at the top of the module, not inside a function or an `if TYPE_CHECKING:` block"
        ) from error
    except (AttributeError, SyntaxError, TypeError) as error:
        raise ConfigurationError(
            f"{where}: the annotation {described(annotation)} cannot be resolved: {error} - correct the annotation"
        ) from error
    return found


def split_none(annotation: object) -> tuple[object, bool]:
    """Return a type without ``| None``, and True if the type accepts None.

    A ``NewType`` or ``type X = ...`` is replaced by the type that it names.
    """
    bare = annotation
    while (named := getattr(bare, "__supertype__", None) or _alias(bare)) is not None:
        bare = named
    if extras := metadata(bare):
        inner, is_nullable = split_none(typing.get_args(bare)[0])
        return (Annotated[(inner, *extras)], True) if is_nullable else (bare, False)
    if typing.get_origin(bare) not in {Union, types.UnionType}:
        return bare, bare is None or bare is type(None)
    members = typing.get_args(bare)
    others = tuple(one for one in members if one is not type(None))
    # A single member may be an alias, which must be replaced as well.
    left = split_none(others[0])[0] if len(others) == 1 else Union[others]  # noqa: UP007 - members vary
    return left, len(others) < len(members)


def metadata(annotation: object) -> tuple[object, ...]:
    """Return the metadata of ``Annotated[...]``; empty for other types."""
    return typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()


def parts(annotation: object) -> Iterator[object]:
    """Yield a type, its type arguments and its metadata at all levels, but not the types of fields of classes."""
    pending, seen = [annotation], list[object]()
    while pending:
        part = pending.pop()
        if any(part is one for one in seen):
            continue  # A recursive type contains itself.
        seen.append(part)
        yield part
        pending += typing.get_args(part)
        if (alias := _alias(part)) is not None:
            pending.append(alias)


def described(annotation: object) -> str:
    """Return the source text of a type, such as ``shop.Order | None``."""
    return "None" if annotation is None else inspect.formatannotation(annotation)


def _alias(annotation: object) -> object:
    """Return the type that ``type X = ...`` names; None for other types."""
    return getattr(annotation, "__value__", None) if type(annotation).__name__ == "TypeAliasType" else None
