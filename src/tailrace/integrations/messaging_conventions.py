"""Names from OpenTelemetry's semantic conventions for messaging and Kafka, which may still change."""

from __future__ import annotations

from enum import Enum

__all__ = ["DURATION_BUCKETS_S", "SCHEMA_URL", "Attribute", "Metric", "Operation"]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the conventions, whose status is "development"."""

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bucket boundaries of all durations, in seconds."""


class Attribute:
    """Names of attributes."""

    SYSTEM = "messaging.system"
    OPERATION_NAME = "messaging.operation.name"
    OPERATION_TYPE = "messaging.operation.type"
    DESTINATION_NAME = "messaging.destination.name"
    PARTITION_ID = "messaging.destination.partition.id"
    GROUP_NAME = "messaging.consumer.group.name"
    MESSAGE_COUNT = "messaging.batch.message_count"
    OFFSET = "messaging.kafka.offset"
    TOMBSTONE = "messaging.kafka.message.tombstone"
    ERROR_TYPE = "error.type"
    HANDLER = "tailrace.handler"
    """Name of the handler; the conventions have no such attribute."""


class Metric:
    """Names of metrics."""

    OPERATION_DURATION = "messaging.client.operation.duration"
    SENT_MESSAGES = "messaging.client.sent.messages"
    CONSUMED_MESSAGES = "messaging.client.consumed.messages"
    PROCESS_DURATION = "messaging.process.duration"


class Operation(Enum):
    """Operations: the name that Kafka's clients use, and the type in the conventions."""

    POLL = "poll", "receive"
    PROCESS = "process", "process"
    COMMIT = "commit", "settle"
    SEND = "send", "send"

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes of all spans and metrics of the operation."""
        name, kind = self.value
        return {Attribute.SYSTEM: "kafka", Attribute.OPERATION_NAME: name, Attribute.OPERATION_TYPE: kind}

    def span_name(self, topic: str | None) -> str:
        """Return the name of a span. ``topic`` is None if the operation has several topics or none."""
        name = self.value[0]
        return name if topic is None else f"{name} {topic}"
