"""Pickling of ``msgspec.Struct`` classes of a script or a notebook, which workers cannot import.

The fields of a Struct class are stored in C. A worker therefore calls the metaclass to create the class again from its
name, bases, options and fields. Attributes that may refer to the class itself, such as methods with ``super()`` and
recursive annotations, are set afterward.
"""

from __future__ import annotations

import abc
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tailrace.errors import ConfigurationError

__all__ = ["differences", "meta_reduction", "struct_reduction"]

_CONFIG_OPTIONS = (
    "frozen", "eq", "order", "array_like", "gc", "repr_omit_defaults", "omit_defaults", "forbid_unknown_fields",
    "weakref", "dict", "cache_hash", "tag", "tag_field",
)  # fmt: skip
"""Options of a Struct class in its ``class`` statement."""
_MADE_BY_PYTHON = frozenset(
    {
        "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__",
        "__classcell__", "__dict__", "__doc__", "__firstlineno__", "__module__", "__orig_bases__", "__parameters__",
        "__qualname__", "__slots__", "__static_attributes__", "__weakref__", "_abc_impl",
    }
)  # fmt: skip
"""Attributes that Python or msgspec sets when it creates a class."""
_POST_INIT = "__post_init__"
_CONSTRAINTS = tuple(inspect.signature(msgspec.Meta).parameters)
"""Names of the constraints that ``msgspec.Meta`` takes."""


def struct_reduction(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    """Return a result of ``__reduce__`` with which pickle creates a Struct class again.

    Raises:
        ConfigurationError: a name in an annotation cannot be resolved.
    """
    annotations = _own_annotations(kind)
    own = [name for name in kind.__struct_fields__ if name in annotations]
    defaults = _defaults(kind)
    encoded = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    fields = {name: {"name": encoded[name], **defaults[name]} for name in own}
    config = kind.__struct_config__
    settings = {name: getattr(config, name) for name in _CONFIG_OPTIONS}
    settings["kw_only"] = bool(own) and not set(own) & set(kind.__match_args__)
    bases = types.get_original_bases(kind) if hasattr(types, "get_original_bases") else _original_bases(kind)
    attributes = {
        name: value for name, value in vars(kind).items() if name not in _MADE_BY_PYTHON and name not in fields
    }
    names = {name: vars(kind).get(name) for name in ("__module__", "__doc__")} | {"__qualname__": kind.__qualname__}
    arguments = (type(kind), kind.__name__, tuple(bases), names, fields, settings, _POST_INIT in attributes)
    return _create_class, arguments, (attributes, annotations), None, None, _set_attributes


def meta_reduction(meta: msgspec.Meta) -> tuple[Any, ...]:
    """Return a result of ``__reduce__`` with which pickle creates the constraints of an annotation again."""
    return _create_meta, ({name: value for name in _CONSTRAINTS if (value := getattr(meta, name)) is not None},)


def differences(before: type[msgspec.Struct], after: type[msgspec.Struct]) -> list[str]:
    """Return the names of the properties in which the restored class ``after`` differs from the original ``before``."""
    old, new = _properties(before), _properties(after)
    return [name for name in old if old[name] != new[name]]


# ---- in the worker ---------------------------------------------------------------------------------------------


def _create_meta(constraints: Mapping[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**constraints)


def _create_class(  # noqa: PLR0913, PLR0917 - pickle passes all arguments by position
    metaclass: type,
    name: str,
    bases: tuple[Any, ...],
    names: Mapping[str, Any],
    fields: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    has_post_init: bool,  # noqa: FBT001 - pickle passes all arguments by position
) -> type:
    namespace = dict(names, __annotations__=dict.fromkeys(fields, Any))
    namespace |= {field: msgspec.field(**parts) for field, parts in fields.items()}
    if has_post_init:
        namespace[_POST_INIT] = _forwarding_post_init()
    return types.new_class(name, bases, {"metaclass": metaclass, **settings}, lambda body: body.update(namespace))


def _forwarding_post_init() -> Callable[[Any], None]:
    """Return a ``__post_init__`` that calls another function, which ``_set_attributes`` stores in it later.

    The class needs a ``__post_init__`` from the beginning, because msgspec only looks for it when it creates the class.
    """

    def post_init(self: Any) -> None:  # noqa: ANN401 - of any Struct
        post_init.__dict__["real"](self)

    return post_init


def _set_attributes(kind: Any, state: tuple[Mapping[str, Any], Mapping[str, Any]]) -> None:  # noqa: ANN401 - a class
    attributes, annotations = state
    if _POST_INIT in attributes:
        vars(kind)[_POST_INIT].__dict__["real"] = attributes[_POST_INIT]
    for name, value in attributes.items():
        setattr(kind, name, value)
    kind.__annotations__ = dict(annotations)
    abc.update_abstractmethods(kind)


# ---- in the driver ---------------------------------------------------------------------------------------------


def _own_annotations(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the class's own annotations as types: names in annotations that are strings are unknown in a worker."""
    namespace = {"__annotations__": dict(inspect.get_annotations(kind)), "__module__": kind.__module__}
    try:
        return typing.get_type_hints(
            type(kind.__name__, (), namespace), localns={**vars(kind), kind.__name__: kind}, include_extras=True
        )
    except NameError as error:
        raise ConfigurationError(
            f"{kind.__qualname__} cannot be sent to Spark's workers: the name {error.name!r} of an annotation cannot be"
            " resolved - define it at the top of the module, or move the class to a module that they can import"
        ) from error


def _defaults(kind: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    fields, defaults = kind.__struct_fields__, kind.__struct_defaults__
    found: dict[str, dict[str, Any]] = {name: {} for name in fields}
    for name, default in zip(fields[len(fields) - len(defaults) :], defaults, strict=True):
        if hasattr(default, "factory") and type(default).__module__.startswith("msgspec"):
            found[name] = {"default_factory": default.factory}
        elif default is not msgspec.NODEFAULT:
            found[name] = {"default": default}
    return found


def _original_bases(kind: type) -> tuple[Any, ...]:
    return tuple(vars(kind).get("__orig_bases__", kind.__bases__))


def _properties(kind: type[msgspec.Struct]) -> dict[str, object]:
    config = kind.__struct_config__
    return {
        "bases": [one.__qualname__ for one in kind.__mro__],
        "fields": (kind.__struct_fields__, kind.__struct_encode_fields__, kind.__match_args__),
        "defaults": {name: sorted(parts) for name, parts in _defaults(kind).items()},
        "options": {name: getattr(config, name) for name in _CONFIG_OPTIONS},
        "attributes": sorted(vars(kind).keys() - _MADE_BY_PYTHON),
        "type parameters": len(getattr(kind, "__parameters__", ())),
        "abstract methods": sorted(getattr(kind, "__abstractmethods__", ())),
    }
