"""Names of options in other clients, for error messages and the documentation."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "COUNTED_OTHERWISE",
    "NAMES_BY_CLIENT",
    "NOT_OF_PRODUCERS",
    "NOT_OPTIONS",
    "OTHER_SPELLINGS",
    "PARTITIONERS",
    "PRODUCER_SPELLINGS",
]

_JAVA: Mapping[str, str] = {
    "internal_leave_group_on_close": "leave_on_stop",
    "sasl_jaas_config": "sasl_plain_password",
    "sasl_login_callback_handler_class": "sasl_oauth_token_provider",
    "ssl_endpoint_identification_algorithm": "ssl_check_hostname",
    "ssl_key_password": "ssl_password",
    "ssl_keystore_certificate_chain": "ssl_certificate_pem",
    "ssl_keystore_key": "ssl_key_pem",
    "ssl_keystore_location": "ssl_certfile",
    "ssl_truststore_certificates": "ssl_ca_pem",
    "ssl_truststore_location": "ssl_cafile",
}
_LIBRDKAFKA: Mapping[str, str] = {
    "enable_auto_offset_store": "ack",
    "fetch_error_backoff_ms": "retry_backoff_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "metadata_broker_list": "bootstrap_servers",
    "oauth_cb": "sasl_oauth_token_provider",
    "offset_commit_cb": "offset_commit_callback",
    "queued_max_messages_kbytes": "max_buffered_bytes",
    "queued_min_messages": "max_queued_records",
    "rebalance_cb": "rebalance_listener",
    "sasl_mechanisms": "sasl_mechanism",
    "sasl_password": "sasl_plain_password",
    "sasl_username": "sasl_plain_username",
    "socket_receive_buffer_bytes": "receive_buffer_bytes",
    "socket_timeout_ms": "request_timeout_ms",
    "ssl_ca_location": "ssl_cafile",
    "ssl_certificate_location": "ssl_certfile",
    "ssl_key_location": "ssl_keyfile",
    "topic_metadata_refresh_interval_ms": "metadata_max_age_ms",
}
_AIOKAFKA: Mapping[str, str] = {
    "rebalance_timeout_ms": "max_poll_interval_ms",
}
_OTHERS: Mapping[str, str] = {
    "assignors": "partition_assignment_strategy",
    "auto_commit": "enable_auto_commit",
    "auto_commit_enable": "enable_auto_commit",
    "auto_commit_every_n": "auto_commit_every_records",
    "auto_commit_every_t": "auto_commit_interval_ms",
    "auto_commit_interval_messages": "auto_commit_every_records",
    "broker_list": "bootstrap_servers",
    "bootstrap_timeout_ms": "start_timeout_ms",
    "brokers": "bootstrap_servers",
    "compacted_topic": "allow_offset_gaps",
    "consumer_group": "group_id",
    "default_offset_commit_callback": "offset_commit_callback",
    "deserializer": "value_deserializer",
    "deserializer_class": "value_deserializer",
    "fetch_size_bytes": "fetch_min_bytes",
    "group": "group_id",
    "hosts": "bootstrap_servers",
    "iter_timeout": "consumer_timeout_ms",
    "max_buffer_size": "max_batch_bytes",
    "max_bytes": "fetch_max_bytes",
    "max_wait_time": "fetch_max_wait_ms",
    "min_bytes": "fetch_min_bytes",
    "num_consumer_fetchers": "num_fetchers",
    "offsets_channel_backoff_ms": "retry_backoff_ms",
    "offsets_channel_socket_timeout_ms": "request_timeout_ms",
    "offsets_commit_max_retries": "offset_commit_max_retries",
    "partition_allocator": "partition_assignment_strategy",
    "queued_max_messages": "max_queued_records",
    "rebalance_backoff_ms": "retry_backoff_ms",
    "refresh_leader_backoff_ms": "retry_backoff_ms",
    "source_host": "local_addr",
    "socks5_proxy": "proxy_url",
    "source_port": "local_addr",
}
_JAVA_PRODUCER: Mapping[str, str] = {
    "batch_size": "max_batch_size",
    "compression_gzip_level": "compression_level",
    "compression_lz4_level": "compression_level",
    "compression_zstd_level": "compression_level",
    "partitioner_class": "partitioner",
    "partitioner_ignore_keys": "partitioner",
}
_LIBRDKAFKA_PRODUCER: Mapping[str, str] = {
    "batch_num_messages": "max_batch_size",
    "compression_codec": "compression_type",
    "message_max_bytes": "max_request_size",
    "message_timeout_ms": "delivery_timeout_ms",
    "queue_buffering_max_kbytes": "buffer_memory",
    "queue_buffering_max_messages": "buffer_memory",
    "queue_buffering_max_ms": "linger_ms",
    "request_required_acks": "acks",
}
_OTHER_PRODUCERS: Mapping[str, str] = {
    "buffer_timeout": "linger_ms",
    "compression": "compression_type",
    "max_buffered_bytes": "buffer_memory",
    "partitioner_cb": "partitioner",
    "producer_acks": "acks",
    "required_acks": "acks",
    "serializer": "value_serializer",
}

NAMES_BY_CLIENT: Mapping[str, Mapping[str, str]] = {
    "Java": {**_JAVA, **_JAVA_PRODUCER},
    "librdkafka": {**_LIBRDKAFKA, **_LIBRDKAFKA_PRODUCER},
    "aiokafka": _AIOKAFKA,
}
"""Names of options by client, mapped to tailrace's names; without names like ``group.id``, where only dots differ."""

PARTITIONERS: Mapping[str, str] = {
    "consistent": "consistent_random",
    "murmur2_random": "murmur2",
    "random": "sticky",
}
"""Values of librdkafka's option ``partitioner``, mapped to tailrace's nearest."""

PRODUCER_SPELLINGS: Mapping[str, str] = {**_OTHER_PRODUCERS, **_LIBRDKAFKA_PRODUCER, **_JAVA_PRODUCER}
"""Names of producers' options in other clients, mapped to tailrace's names, as in ``OTHER_SPELLINGS``."""

OTHER_SPELLINGS: Mapping[str, str] = {**_OTHERS, **_AIOKAFKA, **_LIBRDKAFKA, **_JAVA}
"""Names of options in other clients, normalized to lower case and underscores, mapped to tailrace's names."""

_ALWAYS_COUNTED = "leave it out: statistics() always has counters and histograms"
_VERSIONS = "leave it out: the versions of each broker are detected"
_TLS = "ssl_context=, with a context that has the setting"
_SOCKETS = "leave it out: connections are kept alive, and the operating system chooses the sizes of buffers"
_LOGGER = "logging.getLogger('tailrace')"
_STICKY = "leave it out: records without a key fill a batch of one partition, then of another that has a leader"
_IN_FLIGHT = "leave it out: up to five batches of a partition are in flight, and stay in order"
_FUTURE = "await send(), or the future that enqueue() returns"
_SENT_AGAIN = "delivery_timeout_ms: a record is sent again until then"

_NOT_OF_CLIENTS: Mapping[str, str] = {
    "api_version": _VERSIONS,
    "api_version_auto_timeout_ms": _VERSIONS,
    "api_version_request": _VERSIONS,
    "broker_version_fallback": _VERSIONS,
    "client_dns_lookup": "leave it out: all addresses of a name are tried, as with 'use_all_dns_ips'",
    "debug": f"{_LOGGER}.setLevel(logging.DEBUG)",
    "enable_metrics_push": "tailrace.integrations.prometheus or tailrace.integrations.opentelemetry",
    "enable_ssl_certificate_verification": _TLS,
    "error_cb": "hooks=[...]: on_event() receives BrokerUnreachable and others",
    "interceptor_classes": "hooks=[...]",
    "log_cb": _LOGGER,
    "log_level": _LOGGER,
    "logger": _LOGGER,
    "metric_reporters": "statistics(), or tailrace.integrations.prometheus",
    "metrics_enabled": _ALWAYS_COUNTED,
    "metrics_num_samples": _ALWAYS_COUNTED,
    "metrics_recording_level": _ALWAYS_COUNTED,
    "metrics_sample_window_ms": _ALWAYS_COUNTED,
    "on_statistics": "statistics()",
    "selector": "leave it out: the event loop waits for sockets",
    "send_buffer_bytes": _SOCKETS,
    "socket_keepalive_enable": _SOCKETS,
    "socket_options": _SOCKETS,
    "socket_send_buffer_bytes": _SOCKETS,
    "socket_nagle_disable": "leave it out: Nagle's algorithm is switched off",
    "ssl_cipher_suites": _TLS,
    "ssl_ciphers": _TLS,
    "ssl_crlfile": _TLS,
    "ssl_enabled_protocols": _TLS,
    "ssl_protocol": _TLS,
    "statistics_interval_ms": "statistics()",
    "stats_cb": "statistics()",
}
"""Names of options that neither consumers nor producers have."""

NOT_OPTIONS: Mapping[str, str] = {
    **_NOT_OF_CLIENTS,
    "listener": "the option 'rebalance_listener'",
    "loop": "leave it out: the consumer uses the event loop in which it is started",
    "max_poll_records": "getmany(max_records=...)",
}
"""Names of options in other clients that tailrace does not have, mapped to the text that says what to use instead."""

NOT_OF_PRODUCERS: Mapping[str, str] = {
    **_NOT_OF_CLIENTS,
    "allow_auto_create_topics": "leave it out: brokers with auto.create.topics.enable create topics",
    "auto_poll": "leave it out: no call such as poll() is necessary",
    "block_on_buffer_full": "max_block_ms, with 0 for an error at once",
    "delivery_report_only_error": _FUTURE,
    "dr_cb": _FUTURE,
    "dr_msg_cb": _FUTURE,
    "executor": "leave it out: no thread is necessary",
    "loop": "leave it out: the producer uses the event loop in which it is started",
    "max_in_flight": _IN_FLIGHT,
    "max_in_flight_requests_per_connection": _IN_FLIGHT,
    "max_workers": "leave it out: no thread is necessary",
    "message_copy_max_bytes": "leave it out: records are copied into their batch",
    "message_send_max_retries": _SENT_AGAIN,
    "on_delivery": _FUTURE,
    "partitioner_adaptive_partitioning_enable": _STICKY,
    "partitioner_availability_timeout_ms": _STICKY,
    "retries": _SENT_AGAIN,
    "sticky_partitioning_linger_ms": _STICKY,
    "throttle_cb": "statistics().throttled_s",
}
"""Names of producers' options that only other clients have, mapped to the text that says what to use."""

COUNTED_OTHERWISE = frozenset({"batch_num_messages", "queue_buffering_max_kbytes", "queue_buffering_max_messages"})
"""Names of options in other clients that are not in bytes, while tailrace's option is."""
