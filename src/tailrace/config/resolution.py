"""Where an option's value comes from, in this order: the argument, the environment, its default.

The environment is ``TAILRACE_SESSION_TIMEOUT_MS``, or ``TAILRACE_SASL_PLAIN_PASSWORD_FILE`` for a mounted secret.
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
from tailrace.config.options import ERROR_REACTIONS, ConsumerConfig, RebalanceListener
from tailrace.config.variables import PREFIX, check_variables
from tailrace.errors import ConfigurationError

__all__ = ["OLD_SPELLINGS", "changed", "check_names", "parsed_option", "resolve"]

OLD_SPELLINGS: Mapping[str, str] = {
    "auto_commit_enable": "enable_auto_commit",
    "auto_commit": "enable_auto_commit",
    "auto_commit_every_n": "auto_commit_every_records",
    "auto_commit_every_t": "auto_commit_interval_ms",
    "auto_commit_interval_messages": "auto_commit_every_records",
    "assignors": "partition_assignment_strategy",
    "broker_list": "bootstrap_servers",
    "brokers": "bootstrap_servers",
    "consumer_group": "group_id",
    "fetch_error_backoff_ms": "retry_backoff_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "fetch_size_bytes": "fetch_min_bytes",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "group": "group_id",
    "hosts": "bootstrap_servers",
    "iter_timeout": "consumer_timeout_ms",
    "max_buffer_size": "max_batch_bytes",
    "max_bytes": "fetch_max_bytes",
    "max_wait_time": "fetch_max_wait_ms",
    "metadata_broker_list": "bootstrap_servers",
    "min_bytes": "fetch_min_bytes",
    "default_offset_commit_callback": "offset_commit_callback",
    "offsets_commit_max_retries": "offset_commit_max_retries",
    "offsets_channel_backoff_ms": "retry_backoff_ms",
    "offsets_channel_socket_timeout_ms": "request_timeout_ms",
    "partition_allocator": "partition_assignment_strategy",
    "queued_max_messages": "max_queued_records",
    "queued_max_messages_kbytes": "max_buffered_bytes",
    "queued_min_messages": "max_queued_records",
    "rebalance_backoff_ms": "retry_backoff_ms",
    "rebalance_timeout_ms": "max_poll_interval_ms",
    "refresh_leader_backoff_ms": "retry_backoff_ms",
    "socket_receive_buffer_bytes": "receive_buffer_bytes",
    "socket_timeout_ms": "request_timeout_ms",
    "source_host": "local_addr",
    "source_port": "local_addr",
    "compacted_topic": "allow_offset_gaps",
    "deserializer": "value_deserializer",
    "deserializer_class": "value_deserializer",
    "num_consumer_fetchers": "num_fetchers",
}
"""What other clients call it, for an error that names ours."""

_FIELDS = {f.name: f for f in dataclasses.fields(ConsumerConfig)}
_HINTS = typing.get_type_hints(ConsumerConfig)


def check_names(options: Mapping[str, object], of_app: Collection[str] = ()) -> None:
    """Refuse options that do not exist.

    Args:
        options: Options by name.
        of_app: Names of options that only ``App(...)`` takes, for the hint.

    Raises:
        ConfigurationError: Names the option that was probably meant.
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
        elif close:
            hint = f"did you mean {close[0]!r}?"
        else:
            hint = "help(tailrace.Consumer) lists all options"
        raise ConfigurationError(f"there is no option {name!r} - {hint}")


def resolve(options: Mapping[str, object], environ: Mapping[str, str] | None = None) -> ConsumerConfig:
    """One frozen config of arguments, environment and defaults.

    Raises:
        ConfigurationError: an option is unknown, has a wrong type or value, or contradicts another.
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
    """``config`` with ``options`` set anew while a consumer runs; all or none.

    Raises:
        ConfigurationError: one is unknown, has a wrong value, contradicts another, or cannot be set any more.
    """
    check_names(options)
    for name in options:
        if not _FIELDS[name].metadata["live"]:
            able = ", ".join(sorted(one for one, field in _FIELDS.items() if field.metadata["live"]))
            raise ConfigurationError(f"{name} stays for a consumer's life - make a new one; these can change: {able}")
    values: dict[str, Any] = {name: _typed(name, value, name) for name, value in options.items()}
    found = dataclasses.replace(config, **values)
    check(found, options.keys())
    return found


def _filled_in(template: str, environ: Mapping[str, str]) -> str:
    """``group_instance_id`` with what it has to differ by."""
    known = {"hostname": platform.node(), "worker": environ.get("TAILRACE_WORKER", "0"), "pid": str(os.getpid())}
    try:
        name = template.format_map(known)
    except (KeyError, ValueError, IndexError, AttributeError):
        raise ConfigurationError(
            f"group_instance_id: {template!r} will not do - between braces it knows {', '.join(known)} and nothing else"
        ) from None
    if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in {".", ".."}:
        raise ConfigurationError(
            f"group_instance_id: {name!r} will not do - Kafka wants 1 to 249 letters, digits, dots, dashes, underscores"
        )
    return name


def parsed_option(name: str, text: str, where: str) -> object:
    """An option's value, from a text on a command line.

    Raises:
        ConfigurationError: there is no such option, or it is none that a text can give.
    """
    check_names({name: text})
    return _typed(name, _parsed(name, text, f"{where} {name}"), f"{where} {name}")


def _from_environment(name: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that says something of the option, and what it says."""
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
            # Without its cause: that one carries what the file says.
            raise ConfigurationError(f"{of_file}: {path} is not text in UTF-8") from None
    return None


def _parsed(name: str, text: str, variable: str) -> object:
    """A text from outside as the Python value that an argument would be."""
    if _FIELDS[name].metadata["as_is"]:
        raise ConfigurationError(f"{variable}: {name} is a Python object - give it as an argument")
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
        return text  # the next to look at it tells what is wrong


def _typed(name: str, value: object, where: str) -> object:
    """``value`` as the option's type wants it; ``where`` it comes from is told when it will not do."""
    metadata = _FIELDS[name].metadata
    if name == "partition_assignment_strategy":
        return _strategies(value, where)
    if name == "auto_offset_reset":
        return _reset(value, where)
    shown = "the given value" if metadata["secret"] else repr(value)
    if metadata["as_is"]:
        is_one, wanted = _OBJECTS[name]
        if not is_one(value) and not (value is None and _FIELDS[name].default is None):
            raise ConfigurationError(f"{where}: {shown} will not do: it has to be {wanted}")
        return tuple(value) if isinstance(value, list) else value
    if _HINTS[name] == tuple[str, ...] and isinstance(value, str):
        value = tuple(part.strip() for part in value.split(",") if part.strip())
    try:
        typed = msgspec.convert(value, _HINTS[name])
    except msgspec.ValidationError:
        raise ConfigurationError(f"{where}: {shown} will not do: it has to be {_wanted(_HINTS[name])}") from None
    if isinstance(typed, int):
        for limit, is_within, words in (
            (metadata["at_least"], operator.ge, "at least"),
            (metadata["at_most"], operator.le, "at most"),
        ):
            if limit is not None and not is_within(typed, limit):
                raise ConfigurationError(f"{where}: {typed} will not do: it has to be {words} {limit}")
    return typed


def _strategies(value: object, where: str) -> tuple[object, ...]:
    """One strategy or several, each a name or a function; whether the names are known is looked at later."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    several = (value,) if callable(value) else value
    if not isinstance(several, Sequence) or not all(isinstance(one, str) or callable(one) for one in several):
        raise ConfigurationError(f"{where}: {value!r} will not do: it has to be names or functions, one or several")
    return tuple(several)


def _time_in(text: str) -> object:
    """A time, or a duration, as ISO 8601 writes them, or milliseconds."""
    for kind in (int, dt.datetime, dt.timedelta):
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(text.strip(), kind, strict=False)
    return text


def _reset(value: object, where: str) -> object:
    """A policy, or a time or duration; outside of Python as ISO 8601 writes them."""
    if value is None or value in {"earliest", "latest", "none"}:
        return value
    given = _time_in(value) if isinstance(value, str) else value
    is_number = isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63
    is_time = isinstance(given, dt.datetime) and given.tzinfo is not None
    if is_number or is_time or (isinstance(given, dt.timedelta) and given >= dt.timedelta(0)):
        return given
    raise ConfigurationError(
        f"{where}: {value!r} will not do: it has to be one of 'earliest', 'latest', 'none', or a time with its zone"
        " (2026-01-31T12:00:00Z), or how long ago (PT12H)"
    )


def _wanted(hint: Any) -> str:  # noqa: ANN401 - any type of an option
    """A type in the words of a user."""
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, choices))
    if type(None) in choices:
        return f"{_wanted(typing.Union[tuple(one for one in choices if one is not type(None))])} or None"  # noqa: UP007
    words = {int: "a whole number", bool: "True or False", str: "a text", tuple[str, int]: "a host and a port"}
    return words.get(hint, "one text or several, as a list or separated by commas")


def _is_plain(value: object) -> bool:
    return callable(value) and not inspect.iscoroutinefunction(value)


def _is_hook(value: object) -> bool:
    return not isinstance(value, type) and _is_plain(getattr(value, "on_event", None))


_OBJECTS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "hooks": (
        lambda value: isinstance(value, Sequence) and all(map(_is_hook, value)),
        "a list of objects with on_event(event), a plain method",
    ),
    "offset_commit_callback": (callable, "a function of (offsets, error)"),
    "post_rebalance_callback": (callable, "a function of (consumer, old_offsets, new_offsets)"),
    "rebalance_listener": (
        lambda value: (
            not isinstance(value, type)
            and any(callable(getattr(value, name, None)) for name in vars(RebalanceListener) if name[:2] == "on")
        ),
        "an object with any of on_partitions_revoked, on_partitions_assigned and on_partitions_lost",
    ),
    "group_error_reactions": (
        lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(code, int) for code in value)
            and all(callable(one) or one in ERROR_REACTIONS for one in value.values())
        ),
        f"a mapping of error codes to {', '.join(ERROR_REACTIONS)}, or functions of the code that say one of these",
    ),
    "key_deserializer": (_is_plain, "a plain function of bytes"),
    "value_deserializer": (_is_plain, "a plain function of bytes"),
    "ssl_context": (lambda value: isinstance(value, ssl.SSLContext), "an ssl.SSLContext"),
    "sasl_oauth_token_provider": (callable, "an async function that returns a token"),
}
"""What the options are that are Python objects."""
