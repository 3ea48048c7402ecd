"""Documentation and types of every option of a consumer, for programs and their type checkers.

The last paragraph of each text is written by ``python docs/options.py`` from the row of ``ConsumerConfig``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from typing_extensions import TypedDict

from tailrace.config.options import (
    Ack,
    AssignmentStrategy,
    ErrorReaction,
    EventHook,
    GroupProtocol,
    IsolationLevel,
    OffsetCommitCallback,
    OffsetReset,
    OnDeserializeError,
    OnMetadataTooLarge,
    PostRebalanceCallback,
    RebalanceListener,
    SaslMechanism,
    SecurityProtocol,
    TokenProvider,
    WhenTimedOut,
)
from tailrace.records import KeyT_co, ValueT_co

__all__ = ["ConsumerOptions"]


class ConsumerOptions(TypedDict, Generic[KeyT_co, ValueT_co], total=False):
    """Options of a consumer, for ``**options: Unpack[ConsumerOptions]``.

    ``ConsumerOptions[str, Order]`` has deserializers that return ``str`` and ``Order``.
    """

    # ---- connection
    bootstrap_servers: str | Sequence[str]
    """Addresses of brokers for the first connection, as ``host:port``.

    One that answers is enough; it names the others.

    Default: (). librdkafka: metadata.broker.list.
    """
    client_id: str
    """Name of this client in the brokers' logs, metrics and quotas.

    Default: "tailrace".
    """
    client_rack: str
    """Rack of this client; records are fetched from the nearest replica (KIP-392).

    Default: "".
    """
    metadata_max_age_ms: int
    """Maximum age in milliseconds of cluster metadata before it is refreshed.

    Default: 300_000. Minimum: 1. librdkafka: topic.metadata.refresh.interval.ms.
    """
    connections_max_idle_ms: int
    """Time in milliseconds after which an unused connection is replaced by a new one.

    Default: 540_000. Minimum: 1.
    """
    local_addr: tuple[str, int] | None
    """Local address and port of connections; port 0 for any.

    Default: None.
    """
    receive_buffer_bytes: int | None
    """Size in bytes of the sockets' receive buffers; None for the system's default.

    Default: None. Minimum: 1. librdkafka: socket.receive.buffer.bytes.
    """

    # ---- security
    security_protocol: SecurityProtocol
    """Protocol used to talk to the brokers.

    Default: "PLAINTEXT".
    """
    sasl_mechanism: SaslMechanism
    """Mechanism of SASL authentication.

    Default: "PLAIN". librdkafka: sasl.mechanisms.
    """
    sasl_plain_username: str | None
    """User name for PLAIN and SCRAM.

    Default: None. librdkafka: sasl.username.
    """
    sasl_plain_password: str | None
    """Password for PLAIN and SCRAM.

    Default: None. Java: sasl.jaas.config; librdkafka: sasl.password.
    """
    sasl_oauth_token_provider: TokenProvider | None
    """Async function that returns a token, for OAUTHBEARER.

    Default: None. Not from the environment. Java: sasl.login.callback.handler.class; librdkafka: oauth_cb.
    """
    sasl_kerberos_service_name: str
    """Service name of the brokers, for GSSAPI.

    Default: "kafka".
    """
    sasl_kerberos_domain_name: str | None
    """Domain name of the brokers, for GSSAPI; None for each broker's host.

    Default: None.
    """
    ssl_cafile: str | None
    """Path of the CA certificates to trust, in PEM; None for the system's.

    Default: None. Java: ssl.truststore.location; librdkafka: ssl.ca.location.
    """
    ssl_certfile: str | None
    """Path of the client's certificate chain, in PEM.

    Default: None. Java: ssl.keystore.certificate.chain; librdkafka: ssl.certificate.location.
    """
    ssl_keyfile: str | None
    """Path of the client's private key, in PEM.

    Default: None. Java: ssl.keystore.key; librdkafka: ssl.key.location.
    """
    ssl_password: str | None
    """Password of the private key.

    Default: None. Java: ssl.key.password.
    """
    ssl_check_hostname: bool
    """Check that the broker's certificate names its host.

    Default: True. Java: ssl.endpoint.identification.algorithm.
    """
    ssl_context: ssl.SSLContext | None
    """TLS context to use instead of the ``ssl_*`` files.

    Default: None. Not from the environment.
    """

    # ---- group membership
    group_id: str | None
    """Consumer group to join; None reads without a group.

    Default: None.
    """
    group_instance_id: str | None
    """Name of a static member, kept over restarts (KIP-345).

    A template of ``{hostname}``, ``{worker}`` (the number of the worker process) and ``{pid}``.

    Default: None.
    """
    group_protocol: GroupProtocol
    """Group protocol: ``"classic"``, or ``"consumer"`` (KIP-848, Kafka 4.0 and newer).

    Default: "classic".
    """
    partition_assignment_strategy: AssignmentStrategy | Sequence[AssignmentStrategy]
    """Assignors of the group, most preferred first.

    A name, or a function ``(members, partitions) -> {member_id: [TopicPartition, ...]}``, which all members need. It is
    known by its ``name`` attribute, or its ``__name__``. With ``is_cooperative = True`` it leaves out partitions that
    change their owner until the former owner has revoked them.

    Default: ("cooperative-sticky",). Only with ``group_protocol="classic"``.
    """
    group_remote_assignor: str | None
    """Assignor of the broker, such as ``"uniform"`` or ``"range"``; None for its default.

    Only with ``group_protocol="consumer"``.

    Default: None.
    """
    max_poll_interval_ms: int
    """Maximum time in milliseconds between two reads, and for a member to rejoin.

    A member that exceeds it leaves the group, so that its partitions are assigned to others.

    Default: 300_000. Minimum: 1. aiokafka: rebalance_timeout_ms.
    """
    session_timeout_ms: int
    """Time in milliseconds without a heartbeat after which a member is removed.

    Default: 45_000. Minimum: 1. Only with ``group_protocol="classic"``.
    """
    heartbeat_interval_ms: int
    """Time in milliseconds between heartbeats; at most a third of the session.

    Default: 3_000. Minimum: 1. Only with ``group_protocol="classic"``.
    """
    rebalance_drain_ms: int
    """Time in milliseconds a rebalance waits for records in flight to finish.

    Default: 30_000. Minimum: 0.
    """
    rebalance_max_retries: int | None
    """Maximum number of retries of joining the group; None for no limit.

    Default: None. Minimum: 0.
    """
    leave_on_stop: bool | None
    """Leave the group on ``stop()``; by default a dynamic member does, a static one does not.

    Default: None. Java: internal.leave.group.on.close.
    """
    post_rebalance_callback: PostRebalanceCallback | None
    """Called after a rebalance, before the first fetch; may return start offsets.

    ``async def callback(consumer, old_offsets, new_offsets)``, or a plain function. It returns a mapping of partitions
    to the offsets to read from instead, or None.

    Default: None. Not from the environment.
    """
    rebalance_listener: RebalanceListener | None
    """Object whose ``on_partitions_assigned``, ``_revoked`` and ``_lost`` are called.

    Default: None. Not from the environment. librdkafka: rebalance_cb.
    """
    group_error_reactions: Mapping[int, ErrorReaction] | None
    """Reactions to error codes of group requests, such as ``{14: "retry"}``.

    Default: None. Not from the environment.
    """

    # ---- offsets
    auto_offset_reset: OffsetReset | None
    """Start position without a committed offset.

    ``"earliest"``, ``"latest"``, ``"none"`` (raise an error), a time, or a duration before now; outside of Python in
    ISO 8601. By default ``"earliest"`` with a group and ``"latest"`` without one.

    Default: None. Can be changed by ``reconfigure``.
    """
    enable_auto_commit: bool | None
    """Commit finished records periodically; by default True with a group.

    ``App`` refuses False.

    Default: None.
    """
    auto_commit_interval_ms: int | None
    """Time in milliseconds between automatic commits; None for none by time.

    Each commit restarts the interval and the count of ``auto_commit_every_records``.

    Default: 5_000. Minimum: 1.
    """
    auto_commit_every_records: int | None
    """Number of finished records after which they are committed as well.

    Default: None. Minimum: 1.
    """
    ack: Ack
    """``"auto"`` finishes a record when the next is read, ``"manual"`` on ``ack(record)``.

    Default: "auto". librdkafka: enable.auto.offset.store.
    """
    max_unacknowledged_records: int
    """Maximum number of delivered records that ``ack="manual"`` has not acknowledged.

    A call waits for an acknowledgement when there are as many; after ``max_poll_interval_ms`` without one, it raises
    and the member leaves the group.

    Default: 20_000. Minimum: 1. Can be changed by ``reconfigure``.
    """
    reset_offset_on_start: bool
    """Ignore committed offsets once and start at ``auto_offset_reset``.

    The start positions are committed at the first assignment.

    Default: False.
    """
    offset_commit_callback: OffsetCommitCallback | None
    """Called after each commit with ``(offsets, error)``; sync or async.

    Default: None. Not from the environment. librdkafka: offset_commit_cb.
    """
    offset_commit_max_retries: int | None
    """Maximum number of retries of a commit; None for as many as its time allows.

    Default: None. Minimum: 0.
    """
    offset_metadata_max_bytes: int
    """Maximum size in bytes of commit metadata; at most the broker's limit.

    The limit is ``offset.metadata.max.bytes``. The metadata holds the offset map: the records that are finished after
    the committed offset. 0 writes no offset map.

    Default: 4_096. Minimum: 0.
    """
    on_metadata_too_large: OnMetadataTooLarge
    """Action if the text of a commit is too long: raise, or ``"blank"`` to omit it.

    Default: "raise".
    """

    # ---- fetching
    isolation_level: IsolationLevel
    """``"read_committed"`` skips records of aborted transactions.

    Default: "read_uncommitted". Can be changed by ``reconfigure``.
    """
    max_queued_records: int
    """Maximum number of decoded records that wait to be delivered.

    In an app, of records that wait for handlers.

    Default: 2_000. Minimum: 1. Can be changed by ``reconfigure``. librdkafka: queued.min.messages.
    """
    max_buffered_bytes: int
    """Maximum size in bytes of fetched data that is not decoded.

    Default: 16_777_216. Minimum: 1. No maximum. Can be changed by ``reconfigure``. librdkafka:
    queued.max.messages.kbytes.
    """
    fetch_min_bytes: int
    """Minimum size in bytes of a fetch response, unless ``fetch_max_wait_ms`` passes.

    Default: 1. Minimum: 0. Can be changed by ``reconfigure``.
    """
    fetch_max_wait_ms: int
    """Maximum time in milliseconds the broker waits for ``fetch_min_bytes``.

    Default: 500. Minimum: 0. Can be changed by ``reconfigure``. librdkafka: fetch.wait.max.ms.
    """
    fetch_max_bytes: int
    """Maximum size in bytes of a fetch response.

    Default: 52_428_800. Minimum: 1. Can be changed by ``reconfigure``.
    """
    max_partition_fetch_bytes: int
    """Maximum size in bytes of the data of one partition in a fetch response.

    Default: 1_048_576. Minimum: 1. Can be changed by ``reconfigure``. librdkafka: fetch.message.max.bytes.
    """
    num_fetchers: int
    """Number of connections for fetching to each broker.

    Default: 1. Minimum: 1.
    """
    max_batch_bytes: int | None
    """Maximum size in bytes of a batch; a larger one raises an error.

    Default: None. Minimum: 1.
    """
    max_decompressed_batch_bytes: int
    """Maximum size in bytes of a decompressed batch; more raises an error.

    The error is a ``CorruptRecordError``.

    Default: 134_217_728. Minimum: 1.
    """
    check_crcs: bool
    """Check the CRC-32C checksum of each batch.

    Default: True. Can be changed by ``reconfigure``.
    """
    allow_offset_gaps: bool
    """Accept gaps in the offsets; False raises ``OffsetGapError``.

    Compaction and transactions leave gaps.

    Default: True.
    """
    exclude_internal_topics: bool
    """Exclude Kafka's internal topics from patterns; a topic that is named is read.

    Default: True.
    """

    # ---- records
    key_deserializer: Callable[[bytes], KeyT_co] | None
    """Function that decodes keys; not called for null.

    Default: None. Not from the environment.
    """
    value_deserializer: Callable[[bytes], ValueT_co] | None
    """Function that decodes values; not called for null.

    Default: None. Not from the environment.
    """
    on_deserialize_error: OnDeserializeError
    """Action if a record cannot be decoded: raise ``DecodeError``, or ``"skip"`` it.

    ``DecodeError`` is raised again until the consumer seeks past the record.

    Default: "raise".
    """
    consumer_timeout_ms: int | None
    """Time in milliseconds to wait for a record in a loop or call without its own timeout.

    Default: None. Minimum: 1. Can be changed by ``reconfigure``.
    """
    when_timed_out: WhenTimedOut
    """Action after ``consumer_timeout_ms``: raise an error, or ``"stop"`` a loop.

    Default: "raise". Can be changed by ``reconfigure``.
    """

    # ---- timeouts and retries
    start_timeout_ms: int
    """Maximum time in milliseconds to reach the cluster in ``start()``.

    Default: 20_000. Minimum: 1.
    """
    stop_timeout_ms: int
    """Maximum time in milliseconds of ``stop()``, even if no broker answers.

    Default: 20_000. Minimum: 1.
    """
    default_api_timeout_ms: int
    """Maximum time in milliseconds of a call such as ``commit()``, retries included.

    Default: 60_000. Minimum: 1.
    """
    request_timeout_ms: int
    """Maximum time in milliseconds to wait for the response to a request.

    Default: 40_000. Minimum: 1. librdkafka: socket.timeout.ms.
    """
    socket_connection_setup_timeout_ms: int
    """Maximum time in milliseconds to open a connection.

    Default: 10_000. Minimum: 1.
    """
    reconnect_backoff_ms: int
    """Time in milliseconds before the first reconnect to a broker.

    Default: 50. Minimum: 1.
    """
    reconnect_backoff_max_ms: int
    """Maximum time in milliseconds between reconnects.

    Default: 1_000. Minimum: 1.
    """
    retry_backoff_ms: int
    """Time in milliseconds before the first retry of a request (KIP-580).

    Default: 100. Minimum: 1. librdkafka: fetch.error.backoff.ms.
    """
    retry_backoff_max_ms: int
    """Maximum time in milliseconds between retries of a request.

    Default: 1_000. Minimum: 1.
    """

    # ---- monitoring
    hooks: Sequence[EventHook]
    """Objects whose ``on_event(event)`` is called with every event.

    Default: (). Not from the environment.
    """
    metric_group_prefix: str
    """Prefix of the groups in ``metrics()``.

    Default: "consumer".
    """
