"""Resolution of options: an argument takes precedence over the environment, the environment over the default.

The variable of ``session_timeout_ms`` is ``TAILRACE_SESSION_TIMEOUT_MS``. With the suffix ``_FILE``, as in
``TAILRACE_SASL_PLAIN_PASSWORD_FILE``, a variable names a file that contains the option's value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import difflib
import inspect
import operator
import os
import platform
import re
import ssl
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from tailrace.config.addresses import split_address
from tailrace.config.checks import check
from tailrace.config.options import ERROR_REACTIONS, ConsumerConfig
from tailrace.config.spellings import OLD_SPELLINGS
from tailrace.config.variables import PREFIX, check_variables
from tailrace.errors import ConfigurationError

__all__ = ["changed", "check_names", "parsed_option", "resolve"]

_ARGUMENTS = {"max_poll_records": "getmany(max_records=...)", "listener": "the option 'rebalance_listener'"}
"""Options of other clients that are not options of tailrace, and what to use instead."""

_FIELDS = {f.name: f for f in dataclasses.fields(ConsumerConfig)}
_HINTS = typing.get_type_hints(ConsumerConfig)


def check_names(options: Mapping[str, object], of_app: Collection[str] = ()) -> None:
    """Check that options exist.

    Args:
        options: Options by name.
        of_app: Names of options that only ``App(...)`` takes, for the hint.

    Raises:
        ConfigurationError: An option does not exist; the message names the option that was probably meant.
    """
    for name in options:
        if name in _FIELDS:
            continue
        if name in of_app:
            raise ConfigurationError(f"{name} is an option of App() and its handlers only - pass it there")
        plain = name.replace(".", "_").lower()
        meant = plain if plain in _FIELDS else OLD_SPELLINGS.get(plain)
        close = difflib.get_close_matches(plain, [*_FIELDS, *of_app], n=1)
        if meant is not None:
            hint = f"it is called {meant!r} here"
        elif plain in _ARGUMENTS:
            hint = f"use {_ARGUMENTS[plain]}"
        elif close:
            hint = f"did you mean {close[0]!r}?"
        else:
            hint = "help(tailrace.Consumer) lists all options"
        raise ConfigurationError(f"there is no option {name!r} - {hint}")


def resolve(options: Mapping[str, object], environ: Mapping[str, str] | None = None) -> ConsumerConfig:
    """Return the config that results from arguments, environment and defaults.

    Raises:
        ConfigurationError: An option is unknown, has an invalid value, or contradicts another.
    """
    check_names(options)
    environ = os.environ if environ is None else environ
    check_variables(environ, _FIELDS)
    values: dict[str, Any] = {}
    for name in _FIELDS:
        if name in options:
            values[name] = _typed(name, options[name], name)
        elif (found := _from_environment(name, environ)) is not None:
            variable, text = found
            values[name] = _typed(name, _parsed(name, text, variable), variable)
    if (template := values.get("group_instance_id")) is not None:
        values["group_instance_id"] = _filled_in(template, environ)
    config = ConsumerConfig(**values)
    check(config, values.keys())
    return config


def changed(config: ConsumerConfig, options: Mapping[str, object]) -> ConsumerConfig:
    """Return ``config`` with ``options`` changed, for a running consumer.

    Raises:
        ConfigurationError: An option is unknown, invalid, contradicts another, or cannot be changed.
    """
    check_names(options)
    for name in options:
        if not _FIELDS[name].metadata["live"]:
            able = ", ".join(sorted(one for one, field in _FIELDS.items() if field.metadata["live"]))
            raise ConfigurationError(
                f"{name} cannot be changed while a consumer runs - make a new one; these can be: {able}"
            )
    values: dict[str, Any] = {name: _typed(name, value, name) for name, value in options.items()}
    found = dataclasses.replace(config, **values)
    check(found, options.keys())
    return found


def _filled_in(template: str, environ: Mapping[str, str]) -> str:
    """Fill in the template of ``group_instance_id``."""
    known = {"hostname": platform.node(), "worker": environ.get("TAILRACE_WORKER", "0"), "pid": str(os.getpid())}
    try:
        name = template.format_map(known)
    except (KeyError, ValueError, IndexError, AttributeError):
        raise ConfigurationError(
            f"group_instance_id: {template!r} is not a valid template - it may contain {{{'}, {'.join(known)}}}"
        ) from None
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in {".", ".."}:
        raise ConfigurationError(
            f"group_instance_id must have 1 to 249 letters, digits, dots, dashes and underscores, not {name!r}"
        )
    return name


def parsed_option(name: str, text: str, where: str) -> object:
    """Return the value of an option that is given as text on a command line.

    Raises:
        ConfigurationError: The option is unknown, invalid, or takes a Python object.
    """
    check_names({name: text})
    return _typed(name, _parsed(name, text, f"{where} {name}"), f"{where} {name}")


def _from_environment(name: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the variable that sets an option, and its text."""
    variable = PREFIX + name.upper()
    if variable in environ:
        return variable, environ[variable]
    of_file = f"{variable}_FILE"
    if path := environ.get(of_file):
        try:
            return of_file, Path(path).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise ConfigurationError(f"{of_file}: {error}") from error
        except UnicodeDecodeError:
            # The cause is left out, because it contains the secret.
            raise ConfigurationError(f"{of_file}: {path} is not UTF-8 text") from None
    return None


def _parsed(name: str, text: str, variable: str) -> object:
    """Return the Python value of a text; return invalid text unchanged, so that ``_typed`` raises the error."""
    if _FIELDS[name].metadata["as_is"]:
        raise ConfigurationError(f"{variable}: {name} takes a Python object - pass it as an argument")
    kind = _HINTS[name]
    if kind in {str, str | None}:
        return text
    if kind == tuple[str, int] | None:
        return split_address(text, variable, default_port=0)
    if name in {"partition_assignment_strategy", "auto_offset_reset"}:
        return text
    try:
        return msgspec.convert(text.strip(), kind, strict=False)
    except msgspec.ValidationError:
        return text


def _typed(name: str, value: object, where: str) -> object:
    """Return ``value`` converted to the type of an option.

    Raises:
        ConfigurationError: The value is invalid; the message starts with ``where``, the source of the value.
    """
    metadata = _FIELDS[name].metadata
    if name == "partition_assignment_strategy":
        return _strategies(value, where)
    if name == "auto_offset_reset":
        return _reset(value, where)
    shown = "the given value" if metadata["secret"] else repr(value)
    if metadata["as_is"]:
        is_one, wanted = _OBJECTS[name]
        if not is_one(value) and not (value is None and _FIELDS[name].default is None):
            raise ConfigurationError(f"{where} must be {wanted}, not {shown}")
        return tuple(value) if isinstance(value, list) else value
    if _HINTS[name] == tuple[str, ...] and isinstance(value, str):
        value = tuple(part.strip() for part in value.split(",") if part.strip())
    try:
        typed = msgspec.convert(value, _HINTS[name])
    except msgspec.ValidationError:
        raise ConfigurationError(f"{where} must be {_wanted(_HINTS[name])}, not {shown}") from None
    if isinstance(typed, int):
        for limit, is_within, words in (
            (metadata["at_least"], operator.ge, "at least"),
            (metadata["at_most"], operator.le, "at most"),
        ):
            if limit is not None and not is_within(typed, limit):
                raise ConfigurationError(f"{where} must be {words} {limit}, not {typed}")
    return typed


def _strategies(value: object, where: str) -> tuple[object, ...]:
    """Return assignors, each a name or a function; ``checks`` raises an error for unknown names."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    several = (value,) if callable(value) else value
    if not isinstance(several, Sequence) or not all(isinstance(one, str) or callable(one) for one in several):
        raise ConfigurationError(f"{where} must be one or several names or functions, not {value!r}")
    return tuple(several)


def _time_in(text: str) -> object:
    """Parse a time or a duration in ISO 8601 or milliseconds; return other text unchanged."""
    for kind in (int, dt.datetime, dt.timedelta):
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(text.strip(), kind, strict=False)
    return text


def _reset(value: object, where: str) -> object:
    """Return a policy, a time or a duration."""
    if value is None or value in {"earliest", "latest", "none"}:
        return value
    given = _time_in(value) if isinstance(value, str) else value
    is_number = isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63
    is_time = isinstance(given, dt.datetime) and given.tzinfo is not None
    if is_number or is_time or (isinstance(given, dt.timedelta) and given >= dt.timedelta(0)):
        return given
    raise ConfigurationError(
        f"{where} must be 'earliest', 'latest', 'none', a time with its zone (2026-01-31T12:00:00Z), or a duration"
        f" before now (PT12H), not {value!r}"
    )


def _wanted(hint: Any) -> str:  # noqa: ANN401 - any type of an option
    """Return the words for a type."""
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, choices))
    if type(None) in choices:
        return f"{_wanted(typing.Union[tuple(one for one in choices if one is not type(None))])} or None"  # noqa: UP007
    words = {int: "an integer", bool: "True or False", str: "a string", tuple[str, int]: "a host and a port"}
    return words.get(hint, "one or several strings, as a list or separated by commas")


def _is_plain(value: object) -> bool:
    return callable(value) and not inspect.iscoroutinefunction(value)


def _is_hook(value: object) -> bool:
    return not isinstance(value, type) and _is_plain(getattr(value, "on_event", None))


_LISTENER_METHODS = ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost")
_OBJECTS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "hooks": (
        lambda value: isinstance(value, Sequence) and all(map(_is_hook, value)),
        "a list of objects with on_event(event), a plain method",
    ),
    "offset_commit_callback": (callable, "a function of (offsets, error)"),
    "post_rebalance_callback": (callable, "a function of (consumer, old_offsets, new_offsets)"),
    "rebalance_listener": (
        lambda value: (
            not isinstance(value, type) and any(callable(getattr(value, name, None)) for name in _LISTENER_METHODS)
        ),
        "an object with any of on_partitions_revoked, on_partitions_assigned and on_partitions_lost",
    ),
    "group_error_reactions": (
        lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(code, int) for code in value)
            and all(callable(one) or one in ERROR_REACTIONS for one in value.values())
        ),
        f"a mapping of error codes to {', '.join(ERROR_REACTIONS)}, or functions of the code that return one of these",
    ),
    "key_deserializer": (_is_plain, "a plain function of bytes"),
    "value_deserializer": (_is_plain, "a plain function of bytes"),
    "ssl_context": (lambda value: isinstance(value, ssl.SSLContext), "an ssl.SSLContext"),
    "sasl_oauth_token_provider": (callable, "an async function that returns a token"),
}
"""Check and description of each option that takes a Python object."""
