"""App: the handlers of a service, and their start and stop.

``app.lifecycle`` defines the order of the steps of start and stop. ``app.dispatch.group_runtime`` runs the handlers of
a group.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from functools import cached_property
from importlib import import_module
from types import TracebackType
from typing import Any, Self, cast

from typing_extensions import Unpack

from tailrace.app.declare.parameters import Provider
from tailrace.app.dispatch.group_runtime import Executor
from tailrace.app.handlers import HandlerFunction, Handlers
from tailrace.app.health.checks import Health, Vitals, examine
from tailrace.app.health.endpoints import ASGIApp, HealthEndpoints, LagReport, health_app, lag_report
from tailrace.app.lifecycle import AppRun, AppRuntime, wait_for_any
from tailrace.app.options import AppConfig, AppOptions
from tailrace.app.publish.delays import PublishDelays
from tailrace.app.publish.results import encode_in_time, publish_one
from tailrace.app.stack_frames import where_raised
from tailrace.app.topics.names import topic_name
from tailrace.app.transactions.kafka_access import (
    TransactionOptions,
    transaction_options,
)
from tailrace.codecs.json_codec import JsonCodec
from tailrace.codecs.protocols import AnyCodec
from tailrace.config import ConsumerOptions, check_names, hide_secrets, resolve
from tailrace.consumer.supervisor import Supervisor
from tailrace.context_managers import asynccontextmanager
from tailrace.errors import ConfigurationError, ConsumerStateError, HandlerFailedError, PublishError, TailraceError
from tailrace.observe.statistics import AppStatistics
from tailrace.producer.encoding import Message, RecordEncoder
from tailrace.producer.publisher import OutgoingRecord, Published, Publisher, error_of_several
from tailrace.signals import handle_signals
from tailrace.user_exceptions import error_text
from tailrace.values import robust_repr

__all__ = ["App", "load_app", "split_app_name"]

_OWN_OPTIONS = [option.name for option in dataclasses.fields(AppConfig)]
_TRANSACTION_OPTIONS = [option.name for option in dataclasses.fields(TransactionOptions)]


class App(Handlers):
    """Calls handlers for the records of their topics, and publishes messages.

    ``@app.handler("orders")`` declares a handler. ``await app.run()`` runs all handlers until SIGTERM; ``async with
    app:`` runs them alongside other code. By default, records are handled at least once: the offset of a record is
    committed when its handler has returned and the results are acknowledged, or when a retry or dead-letter topic has
    acknowledged the record. An app without handlers only publishes.

    Args:
        options: See below.

    Options of the app; see ``tailrace.AppOptions`` and docs/options.md:
        retry=None: Policy for retrying failed records, in place and through retry topics.
        dead_letter=None: Topic for records that have failed for good, such as "{topic}.{group}.dead".
        on_failure="pause": Action for a record that has failed for good, if there is no dead-letter topic.
        on_corrupt_batch="pause": Action if a record batch cannot be read: "pause", "stop" or "skip".
        codec=None: Codec that decodes values and encodes results; None for JSON.
        middleware=(): Functions that wrap the call of every handler of single records, the outermost first.
        require_broker=True: Fail to start if no broker answers within start_timeout_ms.
        producer=None: Options of the app's producer, such as ProducerOptions(compression_type="zstd", linger_ms=5).
        publish_timeout_ms=10_000: Maximum time in milliseconds of app.publish outside of handlers.
        publish_delays_ms=(): Delays in milliseconds of messages that are published with delay_ms= or at=.
        delivery="at_least_once": Delivery guarantee: "at_least_once", or "exactly_once" by transactions.
        transactional_id=None: Transactional id of this process, for example "{group}-{hostname}-{worker}".
        transaction_timeout_ms=10_000: Time in milliseconds after which the broker aborts an open transaction.
        transaction_interval_ms=100: Maximum time in milliseconds for which a transaction collects records.
        transaction_max_records=10_000: Maximum number of records in a transaction.

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
        ConfigurationError: An option is unknown, has an invalid value, or contradicts another option.
    """

    def __init__(self, **options: Unpack[AppOptions]) -> None:
        options = hide_secrets(options)
        super().__init__()
        remaining = cast("dict[str, Any]", options)
        config = AppConfig(**{name: remaining.pop(name) for name in _OWN_OPTIONS if name in remaining})
        if config.dead_letter is not None:
            topic_name(config.dead_letter, topic="topic", group="group")
        transactions = {name: remaining.pop(name) for name in _TRANSACTION_OPTIONS if name in remaining}
        self.runtime: AppRuntime = AppRuntime(config, transaction_options(config.delivery, **transactions))
        self.check_change: Callable[[], None] = self._check_not_started
        self.configure(**remaining)

    @robust_repr
    def __repr__(self) -> str:
        supervisor = self.runtime.supervisor
        state = "new" if supervisor is None else "stopped" if supervisor.is_over else "started"
        return f"<App of {len(self.declared)} handlers group={self.runtime.options.get('group_id')} {state}>"

    # ---- before the start --------------------------------------------------------------------------------------

    def configure(self, **options: Unpack[ConsumerOptions]) -> None:
        """Set or change options of the consumers before the start.

        Raises:
            ConfigurationError: An option is unknown, has an invalid value, or contradicts another.
            ConsumerStateError: The app is started.
        """
        options = hide_secrets(options)
        self._check_not_started()
        consumer_options = cast("dict[str, Any]", options)
        check_names(consumer_options, (*_OWN_OPTIONS, *_TRANSACTION_OPTIONS))
        config = resolve({**self.runtime.options, **consumer_options})
        if config.enable_auto_commit is False:
            raise ConfigurationError(
                "enable_auto_commit=False cannot be used with App, which always commits the offsets of finished records"
                " - leave out enable_auto_commit, or use a Consumer and commit yourself"
            )
        self.runtime.config.producer_config(config)
        self.runtime.options.update(consumer_options)

    @property
    def options(self) -> ConsumerOptions:
        """Copy of the options of the consumers that were passed to ``App(...)`` and ``configure``."""
        return cast("ConsumerOptions", dict(self.runtime.options))

    @property
    def codec(self) -> AnyCodec:
        """Codec of handlers that have no codec of their own."""
        return self.runtime.config.codec or JsonCodec()

    def override(self, provider: Provider, replacement: Provider) -> None:
        """Make ``Depends(provider)`` call ``replacement`` from the next start on.

        Raises:
            ConfigurationError: ``provider`` or ``replacement`` is not callable.
        """
        for name, function in (("provider", provider), ("replacement", replacement)):
            if not callable(function):
                raise ConfigurationError(f"override(): {name} must be a function, not {function!r}")
        self.runtime.overrides[provider] = replacement

    # ---- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the signatures of handlers, open app-scoped dependencies, and start the consumers.

        Handlers are called from then on. The call does not wait for the groups' assignments: with
        ``auto_offset_reset="latest"``, records are handled that are written after ``wait_ready()`` has returned.
        Without handlers and ``publish_delays_ms``, no consumer is started, and the app only publishes. With
        ``require_broker=False``, return before a broker answers; the consumers are then started in the background.

        Raises:
            ConfigurationError: A handler's signature is invalid, or options contradict each other.
            ConsumerStateError: The app is already started, or is stopped while it starts.
            TailraceError: See ``Consumer.start``.
        """
        await self._start()

    async def _start(self, given_up: asyncio.Event | None = None) -> Supervisor:
        """Start the app; return early if ``given_up`` is set before the end of the start.

        After an early return, the caller must stop the app.
        """
        runtime = self.runtime
        if runtime.supervisor is not None and not runtime.supervisor.is_over:
            raise ConsumerStateError("this app is started already")
        run = runtime.run = AppRun(self, runtime)
        supervisor = runtime.supervisor = Supervisor(run.run, "tailrace app")
        try:
            await supervisor.start(given_up, ending_s=sum(run.time_to_stop))
        except BaseException:
            runtime.supervisor = None
            raise
        return supervisor

    async def stop(self) -> None:
        """Start no more handlers, wait for running handlers, commit and leave the groups, within ``stop_timeout_ms``.

        Handlers that still run after half of ``stop_timeout_ms``, or after ``rebalance_drain_ms`` if that is shorter,
        are canceled, and their records are delivered again.

        Raises:
            ConsumerStateError: A handler calls ``stop()``, which would wait for the handler.
            TailraceError: An error has ended the app before, a stop hook fails, or a part of the app does not end in
                time.
        """
        supervisor = self.runtime.supervisor
        if supervisor is None:
            return
        running = self.runtime.started_run
        if not supervisor.is_over:
            supervisor.check_loop("this app")
        if running.handler_in(asyncio.current_task()) is not None:
            raise ConsumerStateError(
                "a handler cannot call stop(), which waits for the handler - call it from another task"
            )
        orderly_s, ending_s = running.time_to_stop
        try:
            await supervisor.stop(orderly_s, ending_s=ending_s)
        except TailraceError:
            running.shutdown.report_timeout(is_abandoned=True)
            raise
        if running.failure is not None:
            raise running.failure

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """Start the app, handle records until SIGTERM, SIGINT or an error, and stop.

        A signal stops all apps that run in the process, and a second signal ends the process at once.

        Raises:
            ConfigurationError: The app has neither handlers nor ``publish_delays_ms``.
            HandlerFailedError: A handler ignored its cancellation by the stop, and was abandoned.
            TailraceError: The error that ended the app.
        """
        if not self.declared and not self.runtime.config.publish_delays_ms:
            raise ConfigurationError(
                "this app has no handlers to run - declare one with @app.handler('topic'); to publish only, use"
                " `async with app`"
            )
        has_signal = asyncio.Event()
        with handle_signals((signal.SIGTERM, signal.SIGINT), has_signal.set):
            supervisor = await self._start(has_signal)
            try:
                await wait_for_any(has_signal, supervisor.stopping)
            finally:
                await self.stop()
        if names := dict.fromkeys(self.runtime.started_run.left_behind):
            raise HandlerFailedError(
                f"handlers that ignored their cancellation were abandoned: {', '.join(names)}; their records are not"
                " committed and will be delivered again - let asyncio.CancelledError through"
            )

    @asynccontextmanager
    async def lifespan(self, _app: object) -> AsyncIterator[None]:
        """Lifespan of an ASGI framework: ``FastAPI(lifespan=app.lifespan)``.

        The framework passes its own app, which may be any object and is ignored.
        """
        async with self:
            yield

    async def cleanup_ctx(self, _app: object) -> AsyncIterator[None]:
        """Cleanup context of aiohttp: ``web_app.cleanup_ctx.append(app.cleanup_ctx)``.

        aiohttp passes its own app, which may be any object and is ignored.
        """
        async with self:
            yield

    async def wait_ready(self) -> None:
        """Wait until each group has its first assignment, even an empty one; without handlers, until a broker answers.

        Records that are written after the return are handled, even with ``auto_offset_reset="latest"``. A partition
        whose leader does not answer within ``start_timeout_ms`` is an exception, which ``health()`` reports.

        Raises:
            ConsumerStateError: The app is not started, or is stopped before that.
            TailraceError: An error has ended the app before that.
        """
        running, supervisor = self.runtime.started_run, self.runtime.supervisor
        if supervisor is not None:
            await wait_for_any(running.consumer_events.assigned, supervisor.stopping)
        if running.failure is not None:
            raise running.failure
        if not running.consumer_events.assigned.is_set():
            raise ConsumerStateError("this app ended before it was ready - start() it again")
        await running.wait_for_starts()

    def health(self) -> Health:
        """Return the health of the app.

        The app is live unless it needs a restart of the process. It is ready from its first assignment until its stop;
        with ``require_broker=False``, even before its first assignment.
        """
        run, require_broker = self.runtime.run, self.runtime.config.require_broker
        if run is not None:
            return examine(run.vitals, require_broker=require_broker)
        max_poll_interval_s = resolve(self.runtime.options).max_poll_interval_ms / 1000
        vitals = Vitals(is_started=False, was_assigned=False, max_poll_interval_s=max_poll_interval_s)
        return examine(vitals, require_broker=require_broker)

    def statistics(self) -> AppStatistics:
        """Return the statistics of handlers, groups and consumers in the current run.

        Before the start, the statistics contain no handlers, groups and consumers. Call this method in the app's event
        loop.
        """
        health, running = self.health(), self.runtime.run
        if running is None:
            return AppStatistics(is_live=health.is_live, is_ready=health.is_ready)
        return running.statistics(health)

    @property
    def health_app(self) -> ASGIApp:
        """ASGI app that answers ``/livez``, ``/readyz`` and ``/lag``; mount it, or serve it on its own."""
        return health_app(self.health, self._get_lag)

    @property
    def endpoints(self) -> HealthEndpoints:
        """Answers of ``health_app`` for servers without ASGI: ``await app.endpoints.answer("/readyz")``."""
        return HealthEndpoints(self.health, self._get_lag)

    async def _get_lag(self) -> LagReport:
        return lag_report([self.statistics()])

    # ---- single handlers ---------------------------------------------------------------------------------------

    def pause(self, handler: HandlerFunction) -> None:
        """Start no more calls of a handler until it is resumed; running calls and other handlers continue.

        The partitions of the handler's topics stay assigned but are not read, so that other handlers of these topics in
        the group receive no new records, either.

        Raises:
            ConsumerStateError: The app is not started, or has no such handler.
        """
        for executor in self._executors_of(handler):
            executor.hold("paused")

    def resume(self, handler: HandlerFunction) -> None:
        """Start calls of a paused handler again.

        Raises:
            ConsumerStateError: The app is not started, or has no such handler.
        """
        for executor in self._executors_of(handler):
            executor.release("paused")

    def is_paused(self, handler: HandlerFunction) -> bool:
        """Return True if a handler is paused.

        Raises:
            ConsumerStateError: The app is not started, or has no such handler.
        """
        return any(executor.is_paused for executor in self._executors_of(handler))

    # ---- publishing --------------------------------------------------------------------------------------------

    async def publish(  # noqa: PLR0913 - public
        self,
        topic: str,
        value: object,
        *,
        key: object = None,
        headers: Sequence[tuple[str, bytes | str | None]] = (),
        partition: int | None = None,
        delay_ms: int | None = None,
        at: datetime | None = None,
    ) -> Published | None:
        """Publish a value, encoded by the app's codec; bytes are published unchanged.

        The value may be any object that the codec encodes. A key is encoded in the form that a parameter marked
        with ``Key`` reads: text for ``str``, numbers, dates, UUIDs and enums, otherwise JSON; or by the codec if it
        encodes keys. Without ``partition``, the key selects the partition. In a handler of single records, and in its
        tasks and threads, the trace headers of the record are added unless ``headers`` contains trace headers.

        With ``delay_ms``, in milliseconds, or ``at``, a time with a time zone, the message is published not before
        then, at most after the longest delay of ``publish_delays_ms``. The call returns when the message is stored in
        the topic of a delay. A declared delay is kept exactly; another one, and ``at``, may be exceeded by up to the
        shortest declared delay.

        Returns:
            The partition and offset; of a delayed message, in the topic in which it waits. None if the message
            belongs to a transaction that is not committed yet.

        Raises:
            ConsumerStateError: The app is not started, or has ended.
            PublishTimeoutError: Outside of handlers, a schema was not fetched within ``publish_timeout_ms``, or the
                message was not acknowledged within ``publish_timeout_ms``.
            PublishError: The value cannot be encoded, the message was not acknowledged, or no broker was reached yet;
                or the delay is invalid, or not declared.
            SchemaRegistryError: A schema is needed, and the schema registry does not answer.
        """
        publisher = self._open_publisher(topic)
        message = Message(value, key, headers, partition, delay_ms=delay_ms, at=at)
        (out,) = await encode_in_time([message], topic, self._encoder, self._delays, self._publish_timeout_s)
        return await publish_one(publisher, out)

    async def publish_many(self, messages: Iterable[Message], topic: str | None = None) -> list[Published | None]:
        """Publish several messages as ``publish`` does, wait until all are acknowledged, and return their places.

        All messages are encoded first: if one cannot be encoded, nothing is published. The places have the order of
        the messages.

        Args:
            messages: Messages to publish, with their topics.
            topic: Topic of the messages that have none.

        Raises:
            PublishError: A message has no topic; or one or more messages were not acknowledged: the error is that of
                the first one, and says how many.
            ConsumerStateError, SchemaRegistryError: See ``publish``.
        """
        publisher, encoder = self._open_publisher("publish_many()"), RecordEncoder(self.codec, where="publish_many()")
        records = await encode_in_time(messages, topic, encoder, self._delays, self._publish_timeout_s)
        calls = (publish_one(publisher, record) for record in records)
        results = await asyncio.gather(*calls, return_exceptions=True)
        failures = [one for one in results if isinstance(one, BaseException)]
        if failures:
            raise error_of_several(failures[0], len(failures), len(results))
        return cast("list[Published | None]", results)

    async def publish_encoded(self, record: OutgoingRecord) -> Published | None:
        """Publish a record that is encoded already, as ``publish`` does. It is internal to tailrace."""
        return await publish_one(self._open_publisher(record.topic), record)

    # ---- internals ---------------------------------------------------------------------------------------------------

    def _check_not_started(self) -> None:
        supervisor = self.runtime.supervisor
        if supervisor is not None and not supervisor.is_over:
            raise ConsumerStateError(
                "this app is started - declare handlers and hooks, and call include() and configure(), before the start"
            )

    @property
    def _publish_timeout_s(self) -> float:
        return self.runtime.config.publish_timeout_ms / 1000

    @property
    def _delays(self) -> PublishDelays | None:
        return self.runtime.started_run.delays

    @cached_property
    def _encoder(self) -> RecordEncoder:
        return RecordEncoder(self.codec, where="publish()")

    def _open_publisher(self, where: str) -> Publisher:
        running, supervisor = self.runtime.started_run, self.runtime.supervisor
        if supervisor is not None:
            supervisor.check_loop("this app")
        if running.publisher is None:
            if supervisor is not None and not supervisor.stopping.is_set():
                raise PublishError(f"{where}: no broker was reached yet - await wait_ready() first")
            raise ConsumerStateError("this app has ended - start it again before you publish")
        return running.publisher

    def _executors_of(self, handler: HandlerFunction) -> list[Executor]:
        executors = [executor for group in self.runtime.started_run.groups for executor in group.executors_of(handler)]
        if not executors:
            raise ConsumerStateError(f"{handler!r} is not a running handler of this app - pass the decorated function")
        return executors


# ---- import of an App by its name, such as ``shop:billing`` ----------------------------------------------------------


def split_app_name(where: str) -> tuple[str, str]:
    """Split ``MODULE:APP`` into the name of the module and the name of the app.

    Raises:
        ConfigurationError: ``where`` does not have the form ``MODULE:APP``.
    """
    module_name, separator, name = where.partition(":")
    if not separator or not module_name or not name:
        raise ConfigurationError(f"{where!r} does not name an app - write MODULE:APP, such as shop:billing")
    return module_name, name


def load_app(where: str) -> App:
    """Import and return the App that ``MODULE:APP`` names; modules in the current directory are found, too.

    Raises:
        ConfigurationError: ``MODULE`` does not exist or cannot be imported, or does not contain an App named ``APP``.
        ModuleNotFoundError: ``MODULE`` imports another module that does not exist.
        TailraceError: raised by the code of the module.
    """
    module_name, name = split_app_name(where)
    if module_name.startswith(".") or not re.fullmatch(r"[\w.]+", module_name):
        raise ConfigurationError(f"{module_name!r} is not a module name - {_hint(module_name, name)}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ConfigurationError(f"there is no module {module_name!r} - {_hint(module_name, name)}") from None
    except TailraceError:
        raise
    except Exception as error:
        line = where_raised(error)
        at = "" if line is None else f" at {line}"
        raise ConfigurationError(
            f"module {module_name!r} cannot be imported: {error_text(error)}{at}"
            f" - `python -c 'import {module_name}'` shows the whole traceback"
        ) from error
    app = getattr(module, name, None)
    if not isinstance(app, App):
        apps = [variable for variable, value in vars(module).items() if isinstance(value, App)]
        hint = f"use one of {', '.join(apps)}" if apps else "the module defines no App"
        raise ConfigurationError(f"{name!r} of {module_name} is not an App - {hint}")
    return app


def _hint(module_name: str, name: str) -> str:
    if module_name.endswith(".py"):
        meant = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        return f"did you mean {meant}:{name}?"
    return f"run this where `import {module_name}` works"
