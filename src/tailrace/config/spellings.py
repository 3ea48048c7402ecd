"""Names that other clients give to options, for error messages and the documentation."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NAMES_BY_CLIENT", "OTHER_SPELLINGS"]

_JAVA: Mapping[str, str] = {
    "internal_leave_group_on_close": "leave_on_stop",
    "sasl_jaas_config": "sasl_plain_password",
    "sasl_login_callback_handler_class": "sasl_oauth_token_provider",
    "ssl_endpoint_identification_algorithm": "ssl_check_hostname",
    "ssl_key_password": "ssl_password",
    "ssl_keystore_certificate_chain": "ssl_certfile",
    "ssl_keystore_key": "ssl_keyfile",
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
    "source_port": "local_addr",
}

NAMES_BY_CLIENT: Mapping[str, Mapping[str, str]] = {"Java": _JAVA, "librdkafka": _LIBRDKAFKA, "aiokafka": _AIOKAFKA}
"""Names of options by client, mapped to tailrace's names; without names like ``group.id``, where only dots differ."""

OTHER_SPELLINGS: Mapping[str, str] = {**_OTHERS, **_AIOKAFKA, **_LIBRDKAFKA, **_JAVA}
"""Names of options in other clients, normalized to lower case and underscores, mapped to tailrace's names."""
