"""Records to be written: the Produce request, and the batches in it; the other half of the door to ``aiokafka.record``.

Produce stops before version 12: with that one a broker takes partitions into a transaction by itself and wants the
rest of the second kind of transaction with it (KIP-890); from 13 on topics go by their ids only.

A batch is written record by record into one buffer, in C. Who writes it, and its place in the sequence, are said when
it is closed, since both are known only then.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from penstock.errors import MalformedMessageError
from penstock.messages import (
    BrokerMetadata,
    LeaderIdAndEpoch,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    RecordsToProduce,
    RefusedRecord,
)
from penstock.wire.api import api
from penstock.wire.primitives import INT16, INT32, INT64, RECORDS, STRING
from penstock.wire.schema import Array, ByTopic, Struct, field

__all__ = ["COMPRESSIONS", "PRODUCE", "BatchWriter"]

COMPRESSIONS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""By Kafka's names."""

_FORMAT = 2

_TOPIC = (field("name", STRING, 0, 12, attribute="topic"),)
_PARTITION = field("index", INT32, attribute="partition")

PRODUCE = api(
    0,
    "Produce",
    versions=(8, 11),
    flexible=9,
    message=ProduceRequest,
    request=Struct(
        ProduceRequest,
        field("transactional_id", STRING, 3, nullable=3),
        field("acks", INT16),
        field("timeout_ms", INT32),
        field(
            "topic_data",
            ByTopic(
                _TOPIC, "partition_data", Struct(RecordsToProduce, _PARTITION, field("records", RECORDS, nullable=0))
            ),
            attribute="partitions",
        ),
    ),
    response=Struct(
        ProduceResponse,
        field(
            "responses",
            ByTopic(
                _TOPIC,
                "partition_responses",
                Struct(
                    ProducedPartition,
                    _PARTITION,
                    field("error_code", INT16),
                    field("base_offset", INT64),
                    field("log_append_time_ms", INT64, 2),
                    field("log_start_offset", INT64, 5),
                    field(
                        "record_errors",
                        Array.of(
                            RefusedRecord,
                            field("batch_index", INT32, 8),
                            field("batch_index_error_message", STRING, 8, nullable=8, attribute="message"),
                        ),
                        8,
                    ),
                    field("error_message", STRING, 8, nullable=8),
                    field(
                        "current_leader",
                        Struct(LeaderIdAndEpoch, field("leader_id", INT32), field("leader_epoch", INT32)),
                        10,
                        tag=0,
                    ),
                ),
            ),
            attribute="partitions",
        ),
        field("throttle_time_ms", INT32, 1),
        field(
            "node_endpoints",
            Array.of(
                BrokerMetadata,
                field("node_id", INT32),
                field("host", STRING),
                field("port", INT32),
                field("rack", STRING, nullable=10),
            ),
            10,
            tag=0,
        ),
    ),
)


class BatchWriter:
    """One batch of a transaction, being filled.

    Attributes:
        count: records in it.
    """

    __slots__ = ("_builder", "count")

    def __init__(self, limit: int, compression: str = "none") -> None:
        self._builder = DefaultRecordBatchBuilder(_FORMAT, COMPRESSIONS[compression], 1, -1, -1, -1, limit)
        self.count = 0

    def __repr__(self) -> str:
        return f"<BatchWriter {self.count} records {self.size} bytes>"

    @property
    def size(self) -> int:
        """Bytes in it, before compression."""
        return self._builder.size()

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> bool:
        """Take one more record, written now if nothing else is said; False when it is full, but the first always fits.

        Raises:
            MalformedMessageError: key, value or headers are not what a record has; the batch is as it was.
        """
        try:
            taken = self._builder.append(self.count, timestamp_ms, key, value, list(headers))
        except (TypeError, ValueError, OverflowError) as error:
            raise MalformedMessageError(f"a record that cannot be written: {error}") from error
        if taken is None:
            return False
        self.count += 1
        return True

    def written(self, producer_id: int, producer_epoch: int, sequence: int) -> bytes:
        """The whole batch, closed, as that producer's and from that place in its sequence on; asked for once."""
        self._builder.set_producer_state(producer_id, producer_epoch, sequence)
        return bytes(self._builder.build())
