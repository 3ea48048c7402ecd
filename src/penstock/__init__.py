"""An asyncio-native consumer framework for Apache Kafka.

``App`` runs handlers, ``Consumer`` reads, ``run`` runs, and everything that goes wrong is a ``PenstockError``.

A name is looked up when it is first asked for: whoever wants one of them, or a command that says ``--help``, does not
wait for all the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.handlers import Handlers
    from penstock.app.messages import Message
    from penstock.app.processes.consumer import ProcessPoolConsumer
    from penstock.app.processes.pool import WorkerPool
    from penstock.app.registry.schema_registry import SchemaRegistry
    from penstock.app.reject import Reject
    from penstock.app.signatures.parameters import Depends, Header, Key
    from penstock.config import ConsumerOptions
    from penstock.consumer.consumer import Consumer
    from penstock.consumer.group_dialect import Generation, GroupRole
    from penstock.consumer.group_member import GroupMember
    from penstock.consumer.overview import ConsumerHealth, ConsumerOffsets, ConsumerStatistics, Lag
    from penstock.consumer.record_stream import RecordStream
    from penstock.consumer.run import run
    from penstock.consumer.shared import SharedCluster
    from penstock.core.retries import Retry
    from penstock.errors import (
        AuthenticationError,
        BrokerConnectionError,
        BrokerError,
        CommitFailedError,
        ConfigurationError,
        ConsumerStateError,
        ConsumerTimeoutError,
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
        PenstockError,
        ProducerFencedError,
        PublishError,
        PublishTooLargeError,
        RebalanceError,
        RecordTooLargeError,
        RequestTimedOutError,
        SchemaRegistryError,
        TopicAuthorizationFailedError,
        UnknownGroupError,
        UnknownTopicError,
        UnsupportedVersionError,
    )
    from penstock.records import OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition

__all__ = [
    "App",
    "AuthenticationError",
    "BrokerConnectionError",
    "BrokerError",
    "CommitFailedError",
    "ConfigurationError",
    "Consumer",
    "ConsumerHealth",
    "ConsumerOffsets",
    "ConsumerOptions",
    "ConsumerStateError",
    "ConsumerStatistics",
    "ConsumerTimeoutError",
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
    "PenstockError",
    "ProcessPoolConsumer",
    "ProducerFencedError",
    "PublishError",
    "PublishTooLargeError",
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
    "TopicAuthorizationFailedError",
    "TopicPartition",
    "UnknownGroupError",
    "UnknownTopicError",
    "UnsupportedVersionError",
    "WorkerPool",
    "run",
]

_MODULES = {
    "App": "app.app",
    "Consumer": "consumer.consumer",
    "ConsumerOptions": "config",
    "ConsumerHealth": "consumer.overview",
    "ConsumerOffsets": "consumer.overview",
    "ConsumerStatistics": "consumer.overview",
    "Lag": "consumer.overview",
    "Depends": "app.signatures.parameters",
    "Generation": "consumer.group_dialect",
    "GroupMember": "consumer.group_member",
    "GroupRole": "consumer.group_dialect",
    "Handlers": "app.handlers",
    "Header": "app.signatures.parameters",
    "Key": "app.signatures.parameters",
    "Message": "app.messages",
    "OffsetAndMetadata": "records",
    "OffsetAndTimestamp": "records",
    "ProcessPoolConsumer": "app.processes.consumer",
    "Record": "records",
    "RecordStream": "consumer.record_stream",
    "Reject": "app.reject",
    "Retry": "core.retries",
    "SchemaRegistry": "app.registry.schema_registry",
    "SharedCluster": "consumer.shared",
    "TopicPartition": "records",
    "WorkerPool": "app.processes.pool",
    "run": "consumer.run",
}
"""Where each name is; those that are not here are errors."""


if not TYPE_CHECKING:  # to type checkers, a module with a __getattr__ has whatever name is misspelt

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
