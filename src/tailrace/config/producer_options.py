"""Documentation and types of every option of a producer, for programs and their type checkers.

``python docs/options.py`` writes the last paragraph of each docstring from the option's declaration in
``ProducerConfig``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from typing_extensions import TypeVar

from tailrace.config.consumer_options import ClientOptions
from tailrace.config.options import Acks, CompressionType, Partitioning

__all__ = ["KeyT_contra", "ProducerOptions", "ValueT_contra"]

KeyT_contra = TypeVar("KeyT_contra", contravariant=True, default=object)
ValueT_contra = TypeVar("ValueT_contra", contravariant=True, default=object)


class ProducerOptions(ClientOptions, Generic[KeyT_contra, ValueT_contra], total=False):
    """Options of a producer, for ``**options: Unpack[ProducerOptions]``.

    ``ProducerOptions[str, Order]`` has serializers that take ``str`` and ``Order``.
    """

    # ---- delivery
    acks: Acks
    """Acknowledgments: "all" in-sync replicas, 1 for the leader alone, or 0 for none.

    -1 is "all". With 0, a record counts as published when it is written to the connection: it has no offset, and a
    record that the broker refuses is lost without an error.



    Default: "all". librdkafka: request.required.acks.
    """
    enable_idempotence: bool | None
    """Let brokers refuse duplicates; None if the brokers support it and ``acks`` is "all".

    With True, ``start()`` raises ``UnsupportedVersionError`` if a broker does not support it. With False, a record may
    be stored twice when its request is repeated.



    Default: None.
    """
    delivery_timeout_ms: int
    """Maximum time in milliseconds from a call to the acknowledgment, retries included.

    A record that is not acknowledged in time fails with ``PublishError``, and may be stored nevertheless.



    Default: 120_000. Minimum: 1. librdkafka: message.timeout.ms.
    """
    max_block_ms: int
    """Maximum time in milliseconds that a call waits for memory or metadata.

    The limit is also that of waiting for a schema, and of calls that begin, commit or abort a transaction. With 0, a
    call does not wait for memory, but raises ``BufferFullError`` at once. Other waits then last up to five seconds: a
    topic's first record would otherwise always fail. ``await producer.partitions_for(topic)`` waits beforehand.



    Default: 60_000. Minimum: 0.
    """

    # ---- batches
    compression_type: CompressionType | None
    """Compression of the batches; None is "none".



    Default: "none". librdkafka: compression.codec.
    """
    compression_level: int | None
    """Level of gzip, lz4 or zstd (KIP-390); None for the codec's default.

    The levels are 1 to 9 for gzip, 1 to 17 for lz4, and -131,072 to 22 for zstd.



    Default: None. Java: compression.gzip.level or compression.lz4.level or compression.zstd.level.
    """
    linger_ms: int
    """Time in milliseconds for which a batch waits for more records unless it is full.

    Records that are published while a batch of their partition is in flight share the next batch also with 0.



    Default: 0. Minimum: 0. librdkafka: queue.buffering.max.ms.
    """
    max_batch_size: int
    """Maximum size in bytes of a batch before compression.

    A larger record is a batch by itself.



    Default: 262_144. Minimum: 1. Java: batch.size; librdkafka: batch.num.messages.
    """
    max_request_size: int
    """Maximum size in bytes of a record before compression.

    A larger record raises ``PublishTooLargeError`` before it is sent. The topic's ``max.message.bytes`` limits the
    batch, after compression. From this size on, no batch is added to a request.



    Default: 1_048_576. Minimum: 1. librdkafka: message.max.bytes.
    """
    buffer_memory: int
    """Size in bytes of unacknowledged records from which calls wait for up to ``max_block_ms``.



    Default: 33_554_432. Minimum: 1. No maximum. librdkafka: queue.buffering.max.kbytes or queue.buffering.max.messages.
    """
    partitioner: Partitioning
    """Choice of the partition: "murmur2" (Java), "consistent_random", "sticky", or a function.

    "consistent_random" chooses by CRC-32 of the key, as librdkafka; "sticky" ignores keys. Without a key, all three
    fill one partition's batch, then change the partition. The function is called with the bytes of the key, and lists
    of all partitions and of those that have a leader, and returns a partition.



    Default: "murmur2". Java: partitioner.class or partitioner.ignore.keys.
    """

    # ---- transactions
    transactional_id: str | None
    """Name of a transactional producer, which no other process has; None for no transactions.

    ``start()`` fences an earlier producer of this name, whose open transaction the broker aborts.



    Default: None.
    """
    transaction_timeout_ms: int
    """Time in milliseconds after which the broker aborts an open transaction.



    Default: 60_000. Minimum: 1.
    """

    # ---- records to publish
    key_serializer: Callable[[KeyT_contra], bytes | None] | None
    """Function that encodes keys in place of the codec; it is not called for None.



    Default: None. Not from the environment.
    """
    value_serializer: Callable[[ValueT_contra], bytes | None] | None
    """Function that encodes values in place of the codec; it is not called for None.



    Default: None. Not from the environment.
    """
