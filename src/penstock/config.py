"""Every option of a consumer: declared once, resolved once, then never changed.

Rule of this file: ``ConsumerConfig`` is the one declaration (name, type, default, what it means); ``ConsumerOptions``
is the same names for type checkers, and a test holds the two together. An option comes from, in this order, the
argument, the environment (``PENSTOCK_SESSION_TIMEOUT_MS``, or ``PENSTOCK_SASL_PLAIN_PASSWORD_FILE`` for a mounted
secret), its default. Times are milliseconds here, in seconds everywhere else.
"""

from __future__ import annotations

import dataclasses
import difflib
import operator
import os
import re
import ssl
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from typing_extensions import TypedDict

from penstock.errors import ConfigurationError
from penstock.records import TopicPartition

__all__ = [
    "ConsumerConfig",
    "ConsumerOptions",
    "OffsetReset",
    "PostRebalanceCallback",
    "RebalanceListener",
    "SecurityProtocol",
    "TokenProvider",
    "check_names",
    "resolve",
    "split_address",
]

SecurityProtocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]
OffsetReset: TypeAlias = Literal["earliest", "latest", "none"]
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
TokenProvider: TypeAlias = Callable[[], Awaitable[str]]
Offsets: TypeAlias = Mapping[TopicPartition, int | None]

PostRebalanceCallback: TypeAlias = Callable[
    [Any, Offsets, Offsets],
    Awaitable[Mapping[TopicPartition, int] | None] | Mapping[TopicPartition, int] | None,
]
"""``async def callback(consumer, old_offsets, new_offsets) -> overrides``; a plain function will do too.

The offsets are the next ones to read, by partition; None where a partition has no committed offset. What it returns
is where to read from instead; it is applied before the first fetch of the new partitions.
"""


class RebalanceListener(Protocol):
    """Any of these, sync or async; each is told the partitions that it is about."""

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition], /) -> Awaitable[None] | None: ...

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition], /) -> Awaitable[None] | None: ...

    def on_partitions_lost(self, partitions: frozenset[TopicPartition], /) -> Awaitable[None] | None: ...


def _option(  # noqa: PLR0913 - one row of a table
    default: Any,  # noqa: ANN401 - as dataclasses.field has it
    meaning: str,
    *,
    at_least: int | None = None,
    at_most: int | None = 2**31 - 1,
    secret: bool = False,
    as_is: bool = False,
) -> Any:  # noqa: ANN401
    """A row of the declaration; ``as_is`` marks Python objects, which no environment can give.

    Kafka's numbers are of 32 bits, so no number is larger unless a row says so.
    """
    metadata = {"meaning": meaning, "at_least": at_least, "at_most": at_most, "secret": secret, "as_is": as_is}
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """A consumer's options, resolved; ``repr`` shows no secret."""

    # ---- the cluster
    bootstrap_servers: tuple[str, ...] = _option((), "Brokers to ask first, as host:port; any that lives is enough.")
    client_id: str = _option("penstock", "How brokers' logs and quotas name this client.")
    hooks: tuple[object, ...] = _option((), "Told of every event: see penstock.observe.hooks.Hook.", as_is=True)
    client_rack: str = _option("", "Where this client is; brokers let it read from the nearest replica (KIP-392).")
    start_timeout_ms: int = _option(20_000, "How long start() tries to reach the cluster.", at_least=1)
    stop_timeout_ms: int = _option(20_000, "How long stop() may take, with the cluster up or down.", at_least=1)
    default_api_timeout_ms: int = _option(60_000, "How long a call such as commit() may take in all.", at_least=1)
    request_timeout_ms: int = _option(40_000, "How long one request may wait for its answer.", at_least=1)
    socket_connection_setup_timeout_ms: int = _option(10_000, "How long opening a connection may take.", at_least=1)
    reconnect_backoff_ms: int = _option(50, "The first pause before a broker is dialled again.", at_least=1)
    reconnect_backoff_max_ms: int = _option(1_000, "The longest such pause.", at_least=1)
    retry_backoff_ms: int = _option(100, "The first pause before a request is tried again (KIP-580).", at_least=1)
    retry_backoff_max_ms: int = _option(1_000, "The longest such pause.", at_least=1)
    metadata_max_age_ms: int = _option(300_000, "How old the picture of the cluster may grow.", at_least=1)
    connections_max_idle_ms: int = _option(540_000, "A connection unused for so long is opened anew.", at_least=1)
    local_addr: tuple[str, int] | None = _option(None, "The local address to connect from.")
    receive_buffer_bytes: int | None = _option(
        None, "The size of sockets' receive buffers; the system's by default.", at_least=1
    )

    # ---- the group
    group_id: str | None = _option(None, "The consumer group to be a member of.")
    group_instance_id: str | None = _option(None, "A name that makes this a static member (KIP-345).")
    partition_assignment_strategy: tuple[str, ...] = _option(
        ("range",), "How the group's leader deals out partitions, most preferred first."
    )
    session_timeout_ms: int = _option(45_000, "A member silent for so long is out of the group.", at_least=1)
    heartbeat_interval_ms: int = _option(3_000, "How often a member says that it lives.", at_least=1)
    max_poll_interval_ms: int = _option(300_000, "How long a rebalance waits for a member.", at_least=1)
    rebalance_drain_ms: int = _option(
        30_000, "How long a rebalance waits for the record in hand before its partition goes.", at_least=0
    )
    leave_on_stop: bool | None = _option(None, "Leave the group on stop(); a dynamic member does, a static one not.")
    post_rebalance_callback: PostRebalanceCallback | None = _option(
        None, "Awaited after a rebalance and before the first fetch; may say where to read from.", as_is=True
    )
    rebalance_listener: RebalanceListener | None = _option(None, "Told which partitions come and go.", as_is=True)

    # ---- offsets
    auto_offset_reset: OffsetReset | None = _option(
        None, "Where to begin without a committed offset; 'earliest' with a group, 'latest' without."
    )
    enable_auto_commit: bool | None = _option(None, "Commit what is done, now and then; on with a group.")
    auto_commit_interval_ms: int = _option(5_000, "How often that is.", at_least=1)
    isolation_level: IsolationLevel = _option("read_uncommitted", "'read_committed' hides aborted transactions.")

    # ---- flow
    fetch_min_bytes: int = _option(1, "A broker answers a fetch when it has this much.", at_least=0)
    fetch_max_wait_ms: int = _option(500, "Or when so much time has passed.", at_least=0)
    fetch_max_bytes: int = _option(52_428_800, "At most this much in one answer.", at_least=1)
    max_partition_fetch_bytes: int = _option(1_048_576, "At most this much of one partition.", at_least=1)
    max_queued_records: int = _option(2_000, "Decoded records that wait to be handed out.", at_least=1)
    max_buffered_bytes: int = _option(67_108_864, "Fetched bytes that wait to be decoded.", at_least=1, at_most=None)
    check_crcs: bool = _option(True, "Check each batch's checksum.")

    # ---- security
    security_protocol: SecurityProtocol = _option("PLAINTEXT", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.")
    ssl_context: ssl.SSLContext | None = _option(None, "A TLS context of your own, instead of the files.", as_is=True)
    ssl_cafile: str | None = _option(None, "Certificates of the authorities to trust; the system's by default.")
    ssl_certfile: str | None = _option(None, "This client's certificate, for mutual TLS.")
    ssl_keyfile: str | None = _option(None, "Its private key.")
    ssl_password: str | None = _option(None, "The private key's password.", secret=True)
    ssl_check_hostname: bool = _option(True, "Whether the broker's certificate has to name its host.")
    sasl_mechanism: SaslMechanism = _option("PLAIN", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI.")
    sasl_plain_username: str | None = _option(None, "The user, for PLAIN and SCRAM.")
    sasl_plain_password: str | None = _option(None, "The password, for PLAIN and SCRAM.", secret=True)
    sasl_oauth_token_provider: TokenProvider | None = _option(
        None, "An async callable that gives a token, for OAUTHBEARER.", secret=True, as_is=True
    )
    sasl_kerberos_service_name: str = _option("kafka", "For GSSAPI.")
    sasl_kerberos_domain_name: str | None = _option(None, "For GSSAPI; the broker's host by default.")

    # ---- what follows from several

    @property
    def commits_automatically(self) -> bool:
        """``enable_auto_commit``, decided."""
        return self.group_id is not None if self.enable_auto_commit is None else self.enable_auto_commit

    @property
    def offset_reset(self) -> OffsetReset:
        """``auto_offset_reset``, decided."""
        return self.auto_offset_reset or ("latest" if self.group_id is None else "earliest")

    @property
    def leaves_on_stop(self) -> bool:
        """``leave_on_stop``, decided."""
        return self.group_instance_id is None if self.leave_on_stop is None else self.leave_on_stop


class ConsumerOptions(TypedDict, total=False):
    """The options of ConsumerConfig, for ``**options: Unpack[ConsumerOptions]``."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    hooks: Sequence[object]
    client_rack: str
    start_timeout_ms: int
    stop_timeout_ms: int
    default_api_timeout_ms: int
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    connections_max_idle_ms: int
    local_addr: tuple[str, int] | None
    receive_buffer_bytes: int | None
    group_id: str | None
    group_instance_id: str | None
    partition_assignment_strategy: Sequence[str]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    rebalance_drain_ms: int
    leave_on_stop: bool | None
    post_rebalance_callback: PostRebalanceCallback | None
    rebalance_listener: RebalanceListener | object | None
    auto_offset_reset: OffsetReset | None
    enable_auto_commit: bool | None
    auto_commit_interval_ms: int
    isolation_level: IsolationLevel
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_queued_records: int
    max_buffered_bytes: int
    check_crcs: bool
    security_protocol: SecurityProtocol
    ssl_context: ssl.SSLContext | None
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_password: str | None
    ssl_check_hostname: bool
    sasl_mechanism: SaslMechanism
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_oauth_token_provider: TokenProvider | None
    sasl_kerberos_service_name: str
    sasl_kerberos_domain_name: str | None


OLD_SPELLINGS: Mapping[str, str] = {
    "auto_commit_enable": "enable_auto_commit",
    "auto_commit": "enable_auto_commit",
    "auto_commit_every_t": "auto_commit_interval_ms",
    "assignors": "partition_assignment_strategy",
    "broker_list": "bootstrap_servers",
    "brokers": "bootstrap_servers",
    "consumer_group": "group_id",
    "fetch_error_backoff_ms": "retry_backoff_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "group": "group_id",
    "hosts": "bootstrap_servers",
    "max_bytes": "fetch_max_bytes",
    "max_wait_time": "fetch_max_wait_ms",
    "metadata_broker_list": "bootstrap_servers",
    "min_bytes": "fetch_min_bytes",
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
}
"""What other clients call it, for an error that names ours."""

ASSIGNMENT_STRATEGIES = ("range", "roundrobin")
"""The names of ``core.assignors``."""

_FIELDS = {f.name: f for f in dataclasses.fields(ConsumerConfig)}
_HINTS = typing.get_type_hints(ConsumerConfig)
_PREFIX = "PENSTOCK_"
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\s\[\]]+)\]|(?P<host>[^\s:,/\[\]]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII)


def check_names(options: Mapping[str, object]) -> None:
    """Refuse options that do not exist.

    Raises:
        ConfigurationError: naming the option that was probably meant.
    """
    for name in options:
        if name in _FIELDS:
            continue
        plain = name.replace(".", "_").lower()
        meant = plain if plain in _FIELDS else OLD_SPELLINGS.get(plain)
        close = difflib.get_close_matches(plain, _FIELDS, n=1)
        if meant is not None:
            hint = f"it is called {meant!r} here"
        elif close:
            hint = f"did you mean {close[0]!r}?"
        else:
            hint = "help(penstock.ConsumerOptions) lists all there are"
        raise ConfigurationError(f"there is no option {name!r} - {hint}")


def resolve(options: Mapping[str, object], environ: Mapping[str, str] | None = None) -> ConsumerConfig:
    """One frozen config of arguments, environment and defaults.

    Raises:
        ConfigurationError: an option is unknown, has a wrong type or value, or contradicts another.
    """
    check_names(options)
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for name in _FIELDS:
        if name in options:
            values[name] = _typed(name, options[name], name)
        elif (found := _from_environment(name, environ)) is not None:
            variable, text = found
            values[name] = _typed(name, _parsed(name, text, variable), variable)
    config = ConsumerConfig(**values)
    _check(config)
    return config


def _from_environment(name: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that says something of the option, and what it says."""
    variable = _PREFIX + name.upper()
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
    try:
        return msgspec.convert(text.strip(), kind, strict=False)
    except msgspec.ValidationError:
        return text  # the next to look at it tells what is wrong


def _typed(name: str, value: object, where: str) -> object:
    """``value`` as the option's type wants it; ``where`` it comes from is told when it will not do."""
    metadata = _FIELDS[name].metadata
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


def _wanted(hint: Any) -> str:  # noqa: ANN401 - any type of an option
    """A type in the words of a user."""
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, choices))
    if type(None) in choices:
        return f"{_wanted(typing.Union[tuple(one for one in choices if one is not type(None))])} or None"  # noqa: UP007
    words = {int: "a whole number", bool: "True or False", str: "a text", tuple[str, int]: "a host and a port"}
    return words.get(hint, "one text or several, as a list or separated by commas")


_OBJECTS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "hooks": (
        lambda value: isinstance(value, Sequence) and all(callable(getattr(one, "on_event", None)) for one in value),
        "a list of objects with on_event(event)",
    ),
    "post_rebalance_callback": (callable, "a function of (consumer, old_offsets, new_offsets)"),
    "rebalance_listener": (
        lambda value: any(callable(getattr(value, name, None)) for name in vars(RebalanceListener) if name[:2] == "on"),
        "an object with any of on_partitions_revoked, on_partitions_assigned and on_partitions_lost",
    ),
    "ssl_context": (lambda value: isinstance(value, ssl.SSLContext), "an ssl.SSLContext"),
    "sasl_oauth_token_provider": (callable, "an async function that returns a token"),
}
"""What the options are that are Python objects."""


def _check(config: ConsumerConfig) -> None:
    """What one option cannot know of another."""
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise ConfigurationError(
            f"heartbeat_interval_ms={config.heartbeat_interval_ms} has to be below "
            f"session_timeout_ms={config.session_timeout_ms} - at most a third of it, so that one may be lost"
        )
    if config.enable_auto_commit and config.group_id is None:
        raise ConfigurationError("enable_auto_commit=True needs a group_id - there is no group to commit for")
    if config.group_id == "":
        raise ConfigurationError("group_id: an empty name will not do - leave it out to read without a group")
    if config.group_instance_id is not None and config.group_id is None:
        raise ConfigurationError("group_instance_id needs a group_id - it names a member of a group")
    unknown = [name for name in config.partition_assignment_strategy if name not in ASSIGNMENT_STRATEGIES]
    if unknown or not config.partition_assignment_strategy:
        raise ConfigurationError(
            f"partition_assignment_strategy: {', '.join(map(repr, unknown)) or 'nothing'} will not do"
            f" - name one or more of {', '.join(ASSIGNMENT_STRATEGIES)}, most preferred first"
        )
    for pause in ("reconnect_backoff", "retry_backoff"):
        first, longest = getattr(config, f"{pause}_ms"), getattr(config, f"{pause}_max_ms")
        if first > longest:
            raise ConfigurationError(f"{pause}_ms={first} has to be at most {pause}_max_ms={longest}")
    if config.request_timeout_ms <= config.fetch_max_wait_ms:
        raise ConfigurationError(
            f"request_timeout_ms={config.request_timeout_ms} has to be above "
            f"fetch_max_wait_ms={config.fetch_max_wait_ms} - a broker with nothing to give answers only then"
        )
    for address in config.bootstrap_servers:
        split_address(address)
    _check_security(config)


def _check_security(config: ConsumerConfig) -> None:
    if config.ssl_keyfile is not None and config.ssl_certfile is None:
        raise ConfigurationError("ssl_keyfile needs ssl_certfile - a key is shown with the certificate that it is of")
    if not config.security_protocol.startswith("SASL"):
        return
    mechanism = config.sasl_mechanism
    if mechanism == "OAUTHBEARER":
        if config.sasl_oauth_token_provider is None:
            raise ConfigurationError("sasl_mechanism='OAUTHBEARER' needs sasl_oauth_token_provider=async () -> str")
    elif mechanism != "GSSAPI" and (config.sasl_plain_username is None or config.sasl_plain_password is None):
        raise ConfigurationError(f"sasl_mechanism={mechanism!r} needs sasl_plain_username and sasl_plain_password")


def split_address(address: str, where: str = "bootstrap_servers", *, default_port: int = 9092) -> tuple[str, int]:
    """``host:port``, ``[v6]:port`` or ``host`` (``default_port``) as its two parts.

    Raises:
        ConfigurationError: it is none of these; the message says ``where`` it comes from.
    """
    found = _ADDRESS.fullmatch(address.strip())
    host, port = (found["v6"] or found["host"], int(found["port"] or default_port)) if found else ("", -1)
    if not host or not min(default_port, 1) <= port <= 65_535:
        raise ConfigurationError(f"{where}: {address!r} is no address - write host:port, such as localhost:9092")
    return host, port
