"""The one declaration of every option: name, type, default, what it means.

Rule of this file: ``ConsumerConfig`` declares, ``ConsumerOptions`` is the same names for type checkers, and a test
holds the two together. Times are milliseconds here, in seconds everywhere else.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from typing_extensions import TypedDict

from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = [
    "ASSIGNMENT_STRATEGIES",
    "ERROR_REACTIONS",
    "AssignmentStrategy",
    "ConsumerConfig",
    "ConsumerOptions",
    "ErrorReaction",
    "OffsetCommitCallback",
    "OffsetReset",
    "PostRebalanceCallback",
    "RebalanceListener",
    "SecurityProtocol",
    "TokenProvider",
]

SecurityProtocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]
ResetPolicy: TypeAlias = Literal["earliest", "latest", "none"]
OffsetReset: TypeAlias = ResetPolicy | int | dt.datetime | dt.timedelta
"""A policy; or the first record that is not older than a time (milliseconds since 1970 will do) or than so long ago."""
GroupProtocol: TypeAlias = Literal["classic", "consumer"]
Ack: TypeAlias = Literal["auto", "manual"]
OnMetadataTooLarge: TypeAlias = Literal["raise", "blank"]
OnDeserializeError: TypeAlias = Literal["raise", "skip"]
WhenTimedOut: TypeAlias = Literal["raise", "stop"]
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
TokenProvider: TypeAlias = Callable[[], Awaitable[str]]
AssignmentStrategy: TypeAlias = str | Callable[..., Mapping[str, Any]]
"""One of ASSIGNMENT_STRATEGIES, or a function ``(members, partitions) -> {member_id: [TopicPartition, ...]}``.

The function goes by its ``name`` attribute, or else by its ``__name__``, and every member of the group has to have
it. ``is_cooperative = True`` on it says that it leaves out what has to change hands, until its owner has let go.
"""
ErrorReaction: TypeAlias = str | Callable[[int], str]
"""What a member does about an error code: one of ERROR_REACTIONS, or a function of the code that says which."""
Offsets: TypeAlias = Mapping[TopicPartition, int | None]

PostRebalanceCallback: TypeAlias = Callable[
    [Any, Offsets, Offsets],
    Awaitable[Mapping[TopicPartition, int] | None] | Mapping[TopicPartition, int] | None,
]
"""``async def callback(consumer, old_offsets, new_offsets) -> overrides``; a plain function will do too.

The offsets are the next ones to read, by partition; None where a partition has no committed offset. What it returns
is where to read from instead; it is applied before the first fetch of the new partitions.
"""


OffsetCommitCallback: TypeAlias = Callable[
    [Mapping[TopicPartition, OffsetAndMetadata], Exception | None], Awaitable[None] | None
]
"""``async def callback(offsets, error)``; a plain function will do too. It is called when a commit is through."""


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
    classic: bool = False,
    live: bool = False,
) -> Any:  # noqa: ANN401
    """A row of the declaration; ``as_is`` marks Python objects, which no environment can give.

    ``classic`` marks what the broker decides where ``group_protocol`` is "consumer", ``live`` what may be set anew
    while a consumer runs.

    Kafka's numbers are of 32 bits, so no number is larger unless a row says so.
    """
    metadata = {
        "meaning": meaning,
        "at_least": at_least,
        "at_most": at_most,
        "secret": secret,
        "as_is": as_is,
        "classic": classic,
        "live": live,
    }
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig:
    """A consumer's options, resolved; ``repr`` shows no secret."""

    # ---- the cluster
    bootstrap_servers: tuple[str, ...] = _option((), "Brokers to ask first, as host:port; any that lives is enough.")
    client_id: str = _option("tailrace", "How brokers' logs and quotas name this client.")
    metric_group_prefix: str = _option("consumer", "How the groups of metrics() begin.")
    hooks: tuple[object, ...] = _option((), "Told of every event: see tailrace.observe.hooks.Hook.", as_is=True)
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
    group_protocol: GroupProtocol = _option(
        "classic", "'consumer' lets the broker deal out partitions (KIP-848, Kafka 4.0 or newer)."
    )
    group_instance_id: str | None = _option(
        None, "A name that makes this a static member (KIP-345); {hostname}, {worker} and {pid} stand for theirs."
    )
    group_remote_assignor: str | None = _option(
        None, "How the broker deals, 'uniform' or 'range', where group_protocol is 'consumer'; its choice by default."
    )
    partition_assignment_strategy: tuple[AssignmentStrategy, ...] = _option(
        ("cooperative-sticky",), "How the group's leader deals out partitions, most preferred first.", classic=True
    )
    session_timeout_ms: int = _option(
        45_000, "A member silent for so long is out of the group.", at_least=1, classic=True
    )
    heartbeat_interval_ms: int = _option(3_000, "How often a member says that it lives.", at_least=1, classic=True)
    max_poll_interval_ms: int = _option(
        300_000, "How long the reader may take with what is in hand, and a rebalance with a member.", at_least=1
    )
    rebalance_drain_ms: int = _option(
        30_000, "How long a rebalance waits for the record in hand before its partition goes.", at_least=0
    )
    rebalance_max_retries: int | None = _option(
        None, "How often joining is tried again before it has failed; any number by default.", at_least=0
    )
    leave_on_stop: bool | None = _option(None, "Leave the group on stop(); a dynamic member does, a static one not.")
    post_rebalance_callback: PostRebalanceCallback | None = _option(
        None, "Awaited after a rebalance and before the first fetch; may say where to read from.", as_is=True
    )
    rebalance_listener: RebalanceListener | None = _option(None, "Told which partitions come and go.", as_is=True)
    group_error_reactions: Mapping[int, ErrorReaction] | None = _option(
        None, "What to do about a group's error codes, instead of what is usual: {14: 'retry'}.", as_is=True
    )

    # ---- offsets
    auto_offset_reset: OffsetReset | None = _option(
        None,
        "Where to begin without a committed offset: 'earliest', 'latest', 'none', a time, or a duration back from now;"
        " 'earliest' with a group, 'latest' without.",
        live=True,
    )
    reset_offset_on_start: bool = _option(
        False, "Begin there for once, whatever is committed, and commit that at the first assignment."
    )
    enable_auto_commit: bool | None = _option(None, "Commit what is done, now and then; on with a group.")
    auto_commit_interval_ms: int | None = _option(5_000, "How often that is; None: not by time.", at_least=1)
    auto_commit_every_records: int | None = _option(
        None, "Also when so many records are done; each commit begins both anew.", at_least=1
    )
    offset_commit_max_retries: int | None = _option(
        None, "How often a commit is tried again before it has failed; by default while its time lasts.", at_least=0
    )
    offset_commit_callback: OffsetCommitCallback | None = _option(
        None, "Told of each commit, also automatic ones: (offsets, error), the error None if all went well.", as_is=True
    )
    on_metadata_too_large: OnMetadataTooLarge = _option(
        "raise", "When a text is too long for the broker; 'blank': commit the offset without it."
    )
    ack: Ack = _option("auto", "'manual': a record is done when ack() says so, in any order, not with the next one.")
    offset_metadata_max_bytes: int = _option(
        4_096,
        "As the broker's offset.metadata.max.bytes; room for what is finished behind a commit. 0 leaves that out.",
        at_least=0,
    )
    isolation_level: IsolationLevel = _option(
        "read_uncommitted", "'read_committed' hides aborted transactions.", live=True
    )

    exclude_internal_topics: bool = _option(
        True, "A pattern does not match Kafka's own topics; who names one reads it all the same."
    )

    # ---- reading
    key_deserializer: Callable[[bytes], Any] | None = _option(
        None, "A function of a key's bytes, which gives what the record has as its key.", as_is=True
    )
    value_deserializer: Callable[[bytes], Any] | None = _option(
        None, "The same of a value; neither is called for null.", as_is=True
    )
    on_deserialize_error: OnDeserializeError = _option(
        "raise", "DecodeError, again until somebody seeks past the record; or 'skip': it is left out, and told of."
    )
    allow_offset_gaps: bool = _option(
        True, "Compaction and transactions leave gaps in a log; False: OffsetGapError tells of each."
    )
    consumer_timeout_ms: int | None = _option(
        None,
        "How long a loop, or a call that says nothing else, waits for a record; for ever by default.",
        at_least=1,
        live=True,
    )
    when_timed_out: WhenTimedOut = _option(
        "raise", "ConsumerTimeoutError then; or 'stop': a loop ends quietly.", live=True
    )

    # ---- flow
    fetch_min_bytes: int = _option(1, "A broker answers a fetch when it has this much.", at_least=0, live=True)
    fetch_max_wait_ms: int = _option(500, "Or when so much time has passed.", at_least=0, live=True)
    fetch_max_bytes: int = _option(52_428_800, "At most this much in one answer.", at_least=1, live=True)
    max_partition_fetch_bytes: int = _option(1_048_576, "At most this much of one partition.", at_least=1, live=True)
    max_queued_records: int = _option(2_000, "Decoded records that wait to be handed out.", at_least=1, live=True)
    max_buffered_bytes: int = _option(
        67_108_864, "Fetched bytes that wait to be decoded.", at_least=1, at_most=None, live=True
    )
    max_batch_bytes: int | None = _option(
        None, "A larger batch is an error, and is not handed out; by default one of any size gets through.", at_least=1
    )
    max_decompressed_batch_bytes: int = _option(
        134_217_728, "A batch that decompresses to more is a CorruptRecordError; bounds memory.", at_least=1
    )
    num_fetchers: int = _option(
        1, "Connections to fetch by, to each broker; each partition goes by one of them.", at_least=1
    )
    check_crcs: bool = _option(True, "Check each batch's checksum.", live=True)

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
    def begins_at(self) -> OffsetReset:
        """``auto_offset_reset``, decided."""
        if self.auto_offset_reset is not None:
            return self.auto_offset_reset
        return "latest" if self.group_id is None else "earliest"

    @property
    def offset_reset(self) -> ResetPolicy:
        """The same by name, for whoever cannot look times up: he begins no later at the earliest."""
        return self.begins_at if isinstance(self.begins_at, str) else "earliest"

    @property
    def leaves_on_stop(self) -> bool:
        """``leave_on_stop``, decided."""
        return self.group_instance_id is None if self.leave_on_stop is None else self.leave_on_stop


class ConsumerOptions(TypedDict, total=False):
    """The options of ConsumerConfig, for ``**options: Unpack[ConsumerOptions]``."""

    bootstrap_servers: str | Sequence[str]
    client_id: str
    metric_group_prefix: str
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
    group_protocol: GroupProtocol
    group_instance_id: str | None
    group_remote_assignor: str | None
    partition_assignment_strategy: str | Sequence[AssignmentStrategy]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    rebalance_drain_ms: int
    rebalance_max_retries: int | None
    leave_on_stop: bool | None
    post_rebalance_callback: PostRebalanceCallback | None
    rebalance_listener: RebalanceListener | object | None
    group_error_reactions: Mapping[int, ErrorReaction] | None
    auto_offset_reset: OffsetReset | None
    reset_offset_on_start: bool
    enable_auto_commit: bool | None
    auto_commit_interval_ms: int | None
    auto_commit_every_records: int | None
    offset_commit_max_retries: int | None
    offset_commit_callback: OffsetCommitCallback | None
    on_metadata_too_large: OnMetadataTooLarge
    ack: Ack
    offset_metadata_max_bytes: int
    isolation_level: IsolationLevel
    exclude_internal_topics: bool
    key_deserializer: Callable[[bytes], Any] | None
    value_deserializer: Callable[[bytes], Any] | None
    on_deserialize_error: OnDeserializeError
    allow_offset_gaps: bool
    consumer_timeout_ms: int | None
    when_timed_out: WhenTimedOut
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_queued_records: int
    max_buffered_bytes: int
    max_batch_bytes: int | None
    max_decompressed_batch_bytes: int
    num_fetchers: int
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


ASSIGNMENT_STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""The names of ``core.group.assignors.strategies``."""

ERROR_REACTIONS = ("retry", "find_coordinator", "rejoin", "rejoin_with_same_id", "rejoin_as_new", "fail")
"""The names of ``core.group.error_reactions``'s reactions."""
