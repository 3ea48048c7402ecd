"""An asyncio-native consumer framework for Apache Kafka.

``App`` runs handlers, ``Consumer`` reads records, ``Producer`` publishes records, ``run`` runs a coroutine until
SIGTERM, and errors are subclasses of ``TailraceError``.

Names are imported on first access, so that importing one name, or showing ``--help``, does not import every module.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.app.app import App
    from tailrace.app.declare.parameters import Depends, Header, Key
    from tailrace.app.failures.reject import Reject
    from tailrace.app.handlers import Handlers
    from tailrace.app.options import AppOptions, HandlerOptions
    from tailrace.app.policies import Batch, Retry
    from tailrace.app.processes.process_pool_consumer import ProcessPoolConsumer
    from tailrace.app.processes.worker_pool import WorkerPool
    from tailrace.codecs.schema_registry import SchemaRegistry
    from tailrace.config import ConsumerOptions, ProducerOptions
    from tailrace.consumer.consumer import Consumer
    from tailrace.consumer.delivery.streams import RecordStream
    from tailrace.consumer.monitoring import ConsumerHealth, ConsumerOffsets, Lag
    from tailrace.consumer.role_member import Generation, GroupMember, GroupRole
    from tailrace.consumer.shared_cluster import SharedCluster
    from tailrace.errors import (
        AuthenticationError,
        BrokerConnectionError,
        BrokerError,
        BufferFullError,
        CommitFailedError,
        ConfigurationError,
        ConsumerStateError,
        ConsumerTimeoutError,
        CorruptCheckpointError,
        CorruptRecordError,
        DeadLetterError,
        DecodeError,
        FencedMemberError,
        GroupAuthorizationFailedError,
        GroupError,
        GroupNotEmptyError,
        HandlerFailedError,
        InvalidSessionTimeoutError,
        InvalidTopicError,
        LogTruncatedError,
        MalformedMessageError,
        NoCommonAssignorError,
        NodeNotConnectedError,
        NotAConsumerGroupError,
        OffsetGapError,
        OffsetOutOfRangeError,
        PartialFailureError,
        ProducerFencedError,
        PublishError,
        PublishTimeoutError,
        PublishTooLargeError,
        RebalanceError,
        RecordTooLargeError,
        RequestTimedOutError,
        SchemaRegistryError,
        TailraceError,
        TopicAuthorizationFailedError,
        TopicRecreatedError,
        UnknownGroupError,
        UnknownPartitionError,
        UnknownTopicError,
        UnreadableBatchError,
        UnsupportedVersionError,
        WrongBrokerError,
    )
    from tailrace.observe.statistics import AppStatistics, ConsumerStatistics, ProducerStatistics
    from tailrace.producer.encoding import Message
    from tailrace.producer.producer import Producer, Transaction
    from tailrace.producer.publisher import Published
    from tailrace.records import OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition
    from tailrace.signals import run

__all__ = [
    "App",
    "AppOptions",
    "AppStatistics",
    "AuthenticationError",
    "Batch",
    "BrokerConnectionError",
    "BrokerError",
    "BufferFullError",
    "CommitFailedError",
    "ConfigurationError",
    "Consumer",
    "ConsumerHealth",
    "ConsumerOffsets",
    "ConsumerOptions",
    "ConsumerStateError",
    "ConsumerStatistics",
    "ConsumerTimeoutError",
    "CorruptCheckpointError",
    "CorruptRecordError",
    "DeadLetterError",
    "DecodeError",
    "Depends",
    "FencedMemberError",
    "Generation",
    "GroupAuthorizationFailedError",
    "GroupError",
    "GroupMember",
    "GroupNotEmptyError",
    "GroupRole",
    "HandlerFailedError",
    "HandlerOptions",
    "Handlers",
    "Header",
    "InvalidSessionTimeoutError",
    "InvalidTopicError",
    "Key",
    "Lag",
    "LogTruncatedError",
    "MalformedMessageError",
    "Message",
    "NoCommonAssignorError",
    "NodeNotConnectedError",
    "NotAConsumerGroupError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetGapError",
    "OffsetOutOfRangeError",
    "PartialFailureError",
    "ProcessPoolConsumer",
    "Producer",
    "ProducerFencedError",
    "ProducerOptions",
    "ProducerStatistics",
    "PublishError",
    "PublishTimeoutError",
    "PublishTooLargeError",
    "Published",
    "RebalanceError",
    "Record",
    "RecordStream",
    "RecordTooLargeError",
    "Reject",
    "RequestTimedOutError",
    "Retry",
    "SchemaRegistry",
    "SchemaRegistryError",
    "SharedCluster",
    "TailraceError",
    "TopicAuthorizationFailedError",
    "TopicPartition",
    "TopicRecreatedError",
    "Transaction",
    "UnknownGroupError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "UnreadableBatchError",
    "UnsupportedVersionError",
    "WorkerPool",
    "WrongBrokerError",
    "run",
]

_MODULES = {
    "App": "app.app",
    "AppOptions": "app.options",
    "AppStatistics": "observe.statistics",
    "Batch": "app.dispatch.batching",
    "Consumer": "consumer.consumer",
    "ConsumerOptions": "config",
    "ConsumerHealth": "consumer.monitoring",
    "ConsumerOffsets": "consumer.monitoring",
    "ConsumerStatistics": "observe.statistics",
    "Lag": "consumer.monitoring",
    "Depends": "app.declare.parameters",
    "Generation": "consumer.role_member",
    "GroupMember": "consumer.role_member",
    "GroupRole": "consumer.role_member",
    "HandlerOptions": "app.options",
    "Handlers": "app.handlers",
    "Header": "app.declare.parameters",
    "Key": "app.declare.parameters",
    "Message": "producer.encoding",
    "OffsetAndMetadata": "records",
    "OffsetAndTimestamp": "records",
    "ProcessPoolConsumer": "app.processes.process_pool_consumer",
    "Producer": "producer.producer",
    "ProducerOptions": "config",
    "ProducerStatistics": "observe.statistics",
    "Published": "producer.publisher",
    "Record": "records",
    "RecordStream": "consumer.delivery.streams",
    "Reject": "app.failures.reject",
    "Retry": "app.policies",
    "SchemaRegistry": "codecs.schema_registry",
    "SharedCluster": "consumer.shared_cluster",
    "TopicPartition": "records",
    "Transaction": "producer.producer",
    "WorkerPool": "app.processes.worker_pool",
    "run": "signals",
}
"""Module of each name, relative to ``tailrace``; names that are not listed are in ``errors``."""


if not TYPE_CHECKING:  # type checkers would accept misspelled names if they saw a __getattr__

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
