"""Declaration of every option of a consumer: type, default, valid range.

``consumer_options`` documents the options; a test checks that both modules have the same ones. Times of options are in
milliseconds; other modules convert them to seconds.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = [
    "ASSIGNMENT_STRATEGIES",
    "ERROR_REACTIONS",
    "Ack",
    "Acks",
    "AssertionAlgorithm",
    "AssignedListener",
    "AssignmentStrategy",
    "ClientConfig",
    "CompressionType",
    "ConsumerConfig",
    "ErrorReaction",
    "EventHook",
    "GroupProtocol",
    "IsolationLevel",
    "LostListener",
    "OffsetCommitCallback",
    "OffsetReset",
    "OnDeserializeError",
    "OnMetadataTooLarge",
    "Partitioning",
    "PostRebalanceCallback",
    "ProducerConfig",
    "RebalanceListener",
    "RevokedListener",
    "SaslMechanism",
    "SecurityProtocol",
    "TokenGrantType",
    "TokenProvider",
    "WhenTimedOut",
]

SecurityProtocol: TypeAlias = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"]
ResetPolicy: TypeAlias = Literal["earliest", "latest", "none"]
OffsetReset: TypeAlias = ResetPolicy | int | dt.datetime | dt.timedelta
"""Policy, time (milliseconds since 1970, or a datetime with a time zone), or duration before now."""
GroupProtocol: TypeAlias = Literal["classic", "consumer"]
Ack: TypeAlias = Literal["auto", "manual"]
OnMetadataTooLarge: TypeAlias = Literal["raise", "blank"]
OnDeserializeError: TypeAlias = Literal["raise", "skip"]
WhenTimedOut: TypeAlias = Literal["raise", "stop"]
Acks: TypeAlias = Literal["all", 0, 1, -1]
CompressionType: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Partitioning: TypeAlias = (
    Literal["murmur2", "consistent_random", "sticky"] | Callable[[bytes | None, Sequence[int], Sequence[int]], int]
)
"""Name of a partitioner, or a function ``(key, all_partitions, available_partitions) -> partition``."""
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
TokenProvider: TypeAlias = Callable[[], Awaitable[str]]
TokenGrantType: TypeAlias = Literal["client_credentials", "urn:ietf:params:oauth:grant-type:jwt-bearer"]
AssertionAlgorithm: TypeAlias = Literal["RS256", "ES256"]
_Assignor: TypeAlias = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]
AssignmentStrategy: TypeAlias = _Assignor | Callable[..., Mapping[str, Any]]
"""Name of an assignor, or a function ``(members, partitions) -> {member_id: [TopicPartition, ...]}``."""
_Reaction: TypeAlias = Literal["retry", "find_coordinator", "rejoin", "rejoin_with_same_id", "rejoin_as_new", "fail"]
ErrorReaction: TypeAlias = _Reaction | Callable[[int], _Reaction]
"""Reaction to an error code, or a function that takes the code and returns a reaction."""
Offsets: TypeAlias = Mapping[TopicPartition, int | None]

PostRebalanceCallback: TypeAlias = Callable[
    [Any, Offsets, Offsets],
    Awaitable[Mapping[TopicPartition, int] | None] | Mapping[TopicPartition, int] | None,
]
"""``async def callback(consumer, old_offsets, new_offsets) -> overrides``, or a plain function.

``old_offsets`` and ``new_offsets`` map partitions to their positions before and after the rebalance, or to None if a
position is not known yet. The result maps partitions to the offsets to read from instead. It is applied before newly
assigned partitions are fetched.
"""

OffsetCommitCallback: TypeAlias = Callable[
    [Mapping[TopicPartition, OffsetAndMetadata], Exception | None], Awaitable[None] | None
]
"""``async def callback(offsets, error)``, or a plain function; ``error`` is None if the commit succeeded."""


class EventHook(Protocol):
    """Object that is called with every event, in the event loop and in order; it must not block."""

    def on_event(self, event: Any, /) -> None: ...  # noqa: ANN401 - events are defined above this package


class RevokedListener(Protocol):
    """Object whose method, plain or async, is called before partitions are revoked."""

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition], /) -> Awaitable[None] | None: ...


class AssignedListener(Protocol):
    """Object whose method, plain or async, is called after partitions are assigned."""

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition], /) -> Awaitable[None] | None: ...


class LostListener(Protocol):
    """Object whose method, plain or async, is called after partitions are lost."""

    def on_partitions_lost(self, partitions: frozenset[TopicPartition], /) -> Awaitable[None] | None: ...


RebalanceListener: TypeAlias = RevokedListener | AssignedListener | LostListener
"""Object with one or more of the three methods."""

ASSIGNMENT_STRATEGIES: tuple[str, ...] = get_args(_Assignor)
"""Names of Kafka's assignors, which are in ``consumer.group.assignors``."""

ERROR_REACTIONS: tuple[str, ...] = get_args(_Reaction)
"""Names of the reactions; ``core.group_requests.GroupReaction`` describes them."""


def _option(  # noqa: PLR0913 - one row of a table
    default: Any,  # noqa: ANN401 - as dataclasses.field has it
    *,
    at_least: int | None = None,
    at_most: int | None = 2**31 - 1,
    secret: bool = False,
    is_object: bool = False,
    classic: bool = False,
    live: bool = False,
) -> Any:  # noqa: ANN401
    """Declare an option.

    Args:
        default: default value.
        at_least: minimum of a number; None for no minimum.
        at_most: maximum of a number; None for no maximum. The default is that of a 32-bit integer, as in Kafka.
        secret: True to leave the value out of ``repr`` and of error messages.
        is_object: True if the value is a Python object, which the environment and the command line cannot set.
        classic: True if the option cannot be set with ``group_protocol="consumer"``.
        live: True if ``reconfigure`` can change the option while a consumer runs.
    """
    metadata = {
        "at_least": at_least,
        "at_most": at_most,
        "secret": secret,
        "is_object": is_object,
        "classic": classic,
        "live": live,
    }
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """Resolved options that consumers and producers have in common; ``repr`` omits secrets."""

    # ---- connection
    bootstrap_servers: tuple[str, ...] = _option(())
    client_id: str = _option("tailrace")
    metadata_max_age_ms: int = _option(300_000, at_least=1)
    connections_max_idle_ms: int = _option(540_000, at_least=1)
    local_addr: tuple[str, int] | None = _option(None)
    receive_buffer_bytes: int | None = _option(None, at_least=1)
    proxy_url: str | None = _option(None, secret=True)

    # ---- security
    security_protocol: SecurityProtocol = _option("PLAINTEXT")
    sasl_mechanism: SaslMechanism = _option("PLAIN")
    sasl_plain_username: str | None = _option(None)
    sasl_plain_password: str | None = _option(None, secret=True)
    sasl_plain_password_file: str | None = _option(None)
    sasl_oauth_token_provider: TokenProvider | str | None = _option(None, secret=True)
    sasl_oauthbearer_extensions: tuple[str, ...] = _option(())
    sasl_oauthbearer_token_endpoint_url: str | None = _option(None)
    sasl_oauthbearer_grant_type: TokenGrantType = _option("client_credentials")
    sasl_oauthbearer_client_id: str | None = _option(None)
    sasl_oauthbearer_client_secret: str | None = _option(None, secret=True)
    sasl_oauthbearer_scope: str | None = _option(None)
    sasl_oauthbearer_assertion_file: str | None = _option(None)
    sasl_oauthbearer_assertion_private_key_file: str | None = _option(None)
    sasl_oauthbearer_assertion_private_key_passphrase: str | None = _option(None, secret=True)
    sasl_oauthbearer_assertion_algorithm: AssertionAlgorithm = _option("RS256")
    sasl_oauthbearer_assertion_claim_aud: str | None = _option(None)
    sasl_oauthbearer_assertion_claim_iss: str | None = _option(None)
    sasl_oauthbearer_assertion_claim_sub: str | None = _option(None)
    sasl_oauthbearer_assertion_jwt_template_file: str | None = _option(None)
    https_ca_location: str | None = _option(None)
    sasl_kerberos_service_name: str = _option("kafka")
    sasl_kerberos_domain_name: str | None = _option(None)
    ssl_cafile: str | None = _option(None)
    ssl_certfile: str | None = _option(None)
    ssl_keyfile: str | None = _option(None)
    ssl_ca_pem: str | None = _option(None, secret=True)
    ssl_certificate_pem: str | None = _option(None, secret=True)
    ssl_key_pem: str | None = _option(None, secret=True)
    ssl_password: str | None = _option(None, secret=True)
    ssl_check_hostname: bool = _option(True)
    ssl_context: ssl.SSLContext | None = _option(None, is_object=True)

    # ---- timeouts and retries
    start_timeout_ms: int = _option(20_000, at_least=1)
    stop_timeout_ms: int = _option(20_000, at_least=1)
    request_timeout_ms: int = _option(40_000, at_least=1)
    socket_connection_setup_timeout_ms: int = _option(10_000, at_least=1)
    reconnect_backoff_ms: int = _option(50, at_least=1)
    reconnect_backoff_max_ms: int = _option(1_000, at_least=1)
    retry_backoff_ms: int = _option(100, at_least=1)
    retry_backoff_max_ms: int = _option(1_000, at_least=1)

    # ---- monitoring
    hooks: tuple[EventHook, ...] = _option((), is_object=True)


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Resolved options of a consumer; ``repr`` omits secrets. ``ConsumerOptions`` documents them."""

    # ---- connection
    client_rack: str = _option("")

    # ---- group membership
    group_id: str | None = _option(None)
    group_instance_id: str | None = _option(None)
    group_protocol: GroupProtocol = _option("classic")
    partition_assignment_strategy: tuple[AssignmentStrategy, ...] = _option(("cooperative-sticky",), classic=True)
    group_remote_assignor: str | None = _option(None)
    max_poll_interval_ms: int = _option(300_000, at_least=1)
    session_timeout_ms: int = _option(45_000, at_least=1, classic=True)
    heartbeat_interval_ms: int = _option(3_000, at_least=1, classic=True)
    rebalance_drain_ms: int = _option(30_000, at_least=0)
    rebalance_max_retries: int | None = _option(None, at_least=0)
    leave_on_stop: bool | None = _option(None)
    post_rebalance_callback: PostRebalanceCallback | None = _option(None, is_object=True)
    rebalance_listener: RebalanceListener | None = _option(None, is_object=True)
    group_error_reactions: Mapping[int, ErrorReaction] | None = _option(None, is_object=True)

    # ---- offsets
    auto_offset_reset: OffsetReset | None = _option(None, live=True)
    enable_auto_commit: bool | None = _option(None)
    auto_commit_interval_ms: int | None = _option(5_000, at_least=1)
    auto_commit_every_records: int | None = _option(None, at_least=1)
    ack: Ack = _option("auto")
    max_unacknowledged_records: int = _option(20_000, at_least=1, live=True)
    reset_offset_on_start: bool = _option(False)
    offset_commit_callback: OffsetCommitCallback | None = _option(None, is_object=True)
    offset_commit_max_retries: int | None = _option(None, at_least=0)
    offset_metadata_max_bytes: int = _option(4_096, at_least=0)
    on_metadata_too_large: OnMetadataTooLarge = _option("raise")

    # ---- fetching
    isolation_level: IsolationLevel = _option("read_uncommitted", live=True)
    max_queued_records: int = _option(2_000, at_least=1, live=True)
    max_buffered_bytes: int = _option(16_777_216, at_least=1, at_most=None, live=True)
    fetch_min_bytes: int = _option(1, at_least=0, live=True)
    fetch_max_wait_ms: int = _option(500, at_least=0, live=True)
    fetch_max_bytes: int = _option(52_428_800, at_least=1, live=True)
    max_partition_fetch_bytes: int = _option(1_048_576, at_least=1, live=True)
    num_fetchers: int = _option(1, at_least=1)
    max_batch_bytes: int | None = _option(None, at_least=1)
    max_decompressed_batch_bytes: int = _option(134_217_728, at_least=1)
    check_crcs: bool = _option(True, live=True)
    allow_offset_gaps: bool = _option(True)
    exclude_internal_topics: bool = _option(True)

    # ---- records
    key_deserializer: Callable[[bytes], Any] | None = _option(None, is_object=True)
    value_deserializer: Callable[[bytes], Any] | None = _option(None, is_object=True)
    on_deserialize_error: OnDeserializeError = _option("raise")
    consumer_timeout_ms: int | None = _option(None, at_least=1, live=True)
    when_timed_out: WhenTimedOut = _option("raise", live=True)

    # ---- timeouts and retries
    default_api_timeout_ms: int = _option(60_000, at_least=1)

    # ---- monitoring
    metric_group_prefix: str = _option("consumer")

    # ---- values computed from several options

    @property
    def commits_automatically(self) -> bool:
        """True if finished records are committed automatically."""
        return self.group_id is not None if self.enable_auto_commit is None else self.enable_auto_commit

    @property
    def begins_at(self) -> OffsetReset:
        """Start of reading: ``auto_offset_reset``; by default "earliest" with a group, and "latest" without one."""
        if self.auto_offset_reset is not None:
            return self.auto_offset_reset
        return "latest" if self.group_id is None else "earliest"

    @property
    def offset_reset(self) -> ResetPolicy:
        """Policy for a position outside the log: ``begins_at``, or "earliest" if that is a time or a duration."""
        return self.begins_at if isinstance(self.begins_at, str) else "earliest"

    @property
    def leaves_on_stop(self) -> bool:
        """True if ``stop()`` leaves the group."""
        return self.group_instance_id is None if self.leave_on_stop is None else self.leave_on_stop


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Resolved options of a producer; ``repr`` omits secrets. ``ProducerOptions`` documents them."""

    # ---- delivery
    acks: Acks = _option("all")
    enable_idempotence: bool | None = _option(None)
    delivery_timeout_ms: int = _option(120_000, at_least=1)
    max_block_ms: int = _option(60_000, at_least=0)

    # ---- batches
    compression_type: CompressionType = _option("none")
    compression_level: int | None = _option(None)
    linger_ms: int = _option(0, at_least=0)
    max_batch_size: int = _option(262_144, at_least=1)
    max_request_size: int = _option(1_048_576, at_least=1)
    buffer_memory: int = _option(33_554_432, at_least=1, at_most=None)
    partitioner: Partitioning = _option("murmur2")

    # ---- transactions
    transactional_id: str | None = _option(None)
    transaction_timeout_ms: int = _option(60_000, at_least=1)

    # ---- records to publish
    key_serializer: Callable[[Any], bytes | None] | None = _option(None, is_object=True)
    value_serializer: Callable[[Any], bytes | None] | None = _option(None, is_object=True)
