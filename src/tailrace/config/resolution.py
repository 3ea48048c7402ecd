"""Values of options: from an argument, or else from an environment variable, or else the default.

The variable of the option ``session_timeout_ms``, for example, is ``TAILRACE_SESSION_TIMEOUT_MS``. A variable with the
suffix ``_FILE``, such as ``TAILRACE_SASL_PLAIN_PASSWORD_FILE``, has the path of a file that contains the value.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import difflib
import logging
import operator
import os
import platform
import re
import ssl
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

import msgspec

from tailrace.awaitables import is_coroutine_function
from tailrace.config.options import (
    ASSIGNMENT_STRATEGIES,
    ERROR_REACTIONS,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
)
from tailrace.config.other_clients import (
    COUNTED_OTHERWISE,
    NOT_OF_PRODUCERS,
    NOT_OPTIONS,
    OTHER_SPELLINGS,
    PARTITIONERS,
    PRODUCER_SPELLINGS,
)
from tailrace.errors import ConfigurationError
from tailrace.values import Hidden, Secret

__all__ = [
    "PREFIX",
    "app_producer_config",
    "check_combinations",
    "check_names",
    "check_positive",
    "check_producer_combinations",
    "check_variables",
    "hide_secrets",
    "parse_option",
    "place_of",
    "producer_config",
    "refuse_inline_pem",
    "resolve",
    "resolve_producer",
    "similar",
    "similar_provider",
    "split_address",
    "with_changes",
]

# ---- addresses -------------------------------------------------------------------------------------------------------

_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\s\[\]]+)\]|(?P<host>[^\s:,/@\[\]]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII)


def split_address(address: str, where: str = "bootstrap_servers", *, default_port: int = 9092) -> tuple[str, int]:
    """Split ``host:port`` or ``[IPv6 address]:port`` into host and port; without a port, use ``default_port``.

    Port 0 is valid only with ``default_port=0``.

    Raises:
        ConfigurationError: the address is invalid; the message starts with ``where``.
    """
    found = _ADDRESS.fullmatch(address.strip())
    host, port = (found["v6"] or found["host"], int(found["port"] or default_port)) if found else ("", -1)
    if not host or not min(default_port, 1) <= port <= 65_535:
        raise ConfigurationError(
            f"{where}: {_without_credentials(address)!r} is not an address - write host:port, such as localhost:9092"
        )
    return host, port


def _without_credentials(address: str) -> str:
    """Return a text for error messages, with ``***`` in place of what a URL has before the ``@`` of its host."""
    credentials, at, host = address.rpartition("@")
    return f"{credentials.rpartition('//')[0]}{'//' if '//' in credentials else ''}***@{host}" if at else address


# ---- combinations of options -----------------------------------------------------------------------------------------


def check_combinations(config: ConsumerConfig, set_names: Collection[str]) -> None:
    """Check that options do not contradict each other.

    Args:
        config: values of all options.
        set_names: names of the options that an argument or an environment variable has set.

    Raises:
        ConfigurationError: options contradict each other; the message names them.
    """
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise ConfigurationError(
            f"heartbeat_interval_ms={config.heartbeat_interval_ms} must be less than "
            f"session_timeout_ms={config.session_timeout_ms} - set it to at most a third of session_timeout_ms, so that"
            " the member stays in the group when one heartbeat is lost"
        )
    _check_group(config)
    _check_protocol(config, set_names)
    if config.request_timeout_ms <= config.fetch_max_wait_ms:
        raise ConfigurationError(
            f"request_timeout_ms={config.request_timeout_ms} must be more than "
            f"fetch_max_wait_ms={config.fetch_max_wait_ms}, for which a broker without new records holds a request"
            " - raise the first or lower the second"
        )
    _check_client(config)


_LEVELS: Mapping[str, tuple[int, int]] = {"gzip": (1, 9), "lz4": (1, 17), "zstd": (-131_072, 22)}
"""Lowest and highest level of each compression that has levels (KIP-390)."""


def check_producer_combinations(config: ProducerConfig) -> None:
    """Check that options do not contradict each other.

    Raises:
        ConfigurationError: options contradict each other; the message names them.
    """
    if config.acks != "all":
        for name, value in (
            ("enable_idempotence", config.enable_idempotence),
            ("transactional_id", config.transactional_id),
        ):
            if value:
                raise ConfigurationError(
                    f"{name}={value!r} needs acks='all', not {config.acks!r} - remove one of the two"
                )
    if config.transactional_id is not None and config.enable_idempotence is False:
        raise ConfigurationError("transactional_id needs idempotence - remove enable_idempotence=False")
    if config.transactional_id == "":
        raise ConfigurationError("transactional_id must not be empty - give each process a name of its own")
    if config.linger_ms >= config.delivery_timeout_ms:
        raise ConfigurationError(
            f"linger_ms={config.linger_ms} must be less than delivery_timeout_ms={config.delivery_timeout_ms}, which"
            " includes it - lower the first or raise the second"
        )
    _check_compression(config)
    _check_client(config)


def _check_compression(config: ProducerConfig) -> None:
    level, codec = config.compression_level, config.compression_type
    if level is None:
        return
    if codec not in _LEVELS:
        raise ConfigurationError(
            f"compression_level={level} needs compression_type 'gzip', 'lz4' or 'zstd', not {codec!r}"
            " - set one of them, or remove compression_level"
        )
    least, most = _LEVELS[codec]
    if not least <= level <= most:
        raise ConfigurationError(
            f"compression_level must be {least} to {most} with compression_type={codec!r}, not {level}"
        )


def _check_client(config: ClientConfig) -> None:
    for pause in ("reconnect_backoff", "retry_backoff"):
        first, longest = getattr(config, f"{pause}_ms"), getattr(config, f"{pause}_max_ms")
        if first > longest:
            raise ConfigurationError(
                f"{pause}_ms={first} must be at most {pause}_max_ms={longest} - lower the first or raise the second"
            )
    for address in config.bootstrap_servers:
        split_address(address)
    _check_security(config)


def _check_group(config: ConsumerConfig) -> None:
    if config.enable_auto_commit and config.group_id is None:
        raise ConfigurationError(
            "enable_auto_commit=True needs a group_id: offsets are committed for a group - set group_id, or remove"
            " enable_auto_commit=True"
        )
    if config.reset_offset_on_start and config.group_id is None:
        raise ConfigurationError(
            "reset_offset_on_start=True needs a group_id, whose committed offsets it ignores - set group_id, or remove"
            " reset_offset_on_start=True"
        )
    if config.reset_offset_on_start and config.offset_reset == "none":
        raise ConfigurationError(
            "reset_offset_on_start=True starts at auto_offset_reset, which must not be 'none' - set auto_offset_reset"
            " to 'earliest', 'latest', a duration or a time"
        )
    if config.group_id == "":
        raise ConfigurationError(
            "group_id must not be empty - set the name of a group, or leave it out to read without a group"
        )
    if config.group_instance_id is not None and config.group_id is None:
        raise ConfigurationError("group_instance_id needs a group_id: it names a member of that group - set group_id")


def _check_protocol(config: ConsumerConfig, set_names: Collection[str]) -> None:
    if config.group_protocol == "consumer":
        classic_only = [
            f.name for f in dataclasses.fields(ConsumerConfig) if f.metadata["classic"] and f.name in set_names
        ]
        if classic_only:
            raise ConfigurationError(
                f"{', '.join(classic_only)} cannot be set with group_protocol='consumer', where the brokers' settings"
                f" group.consumer.* apply - remove {'it' if len(classic_only) == 1 else 'them'}, and change those"
                " settings if necessary"
            )
        if config.group_id is None:
            raise ConfigurationError("group_protocol='consumer' needs a group_id - set it to the group to join")
    elif config.group_remote_assignor is not None:
        raise ConfigurationError(
            "group_remote_assignor needs group_protocol='consumer' - set it; with the classic protocol, set"
            " partition_assignment_strategy instead"
        )
    named = [one for one in config.partition_assignment_strategy if isinstance(one, str)]
    unknown = [name for name in named if name not in ASSIGNMENT_STRATEGIES]
    if unknown or not config.partition_assignment_strategy:
        names = ", ".join(map(repr, unknown))
        raise ConfigurationError(
            f"partition_assignment_strategy {f'has unknown names: {names}' if unknown else 'must not be empty'}"
            f" - name one or more of {', '.join(ASSIGNMENT_STRATEGIES)}, most preferred first, or pass a function"
        )


def refuse_inline_pem(name: str, path: str | None, advice: str) -> None:
    """Check that ``path`` is not PEM text, which may be a secret key and must not appear in errors or logs.

    Raises:
        ConfigurationError: ``path`` is PEM text; the message contains ``name`` and ``advice``, but not the text.
    """
    if path is not None and "-----BEGIN" in path:
        raise ConfigurationError(f"{name} must be the path of a file, not its PEM text - {advice}")


_ALTERNATIVES: Mapping[str, str] = {
    "ssl_cafile": "ssl_ca_pem",
    "ssl_certfile": "ssl_certificate_pem",
    "ssl_keyfile": "ssl_key_pem",
    "sasl_plain_password_file": "sasl_plain_password",
}
"""Options that take the path of a file, mapped to those that take its text."""
_ALTERNATIVE_OF = {**_ALTERNATIVES, **{text: path for path, text in _ALTERNATIVES.items()}}
"""Option in place of which another one, as an argument, is used, even if an environment variable sets it."""


def _check_files(config: ClientConfig) -> None:
    for path, text in _ALTERNATIVES.items():
        if getattr(config, path) is not None and getattr(config, text) is not None:
            raise ConfigurationError(f"{path} and {text} contradict each other - set only one of them")
        if path.startswith("ssl_"):
            refuse_inline_pem(path, getattr(config, path), f"set {text} to the text")
            if getattr(config, text) is not None and "-----BEGIN " not in getattr(config, text):
                raise ConfigurationError(
                    f"{text} must be PEM text, which has a line -----BEGIN …----- - set {path} to the path of a file"
                )
    if config.ssl_certfile is None and config.ssl_certificate_pem is None:
        if config.ssl_keyfile is not None:
            raise ConfigurationError("ssl_keyfile needs ssl_certfile - set it to the path of the key's certificate")
        if config.ssl_key_pem is not None:
            raise ConfigurationError("ssl_key_pem needs ssl_certificate_pem - set it to the key's certificate")


_PROXY = re.compile(
    r"(?:socks5h?|http)://(?:(?P<user>[^\s:@/]+):(?P<password>[^\s:@/]*)@)?(?:\[[^\s\[\]@/]+\]|[^\s:@/\[\]]+):[0-9]{1,5}/?",
    re.ASCII,
)


def _check_proxy(url: str | None) -> None:
    """Check the form of ``proxy_url``; the error does not show the value, which may contain a password."""
    if url is None:
        return
    from urllib.parse import unquote  # noqa: PLC0415 - delays the import of Consumer

    found, url = Hidden(_PROXY.fullmatch(url)), None
    credentials = Hidden([unquote(found.value[one] or "") for one in ("user", "password")] if found.value else [])
    if not credentials.value or not all(len(one) < 256 and one.isascii() for one in credentials.value):
        raise ConfigurationError(
            "proxy_url must be socks5h://host:port, socks5://host:port or http://host:port, with user:password@ before"
            " the host if the proxy needs them, not the given value - percent-encode special characters in both"
        )


def _check_security(config: ClientConfig) -> None:
    _check_files(config)
    _check_proxy(config.proxy_url)
    if not config.security_protocol.startswith("SASL"):
        return
    mechanism = config.sasl_mechanism
    if mechanism == "OAUTHBEARER":
        if config.sasl_oauth_token_provider is None:
            raise ConfigurationError(
                f"sasl_mechanism='OAUTHBEARER' needs sasl_oauth_token_provider - set it to {_PROVIDER_FORMS}"
            )
        _check_oauthbearer(config)
    elif mechanism != "GSSAPI" and (
        config.sasl_plain_username is None
        or (config.sasl_plain_password is None and config.sasl_plain_password_file is None)
    ):
        raise ConfigurationError(
            f"sasl_mechanism={mechanism!r} needs sasl_plain_username and sasl_plain_password - set both, or the file"
            " of the password as sasl_plain_password_file"
        )


_EXTENSION = re.compile(r"(?!auth=)[A-Za-z]+=[\x21-\x7e \t\r\n]+")
"""SASL extension (RFC 7628, section 3.1)."""


def _check_oauthbearer(config: ClientConfig) -> None:
    for extension in config.sasl_oauthbearer_extensions:
        if not _EXTENSION.fullmatch(extension):
            raise ConfigurationError(
                f"sasl_oauthbearer_extensions: {extension.partition('=')[0]!r} is not an extension"
                " - write key=value, with a key of A to Z and a to z, and a value of printable ASCII characters"
            )
    if config.sasl_oauth_token_provider != "oidc":  # noqa: S105 - a name
        return
    url = config.sasl_oauthbearer_token_endpoint_url
    if url is None or not re.match(r"https?://[^\s/@]+(/[^\s]*)?$", url):
        raise ConfigurationError(
            "sasl_oauth_token_provider='oidc' needs sasl_oauthbearer_token_endpoint_url"
            " - set it to the identity provider's token endpoint, such as https://login.example.org/oauth2/token"
        )
    if config.sasl_oauthbearer_grant_type == "client_credentials":
        if config.sasl_oauthbearer_client_id is None or config.sasl_oauthbearer_client_secret is None:
            raise ConfigurationError(
                "sasl_oauth_token_provider='oidc' needs sasl_oauthbearer_client_id and sasl_oauthbearer_client_secret"
                " - set both, or another sasl_oauthbearer_grant_type"
            )
        return
    if (config.sasl_oauthbearer_assertion_file is None) == (config.sasl_oauthbearer_assertion_private_key_file is None):
        raise ConfigurationError(
            f"sasl_oauthbearer_grant_type={config.sasl_oauthbearer_grant_type!r} needs"
            " sasl_oauthbearer_assertion_file or sasl_oauthbearer_assertion_private_key_file - set one of them"
        )
    issuer = config.sasl_oauthbearer_assertion_claim_iss or config.sasl_oauthbearer_client_id
    if config.sasl_oauthbearer_assertion_private_key_file is not None and issuer is None:
        raise ConfigurationError(
            "sasl_oauthbearer_assertion_private_key_file needs sasl_oauthbearer_assertion_claim_iss"
            " - set it, or sasl_oauthbearer_client_id, to the issuer of the JWT"
        )


# ---- names of environment variables ----------------------------------------------------------------------------------

PREFIX = "TAILRACE_"
_TOOL_VARIABLES = {"DEAD_LETTER_TOPIC", "WORKER"}
_TEST_PREFIX = "TEST_"
_KUBERNETES_VARIABLE = re.compile(
    r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes sets for a service whose name begins with ``tailrace``, without their prefix."""
_MIN_SIMILARITY = 0.85
"""Minimum similarity (0 to 1) of a variable's name to that of an option for an error instead of a warning."""
_reported: set[str] = set()
"""Unknown variables for which a warning was logged."""


def check_variables(environ: Hidden, options: Collection[str]) -> None:
    """Check the names of environment variables with the prefix ``TAILRACE_``; log one warning for each unknown name.

    Raises:
        ConfigurationError: a variable is probably misspelled; the message has the variable of the most similar option.
    """
    for variable in environ.value:
        name = variable.removeprefix(PREFIX)
        plain = name.removesuffix("_FILE").lower()
        if name == variable or plain in options or name in _TOOL_VARIABLES or name.startswith(_TEST_PREFIX):
            continue
        if _KUBERNETES_VARIABLE.fullmatch(name):
            continue
        if close := difflib.get_close_matches(plain, options, n=1, cutoff=_MIN_SIMILARITY):
            suffix = "_FILE" if name.endswith("_FILE") else ""
            raise ConfigurationError(
                f"{variable} is not the variable of an option - did you mean {PREFIX}{close[0].upper()}{suffix}?"
            )
        if variable not in _reported:
            _reported.add(variable)
            logging.getLogger("tailrace").warning("%s is not the variable of an option and is ignored", variable)


# ---- resolution ------------------------------------------------------------------------------------------------------

_SIMILARITY = 0.7
"""Minimum similarity of names, between 0 and 1, for a hint."""
_OF_APPS = frozenset({
    "retry", "dead_letter", "on_failure", "on_corrupt_batch", "codec", "middleware", "require_broker",
    "producer", "publish_timeout_ms", "publish_delays_ms", "delivery",
    "transactional_id", "transaction_timeout_ms", "transaction_interval_ms", "transaction_max_records",
})  # fmt: skip
"""Options that App has in addition to those of its consumers."""
_OF_HANDLERS = frozenset({"pattern", "when", "unmatched", "order_by", "concurrency", "timeout_ms", "publish", "batch"})
"""Options that only handlers have."""
_DECIDED_BY_APPS: Mapping[str, str] = {
    "acks": "an app publishes with acks='all', so that no result or dead letter is lost with a broker - leave it out",
    "key_serializer": "an app encodes keys as its handlers read them, or by its codec - pass codec= to App()",
    "max_request_size": "an app leaves the size of a record to its topic's max.message.bytes - leave it out",
    "transaction_timeout_ms": "it belongs to delivery='exactly_once' - pass it to App()",
    "transactional_id": "it belongs to delivery='exactly_once' - pass it to App()",
    "value_serializer": "an app encodes values by its codec - pass codec= to App() or to the handler",
}
"""Options that an app decides for its producer, mapped to the reason and to what to do."""

_OF_CONSUMERS = {f.name: f for f in dataclasses.fields(ConsumerConfig)}
_OF_PRODUCERS = {f.name: f for f in dataclasses.fields(ProducerConfig)}
_OF_CLIENTS = frozenset(f.name for f in dataclasses.fields(ClientConfig))
_FIELDS = {**_OF_CONSUMERS, **_OF_PRODUCERS}
_HINTS = {**typing.get_type_hints(ConsumerConfig), **typing.get_type_hints(ProducerConfig)}

OptionsT = TypeVar("OptionsT", bound=Mapping[str, object])


def place_of(name: str) -> str:
    """Return the place of an option, and what to do with it; empty if no part of tailrace has the option."""
    if name in _OF_CONSUMERS:
        return "an option of consumers - pass it to Consumer() or App()"
    if name in _OF_APPS:
        return "an option of App - pass it to App()"
    if name in _OF_HANDLERS:
        return "an option of handlers - pass it to @app.handler()"
    if name in NOT_OF_PRODUCERS:
        return f"an option of producers in other clients - {_advice(NOT_OF_PRODUCERS[name])}"
    ours = PRODUCER_SPELLINGS.get(name, name)
    if ours not in _OF_PRODUCERS:
        return ""
    decided = _DECIDED_BY_APPS.get(ours)
    in_app = f"; {decided}" if decided else f", or to App() as producer={{{ours!r}: ...}}"
    return f"an option of producers - pass it to Producer() as {ours}{in_app}"


def similar(name: str, own: Collection[str], spellings: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a hint at an option whose name is similar to ``name``, with its place if it is not in ``own``.

    ``spellings`` maps names in other clients to names in ``own``.
    """
    close = difflib.get_close_matches(name, [*own, *spellings], n=1, cutoff=_SIMILARITY)
    if close:
        return f"did you mean {close[0] if close[0] in own else spellings[close[0]]!r}?"
    elsewhere = [*_FIELDS, *_OF_APPS, *_OF_HANDLERS, *PRODUCER_SPELLINGS, *NOT_OF_PRODUCERS]
    close = difflib.get_close_matches(name, elsewhere, n=1, cutoff=_SIMILARITY)
    return f"did you mean {close[0]!r}? It is {place_of(close[0])}" if close else ""


def check_names(
    options: Mapping[str, object], of_app: Collection[str] = (), kind: type[ClientConfig] = ConsumerConfig
) -> None:
    """Check that options exist.

    Args:
        options: options by name.
        of_app: names of the options that only ``App`` and its handlers take.
        kind: ``ConsumerConfig`` or ``ProducerConfig``.

    Raises:
        ConfigurationError: an option does not exist; the message names a similar option if there is one.
    """
    is_producer = kind is ProducerConfig
    known = _OF_PRODUCERS if is_producer else _OF_CONSUMERS
    replacements = NOT_OF_PRODUCERS if is_producer else NOT_OPTIONS
    for name in options:
        if name in known:
            continue
        if name in of_app:
            raise ConfigurationError(
                f"{name} is an option of App() and its handlers only - pass it to App() or to the handler"
            )
        plain = name.replace(".", "_").lower()
        meant = _spelled_here(plain, known, is_producer=is_producer)
        if meant is None and plain not in replacements and (place := place_of(plain)):
            raise ConfigurationError(f"{name!r} is {place}")
        if meant is not None:
            hint = f"it is called {meant!r} here{', in bytes' if plain in COUNTED_OTHERWISE else ''}"
        elif plain in replacements:
            hint = _advice(replacements[plain])
        else:
            default = f"help(tailrace.{'Producer' if is_producer else 'Consumer'}) lists all options"
            hint = similar(plain, [*known, *of_app], PRODUCER_SPELLINGS if is_producer else {}) or default
        raise ConfigurationError(f"there is no option {name!r} - {hint}")


def _advice(replacement: str) -> str:
    return replacement if replacement.startswith("leave it out") else f"use {replacement}"


def _spelled_here(name: str, known: Collection[str], *, is_producer: bool) -> str | None:
    """Return tailrace's name for an option's name in another client; None if there is none in ``known``."""
    if name in known:
        return name
    ours = PRODUCER_SPELLINGS.get(name) if is_producer else None
    ours = ours or OTHER_SPELLINGS.get(name)
    return ours if ours in known else None


def check_positive(name: str, value: object) -> None:
    """Check that the value of an option is a positive integer.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name} must be a positive integer, not {value!r}")


def hide_secrets(options: OptionsT) -> OptionsT:
    """Return a copy of ``options`` in which the ``repr`` of a secret is ``<hidden>``.

    A function that takes options calls this first, because programs that report errors show the local variables of a
    traceback. Values of unknown options may be secrets, too, such as that of a misspelled name.
    """
    return cast("OptionsT", {name: _hidden(name, value) for name, value in options.items()})


def _hidden(name: str, value: object) -> object:
    if name == "producer" and isinstance(value, Mapping):
        return hide_secrets(cast("Mapping[str, object]", value))
    is_secret = _FIELDS[name].metadata["secret"] if name in _FIELDS else name not in _OF_APPS
    if is_secret and isinstance(value, str):
        return Secret(value)
    # Bytes are an invalid value of all these options.
    return Hidden(value) if is_secret and isinstance(value, bytes) else value


def resolve(options: Mapping[str, object], environ: Mapping[str, str] | None = None) -> ConsumerConfig:
    """Return the values of all options, from the arguments ``options``, environment variables and defaults.

    Raises:
        ConfigurationError: an option is unknown, has an invalid value, or contradicts another.
    """
    options = hide_secrets(options)
    check_names(options)
    variables, environ = Hidden(os.environ if environ is None else environ), None
    values = _values(_OF_CONSUMERS, options, variables)
    if (template := values.get("group_instance_id")) is not None:
        values["group_instance_id"] = _fill_in_template(template, variables)
    config = ConsumerConfig(**values)
    check_combinations(config, values.keys())
    return config


def resolve_producer(options: Mapping[str, object], environ: Mapping[str, str] | None = None) -> ProducerConfig:
    """Return the values of all options of a producer, as ``resolve`` does for a consumer.

    Raises:
        ConfigurationError: an option is unknown, has an invalid value, or contradicts another.
    """
    options = hide_secrets(options)
    check_names(options, kind=ProducerConfig)
    variables, environ = Hidden(os.environ if environ is None else environ), None
    config = ProducerConfig(**_values(_OF_PRODUCERS, options, variables))
    check_producer_combinations(config)
    return config


def producer_config(config: ConsumerConfig | ProducerConfig, **options: object) -> ProducerConfig:
    """Return ``config`` with changed options; for a consumer, of a producer with its brokers, security and timeouts.

    Raises:
        ConfigurationError: one of ``options`` is invalid, or contradicts another.
    """
    check_names(options, kind=ProducerConfig)
    if isinstance(config, ConsumerConfig):
        shared = {name: getattr(config, name) for name in _OF_CLIENTS}
        limit_ms = config.default_api_timeout_ms
        config = ProducerConfig(**shared, delivery_timeout_ms=limit_ms, max_block_ms=limit_ms)
    if options:
        values: dict[str, Any] = {name: _convert(name, value, name) for name, value in options.items()}
        config = dataclasses.replace(config, **values)
        check_producer_combinations(config)
    return config


def app_producer_config(
    config: ConsumerConfig, options: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> ProducerConfig:
    """Return the options of an app's producer, from the argument ``producer``, environment variables and defaults.

    Args:
        config: options of the app's consumers, whose brokers, security and timeouts the producer uses.
        options: value of the option ``producer`` of the app.
        environ: environment variables; None for those of the process.

    Raises:
        ConfigurationError: an option is unknown, has an invalid value, contradicts another, or is the app's own.
    """
    options = hide_secrets(options)
    check_names(options, kind=ProducerConfig)
    for name, value in options.items():
        if name in _OF_CLIENTS:
            raise ConfigurationError(
                f"producer= must not contain {name}, which the app's producer shares with its"
                " consumers - pass it to App()"
            )
        if name in _DECIDED_BY_APPS and not (name == "acks" and _convert_acks(value, name) == "all"):
            raise ConfigurationError(f"producer= must not contain {name}: {_DECIDED_BY_APPS[name]}")
    names = [name for name in _OF_PRODUCERS if name not in _OF_CLIENTS and name not in _DECIDED_BY_APPS]
    variables, environ = Hidden(os.environ if environ is None else environ), None
    if "acks" not in options and (found := _from_environment("acks", variables)) is not None:
        variable, text = found
        if _convert_acks(text, variable) != "all":
            raise ConfigurationError(
                f"{variable}={text} cannot be used with App, which publishes with acks='all' - remove the variable, or"
                " set producer={'acks': 'all'}"
            )
    values = _values(names, options, variables)
    shared = {name: getattr(config, name) for name in _OF_CLIENTS}
    limit_ms = config.default_api_timeout_ms
    limits = {"delivery_timeout_ms": limit_ms, "max_block_ms": limit_ms}
    found_config = ProducerConfig(**{**shared, **limits, **values})
    check_producer_combinations(found_config)
    return found_config


def _values(names: Collection[str], options: Mapping[str, object], variables: Hidden) -> dict[str, Any]:
    """Return the values of the options that an argument or an environment variable sets."""
    check_variables(variables, _FIELDS)
    values: dict[str, Any] = {}
    for name in names:
        if name in options:
            values[name] = _convert(name, options[name], name)
        elif _ALTERNATIVE_OF.get(name) not in options and (found := _from_environment(name, variables)) is not None:
            variable, text = found
            values[name] = _convert(name, _parse(name, text, variable), variable)
    return values


def with_changes(config: ConsumerConfig, options: Mapping[str, object]) -> ConsumerConfig:
    """Return a copy of ``config`` with the values of ``options``, for ``Consumer.reconfigure``.

    Raises:
        ConfigurationError: an option is unknown, has an invalid value, contradicts another, or cannot be changed while
            a consumer runs.
    """
    options = hide_secrets(options)
    check_names(options)
    for name in options:
        if not _FIELDS[name].metadata["live"]:
            live = ", ".join(sorted(one for one, field in _FIELDS.items() if field.metadata["live"]))
            raise ConfigurationError(
                f"{name} cannot be changed while a consumer runs - create a new consumer to change it; the options that"
                f" can be changed are {live}"
            )
    values: dict[str, Any] = {name: _convert(name, value, name) for name, value in options.items()}
    found = dataclasses.replace(config, **values)
    check_combinations(found, options.keys())
    return found


def _fill_in_template(template: str, environ: Hidden) -> str:
    """Return the ``group_instance_id`` for a template that may contain ``{hostname}``, ``{worker}`` and ``{pid}``.

    Raises:
        ConfigurationError: the template or the name that results from it is invalid.
    """
    known = {"hostname": platform.node(), "worker": environ.value.get("TAILRACE_WORKER", "0"), "pid": str(os.getpid())}
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


def parse_option(name: str, text: str, where: str) -> object:
    """Return the value of an option that is given as text on a command line, after ``where``, such as ``--set``.

    Raises:
        ConfigurationError: the option is unknown, has an invalid value, or takes a Python object.
    """
    text = cast("str", _hidden(name, text))
    check_names({name: text})
    return _convert(name, _parse(name, text, f"{where} {name}"), f"{where} {name}")


def _from_environment(name: str, environ: Hidden) -> tuple[str, str] | None:
    """Return the variable that sets an option, and the text of the value; None if no variable sets the option.

    Raises:
        ConfigurationError: the file of a variable with the suffix ``_FILE`` cannot be read.
    """
    variable = PREFIX + name.upper()
    if variable in environ.value:
        return variable, cast("str", _hidden(name, environ.value[variable]))
    file_variable = f"{variable}_FILE"
    path = environ.value.get(file_variable)
    if not path or f"{name}_file" in _FIELDS:  # An option of its own, whose file is not read here.
        return None
    try:
        return file_variable, cast("str", _hidden(name, Path(path).read_text(encoding="utf-8").rstrip("\r\n")))
    except OSError as error:
        raise ConfigurationError(f"{file_variable}: {error}") from error
    except UnicodeDecodeError:
        pass
    # Raised here, so that the UnicodeDecodeError is not the context: it contains the text of the file, which may be a
    # secret.
    raise ConfigurationError(f"{file_variable}: {path} is not UTF-8 text")


def _parse(name: str, text: str, variable: str) -> object:
    """Parse the text of an option's value; return invalid text unchanged, so that ``_convert`` raises the error."""
    if _FIELDS[name].metadata["is_object"]:
        raise ConfigurationError(f"{variable}: {name} takes a Python object - pass it as an argument")
    kind = _HINTS[name]
    if kind in {str, str | None}:
        return text
    if kind == tuple[str, int] | None:
        return split_address(text, variable, default_port=0)
    if name in _CONVERTERS:
        return text
    try:
        return msgspec.convert(text.strip(), kind, strict=False)
    except msgspec.ValidationError:
        return text


def _convert(name: str, value: object, where: str) -> object:
    """Convert ``value`` to the type of an option, and check its range.

    Raises:
        ConfigurationError: the value is invalid; the message starts with ``where``, the source of the value.
    """
    metadata = _FIELDS[name].metadata
    if (convert := _CONVERTERS.get(name)) is not None:
        return convert(value, where)
    shown = "the given value" if metadata["secret"] else repr(value)
    if metadata["is_object"]:
        is_valid, description = _OBJECTS[name]
        if not is_valid(value) and not (value is None and _FIELDS[name].default is None):
            raise ConfigurationError(f"{where} must be {description}, not {shown}")
        return tuple(value) if isinstance(value, list) else value
    if _HINTS[name] == tuple[str, ...] and isinstance(value, str):
        value = tuple(part.strip() for part in value.split(",") if part.strip())
    try:
        typed = msgspec.convert(value, _HINTS[name])
    except msgspec.ValidationError:
        raise ConfigurationError(f"{where} must be {_type_text(_HINTS[name])}, not {shown}") from None
    if isinstance(typed, int):
        for limit, is_within, comparison in (
            (metadata["at_least"], operator.ge, "at least"),
            (metadata["at_most"], operator.le, "at most"),
        ):
            if limit is not None and not is_within(typed, limit):
                raise ConfigurationError(f"{where} must be {comparison} {limit}, not {typed}")
    return typed


def _convert_strategies(value: object, where: str) -> tuple[object, ...]:
    """Convert a value of ``partition_assignment_strategy``; ``config.checks`` checks the names of assignors."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    several = (value,) if callable(value) else value
    classes = [one for one in several if isinstance(one, type)] if isinstance(several, Sequence) else []
    if classes:
        raise ConfigurationError(
            f"{where} must be names or functions, not the class {classes[0].__name__}"
            f" - name one or more of {', '.join(ASSIGNMENT_STRATEGIES)}, such as ('roundrobin',)"
        )
    if not isinstance(several, Sequence) or not all(isinstance(one, str) or callable(one) for one in several):
        raise ConfigurationError(f"{where} must be a name, a function, or a list of them, not {value!r}")
    return tuple(several)


def _parse_time(text: str) -> object:
    """Parse milliseconds since 1970, or a time or duration in ISO 8601; return other text unchanged."""
    for kind in (int, dt.datetime, dt.timedelta):
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(text.strip(), kind, strict=False)
    return text


def _convert_start_policy(value: object, where: str) -> object:
    """Convert a value of ``auto_offset_reset``: a policy, a time or a duration."""
    if value is None or value in {"earliest", "latest", "none"}:
        return value
    given = _parse_time(value) if isinstance(value, str) else value
    is_number = isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63
    is_time = isinstance(given, dt.datetime) and given.tzinfo is not None
    if is_number or is_time or (isinstance(given, dt.timedelta) and given >= dt.timedelta(0)):
        return given
    raise ConfigurationError(
        f"{where} must be 'earliest', 'latest', 'none', a time with its zone (2026-01-31T12:00:00Z), or a duration"
        f" before now (PT12H), not {value!r}"
    )


_NAMED_PROVIDER = re.compile(
    r"aws:[a-z0-9-]+|azure:[^\s:]\S*|gcp|oidc|(?!(aws|azure|gcp|oidc):)[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", re.ASCII
)
_PROVIDER_FORMS = (
    "'aws:REGION', 'azure:NAMESPACE', 'gcp', 'oidc', 'package.module:function', or an async function that returns a"
    " token"
)


def similar_provider(name: str) -> str:
    """Return a hint at the token provider that is meant by ``name``; empty if there is none."""
    forms = {"aws": "aws:REGION", "azure": "azure:NAMESPACE", "gcp": "gcp", "oidc": "oidc"}
    close = difflib.get_close_matches(name.partition(":")[0].lower(), forms, n=1, cutoff=_SIMILARITY)
    return f" - did you mean {forms[close[0]]!r}?" if close else ""


def _convert_token_provider(value: object, where: str) -> object:
    """Convert a value of ``sasl_oauth_token_provider``; an invalid text is not shown, because it may be a token."""
    if value is None or callable(value) or (isinstance(value, str) and _NAMED_PROVIDER.fullmatch(value)):
        return value
    hint = similar_provider(value) if isinstance(value, str) else ""
    raise ConfigurationError(f"{where} must be {_PROVIDER_FORMS}, not the given value{hint}")


def _convert_acks(value: object, where: str) -> object:
    """Convert a value of ``acks``; -1 is "all"."""
    found = {"all": "all", "-1": "all", "0": 0, "1": 1}.get(str(value).strip())
    if found is None or isinstance(value, bool):
        raise ConfigurationError(f"{where} must be 'all', 1 or 0, not {value!r}")
    return found


def _convert_compression(value: object, where: str) -> object:
    """Convert a value of ``compression_type``; None is "none"."""
    found = "none" if value is None else value
    choices = typing.get_args(_HINTS["compression_type"])
    if found not in choices:
        raise ConfigurationError(f"{where} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    return found


def _convert_partitioner(value: object, where: str) -> object:
    """Check a value of ``partitioner``."""
    if value in {"murmur2", "consistent_random", "sticky"} or (
        _is_plain_function(value) and not isinstance(value, type)
    ):
        return value
    ours = PARTITIONERS.get(value) if isinstance(value, str) else None
    hint = f" - the nearest is {ours!r}" if ours else ""
    raise ConfigurationError(
        f"{where} must be 'murmur2', 'consistent_random', 'sticky', or a function of"
        f" (key, all_partitions, available_partitions), not {value!r}{hint}"
    )


_CONVERTERS: Mapping[str, Callable[[object, str], object]] = {
    "acks": _convert_acks,
    "compression_type": _convert_compression,
    "partitioner": _convert_partitioner,
    "partition_assignment_strategy": _convert_strategies,
    "auto_offset_reset": _convert_start_policy,
    "sasl_oauth_token_provider": _convert_token_provider,
}
"""Functions that convert the values of options that have rules of their own."""


def _type_text(hint: Any) -> str:  # noqa: ANN401 - any type of an option
    """Return the description of an option's type for error messages."""
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, choices))
    if type(None) in choices:
        return f"{_type_text(typing.Union[tuple(one for one in choices if one is not type(None))])} or None"  # noqa: UP007
    words = {int: "an integer", bool: "True or False", str: "a string", tuple[str, int]: "a host and a port"}
    return words.get(hint, "one or several strings, as a list or separated by commas")


def _is_plain_function(value: object) -> bool:
    return callable(value) and not is_coroutine_function(value)


def _is_hook(value: object) -> bool:
    return not isinstance(value, type) and _is_plain_function(getattr(value, "on_event", None))


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
    "key_deserializer": (_is_plain_function, "a plain function of bytes"),
    "key_serializer": (_is_plain_function, "a plain function that returns bytes"),
    "value_serializer": (_is_plain_function, "a plain function that returns bytes"),
    "value_deserializer": (_is_plain_function, "a plain function of bytes"),
    "ssl_context": (lambda value: isinstance(value, ssl.SSLContext), "an ssl.SSLContext"),
}
"""Check of the value, and description for error messages, of each option that takes a Python object."""
