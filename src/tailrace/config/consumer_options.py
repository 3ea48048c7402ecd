"""Documentation and types of every option of a consumer, for programs and their type checkers.

``python docs/options.py`` writes the last paragraph of each docstring from the option's declaration in
``ConsumerConfig``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from typing_extensions import TypedDict

from tailrace.config.options import (
    Ack,
    AssertionAlgorithm,
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
    TokenGrantType,
    TokenProvider,
    WhenTimedOut,
)
from tailrace.records import KeyT_co, ValueT_co

__all__ = ["ClientOptions", "ConsumerOptions"]


class ClientOptions(TypedDict, total=False):
    """Options that consumers and producers have in common."""

    # ---- connection
    bootstrap_servers: str | Sequence[str]
    """Addresses of brokers for the first connection, as ``host:port``.

    One broker that answers is enough: its answer contains the addresses of all brokers. In a string, commas separate
    the addresses.

    Default: (). librdkafka: metadata.broker.list.
    """
    client_id: str
    """Name of this client in the brokers' logs, metrics and quotas.

    Default: "tailrace".
    """
    metadata_max_age_ms: int
    """Maximum age in milliseconds of cluster metadata before it is refreshed.

    Default: 300_000. Minimum: 1. librdkafka: topic.metadata.refresh.interval.ms.
    """
    connections_max_idle_ms: int
    """Idle time in milliseconds after which the next request opens a new connection.

    Until that request, the idle connection stays open.

    Default: 540_000. Minimum: 1.
    """
    local_addr: tuple[str, int] | None
    """Local address and port of connections; with port 0, the system chooses the port.

    Default: None.
    """
    receive_buffer_bytes: int | None
    """Size in bytes of the sockets' receive buffers; None for the system's default.

    Default: None. Minimum: 1. librdkafka: socket.receive.buffer.bytes.
    """
    proxy_url: str | None
    """URL of a SOCKS5 or HTTP CONNECT proxy for all connections to brokers; needs the extra ``proxy``.

    ``socks5h://host:port`` and ``http://host:port`` let the proxy resolve the names of brokers, ``socks5://host:port``
    does not. A user name and a password are written ``http://user:password@host:port``.

    Default: None.
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
    sasl_plain_password_file: str | None
    """Path of a file with the password for PLAIN and SCRAM.

    The file is read for each authentication, so the password can change without a restart. A line break at the end is
    not part of the password.

    Default: None.
    """
    sasl_oauth_token_provider: TokenProvider | str | None
    """Async function that returns a token, or a name, for OAUTHBEARER.

    ``"aws:REGION"`` signs in to Amazon MSK (extra ``aws``), ``"azure:NAMESPACE"`` to an Event Hubs namespace and
    ``"azure:SCOPE"`` to another service of Azure (extra ``azure``), and ``"gcp"`` to Google's Managed Service for
    Apache Kafka (extra ``gcp``). ``"oidc"`` requests tokens from the endpoint of an identity provider.
    ``"package.module:function"`` names a function, async or plain, that returns a token.

    Default: None. Java: sasl.login.callback.handler.class; librdkafka: oauth_cb.
    """
    sasl_oauthbearer_extensions: Sequence[str]
    """SASL extensions (KIP-342) as ``key=value``.

    An example is ``logicalCluster=lkc-1`` for Confluent Cloud. In a string, commas separate the extensions. They are
    added to those of the token provider.

    Default: ().
    """
    sasl_oauthbearer_token_endpoint_url: str | None
    """URL of the identity provider's token endpoint, for ``"oidc"``.

    Default: None.
    """
    sasl_oauthbearer_grant_type: TokenGrantType
    """Grant type of the token request.

    Client credentials (RFC 6749), or a JWT as authorization grant (RFC 7523).

    Default: "client_credentials".
    """
    sasl_oauthbearer_client_id: str | None
    """Client id for the token endpoint.

    Default: None.
    """
    sasl_oauthbearer_client_secret: str | None
    """Client secret for the token endpoint.

    Default: None.
    """
    sasl_oauthbearer_scope: str | None
    """Scope of the token request; several scopes are separated by spaces.

    Default: None.
    """
    sasl_oauthbearer_assertion_file: str | None
    """Path of a file with the JWT to send.

    The JWT is the authorization grant. The file is read for each token request.

    Default: None.
    """
    sasl_oauthbearer_assertion_private_key_file: str | None
    """PEM file with the key that signs the JWT.

    The JWT is the authorization grant. Signing needs the extra ``oidc``.

    Default: None.
    """
    sasl_oauthbearer_assertion_private_key_passphrase: str | None
    """Passphrase of that private key.

    Default: None.
    """
    sasl_oauthbearer_assertion_algorithm: AssertionAlgorithm
    """Algorithm of the JWT's signature.

    Default: "RS256".
    """
    sasl_oauthbearer_assertion_claim_aud: str | None
    """Audience of the JWT; None for the URL of the token endpoint.

    Default: None.
    """
    sasl_oauthbearer_assertion_claim_iss: str | None
    """Issuer of the JWT; None for the client id.

    Default: None.
    """
    sasl_oauthbearer_assertion_claim_sub: str | None
    """Subject of the JWT; None for the issuer.

    Default: None.
    """
    sasl_oauthbearer_assertion_jwt_template_file: str | None
    """JSON file with more fields of the JWT.

    An object with ``header`` (such as ``kid``), ``payload``, or both.

    Default: None.
    """
    https_ca_location: str | None
    """Path of a PEM file with the CA certificates of the token endpoint.

    None trusts those of the system.

    Default: None.
    """
    sasl_kerberos_service_name: str
    """Service name of the brokers, for GSSAPI.

    Default: "kafka".
    """
    sasl_kerberos_domain_name: str | None
    """Host name in the brokers' principals, for GSSAPI; None for each broker's own.

    Default: None.
    """
    ssl_cafile: str | None
    """Path of a PEM file with the CA certificates to trust; None for those of the system.

    Default: None. Java: ssl.truststore.location; librdkafka: ssl.ca.location.
    """
    ssl_certfile: str | None
    """Path of a PEM file with the client's certificate chain.

    Default: None. Java: ssl.keystore.location; librdkafka: ssl.certificate.location.
    """
    ssl_keyfile: str | None
    """Path of a PEM file with the client's private key.

    Default: None. librdkafka: ssl.key.location.
    """
    ssl_ca_pem: str | None
    """CA certificates to trust, as PEM text instead of ``ssl_cafile``.

    Escaped line breaks are accepted.

    Default: None. Java: ssl.truststore.certificates.
    """
    ssl_certificate_pem: str | None
    """Certificate chain of the client, as PEM text instead of ``ssl_certfile``.

    It may also contain the private key.

    Default: None. Java: ssl.keystore.certificate.chain.
    """
    ssl_key_pem: str | None
    """Private key of the client, as PEM text instead of ``ssl_keyfile``.

    Default: None. Java: ssl.keystore.key.
    """
    ssl_password: str | None
    """Password of the private key.

    Default: None. Java: ssl.key.password.
    """
    ssl_check_hostname: bool
    """Check that the certificate of a broker contains the broker's host name.

    Default: True. Java: ssl.endpoint.identification.algorithm.
    """
    ssl_context: ssl.SSLContext | None
    """TLS context to use instead of the ``ssl_*`` files.

    Default: None. Not from the environment.
    """

    # ---- timeouts and retries
    start_timeout_ms: int
    """Maximum time in milliseconds for which ``start()`` tries to reach the cluster.

    Default: 20_000. Minimum: 1.
    """
    stop_timeout_ms: int
    """Maximum duration in milliseconds of ``stop()``, even if no broker answers.

    Default: 20_000. Minimum: 1.
    """
    request_timeout_ms: int
    """Maximum time in milliseconds to wait for the response to a request.

    Default: 40_000. Minimum: 1. librdkafka: socket.timeout.ms.
    """
    socket_connection_setup_timeout_ms: int
    """Maximum time in milliseconds to open a connection to an address.

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


class ConsumerOptions(ClientOptions, Generic[KeyT_co, ValueT_co], total=False):
    """Options of a consumer, for ``**options: Unpack[ConsumerOptions]``.

    ``ConsumerOptions[str, Order]`` has deserializers that return ``str`` and ``Order``.
    """

    # ---- connection
    client_rack: str
    """Rack of this client; brokers may name a replica in this rack to fetch from (KIP-392).

    Default: "".
    """

    # ---- group membership
    group_id: str | None
    """Consumer group to join; None reads without a group.

    Default: None.
    """
    group_instance_id: str | None
    """Name of a static member, which keeps its partitions through a restart (KIP-345).

    Each member of a group needs a different name. The name may contain ``{hostname}``, ``{worker}`` (the number of the
    worker process) and ``{pid}``, which are replaced at the start.

    Default: None.
    """
    group_protocol: GroupProtocol
    """Group protocol: ``"classic"``, or ``"consumer"`` (KIP-848, Kafka 4.0 and newer).

    Default: "classic".
    """
    partition_assignment_strategy: AssignmentStrategy | Sequence[AssignmentStrategy]
    """Assignors of this member, most preferred first.

    An assignor is a name or a function ``(members, partitions) -> {member_id: [TopicPartition, ...]}``. Every member of
    the group must have the function, under the same name: its ``name`` attribute, or else its ``__name__``. If the
    function has the attribute ``is_cooperative = True``, tailrace assigns a partition that changes its owner only after
    the former owner has revoked it (KIP-429).

    Default: ("cooperative-sticky",). Only with ``group_protocol="classic"``.
    """
    group_remote_assignor: str | None
    """Assignor on the broker, such as ``"uniform"`` or ``"range"``; None for the broker's default.

    Only with ``group_protocol="consumer"``.

    Default: None.
    """
    max_poll_interval_ms: int
    """Maximum time in milliseconds between two polls while records are available.

    A member that exceeds it leaves the group, so that its partitions are assigned to other members. The option also
    limits the time that a rebalance waits for each member to rejoin, and the duration of a rebalance callback.

    Default: 300_000. Minimum: 1. aiokafka: rebalance_timeout_ms.
    """
    session_timeout_ms: int
    """Time in milliseconds without a heartbeat after which the group removes a member.

    Default: 45_000. Minimum: 1. Only with ``group_protocol="classic"``.
    """
    heartbeat_interval_ms: int
    """Time in milliseconds between heartbeats; must be less than ``session_timeout_ms``.

    At most a third of ``session_timeout_ms`` is recommended.

    Default: 3_000. Minimum: 1. Only with ``group_protocol="classic"``.
    """
    rebalance_drain_ms: int
    """Maximum time in milliseconds that a rebalance waits for records in flight to finish.

    Default: 30_000. Minimum: 0.
    """
    rebalance_max_retries: int | None
    """Maximum number of consecutive retries of joining the group; None for no limit.

    If the last retry fails, too, the consumer fails with ``RebalanceError``.

    Default: None. Minimum: 0.
    """
    leave_on_stop: bool | None
    """Leave the group on ``stop()``; None leaves unless ``group_instance_id`` is set.

    Default: None. Java: internal.leave.group.on.close.
    """
    post_rebalance_callback: PostRebalanceCallback | None
    """Function that is called after a rebalance and may return offsets to read from.

    ``async def callback(consumer, old_offsets, new_offsets)``, or a plain function. ``old_offsets`` and ``new_offsets``
    map partitions to their positions before and after the rebalance, or to None if a position is not known yet. The
    function returns None, or a mapping of partitions to the offsets to read from instead. It is called before the first
    fetch of newly assigned partitions.

    Default: None. Not from the environment.
    """
    rebalance_listener: RebalanceListener | None
    """Object whose methods are called when partitions are assigned, revoked or lost.

    The methods are ``on_partitions_assigned``, ``on_partitions_revoked`` and ``on_partitions_lost``; at least one is
    required. A method, plain or async, is called with a frozenset of partitions.

    Default: None. Not from the environment. librdkafka: rebalance_cb.
    """
    group_error_reactions: Mapping[int, ErrorReaction] | None
    """Reactions to error codes of group requests, such as ``{14: "retry"}``.

    The reactions are ``"retry"`` (repeat the request after a pause), ``"find_coordinator"`` (find the coordinator, then
    repeat the request), ``"rejoin"`` (join the next generation), ``"rejoin_with_same_id"`` and ``"rejoin_as_new"``
    (give up the partitions and join again, with the same or with a new member id), and ``"fail"`` (raise the error). A
    value can also be a function that is called with the code and returns a reaction.

    Default: None. Not from the environment.
    """

    # ---- offsets
    auto_offset_reset: OffsetReset | None
    """Start position if there is no committed offset, or if that offset is not in the log.

    The value is ``"earliest"``, ``"latest"``, ``"none"`` (raise ``OffsetOutOfRangeError``), a time (a datetime with a
    time zone, or milliseconds since 1970), or a timedelta before now. As text, for example in an environment variable,
    a time is written ``2026-01-31T12:00:00Z`` and a timedelta ``PT12H`` (ISO 8601). None means ``"earliest"`` with a
    group and ``"latest"`` without one.

    Default: None. Can be changed by ``reconfigure``.
    """
    enable_auto_commit: bool | None
    """Commit finished records automatically; None commits if there is a ``group_id``.

    ``App`` does not accept False.

    Default: None.
    """
    auto_commit_interval_ms: int | None
    """Time in milliseconds between automatic commits; None for no periodic commits.

    Each commit, also one by ``commit()``, restarts the interval and the count of ``auto_commit_every_records``.

    Default: 5_000. Minimum: 1.
    """
    auto_commit_every_records: int | None
    """Number of finished records that cause a commit before the interval has passed.

    None commits at intervals only.

    Default: None. Minimum: 1.
    """
    ack: Ack
    """``"auto"`` finishes a record when the next one is polled, ``"manual"`` by ``ack(record)``.

    Default: "auto". librdkafka: enable.auto.offset.store.
    """
    max_unacknowledged_records: int
    """Maximum number of records in flight with ``ack="manual"``.

    If that many delivered records are not acknowledged, a poll waits. If no record is acknowledged within
    ``max_poll_interval_ms``, the poll raises ``RebalanceError`` and the member leaves the group.

    Default: 20_000. Minimum: 1. Can be changed by ``reconfigure``.
    """
    reset_offset_on_start: bool
    """Ignore committed offsets at the first assignment; start at ``auto_offset_reset``.

    The start positions are committed. Partitions that are assigned to this consumer later start at their committed
    offsets.

    Default: False.
    """
    offset_commit_callback: OffsetCommitCallback | None
    """Function, plain or async, that is called with ``(offsets, error)`` after each commit.

    ``error`` is None if the commit succeeded.

    Default: None. Not from the environment. librdkafka: offset_commit_cb.
    """
    offset_commit_max_retries: int | None
    """Maximum number of retries of a commit; None retries until the commit's timeout.

    The timeout of ``commit()`` is ``default_api_timeout_ms``, that of a periodic commit ``request_timeout_ms``.

    Default: None. Minimum: 0.
    """
    offset_metadata_max_bytes: int
    """Maximum size in bytes of the metadata that is committed with an offset.

    The metadata holds the offset map: the list of finished records after the committed offset. The size must not exceed
    the brokers' ``offset.metadata.max.bytes``. With 0, no offset map is committed.

    Default: 4_096. Minimum: 0.
    """
    on_metadata_too_large: OnMetadataTooLarge
    """Action if the metadata given to ``commit()`` is larger than the broker accepts.

    ``"raise"`` raises ``BrokerError``, ``"blank"`` commits the offset without the metadata.

    Default: "raise".
    """

    # ---- fetching
    isolation_level: IsolationLevel
    """``"read_committed"`` delivers no records of aborted or open transactions.

    Default: "read_uncommitted". Can be changed by ``reconfigure``.
    """
    max_queued_records: int
    """Maximum number of decoded records that wait to be delivered.

    In an app, the maximum number of records that wait for handlers.

    Default: 2_000. Minimum: 1. Can be changed by ``reconfigure``. librdkafka: queued.min.messages.
    """
    max_buffered_bytes: int
    """Maximum size in bytes of fetched data that is not decoded yet.

    Default: 16_777_216. Minimum: 1. No maximum. Can be changed by ``reconfigure``. librdkafka:
    queued.max.messages.kbytes.
    """
    fetch_min_bytes: int
    """Minimum size in bytes of a fetch response; after ``fetch_max_wait_ms``, any size.

    Default: 1. Minimum: 0. Can be changed by ``reconfigure``.
    """
    fetch_max_wait_ms: int
    """Maximum time in milliseconds for which a broker waits for ``fetch_min_bytes``.

    Default: 500. Minimum: 0. Can be changed by ``reconfigure``. librdkafka: fetch.wait.max.ms.
    """
    fetch_max_bytes: int
    """Maximum size in bytes of a fetch response.

    If the first batch is larger, the response contains it nevertheless.

    Default: 52_428_800. Minimum: 1. Can be changed by ``reconfigure``.
    """
    max_partition_fetch_bytes: int
    """Maximum size in bytes of the data of one partition in a fetch response.

    If the first batch is larger, the response contains it nevertheless.

    Default: 1_048_576. Minimum: 1. Can be changed by ``reconfigure``. librdkafka: fetch.message.max.bytes.
    """
    num_fetchers: int
    """Number of connections to each broker for fetch requests.

    Default: 1. Minimum: 1.
    """
    max_batch_bytes: int | None
    """Maximum size in bytes of a fetched batch; None for no limit.

    In place of a larger batch, ``RecordTooLargeError`` is raised.

    Default: None. Minimum: 1.
    """
    max_decompressed_batch_bytes: int
    """Maximum size in bytes of a batch after decompression.

    In place of a larger batch, ``CorruptRecordError`` is raised.

    Default: 134_217_728. Minimum: 1.
    """
    check_crcs: bool
    """Check the CRC-32C checksum of each batch.

    Default: True. Can be changed by ``reconfigure``.
    """
    allow_offset_gaps: bool
    """Accept gaps in the offsets; False raises ``OffsetGapError`` at a gap.

    Compaction and transactions leave gaps.

    Default: True.
    """
    exclude_internal_topics: bool
    """Exclude Kafka's internal topics from patterns and from ``topics()``.

    Internal topics, such as ``__consumer_offsets``, can still be subscribed to by name.

    Default: True.
    """

    # ---- records
    key_deserializer: Callable[[bytes], KeyT_co] | None
    """Function that decodes the bytes of a key; it is not called if the key is null.

    Default: None. Not from the environment.
    """
    value_deserializer: Callable[[bytes], ValueT_co] | None
    """Function that decodes the bytes of a value; it is not called if the value is null.

    Default: None. Not from the environment.
    """
    on_deserialize_error: OnDeserializeError
    """Action if a record cannot be decoded: ``"raise"`` an error, or ``"skip"`` the record.

    With ``"raise"``, each poll raises ``DecodeError`` until the consumer seeks past the record.

    Default: "raise".
    """
    consumer_timeout_ms: int | None
    """Time in milliseconds to wait for a record; None for no limit.

    It applies to loops such as ``async for``, and to calls without ``timeout_ms=``.

    Default: None. Minimum: 1. Can be changed by ``reconfigure``.
    """
    when_timed_out: WhenTimedOut
    """Action of ``async for`` after ``consumer_timeout_ms``: ``"raise"`` an error, or ``"stop"``.

    The error is ``ConsumerTimeoutError``. A call that is not a loop always raises it.

    Default: "raise". Can be changed by ``reconfigure``.
    """

    # ---- timeouts and retries
    default_api_timeout_ms: int
    """Maximum duration in milliseconds of a call such as ``commit()``, retries included.

    Default: 60_000. Minimum: 1.
    """

    # ---- monitoring
    metric_group_prefix: str
    """Prefix of the names of metric groups in the result of ``metrics()``.

    Default: "consumer".
    """
