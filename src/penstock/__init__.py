"""An asyncio-native consumer framework for Apache Kafka.

``Consumer`` reads, ``run`` runs, and everything that goes wrong is a ``PenstockError``.

A name is looked up when it is first asked for: whoever wants one of them, or a command that says ``--help``, does not
wait for all the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.config import ConsumerOptions
    from penstock.consumer.consumer import Consumer, ConsumerStatistics
    from penstock.consumer.run import run
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
        HandlerFailedError,
        InvalidSessionTimeoutError,
        InvalidTopicError,
        MalformedMessageError,
        NoCommonAssignorError,
        NodeNotConnectedError,
        OffsetGapError,
        OffsetOutOfRangeError,
        PenstockError,
        ProducerFencedError,
        PublishError,
        RebalanceError,
        RecordTooLargeError,
        RequestTimedOutError,
        TopicAuthorizationFailedError,
        UnknownTopicError,
        UnsupportedVersionError,
    )
    from penstock.records import OffsetAndMetadata, OffsetAndTimestamp, Record, TopicPartition

__all__ = [
    "AuthenticationError",
    "BrokerConnectionError",
    "BrokerError",
    "CommitFailedError",
    "ConfigurationError",
    "Consumer",
    "ConsumerOptions",
    "ConsumerStateError",
    "ConsumerStatistics",
    "ConsumerTimeoutError",
    "CorruptRecordError",
    "DeadLetterError",
    "DecodeError",
    "FencedMemberError",
    "GroupAuthorizationFailedError",
    "GroupError",
    "HandlerFailedError",
    "InvalidSessionTimeoutError",
    "InvalidTopicError",
    "MalformedMessageError",
    "NoCommonAssignorError",
    "NodeNotConnectedError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetGapError",
    "OffsetOutOfRangeError",
    "PenstockError",
    "ProducerFencedError",
    "PublishError",
    "RebalanceError",
    "Record",
    "RecordTooLargeError",
    "RequestTimedOutError",
    "TopicAuthorizationFailedError",
    "TopicPartition",
    "UnknownTopicError",
    "UnsupportedVersionError",
    "run",
]

_MODULES = {
    "Consumer": "consumer.consumer",
    "ConsumerOptions": "config",
    "ConsumerStatistics": "consumer.consumer",
    "OffsetAndMetadata": "records",
    "OffsetAndTimestamp": "records",
    "Record": "records",
    "TopicPartition": "records",
    "run": "consumer.run",
}
"""Where each name is; those that are not here are errors."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
