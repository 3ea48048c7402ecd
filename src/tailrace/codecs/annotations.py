"""Evaluation and inspection of type annotations, whichever types a codec supports."""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Union

from tailrace.errors import ConfigurationError

__all__ = ["described", "metadata", "parts", "resolve", "signature_of", "split_none"]


def signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a function; an annotation with an undefined name is text or a ``ForwardRef``.

    Raises:
        TypeError: ``function`` is not callable.
        ValueError: the function has no signature, like some functions written in C.
    """
    if sys.version_info >= (3, 14):
        # Python evaluates annotations when they are read (PEP 649), and by default raises NameError here.
        from annotationlib import Format  # noqa: PLC0415 - new in Python 3.14

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def resolve(annotation: object, namespace: dict[str, Any], where: str) -> object:
    """Return the type that an annotation names.

    Args:
        annotation: Type, or its source text, which is evaluated.
        namespace: Global names of the module that contains the annotation.
        where: Name of the function and parameter, for error messages.

    Raises:
        ConfigurationError: A name in the annotation does not exist, or the annotation is not a type.
    """
    # get_type_hints() takes an object with annotations, and returns the evaluated annotations by name.
    annotated = types.SimpleNamespace(__annotations__={"parameter": annotation})
    try:
        evaluated: object = typing.get_type_hints(annotated, namespace, include_extras=True)["parameter"]
    except NameError as error:
        raise ConfigurationError(
            f"{where}: the name {error.name!r} in the annotation {described(annotation)} cannot be resolved - define"
            " or import it at the top of the module, not inside a function or an `if TYPE_CHECKING:` block"
        ) from error
    except (AttributeError, SyntaxError, TypeError) as error:
        raise ConfigurationError(
            f"{where}: the annotation {described(annotation)} cannot be resolved: {error} - correct the annotation"
        ) from error
    return evaluated


def split_none(annotation: object) -> tuple[object, bool]:
    """Return ``T`` and True for a type ``T | None``; for another type, return the type itself and False.

    If the annotation is a ``NewType`` or an alias (``type X = ...``), it is replaced by the type that it names.
    Metadata of ``Annotated`` is kept. ``None`` itself is returned with True.
    """
    bare = annotation
    while (named := getattr(bare, "__supertype__", None) or _aliased_type(bare)) is not None:
        bare = named
    if extras := metadata(bare):
        inner, is_nullable = split_none(typing.get_args(bare)[0])
        return (Annotated[(inner, *extras)], True) if is_nullable else (bare, False)
    if typing.get_origin(bare) not in {Union, types.UnionType}:
        return bare, bare is None or bare is type(None)
    members = typing.get_args(bare)
    remaining = [(one, *split_none(one)) for one in members if one is not type(None)]
    # A member that is an alias is replaced if the alias includes None, or if it is the only member.
    replaced = tuple(inner if is_nullable or len(remaining) == 1 else one for one, inner, is_nullable in remaining)
    has_none = len(remaining) < len(members) or any(is_nullable for _, _, is_nullable in remaining)
    return Union[replaced], has_none  # noqa: UP007 - members vary


def metadata(annotation: object) -> tuple[object, ...]:
    """Return the metadata of ``Annotated[T, ...]``: all arguments after ``T``; empty for other types."""
    return typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()


def parts(annotation: object, *, with_fields: bool = False) -> Iterator[object]:
    """Yield a type and everything inside its brackets, at all levels: type arguments, union members and metadata.

    An alias ``type X = ...`` or NewType is followed by the type that it names. With ``with_fields``, the types of the
    fields of dataclasses, Structs, TypedDicts, NamedTuples, attrs classes and pydantic models are yielded, too.
    """
    pending, seen = [annotation], list[object]()
    while pending:
        part = pending.pop()
        if any(part is one for one in seen):
            continue  # A recursive type contains itself.
        seen.append(part)
        yield part
        pending += typing.get_args(part)
        origin = typing.get_origin(part) or part
        for named in (_aliased_type(part), _aliased_type(origin), getattr(part, "__supertype__", None)):
            if named is not None:
                pending.append(named)
        if with_fields:
            pending += _field_types(origin)


def _field_types(kind: object) -> list[object]:
    """Return the types of the fields of a class; empty for other classes, or if a name in them cannot be resolved."""
    if not isinstance(kind, type) or not any(hasattr(kind, name) for name in _FIELD_MARKS):
        return []
    if hasattr(kind, "model_fields"):
        fields: Mapping[str, Any] = kind.model_fields
        return [one for field in fields.values() for one in (field.annotation, *field.metadata)]
    try:
        return list(typing.get_type_hints(kind, include_extras=True).values())
    except (AttributeError, NameError, SyntaxError, TypeError):
        return []  # The codec reports the name.


_FIELD_MARKS = (
    "__dataclass_fields__",
    "__struct_fields__",
    "__attrs_attrs__",
    "__required_keys__",
    "_field_defaults",
    "model_fields",
)
"""Attributes of dataclasses, Structs, attrs classes, TypedDicts, NamedTuples and pydantic models."""


def described(annotation: object) -> str:
    """Return a type as source text for error messages, such as ``shop.Order | None``."""
    if annotation is None:
        return "None"
    return re.sub(r"\bForwardRef\('([^']*)'[^()]*\)", r"\1", inspect.formatannotation(annotation))


def _aliased_type(annotation: object) -> object:
    """Return the type that an alias ``type X = ...`` names; None for a type that is not an alias."""
    return getattr(annotation, "__value__", None) if type(annotation).__name__ == "TypeAliasType" else None
