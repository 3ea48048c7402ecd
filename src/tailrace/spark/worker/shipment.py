"""An app on its way to Spark's Python workers: by the place where they can import it, or as a whole by cloudpickle.

Rule of this file: what cannot be sent is told in the driver, with the name of the variable that is in the way.
"""

from __future__ import annotations

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

from tailrace.app.app import App
from tailrace.app.declare.dependencies import Overrides
from tailrace.app.declare.parameters import Depends
from tailrace.app.loading import check_place, load_app
from tailrace.app.substitution import settings_of
from tailrace.config import ConsumerConfig
from tailrace.errors import ConfigurationError
from tailrace.spark.handler_selection import SelectedHandlers
from tailrace.spark.worker.structs import differences, meta_reduction, struct_reduction

__all__ = ["Shipment", "pack", "place_of", "unpacked"]

_STAYING = frozenset(
    {
        "group_error_reactions",
        "group_instance_id",
        "hooks",
        "partition_assignment_strategy",
        "post_rebalance_callback",
        "rebalance_listener",
    }
)
"""Options of members of a group, which a worker is none; hooks are the app's own, wherever it comes from."""
_DEPTH = 6
"""So many functions deep somebody looks for what is in the way."""


@dataclass(frozen=True)
class Shipment:
    """What a worker needs to run handlers."""

    place: str | None
    """Where to import the app."""
    pickled: bytes = field(repr=False)
    """The app itself, where it cannot be imported; options and overrides, always."""
    numbers: tuple[int, ...]
    """Of the handlers to run, among those that the app declares."""
    names: tuple[str, ...]
    """Of the same."""
    group_id: str
    topics: tuple[str, ...]
    has_sink: bool
    path: tuple[str, ...]
    """Where the driver imports from; only what is there on the worker's machine counts."""


def pack(app: App, place: str | None, chosen: SelectedHandlers, config: ConsumerConfig, *, has_sink: bool) -> Shipment:
    """The app, ready to be sent.

    Raises:
        ConfigurationError: something of it cannot be pickled, or not be found by the worker; it says what.
    """
    options, overrides = _options(config), settings_of(app).overrides
    if place is not None:
        _check_overrides(overrides)
    try:
        whole = (None if place is not None else app, options, dict(overrides))
        _, structs = _dumped(whole)
        _check_structs(structs)
        # A class before those derived from it: made as the base of one that it refers to, it would make that one twice.
        pickled = _dumps((sorted(structs, key=lambda one: len(one.__mro__)), whole))
    except ConfigurationError:
        raise
    except Exception as error:
        raise _refusal(app, chosen, options, error) from error
    return Shipment(
        place,
        pickled,
        chosen.numbers,
        tuple(one.name for one in chosen.handlers),
        chosen.group_id,
        chosen.topics,
        has_sink,
        tuple(dict.fromkeys(one or str(Path.cwd()) for one in sys.path)),
    )


def unpacked(shipment: Shipment) -> App:
    """The app, in a worker.

    Raises:
        ConfigurationError: it cannot be imported there, or is another one.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    sys.path.extend(one for one in shipment.path if one not in sys.path)
    try:
        _, (app, options, overrides) = cloudpickle.loads(shipment.pickled)
        if shipment.place is not None:
            # By itself first: what it says is another thing here than where somebody calls a command.
            import_module(check_place(shipment.place)[0])
            app = load_app(shipment.place)
    except ImportError as error:
        raise ConfigurationError(
            f"Spark's workers cannot import what {shipment.place or 'the app'} needs ({error})"
            " - install it there, or send it along with spark.submit.pyFiles"
        ) from error
    names = tuple(app.declared[number].name for number in shipment.numbers if number < len(app.declared))
    if names != shipment.names:
        raise ConfigurationError(
            f"the workers have another app than the driver: {', '.join(names) or 'nothing'} instead of"
            f" {', '.join(shipment.names)} - install the same version everywhere"
        )
    app.configure(**options)
    for provider, replacement in overrides.items():
        app.override(provider, replacement)
    return cast("App", app)


def place_of(app: App) -> str | None:
    """``module:name`` of an app that is a global of a module with handlers of it; None where there is none."""
    homes = dict.fromkeys(getattr(one.function, "__module__", "") for one in app.declared)
    for name in [*homes, *sys.modules]:
        module = sys.modules.get(name)
        if module is None or name == "__main__" or not _is_importable(module):
            continue
        for variable, value in list(vars(module).items()):
            if value is app:
                return f"{name}:{variable}"
    return None


def _is_importable(module: types.ModuleType) -> bool:
    """Whether it came from a file below a place that imports look at."""
    spec = getattr(module, "__spec__", None)
    if spec is None or not spec.origin:
        return False
    parts = spec.name.split(".")
    endings = ("/".join(parts) + ".py", "/".join(parts) + "/__init__.py")
    # Where Python was started without a program, the folder it was started in has no name there.
    start_offsets = [(place or str(Path.cwd())).rstrip("/") for place in sys.path]
    return any(spec.origin in {f"{place}/{end}" for end in endings} for place in start_offsets)


def _options(config: ConsumerConfig) -> dict[str, Any]:
    """All options as the driver has resolved them: a worker's environment and the app's module may say others."""
    is_of_brokers = config.group_protocol == "consumer"
    return {
        one.name: getattr(config, one.name)
        for one in dataclasses.fields(config)
        # Where the broker decides something, nobody may say it.
        if one.name not in _STAYING and not (is_of_brokers and one.metadata["classic"])
    }


def _check_overrides(overrides: Overrides) -> None:
    """Of an app that a worker imports: it has to find each provider there, the very one that ``Depends`` names."""
    for provider in overrides:
        if not hasattr(provider, "__qualname__") or _goes_by_value(provider):
            raise ConfigurationError(
                f"override({_called(provider)}, ...) does not reach Spark's workers, which import the app and find no"
                " such provider there - make it a function of a module"
            )


# ---- pickling --------------------------------------------------------------------------------------------------


def _dumps(what: object) -> bytes:
    return _dumped(what)[0]


def _dumped(what: object) -> tuple[bytes, list[type[msgspec.Struct]]]:
    """Return the pickled bytes, and the Struct classes that are sent as a whole among them."""
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    cloudpickles: Any = cloudpickle.Pickler

    class Pickler(cloudpickles):  # type: ignore[misc] # untyped
        """cloudpickle's, for functions whose annotations are text and for Structs of a script or a notebook."""

        def __init__(self, out: io.BytesIO) -> None:
            cloudpickles.__init__(self, out)
            self.structs: dict[type[msgspec.Struct], None] = {}

        def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as pickle has it
            if isinstance(obj, App):
                make, arguments, state, *_ = cast("tuple[Any, ...]", obj.__reduce_ex__(4))
                return make, arguments, {**state, "_options": {"hooks": obj.options.get("hooks", ())}}
            if isinstance(obj, types.FunctionType) and _goes_by_value(obj):
                with _resolved(obj):
                    return cloudpickles.reducer_override(self, obj)
            if isinstance(obj, msgspec.Meta):
                return meta_reduction(obj)
            if isinstance(obj, type) and issubclass(obj, msgspec.Struct) and _goes_by_value(obj):
                self.structs[obj] = None
                return struct_reduction(obj)
            return cloudpickles.reducer_override(self, obj)

    out = io.BytesIO()
    pickler: Any = Pickler(out)
    pickler.dump(what)
    return out.getvalue(), list(pickler.structs)


def _check_structs(kinds: Sequence[type[msgspec.Struct]]) -> None:
    """Refuse a Struct class that would arrive in the workers as another one than it is here.

    Raises:
        ConfigurationError: naming the class, and what differs.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    for kind in kinds:
        try:
            differing = ", ".join(differences(kind, cloudpickle.loads(_dumps(kind))))
        except Exception as error:  # noqa: BLE001 - whatever the class raises while it is made again
            differing = f"{type(error).__name__}: {error}"
        if differing:
            raise ConfigurationError(
                f"{kind.__qualname__} cannot be sent to Spark's workers as it is ({differing})"
                " - put it into a module that they can import"
            )


def _goes_by_value(thing: Any) -> bool:  # noqa: ANN401 - a function or a class
    """As cloudpickle decides: what no import would find."""
    found: Any = sys.modules.get(thing.__module__)
    if thing.__module__ == "__main__" or found is None:
        return True
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not thing


class _resolved:  # noqa: N801 - used as a function
    """Annotations of a function as types for a moment: the names in their texts are not sent along."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function, self._before = function, dict(function.__annotations__)

    def __enter__(self) -> None:
        if any(isinstance(one, str) for one in self._before.values()):
            local = inspect.getclosurevars(self._function).nonlocals
            try:
                self._function.__annotations__ = typing.get_type_hints(
                    self._function, localns=dict(local), include_extras=True
                )
            except NameError:
                return  # whoever reads the signature says it better

    def __exit__(self, *_: object) -> None:
        self._function.__annotations__ = self._before


# ---- what is in the way ----------------------------------------------------------------------------------------


def _refusal(app: App, chosen: SelectedHandlers, options: Mapping[str, Any], error: Exception) -> ConfigurationError:
    found = next(_culprits(app, chosen, options), None)
    what = "the app" if found is None else found
    return ConfigurationError(
        f"{what} cannot be sent to Spark's workers ({type(error).__name__}: {error})"
        " - open it there, by Depends(..., scope='app'), or put the app into a module that they can import"
    )


def _culprits(app: App, chosen: SelectedHandlers, options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if not _can_be_sent(value):
            yield f"the option {name}={value!r:.80}"
    for handler in [*chosen.handlers, *app.declared]:
        yield from _used_by(f"handler {handler.name}", handler.function)
        for one in ("when", "codec", "middleware", "retry"):
            if not _can_be_sent(getattr(handler, one)):
                yield f"{one}= of handler {handler.name}"
    for hook in (*app.starting, *app.ending):
        yield from _used_by(str(getattr(hook, "__qualname__", hook)), hook)
    for provider, replacement in settings_of(app).overrides.items():
        if not _can_be_sent(replacement):
            yield f"what is called instead of {_called(provider)}"
    hooks: Any = app.options.get("hooks", ())
    yield from (f"the hook {one!r:.80}" for one in hooks if not _can_be_sent(one))


def _used_by(who: str, function: Callable[..., Any]) -> Iterator[str]:
    for name, value in _named(function):
        if (way := _way_to(name, value, _DEPTH)) is not None:
            yield f"{who} uses the variable {way}, which"


def _way_to(name: str, value: object, depth: int) -> str | None:
    """The name of what is in the way, through the functions that use it; None where nothing is."""
    if isinstance(value, App) or _can_be_sent(value):
        return None
    if depth and isinstance(value, types.FunctionType):
        for inner, used in _named(value):
            if (way := _way_to(inner, used, depth - 1)) is not None:
                return f"{way} (by way of {name})"
    return f"{name!r} ({type(value).__module__}.{type(value).__qualname__})"


def _named(function: Callable[..., Any]) -> Iterator[tuple[str, object]]:
    """What a function uses by name: variables around it, globals, defaults, and providers."""
    bare = inspect.unwrap(function)
    if not isinstance(bare, types.FunctionType):
        bare = getattr(bare, "__func__", None) or type(bare).__call__
    if not isinstance(bare, types.FunctionType):
        return
    used = inspect.getclosurevars(bare)
    yield from {**used.nonlocals, **used.globals}.items()
    for name, one in inspect.signature(bare).parameters.items():
        if one.default is not inspect.Parameter.empty:
            yield name, one.default
        for extra in typing.get_args(one.annotation)[1:]:
            if isinstance(extra, Depends):
                yield name, extra.provider


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", f"{function!r:.80}")


def _can_be_sent(value: object) -> bool:
    try:
        _dumps(value)
    except Exception:  # noqa: BLE001 - whatever pickling raises
        return False
    return True
