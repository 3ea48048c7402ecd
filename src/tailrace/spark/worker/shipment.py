"""Serialization of an app, and of what its tasks need, for Spark's Python workers.

If the app has an import path, only its options and overrides are pickled; otherwise, the app is pickled, too. If
pickling fails, the driver raises an error that names the variable which cannot be pickled.

Workers cannot import the ``msgspec.Struct`` classes of a script or a notebook, whose fields are stored in C. A worker
therefore calls the metaclass to create the class again from its name, bases, options and fields. Attributes that may
refer to the class itself, such as methods with ``super()`` and recursive annotations, are set afterward.

An encoded offset map often has a few bytes, a decoded one up to half a megabyte. Spark sends the same function to all
tasks of a job, so each task receives the encoded maps of all partitions, and decodes those of its own partitions.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import inspect
import io
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec

from tailrace.app.app import App, load_app, split_app_name
from tailrace.app.declare.dependencies import Overrides
from tailrace.app.declare.parameters import Depends
from tailrace.codecs.annotations import signature_of
from tailrace.config import ConsumerConfig
from tailrace.core.offset_map import OffsetMap, decode_metadata, encode_metadata
from tailrace.errors import ConfigurationError
from tailrace.records import TopicPartition
from tailrace.spark.handler_selection import SelectedHandlers
from tailrace.user_exceptions import error_text

__all__ = [
    "Shipment",
    "ShippedMaps",
    "differences",
    "import_path_of",
    "meta_reduction",
    "pack",
    "struct_reduction",
    "unpack",
]

# ---- offset maps -----------------------------------------------------------------------------------------------------


class ShippedMaps:
    """Encoded offset maps of all partitions; each map is decoded when it is first used.

    A map that is too large to be encoded is left out, and its records are handled again, as by a member.
    """

    def __init__(self, maps: Mapping[TopicPartition, OffsetMap]) -> None:
        self._texts = {
            one: (offset_map.base, encoded.text)
            for one, offset_map in maps.items()
            if not (encoded := encode_metadata(offset_map, "", sys.maxsize)).is_map_dropped
        }
        self._decoded: dict[TopicPartition, OffsetMap | None] = {}

    def __getstate__(self) -> Mapping[str, object]:
        return {"_texts": self._texts, "_decoded": {}}

    def get(self, partition: TopicPartition) -> OffsetMap | None:
        """Return the offset map of a partition; None if there is none."""
        if partition not in self._texts:
            return None
        if partition not in self._decoded:
            base, text = self._texts[partition]
            self._decoded[partition] = decode_metadata(text, base).offset_map
        return self._decoded[partition]


# ---- Struct classes --------------------------------------------------------------------------------------------------

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


# ---- Struct classes in the worker ------------------------------------------------------------------------------------


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


# ---- Struct classes in the driver ------------------------------------------------------------------------------------


def _own_annotations(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the class's own annotations as types: names in annotations that are strings are unknown in a worker."""
    try:
        namespace = {"__annotations__": dict(inspect.get_annotations(kind)), "__module__": kind.__module__}
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


# ---- app -------------------------------------------------------------------------------------------------------------

_NOT_SENT = frozenset(
    {
        "group_error_reactions",
        "group_instance_id",
        "hooks",
        "partition_assignment_strategy",
        "post_rebalance_callback",
        "rebalance_listener",
    }
)
"""Options that are not sent: options of group members, and ``hooks``, which a worker takes from the app."""
_MAX_DEPTH = 6
"""Maximum depth of the search for a variable that cannot be pickled, from function to function."""


@dataclass(frozen=True)
class Shipment:
    """Serialized app and the handlers to run."""

    import_path: str | None
    """Import path of the app, such as ``shop:billing``; None if the app itself is pickled."""
    pickled: bytes = field(repr=False)
    """Options and overrides, and the app itself if it has no import path."""
    handler_indices: tuple[int, ...]
    """Index of each handler to run in ``App.declared``."""
    handler_names: tuple[str, ...]
    """Name of each handler to run."""
    group_id: str
    topics: tuple[str, ...]
    has_sink: bool
    sys_path: tuple[str, ...]
    """``sys.path`` of the driver; folders that do not exist on the worker's machine have no effect."""
    is_expression: bool = False
    """True if the handlers run in an expression, whose app connects to brokers when it publishes."""
    omitted_indices: tuple[int, ...] = ()
    """Index of each handler whose records are taken, but which is not called."""


def pack(
    app: App, import_path: str | None, selected: SelectedHandlers, config: ConsumerConfig, *, has_sink: bool
) -> Shipment:
    """Serialize an app.

    Raises:
        ConfigurationError: a worker cannot unpickle or import a part of the app; the message names that part.
    """
    options, overrides = _options(config), app.runtime.overrides
    if import_path is not None:
        _check_overrides(overrides)
    try:
        contents = (None if import_path is not None else app, options, dict(overrides))
        _, structs = _pickled_with_structs(contents)
        _check_structs(structs)
        # Put base classes first: if unpickling a derived class created its base, the derived class would exist twice.
        pickled = _pickled((sorted(structs, key=lambda one: len(one.__mro__)), contents))
    except ConfigurationError:
        raise
    except Exception as error:
        raise _unsendable_error(app, selected, options, error) from error
    return Shipment(
        import_path,
        pickled,
        selected.indices,
        tuple(one.name for one in selected.handlers),
        selected.group_id,
        selected.topics,
        has_sink,
        tuple(dict.fromkeys(one or str(Path.cwd()) for one in sys.path)),
    )


def unpack(shipment: Shipment) -> App:
    """Restore the app in a worker.

    Raises:
        ConfigurationError: the worker cannot import the app, or has another version of it.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    sys.path.extend(one for one in shipment.sys_path if one not in sys.path)
    try:
        _, (app, options, overrides) = cloudpickle.loads(shipment.pickled)
        if shipment.import_path is not None:
            # Import the module first, so that an ImportError is raised here, and not as another error by load_app.
            import_module(split_app_name(shipment.import_path)[0])
            app = load_app(shipment.import_path)
    except ImportError as error:
        raise ConfigurationError(
            f"Spark's workers cannot import {shipment.import_path or 'the modules of the app'} ({error})"
            " - install it there, or send it with spark.submit.pyFiles"
        ) from error
    indices = (index for index in shipment.handler_indices if index < len(app.declared))
    names = tuple(app.declared[index].name for index in indices)
    if names != shipment.handler_names:
        raise ConfigurationError(
            f"the workers have another version of the app: handlers {', '.join(names) or '(none)'} instead of"
            f" {', '.join(shipment.handler_names)} - install the same version everywhere"
        )
    app.configure(**options)
    for provider, replacement in overrides.items():
        app.override(provider, replacement)
    return cast("App", app)


def import_path_of(app: App) -> str | None:
    """Return the import path ``module:name`` of an app that is a global variable of an importable module, or None."""
    modules = dict.fromkeys(getattr(one.function, "__module__", "") for one in app.declared)
    for name in [*modules, *sys.modules]:
        module = sys.modules.get(name)
        if module is None or name == "__main__" or not _is_importable(module):
            continue
        for variable, value in list(vars(module).items()):
            if value is app:
                return f"{name}:{variable}"
    return None


def _is_importable(module: types.ModuleType) -> bool:
    """Return True if a worker with the same ``sys.path`` would import the module from the same file."""
    spec = getattr(module, "__spec__", None)
    if spec is None or not spec.origin:
        return False
    parts = spec.name.split(".")
    endings = ("/".join(parts) + ".py", "/".join(parts) + "/__init__.py")
    # An empty entry of sys.path is the current directory.
    folders = [(folder or str(Path.cwd())).rstrip("/") for folder in sys.path]
    return any(spec.origin in {f"{folder}/{end}" for end in endings} for folder in folders)


def _options(config: ConsumerConfig) -> dict[str, Any]:
    """Return the options to send, resolved by the driver, because a worker may have other environment variables."""
    is_kip848 = config.group_protocol == "consumer"
    return {
        one.name: getattr(config, one.name)
        for one in dataclasses.fields(config)
        # Under KIP-848, options of the classic protocol must not be set.
        if one.name not in _NOT_SENT and not (is_kip848 and one.metadata["classic"])
    }


def _check_overrides(overrides: Overrides) -> None:
    """Check that workers can import each overridden provider, which must be the same object as in ``Depends``."""
    for provider in overrides:
        if not hasattr(provider, "__qualname__") or _is_pickled_by_value(provider):
            raise ConfigurationError(
                f"override({_qualified_name(provider)}, ...) has no effect in Spark's workers, which cannot import that"
                " provider - define the provider as a function of a module"
            )


# ---- pickling --------------------------------------------------------------------------------------------------


def _pickled(contents: object) -> bytes:
    return _pickled_with_structs(contents)[0]


def _pickled_with_structs(contents: object) -> tuple[bytes, list[type[msgspec.Struct]]]:
    """Return the pickle, and the Struct classes that are pickled by value in it."""
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    cloudpickles: Any = cloudpickle.Pickler

    class Pickler(cloudpickles):  # type: ignore[misc] # untyped
        """Pickler that also handles functions with annotations as strings, and Structs of a script or a notebook."""

        def __init__(self, out: io.BytesIO) -> None:
            cloudpickles.__init__(self, out)
            self.structs: dict[type[msgspec.Struct], None] = {}

        def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - signature of pickle
            if isinstance(obj, App):
                make, arguments, state, *_ = cast("tuple[Any, ...]", obj.__reduce_ex__(4))
                return make, arguments, {**state, "_options": {"hooks": obj.options.get("hooks", ())}}
            if isinstance(obj, types.FunctionType) and _is_pickled_by_value(obj):
                with _resolved_annotations(obj):
                    return cloudpickles.reducer_override(self, obj)
            if isinstance(obj, msgspec.Meta):
                return meta_reduction(obj)
            if isinstance(obj, type) and issubclass(obj, msgspec.Struct) and _is_pickled_by_value(obj):
                self.structs[obj] = None
                return struct_reduction(obj)
            return cloudpickles.reducer_override(self, obj)

    out = io.BytesIO()
    pickler: Any = Pickler(out)
    pickler.dump(contents)
    return out.getvalue(), list(pickler.structs)


def _check_structs(kinds: Sequence[type[msgspec.Struct]]) -> None:
    """Check that pickling and unpickling does not change any of the Struct classes.

    Raises:
        ConfigurationError: a class is changed; the message names the differences.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    for kind in kinds:
        try:
            differing = ", ".join(differences(kind, cloudpickle.loads(_pickled(kind))))
        except Exception as error:  # noqa: BLE001 - creating a class may raise any error
            differing = error_text(error)
        if differing:
            raise ConfigurationError(
                f"{kind.__qualname__} cannot be sent to Spark's workers unchanged ({differing})"
                " - move it to a module that they can import"
            )


def _is_pickled_by_value(thing: Any) -> bool:  # noqa: ANN401 - a function or a class
    """Return True if cloudpickle pickles the object by value, because no import would find it."""
    found: Any = sys.modules.get(thing.__module__)
    if thing.__module__ == "__main__" or found is None:
        return True
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not thing


class _resolved_annotations:  # noqa: N801 - used as a function
    """Context in which the annotations of a function are types instead of strings.

    A worker could not resolve names in strings, because the pickle does not contain them.
    """

    def __init__(self, function: types.FunctionType) -> None:
        self._function, self._before = function, dict[str, Any]()
        with contextlib.suppress(NameError):  # from Python 3.14 on; the worker raises a better error
            self._before = dict(function.__annotations__)

    def __enter__(self) -> None:
        if any(isinstance(one, str) for one in self._before.values()):
            local = inspect.getclosurevars(self._function).nonlocals
            try:
                self._function.__annotations__ = typing.get_type_hints(
                    self._function, localns=dict(local), include_extras=True
                )
            except NameError:
                return  # The worker raises a better error when it reads the signature.

    def __exit__(self, *_: object) -> None:
        if self._before:
            self._function.__annotations__ = self._before


# ---- errors ----------------------------------------------------------------------------------------------------


def _unsendable_error(
    app: App, selected: SelectedHandlers, options: Mapping[str, Any], error: Exception
) -> ConfigurationError:
    part = next(_unsendable_parts(app, selected, options), "the app")
    return ConfigurationError(
        f"{part} cannot be sent to Spark's workers ({error_text(error)})"
        " - open it in the worker with Depends(..., scope='app'), or move the app to a module that they can import"
    )


def _unsendable_parts(app: App, selected: SelectedHandlers, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield descriptions of the parts of the app that cannot be pickled."""
    for name, value in options.items():
        if not _can_be_sent(value):
            yield f"the option {name}={value!r:.80}"
    for handler in [*selected.handlers, *app.declared]:
        yield from _unsendable_variables(f"handler {handler.name}", handler.function)
        for one in ("when", "codec", "middleware", "retry"):
            if not _can_be_sent(getattr(handler, one)):
                yield f"{one}= of handler {handler.name}"
    for hook in (*app.start_hooks, *app.stop_hooks):
        yield from _unsendable_variables(str(getattr(hook, "__qualname__", hook)), hook)
    for provider, replacement in app.runtime.overrides.items():
        if not _can_be_sent(replacement):
            yield f"the override of {_qualified_name(provider)}"
    hooks: Any = app.options.get("hooks", ())
    yield from (f"the hook {one!r:.80}" for one in hooks if not _can_be_sent(one))


def _unsendable_variables(user: str, function: Callable[..., Any]) -> Iterator[str]:
    for name, value in _references(function):
        if (variable := _unpicklable_variable(name, value, _MAX_DEPTH)) is not None:
            yield f"{user} uses the variable {variable}, which"


def _unpicklable_variable(name: str, value: object, depth: int) -> str | None:
    """Return a description of a variable that cannot be pickled: ``value``, or one that the function ``value`` uses.

    The result is None if ``value`` can be pickled.
    """
    if isinstance(value, App) or _can_be_sent(value):
        return None
    if depth and isinstance(value, types.FunctionType):
        for inner, used in _references(value):
            if (variable := _unpicklable_variable(inner, used, depth - 1)) is not None:
                return f"{variable} (through {name})"
    return f"{name!r} ({type(value).__module__}.{type(value).__qualname__})"


def _references(function: Callable[..., Any]) -> Iterator[tuple[str, object]]:
    """Yield name and value of each object that a function uses: nonlocals, globals, defaults and providers."""
    unwrapped = inspect.unwrap(function)
    if not isinstance(unwrapped, types.FunctionType):
        unwrapped = getattr(unwrapped, "__func__", None) or type(unwrapped).__call__
    if not isinstance(unwrapped, types.FunctionType):
        return
    used = inspect.getclosurevars(unwrapped)
    yield from {**used.nonlocals, **used.globals}.items()
    for name, one in signature_of(unwrapped).parameters.items():
        if one.default is not inspect.Parameter.empty:
            yield name, one.default
        for extra in typing.get_args(one.annotation)[1:]:
            if isinstance(extra, Depends):
                yield name, extra.provider


def _qualified_name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", f"{function!r:.80}")


def _can_be_sent(value: object) -> bool:
    try:
        _pickled(value)
    except Exception:  # noqa: BLE001 - pickling may raise any error
        return False
    return True
