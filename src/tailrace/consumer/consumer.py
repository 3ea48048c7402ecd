"""Consumer: the class that users construct and read from."""

from __future__ import annotations

import re
import warnings
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, overload

from typing_extensions import Unpack

from tailrace.batches.columns import ArrowBatch, arrow
from tailrace.config import ConsumerConfig, ConsumerOptions, check_names, hide_secrets, resolve, with_changes
from tailrace.consumer.arguments import (
    Assignable,
    StartAt,
    ToCommit,
    checked_count,
    checked_offsets,
    checked_partitions,
    checked_subscription,
    checked_to_commit,
    default_start,
)
from tailrace.consumer.delivery.polled_records import PolledRecords
from tailrace.consumer.delivery.reader import Batches, Reader, poll_or_stop, poll_within, poll_within_timeout
from tailrace.consumer.delivery.streams import RecordStream, Streams
from tailrace.consumer.group.rebalance import in_callback
from tailrace.consumer.monitoring import (
    ConsumerHealth,
    ConsumerOffsets,
    Kind,
    Lag,
    offsets_of,
    offsets_of_kind,
)
from tailrace.consumer.positions.partition_spec import partition_specs
from tailrace.consumer.positions.seek import SeekFrom
from tailrace.consumer.positions.start_positions import Time, now_ms, start_at_time, start_of
from tailrace.consumer.runtime import STOPPED, ConsumerRuntime
from tailrace.consumer.shared_cluster import SharedCluster
from tailrace.consumer.subscription import SubscribedTopics
from tailrace.consumer.supervisor import Supervisor
from tailrace.core.group_requests import Identity
from tailrace.core.metrics import MetricName
from tailrace.core.transaction_offsets import TransactionOffsets
from tailrace.errors import ConfigurationError, ConsumerStateError
from tailrace.installation import record_iterator
from tailrace.observe.statistics import ConsumerStatistics
from tailrace.records import (
    AnyRecord,
    KeyT_co,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Record,
    TopicPartition,
    ValueT_co,
)
from tailrace.values import robust_repr

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Consumer", "UnstartedReader"]


class UnstartedReader:
    """Reader of a consumer that is not started; every call raises ConsumerStateError."""

    advice = "this consumer is not started - use `async with Consumer(...)`, or await start() first"

    def __init__(self) -> None:
        self.remaining: Iterator[AnyRecord] = iter(())

    async def next_record(self) -> AnyRecord:
        """Raise ConsumerStateError."""
        raise ConsumerStateError(self.advice)


class Consumer(Generic[KeyT_co, ValueT_co]):
    """Reader of Kafka topics, as a member of a group or without a group.

    ``async with Consumer("orders", bootstrap_servers="localhost:9092", group_id="billing") as orders`` starts and stops
    the consumer; ``async for record in orders`` reads records. A record is finished when the next one is polled. If the
    consumer stops before, for example because the loop has raised, the record is delivered again after a restart (at
    least once). With ``ack="manual"``, ``ack(record)`` finishes a record, in any order and from any task.

    ``value_deserializer=`` and ``key_deserializer=`` set the types of values and keys: with a deserializer that returns
    an ``Order``, ``Consumer("orders", value_deserializer=…)`` is a ``Consumer[bytes, Order]``.

    Methods that act on partitions take partitions as separate arguments, as in ``pause(first, second)``; without
    arguments, they act on all assigned partitions. Methods that query a value of each partition, such as
    ``position()``, take one ``TopicPartition`` and return its value, or take an iterable (by default the assignment)
    and return a mapping. Offsets are set by mappings: ``commit({partition: 17})``, ``seek({partition: 17})``.

    Options that take a callback, plain or async:

    - ``rebalance_listener``: react to a rebalance, for example by saving or loading state. The methods
      ``on_partitions_revoked``, ``on_partitions_assigned`` and ``on_partitions_lost`` are called with partitions. A
      revoked partition is released only after ``on_partitions_revoked`` has returned, so that the method may still
      commit.
    - ``post_rebalance_callback``: override positions. The callback is called before the first fetch of the added
      partitions, with the positions before and after the rebalance, and may return the offsets to read from instead.
    - ``offset_commit_callback``: observe commits. The callback is called with the offsets and the error of each commit,
      automatic commits included.

    Args:
        topics: names of the topics to read. Without topics and a pattern, nothing is read until ``subscribe()`` or
            ``assign()`` is called.
        pattern: regular expression, in place of ``topics``, to read all topics whose whole name matches, topics created
            later included. With ``group_protocol="consumer"`` the broker evaluates the expression, in RE2 syntax;
            otherwise Python does.
        cluster: connections and metadata that several consumers share; by default, this consumer has its own.
        options: see below. The value of an option that is not given comes from its ``TAILRACE_...`` variable, or is the
            default.

    Options, by default from ``TAILRACE_...`` variables; see ``tailrace.ConsumerOptions`` and docs/options.md:
        bootstrap_servers=(): Addresses of brokers for the first connection, as host:port.
        client_id="tailrace": Name of this client in the brokers' logs, metrics and quotas.
        metadata_max_age_ms=300_000: Maximum age in milliseconds of cluster metadata before it is refreshed.
        connections_max_idle_ms=540_000: Idle time in milliseconds after which the next request opens a new connection.
        local_addr=None: Local address and port of connections; with port 0, the system chooses the port.
        receive_buffer_bytes=None: Size in bytes of the sockets' receive buffers; None for the system's default.
        proxy_url=None: URL of a SOCKS5 or HTTP CONNECT proxy for all connections to brokers; needs the extra proxy.
        security_protocol="PLAINTEXT": Protocol used to talk to the brokers.
        sasl_mechanism="PLAIN": Mechanism of SASL authentication.
        sasl_plain_username=None: User name for PLAIN and SCRAM.
        sasl_plain_password=None: Password for PLAIN and SCRAM.
        sasl_plain_password_file=None: Path of a file with the password for PLAIN and SCRAM.
        sasl_oauth_token_provider=None: Async function that returns a token, or a name, for OAUTHBEARER.
        sasl_oauthbearer_extensions=(): SASL extensions (KIP-342) as key=value.
        sasl_oauthbearer_token_endpoint_url=None: URL of the identity provider's token endpoint, for "oidc".
        sasl_oauthbearer_grant_type="client_credentials": Grant type of the token request.
        sasl_oauthbearer_client_id=None: Client id for the token endpoint.
        sasl_oauthbearer_client_secret=None: Client secret for the token endpoint.
        sasl_oauthbearer_scope=None: Scope of the token request; several scopes are separated by spaces.
        sasl_oauthbearer_assertion_file=None: Path of a file with the JWT to send.
        sasl_oauthbearer_assertion_private_key_file=None: PEM file with the key that signs the JWT.
        sasl_oauthbearer_assertion_private_key_passphrase=None: Passphrase of that private key.
        sasl_oauthbearer_assertion_algorithm="RS256": Algorithm of the JWT's signature.
        sasl_oauthbearer_assertion_claim_aud=None: Audience of the JWT; None for the URL of the token endpoint.
        sasl_oauthbearer_assertion_claim_iss=None: Issuer of the JWT; None for the client id.
        sasl_oauthbearer_assertion_claim_sub=None: Subject of the JWT; None for the issuer.
        sasl_oauthbearer_assertion_jwt_template_file=None: JSON file with more fields of the JWT.
        https_ca_location=None: Path of a PEM file with the CA certificates of the token endpoint.
        sasl_kerberos_service_name="kafka": Service name of the brokers, for GSSAPI.
        sasl_kerberos_domain_name=None: Host name in the brokers' principals, for GSSAPI; None for each broker's own.
        ssl_cafile=None: Path of a PEM file with the CA certificates to trust; None for those of the system.
        ssl_certfile=None: Path of a PEM file with the client's certificate chain.
        ssl_keyfile=None: Path of a PEM file with the client's private key.
        ssl_ca_pem=None: CA certificates to trust, as PEM text instead of ssl_cafile.
        ssl_certificate_pem=None: Certificate chain of the client, as PEM text instead of ssl_certfile.
        ssl_key_pem=None: Private key of the client, as PEM text instead of ssl_keyfile.
        ssl_password=None: Password of the private key.
        ssl_check_hostname=True: Check that the certificate of a broker contains the broker's host name.
        ssl_context=None: TLS context to use instead of the ssl_* files.
        start_timeout_ms=20_000: Maximum time in milliseconds for which start() tries to reach the cluster.
        stop_timeout_ms=20_000: Maximum duration in milliseconds of stop(), even if no broker answers.
        request_timeout_ms=40_000: Maximum time in milliseconds to wait for the response to a request.
        socket_connection_setup_timeout_ms=10_000: Maximum time in milliseconds to open a connection to an address.
        reconnect_backoff_ms=50: Time in milliseconds before the first reconnect to a broker.
        reconnect_backoff_max_ms=1_000: Maximum time in milliseconds between reconnects.
        retry_backoff_ms=100: Time in milliseconds before the first retry of a request (KIP-580).
        retry_backoff_max_ms=1_000: Maximum time in milliseconds between retries of a request.
        hooks=(): Objects whose on_event(event) is called with every event.
        client_rack="": Rack of this client; brokers may name a replica in this rack to fetch from (KIP-392).
        group_id=None: Consumer group to join; None reads without a group.
        group_instance_id=None: Name of a static member, which keeps its partitions through a restart (KIP-345).
        group_protocol="classic": Group protocol: "classic", or "consumer" (KIP-848, Kafka 4.0 and newer).
        partition_assignment_strategy=("cooperative-sticky",): Assignors of this member, most preferred first.
        group_remote_assignor=None: Assignor on the broker, such as "uniform" or "range"; None for the broker's default.
        max_poll_interval_ms=300_000: Maximum time in milliseconds between two polls while records are available.
        session_timeout_ms=45_000: Time in milliseconds without a heartbeat after which the group removes a member.
        heartbeat_interval_ms=3_000: Time in milliseconds between heartbeats; must be less than session_timeout_ms.
        rebalance_drain_ms=30_000: Maximum time in milliseconds that a rebalance waits for records in flight to finish.
        rebalance_max_retries=None: Maximum number of consecutive retries of joining the group; None for no limit.
        leave_on_stop=None: Leave the group on stop(); None leaves unless group_instance_id is set.
        post_rebalance_callback=None: Function that is called after a rebalance and may return offsets to read from.
        rebalance_listener=None: Object whose methods are called when partitions are assigned, revoked or lost.
        group_error_reactions=None: Reactions to error codes of group requests, such as {14: "retry"}.
        auto_offset_reset=None: Start position if there is no committed offset, or if that offset is not in the log.
        enable_auto_commit=None: Commit finished records automatically; None commits if there is a group_id.
        auto_commit_interval_ms=5_000: Time in milliseconds between automatic commits; None for no periodic commits.
        auto_commit_every_records=None: Number of finished records that cause a commit before the interval has passed.
        ack="auto": "auto" finishes a record when the next one is polled, "manual" by ack(record).
        max_unacknowledged_records=20_000: Maximum number of records in flight with ack="manual".
        reset_offset_on_start=False: Ignore committed offsets at the first assignment; start at auto_offset_reset.
        offset_commit_callback=None: Function, plain or async, that is called with (offsets, error) after each commit.
        offset_commit_max_retries=None: Maximum number of retries of a commit; None retries until the commit's timeout.
        offset_metadata_max_bytes=4_096: Maximum size in bytes of the metadata that is committed with an offset.
        on_metadata_too_large="raise": Action if the metadata given to commit() is larger than the broker accepts.
        isolation_level="read_uncommitted": "read_committed" delivers no records of aborted or open transactions.
        max_queued_records=2_000: Maximum number of decoded records that wait to be delivered.
        max_buffered_bytes=16_777_216: Maximum size in bytes of fetched data that is not decoded yet.
        fetch_min_bytes=1: Minimum size in bytes of a fetch response; after fetch_max_wait_ms, any size.
        fetch_max_wait_ms=500: Maximum time in milliseconds for which a broker waits for fetch_min_bytes.
        fetch_max_bytes=52_428_800: Maximum size in bytes of a fetch response.
        max_partition_fetch_bytes=1_048_576: Maximum size in bytes of the data of one partition in a fetch response.
        num_fetchers=1: Number of connections to each broker for fetch requests.
        max_batch_bytes=None: Maximum size in bytes of a fetched batch; None for no limit.
        max_decompressed_batch_bytes=134_217_728: Maximum size in bytes of a batch after decompression.
        check_crcs=True: Check the CRC-32C checksum of each batch.
        allow_offset_gaps=True: Accept gaps in the offsets; False raises OffsetGapError at a gap.
        exclude_internal_topics=True: Exclude Kafka's internal topics from patterns and from topics().
        key_deserializer=None: Function that decodes the bytes of a key; it is not called if the key is null.
        value_deserializer=None: Function that decodes the bytes of a value; it is not called if the value is null.
        on_deserialize_error="raise": Action if a record cannot be decoded: "raise" an error, or "skip" the record.
        consumer_timeout_ms=None: Time in milliseconds to wait for a record; None for no limit.
        when_timed_out="raise": Action of async for after consumer_timeout_ms: "raise" an error, or "stop".
        default_api_timeout_ms=60_000: Maximum duration in milliseconds of a call such as commit(), retries included.
        metric_group_prefix="consumer": Prefix of the names of metric groups in the result of metrics().

    Raises:
        ConfigurationError: an option is unknown, has a wrong type, or contradicts another.
    """

    def __init__(
        self,
        *topics: str,
        pattern: str | re.Pattern[str] | None = None,
        cluster: SharedCluster | None = None,
        **options: Unpack[ConsumerOptions[KeyT_co, ValueT_co]],
    ) -> None:
        options = hide_secrets(options)
        self._options: dict[str, Any] = dict(options) if cluster is None else {**cluster.options, **options}
        check_names(self._options)
        self._config: ConsumerConfig = resolve(self._options)
        self._cluster = cluster
        names, checked = checked_subscription(topics, pattern, self._config.group_protocol, may_be_none=True)
        self._topics = SubscribedTopics(names, checked)
        """Subscribed topics, or those to subscribe to at the start; none after ``assign``."""
        self.supervisor: Supervisor | None = None
        """Task of the started consumer; None before the start. It is internal to tailrace."""
        self._runtime: ConsumerRuntime | None = None
        """Runtime of the started consumer, also after it was stopped; None before the start."""
        self._is_stopped = False
        self._reader: Reader | UnstartedReader = UnstartedReader()
        self._polled: PolledRecords | UnstartedReader = UnstartedReader()
        self._streams: Streams | None = None

    @robust_repr
    def __repr__(self) -> str:
        state = "stopped" if self._is_stopped else "new" if self._runtime is None else "started"
        if self._runtime is not None and self._runtime.failure is not None:
            state = f"failed: {self._runtime.failure}"
        return f"<Consumer {self._topics} group={self._config.group_id} {state}>"

    def __del__(self) -> None:
        if getattr(self, "supervisor", None) is not None and not self._is_stopped:
            warnings.warn(f"{self!r} was never stopped - use `async with`", ResourceWarning, source=self, stacklevel=1)

    # ---- lifecycle ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to the cluster, check that the topics exist, and begin to join the group.

        Without a group, records that are written after the return are read, even with ``auto_offset_reset="latest"``.
        In a group, ``assigned()`` waits for that. A partition whose leader does not answer within ``start_timeout_ms``
        is an exception, which ``StartOffsetDelayed`` and ``health()`` report.

        Raises:
            ConfigurationError: an option is missing or wrong.
            ConsumerStateError: the consumer was started or stopped before.
            BrokerConnectionError: no broker answers within ``start_timeout_ms``.
            AuthenticationError: the brokers refuse the credentials.
            UnsupportedVersionError: the brokers are too old.
            UnknownTopicError: a topic does not exist.
        """
        if self._is_stopped:
            raise ConsumerStateError(STOPPED)
        if self.supervisor is not None:
            raise ConsumerStateError("this consumer is already started")
        shared = None if self._cluster is None else self._cluster.cluster
        if self._cluster is not None and shared is None:
            raise ConsumerStateError(
                "the shared cluster is not started, or was stopped - enclose its consumers in `async with cluster`"
            )
        self._config = resolve(self._options)
        runtime = ConsumerRuntime(self._config, self, self._topics, shared)
        self.supervisor = Supervisor(runtime.run, f"tailrace consumer {self._topics}")
        self._runtime = runtime
        try:
            await self.supervisor.start()
        except BaseException:
            self._is_stopped = True
            raise
        self._reader, self._polled = runtime.reader, runtime.reader.delivery.polled

    async def stop(self, *, commit: bool = True) -> None:
        """Commit finished records if commits are automatic, and disconnect, all within ``stop_timeout_ms``.

        Canceling this call ends the consumer at once; records that were not committed are delivered again.

        Args:
            commit: False skips the last automatic commit.

        Raises:
            ConsumerStateError: a rebalance callback called ``stop()``, which would wait for that callback to return.
        """
        if in_callback(self):
            raise ConsumerStateError(
                "a rebalance callback cannot await stop(), which waits for the callback - call it in another task"
            )
        supervisor, runtime = self.supervisor, self._runtime
        try:
            if supervisor is not None:
                supervisor.check_loop("this consumer")
        except ConsumerStateError:
            if self._is_running:
                raise
            self._is_stopped = True  # Its loop has ended, and the consumer with it.
            return
        self._is_stopped = True
        if supervisor is None or runtime is None:
            return
        if not commit and runtime.committer is not None:
            runtime.committer.end()
        runtime.reader.close(ConsumerStateError(STOPPED))
        runtime.subscription.first_assignment_done.set()
        await supervisor.stop(runtime.config.stop_timeout_ms / 1000)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- reading -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Record[KeyT_co, ValueT_co]]:
        # The compiled iterator takes polled records itself, and calls __anext__ only if it has to wait for records.
        self._check_readable()
        return self if record_iterator is None else record_iterator(self._polled, self.__anext__)

    async def __anext__(self) -> Record[KeyT_co, ValueT_co]:
        # Taking a record finishes the record before it: ``Lease`` counts the records left in ``remaining``.
        for record in self._polled.remaining:
            return record
        return await poll_or_stop(self._reader.next_record, self._config, self._has_stopped)

    @overload
    async def getone(self, *partitions: TopicPartition, timeout_ms: None = None) -> Record[KeyT_co, ValueT_co]: ...

    @overload
    async def getone(self, *partitions: TopicPartition, timeout_ms: int) -> Record[KeyT_co, ValueT_co] | None: ...

    async def getone(
        self, *partitions: TopicPartition, timeout_ms: int | None = None
    ) -> Record[KeyT_co, ValueT_co] | None:
        """Return the next record, and finish the record that the previous call returned.

        Args:
            partitions: partitions to read from, by default all assigned partitions. Records of other partitions stay
                buffered.
            timeout_ms: time after which None is returned; 0 does not wait. By default ``consumer_timeout_ms`` limits
                the wait if it is set.

        Raises:
            ConsumerStateError: not started, stopped, two tasks read at once, or none of ``partitions`` is assigned.
            ConsumerTimeoutError: no record arrived within ``consumer_timeout_ms``.
            TailraceError: an error occurred in the background, for example in a rebalance.
        """
        self._check_readable()
        config, reader = self._started.config, self._started.reader
        wanted = checked_partitions(partitions) or None
        if wanted is None or reader.delivery.topic_partition in wanted:
            for record in self._polled.remaining:
                return record
        if timeout_ms is None:
            return await poll_within_timeout(partial(reader.next_record, wanted), config.consumer_timeout_ms)
        if timeout_ms <= 0:
            return await reader.record_now(wanted)
        return await poll_within(partial(reader.next_record, wanted), timeout_ms)

    async def getmany(
        self,
        *partitions: TopicPartition,
        max_records: int | None = None,
        timeout_ms: int | None = None,
        min_records: int = 1,
    ) -> list[Record[KeyT_co, ValueT_co]]:
        """Wait for records, return up to ``max_records``, and finish the records that the previous call returned.

        Args:
            partitions: partitions to read from, by default all assigned partitions. Records of other partitions stay
                buffered.
            max_records: maximum number of records, by default ``max_queued_records``. The records are decoded at once,
                which blocks the event loop for about a millisecond per thousand records.
            timeout_ms: time after which the buffered records, or an empty list, are returned; 0 does not wait. By
                default ``consumer_timeout_ms`` limits the wait if it is set.
            min_records: number of records to wait for. The call waits for fewer records if the buffer has no room for
                that many.

        Raises:
            ConsumerStateError: not started, stopped, two tasks read at once, or none of ``partitions`` is assigned.
            ConsumerTimeoutError: no record arrived within ``consumer_timeout_ms``.
            TailraceError: an error occurred in the background, for example in a rebalance.
        """
        self._check_readable()
        config, reader = self._started.config, self._started.reader
        wanted = checked_partitions(partitions) or None
        count = checked_count(max_records, config.max_queued_records, min_records)
        read = reader.next_records if min_records == 1 else partial(reader.next_at_least, min_records)
        if timeout_ms is None:
            return await poll_within_timeout(partial(read, count, wanted), config.consumer_timeout_ms)
        if timeout_ms <= 0:
            return await reader.records_now(count, wanted)
        found = await poll_within(partial(read, count, wanted), timeout_ms)
        return found if found is not None else reader.take_now(count, wanted) if min_records > 1 else []

    def batches(
        self, *, max_records: int | None = None, max_wait_ms: int = 0
    ) -> Batches[list[Record[KeyT_co, ValueT_co]]]:
        """Iterate over lists of records: ``async for batch in consumer.batches(...)``.

        A batch has at most ``max_records`` records. If fewer are buffered, the loop waits up to ``max_wait_ms`` for
        more after the first record of the batch. A batch is finished when the next one is polled.
        """
        self._check_readable()
        reader = self._started.reader
        count = checked_count(max_records, self._started.config.max_queued_records)
        next_batch = partial(reader.next_batch, count, max_wait_ms / 1000)
        return Batches(lambda: poll_or_stop(next_batch, self._config, self._has_stopped))

    def arrow_batches(self, *, max_records: int | None = None, max_wait_ms: int = 0) -> Batches[pa.RecordBatch]:
        """Iterate over Arrow record batches: ``async for table in consumer.arrow_batches(...)``.

        A batch has the columns topic, partition, offset, timestamp (milliseconds, UTC), key and value (binary, null for
        null) and headers (a list of structs of key and value), one row for each record. The rows of one partition are
        in order; rows of several partitions may alternate. No ``Record`` objects are created.

        ``max_records`` and ``max_wait_ms`` limit a batch as in ``batches()``; it also ends at about 1 GiB. A batch is
        finished when the next one is polled, or by ``ack(table)``; with ``ack="manual"``, only by ``ack(table)``.

        Raises:
            ConsumerStateError: not started, or stopped.
            ConfigurationError: pyarrow is not installed, or the consumer has deserializers.
        """
        self._check_readable()
        runtime = self._started
        if runtime.config.key_deserializer is not None or runtime.config.value_deserializer is not None:
            raise ConfigurationError(
                "arrow_batches() returns keys and values as bytes - leave out key_deserializer and value_deserializer,"
                " or read batches()"
            )
        arrow()
        count = checked_count(max_records, runtime.config.max_queued_records)
        next_batch = partial(runtime.reader.next_columns, count, max_wait_ms / 1000)
        return Batches(lambda: poll_or_stop(next_batch, self._config, self._has_stopped))

    def streams(self) -> AsyncIterator[tuple[TopicPartition, RecordStream[KeyT_co, ValueT_co]]]:
        """Iterate over newly assigned partitions: ``async for partition, stream in consumer.streams()``.

        Each stream may be read by its own task. A record is finished when its stream is polled for the next record. A
        stream ends when its partition is revoked. No other method may read from the consumer at the same time.
        ``max_poll_interval_ms`` is exceeded only if no stream is polled for that long, although a stream has a record.

        Raises:
            ConsumerStateError: not started, stopped, or another method is reading.
            ConfigurationError: the consumer has ``ack="manual"``; a stream has its own ``ack()``.
        """
        self._check_readable()
        runtime = self._started
        if runtime.config.ack != "auto":
            raise ConfigurationError(
                "ack='manual' does not apply to streams() - leave it out; each stream has its own ack()"
            )
        if self._streams is not None:
            raise ConsumerStateError("streams() was already called - use that loop, which yields all streams")
        streams = Streams(runtime.parts, runtime.reader)
        runtime.reader.attach_sink(streams, polled_sink=streams)
        self._streams = streams
        return streams

    def ack(self, record: AnyRecord | ArrowBatch) -> bool:
        """Finish a record without polling the next one; return False if ``record`` is not in flight.

        If the record is part of a batch, the records before it in its partition are finished, too; a batch of
        ``arrow_batches()`` is finished as a whole. With ``ack="manual"`` only ``record`` is finished, and records may
        be acknowledged in any order: the committed offset is that of the lowest unfinished record, and the commit's
        metadata lists the finished records after that offset. ``record`` must be the delivered object, not a copy.
        """
        if self._is_stopped:
            return False
        if self._streams is not None:
            return isinstance(record, Record) and self._streams.acknowledge(record)
        return self._started.reader.acknowledge(record)

    # ---- committed offsets -------------------------------------------------------------------------------------

    @overload
    async def commit(self, offsets: ToCommit, /) -> None: ...

    @overload
    async def commit(self, *partitions: TopicPartition) -> None: ...

    async def commit(self, *given: ToCommit | TopicPartition) -> None:
        """Commit all delivered records, the delivered records of some partitions, or given offsets.

        ``commit()`` and ``commit(*partitions)`` include records in flight, except in a rebalance callback and with
        ``streams()``. With ``ack="manual"`` both commit up to the lowest record that is not acknowledged. The offset in
        ``commit({partition: 17})`` is that of the next record to read. Automatic commits do not replace this offset
        until a record is finished after this call, or a seek sets another position. Metadata given with an offset is
        kept in later commits for as long as the committed offset stays the same.

        Raises:
            ConsumerStateError: not started, stopped, or without a group.
            ConfigurationError: an argument is not a partition or offset, or the mapping is empty.
            UnknownTopicError: a topic or a partition does not exist.
            CommitFailedError: the group has rebalanced without this consumer, a topic was deleted or recreated, or the
                commit did not succeed in time.
            BrokerError: the broker refuses the commit.
            TailraceError: the error that has ended this consumer.
        """
        runtime = self._started
        if runtime.committer is None:
            raise ConsumerStateError("commit() needs a group_id - set it when you create the consumer")
        if runtime.failure is not None:
            raise runtime.failure
        timeout_s = runtime.parts.default_timeout_s
        offsets, partitions = checked_to_commit(given)
        if offsets is not None:
            # For a partition that does not exist, the broker would answer with a retriable error until the timeout.
            await runtime.offset_queries.check_partitions(offsets.keys() - runtime.partitions.topic_partitions)
            await runtime.committer.commit_chosen(offsets, timeout_s=timeout_s)
            return
        # While a callback runs, another task may still handle the record in flight, or stop() has left it unfinished.
        if runtime.config.ack == "auto" and not in_callback(self):
            runtime.reader.delivery.finish() if partitions is None else runtime.reader.delivery.finish_partitions(
                partitions
            )
        await runtime.committer.commit_finished(partitions, timeout_s=timeout_s)

    def transaction_offsets(self, offsets: ToCommit | None = None, /) -> TransactionOffsets:
        """Return offsets to commit in a transaction of a ``Producer``, with this member's identity (KIP-447).

        ``Transaction.send_offsets(consumer)`` calls this method. Without ``offsets``, all delivered records are
        included, records in flight too, as in ``commit()``.

        Raises:
            ConsumerStateError: not started, without a group, or not in a generation of the group; or with
                ``ack="manual"`` and without ``offsets``.
            ConfigurationError: an argument is invalid, or automatic commits are on: they would commit offsets before
                the transaction.
        """
        runtime, group_id = self._started, self._require_group("transaction_offsets()")
        if runtime.config.commits_automatically:
            raise ConfigurationError(
                "a consumer whose offsets a transaction commits must not commit them itself - set"
                " enable_auto_commit=False"
            )
        if offsets is None and runtime.config.ack == "manual":
            raise ConsumerStateError("ack='manual' needs explicit offsets - pass a mapping of partitions to offsets")
        membership = runtime.membership
        identity = Identity() if membership is None else membership.commit_identity()
        if identity is None:
            raise ConsumerStateError("this consumer is in no generation of its group - poll it before the transaction")
        assigned = {one.topic_partition: one for one in runtime.partitions}
        chosen, _ = (None, None) if offsets is None else checked_to_commit((offsets,))
        if chosen is None:
            chosen = {
                one: OffsetAndMetadata(state.delivered)
                for one, state in assigned.items()
                if state.delivered is not None
            }
        owned = {one: assigned[one] for one in chosen if one in assigned}

        def current_identity() -> Identity | None:
            keeps = all(runtime.partitions.get(one) is state for one, state in owned.items())
            return membership.commit_identity() if keeps and membership is not None else None

        topic_ids = {one: topic_id for one, state in owned.items() if (topic_id := state.topic_id) is not None}
        return TransactionOffsets(group_id, chosen, identity, topic_ids, current_identity)

    # ---- positions ---------------------------------------------------------------------------------------------

    @overload
    async def seek(
        self, to: TopicPartition, offset: int, *, whence: SeekFrom = "offset", spread: Literal[False] = False
    ) -> int: ...

    @overload
    async def seek(
        self, to: Iterable[TopicPartition], offset: int, *, whence: SeekFrom = "offset", spread: bool = False
    ) -> dict[TopicPartition, int]: ...

    @overload
    async def seek(self, to: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]: ...

    async def seek(
        self,
        to: TopicPartition | Iterable[TopicPartition] | Mapping[TopicPartition, int],
        offset: int | None = None,
        *,
        whence: SeekFrom = "offset",
        spread: bool = False,
    ) -> int | dict[TopicPartition, int]:
        """Set the position of each partition, and return the new positions.

        Buffered records of the partitions are dropped, and records in flight of these partitions are not finished.

        Each partition is moved by itself. If the leader of one does not answer for three seconds, while others were
        moved, it is left out of the result: its seek takes effect when the leader answers. ``StartOffsetDelayed`` and
        ``health()`` report it.

        Args:
            to: partitions to seek to ``offset``, or a mapping of partitions to offsets.
            offset: new position; with another ``whence`` than "offset", a distance in offsets from that point. A
                distance may be negative, and the new position is limited to the offsets of the log.
            whence: "offset", "earliest", "current" (the present position) or "latest".
            spread: with "earliest" or "latest", divide the distance equally among the partitions.

        Raises:
            ConsumerStateError: not started, stopped, or a partition is not assigned.
            ConfigurationError: an argument is invalid, or the arguments contradict each other.
            RequestTimedOutError: no offset was found within ``default_api_timeout_ms``.
        """
        seek = self._started.seek
        if isinstance(to, Mapping):
            return await seek.seek_to(checked_offsets(to, offset, whence))
        found = await seek.seek(self._partitions_or_assignment(to), offset, whence, spread=spread)
        if not isinstance(to, TopicPartition):
            return found
        if to not in found:
            raise ConsumerStateError(f"{to} was revoked before the seek was complete - seek when it is assigned again")
        return found[to]

    async def seek_to_beginning(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Seek to the first offset of each partition's log, and return the offsets; see ``seek``."""
        return await self.seek(partitions or self.assignment(), 0, whence="earliest")

    async def seek_to_end(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Seek to the end of each partition's log, and return the offsets; see ``seek``."""
        return await self.seek(partitions or self.assignment(), 0, whence="latest")

    async def seek_to_time(self, time: Time, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Seek to each partition's first record that is not older than ``time``, and return the offsets.

        A partition without such a record is sought to the end of its log. ``time`` is a number of milliseconds since
        1970, a datetime with a time zone, or a timedelta back from now.
        """
        start = start_at_time(time)
        return await self._started.seek.seek_to(
            dict.fromkeys(checked_partitions(partitions) or self.assignment(), start)
        )

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Seek to the offsets at which a restarted consumer would begin, and return these offsets.

        A partition without a committed offset begins at the start point of ``auto_offset_reset``. The call first waits
        for a commit in flight to end.

        Raises:
            ConsumerStateError: not started, stopped, without a group, or a partition is not assigned.
            OffsetOutOfRangeError: ``auto_offset_reset="none"``, and a partition has no committed offset.
            BrokerConnectionError: no broker answers in time.
        """
        runtime, group_id = self._started, self._require_group("seek_to_committed()")
        if runtime.committer is not None:
            await runtime.committer.wait(timeout_s=runtime.parts.default_timeout_s)
        return await runtime.seek.to_committed(
            checked_partitions(partitions) or self.assignment(),
            partial(runtime.offset_queries.stored_offsets, group_id),
        )

    # ---- subscription and assignment ---------------------------------------------------------------------------

    async def subscribe(self, *topics: str, pattern: str | re.Pattern[str] | None = None) -> None:
        """Replace the subscription by these topics, or by the topics that match ``pattern``.

        Without a group, records that are written after the return are read; see ``start``.

        Raises:
            ConsumerStateError: not started, stopped, or partitions were assigned by ``assign()``.
            UnknownTopicError: a topic does not exist; the subscription is unchanged.
        """
        runtime = self._started
        wanted = SubscribedTopics(*checked_subscription(topics, pattern, runtime.config.group_protocol))
        await runtime.subscription.subscribe(wanted)
        self._topics = wanted
        if runtime.membership is None:
            await runtime.wait_for_starts()

    async def assign(self, *partitions: Assignable, at: StartAt = None, tail: int | None = None) -> None:
        """Replace the assignment by these partitions, without membership in a group.

        With a ``group_id``, offsets are committed to that group, which must have no members. Records that are written
        after the return are read, even if a partition starts at "latest"; see ``start``.

        Args:
            partitions: "topic", ("topic", 0), ("topic", 0, offset), {"topic": 0}, {"topic": [0, 1]},
                {("topic", 0): offset}, or lists of these; in place of an offset, any value of ``at`` is accepted.
                Without partitions, nothing is read.
            at: start point of partitions given without a start point: "earliest", "latest", an offset, a datetime, a
                timedelta back from now, or "committed" (the default). "committed" is the group's committed offset; if
                there is none, it is the start point of ``auto_offset_reset``.
            tail: in place of ``at``, a number of records before the end of each partition.

        Raises:
            ConsumerStateError: not started, stopped, or topics are subscribed to.
            ConfigurationError: an argument is not a partition or start point.
            UnknownTopicError: a topic or a partition does not exist; the assignment is unchanged.
        """
        runtime = self._started
        await runtime.subscription.assign(partition_specs(partitions, default_start(at, tail), start_of))
        await runtime.wait_for_starts()

    async def unsubscribe(self) -> None:
        """Commit finished records if commits are automatic, then leave the group or drop the assignment."""
        await self._started.subscription.unsubscribe()
        self._topics = SubscribedTopics()

    async def assigned(self, *, timeout_ms: int | None = None) -> frozenset[TopicPartition]:
        """Wait for the group's first assignment, and return the assigned partitions, possibly none.

        The call returns after the rebalance callbacks, and, as ``start`` without a group, when the start offsets of
        partitions that start at "latest" are known; automatic commits include them. Records that are written after the
        return are read.

        Args:
            timeout_ms: maximum time to wait; by default ``default_api_timeout_ms``.

        Raises:
            ConsumerStateError: not started, stopped, not subscribed, or called in a rebalance callback.
            RequestTimedOutError: there is no assignment in time.
            TailraceError: the error that has ended this consumer.
        """
        runtime = self._started
        if in_callback(self):
            raise ConsumerStateError(
                "a rebalance callback cannot await assigned(), which waits for the callback - call it in another task"
            )
        timeout_ms = runtime.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await runtime.wait_for_first_assignment(timeout_ms)
        return self.assignment()

    # ---- flow --------------------------------------------------------------------------------------------------

    def pause(self, *partitions: TopicPartition) -> None:
        """Deliver no records of these partitions until ``resume()`` is called."""
        runtime = self._started
        runtime.reader.pause(checked_partitions(partitions) or runtime.partitions.topic_partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Deliver records of these partitions again."""
        runtime = self._started
        for one in runtime.partitions.of(checked_partitions(partitions) or runtime.partitions.topic_partitions):
            one.is_paused = False
        runtime.parts.changed()

    async def reconfigure(self, **options: Unpack[ConsumerOptions[Any, Any]]) -> None:
        """Change options of a running consumer; if an option is invalid, no option is changed.

        Raises:
            ConfigurationError: an option is invalid, or cannot change after the start.
        """
        options = hide_secrets(options)
        runtime = self._started
        self._config = with_changes(self._config, options)
        runtime.reconfigure(self._config)

    # ---- partitions --------------------------------------------------------------------------------------------

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the currently assigned partitions."""
        return self._started.partitions.topic_partitions

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics, or the topics that currently match the pattern; none after ``assign()``."""
        if self._topics.pattern is None or self._runtime is None:
            return self._topics.names
        return self._runtime.subscription.topics

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return frozenset(one.topic_partition for one in self._started.partitions if one.is_paused)

    @overload
    async def committed(self, partitions: TopicPartition) -> OffsetAndMetadata | None: ...

    @overload
    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]: ...

    async def committed(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> OffsetAndMetadata | dict[TopicPartition, OffsetAndMetadata] | None:
        """Return the group's committed offsets, which are requested from the broker.

        A partition without a committed offset is absent from the mapping. For a single partition, the result is None if
        there is no committed offset.

        Raises:
            ConsumerStateError: not started, stopped, or without a group.
            BrokerError: the broker refuses the request.
            BrokerConnectionError: no broker answers in time.
        """
        found = await self._started.offset_queries.committed(
            self._require_group("committed()"), self._partitions_or_assignment(partitions)
        )
        return found.get(partitions) if isinstance(partitions, TopicPartition) else found

    @overload
    async def position(self, partitions: TopicPartition) -> int: ...

    @overload
    async def position(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]: ...

    async def position(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> int | dict[TopicPartition, int]:
        """Return the positions: the offset of each partition's next record to deliver.

        Raises:
            ConsumerStateError: not started, stopped, or a partition is not assigned.
            OffsetOutOfRangeError: ``auto_offset_reset="none"``, and the committed offset is missing or not in the log.
            RequestTimedOutError: the start offset was not found within ``default_api_timeout_ms``.
        """
        found = await self._started.seek.positions(
            self._partitions_or_assignment(partitions), skip_unassigned=partitions is None
        )
        return found[partitions] if isinstance(partitions, TopicPartition) else found

    # ---- logs --------------------------------------------------------------------------------------------------

    @overload
    async def beginning_offsets(self, partitions: TopicPartition) -> int: ...

    @overload
    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]: ...

    async def beginning_offsets(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> int | dict[TopicPartition, int]:
        """Return the first offset of each partition's log; partitions need not be assigned.

        Raises:
            UnknownTopicError: a topic or a partition does not exist.
        """
        found = await self._started.offset_queries.beginning_offsets(self._partitions_or_assignment(partitions))
        return found[partitions] if isinstance(partitions, TopicPartition) else found

    @overload
    async def end_offsets(self, partitions: TopicPartition) -> int: ...

    @overload
    async def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]: ...

    async def end_offsets(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> int | dict[TopicPartition, int]:
        """Return the end of each partition's log: the offset after the last record; see ``beginning_offsets``.

        With ``isolation_level="read_committed"``, it is the last stable offset.
        """
        found = await self._started.offset_queries.end_offsets(self._partitions_or_assignment(partitions))
        return found[partitions] if isinstance(partitions, TopicPartition) else found

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, Time]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return offset and timestamp of each partition's first record that is not older than the partition's time.

        The value of a partition without such a record is None.
        """
        checked_partitions(times)
        return await self._started.offset_queries.offsets_for_times(
            {one: start_at_time(time).with_timestamp(now_ms()).number for one, time in times.items()}
        )

    async def lag(self, *partitions: TopicPartition) -> Lag:
        """Return the number of offsets from the position to the end of the log, by partition and in total."""
        end_offsets = await self.end_offsets(partitions or self.assignment())
        positions = await self._started.seek.positions(end_offsets, skip_unassigned=not partitions)
        behind = {one: max(0, end_offsets[one] - at) for one, at in positions.items()}
        return Lag(behind, sum(behind.values()))

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of a partition as of its last fetch.

        The result is None before the first fetch, and if the partition is not assigned.
        """
        state = self._started.partitions.get(partition)
        return state.high_watermark if state is not None else None

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """Return the last stable offset of a partition as last reported by a broker; no transaction is open below it.

        The result is None before the first report, if the partition is not assigned, and without
        ``isolation_level="read_committed"``.
        """
        runtime = self._started
        state = runtime.partitions.get(partition)
        is_known = state is not None and runtime.config.isolation_level == "read_committed"
        return state.last_stable_offset if state is not None and is_known else None

    @overload
    def offsets(self, kind: None = None) -> ConsumerOffsets: ...

    @overload
    def offsets(self, kind: Kind) -> dict[TopicPartition, int]: ...

    def offsets(self, kind: Kind | None = None) -> ConsumerOffsets | dict[TopicPartition, int]:
        """Return four kinds of offsets of the assigned partitions, or the offsets of one ``kind``.

        The kinds are "fetch" (position), "highwater" (high watermark), "commit" (committed offset) and "done" (lowest
        unfinished offset). A partition whose offset is unknown is left out.
        """
        found = offsets_of(self._started.partitions)
        return found if kind is None else offsets_of_kind(found, kind)

    async def topics(self) -> frozenset[str]:
        """Return the names of all topics, without internal topics unless ``exclude_internal_topics=False``."""
        return await self._started.offset_queries.topics()

    async def partitions_for_topic(self, topic: str) -> frozenset[int]:
        """Return the partition numbers of a topic.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        return frozenset((await self._started.offset_queries.partitions_of([topic]))[topic])

    # ---- state -------------------------------------------------------------------------------------------------

    def health(self) -> ConsumerHealth:
        """Return the state of the consumer and its membership."""
        return (self._runtime or self._started).health()

    def metrics(self) -> dict[MetricName, float]:
        """Return a snapshot of the metrics, under the names of Kafka's Java consumer."""
        return (self._runtime or self._started).metrics()

    def statistics(self) -> ConsumerStatistics:
        """Return a snapshot of offsets and lag by partition, of buffers, and of the durations of requests.

        After ``stop()``, the method still returns the counters.

        Raises:
            ConsumerStateError: not started.
        """
        return (self._runtime or self._started).statistics()

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _is_running(self) -> bool:
        return self.supervisor is not None and not self.supervisor.is_over

    @property
    def _started(self) -> ConsumerRuntime:
        """Runtime of the started consumer; after ``stop`` was called, only rebalance callbacks get it, for commits.

        Raises:
            ConsumerStateError: the consumer is not started, or was stopped.
        """
        if self._runtime is None:
            raise ConsumerStateError(UnstartedReader.advice)
        if self._is_stopped and not (in_callback(self) and self._is_running):
            raise ConsumerStateError(STOPPED)
        if self.supervisor is not None:
            self.supervisor.check_loop("this consumer")
        return self._runtime

    def _has_stopped(self) -> bool:
        return self._is_stopped

    def _partitions_or_assignment(
        self, partitions: TopicPartition | Iterable[TopicPartition] | None
    ) -> frozenset[TopicPartition]:
        if partitions is None:
            return self.assignment()
        return checked_partitions([partitions] if isinstance(partitions, TopicPartition) else partitions)

    def _require_group(self, call: str) -> str:
        if (group_id := self._started.config.group_id) is None:
            raise ConsumerStateError(f"{call} needs a group_id - a consumer without a group has no committed offsets")
        return group_id

    def _check_readable(self) -> None:
        runtime = self._started
        if in_callback(self):
            raise ConsumerStateError(
                "a rebalance callback cannot read records, which are delivered after it has returned - read in a task"
            )
        if runtime.failure is not None:
            raise runtime.failure
        if runtime.subscription.is_empty:
            raise ConsumerStateError("this consumer reads nothing yet - subscribe() or assign() first")
