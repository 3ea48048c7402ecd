"""Data source ``tailrace``: Spark reads Kafka with tailrace's own client, in batches and in streams.

The driver plans ranges of offsets. Each task reads the range of one partition, and fails if it cannot read all records
of the range: if retention has removed some of them, if the topic was recreated, or if its leader does not answer.

A stream starts at the group's committed offsets, and continues at those of Spark's checkpoint. Spark asks for the next
batch when it has written the previous one to its commit log. So the start of the next batch is what the query has
finished, and is committed to the group, even if there is no next batch.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.batches.columns import arrow_of
from tailrace.config import ClientConfig, ConsumerConfig, parse_option, resolve
from tailrace.config.resolution import similar
from tailrace.consumer.consumer import Consumer
from tailrace.consumer.shared_cluster import SharedCluster
from tailrace.core.cluster_metadata import NamePattern
from tailrace.core.offset_map import OffsetMap
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    BrokerConnectionError,
    CommitFailedError,
    ConfigurationError,
    ConsumerTimeoutError,
    CorruptCheckpointError,
    OffsetOutOfRangeError,
    TailraceError,
    UnknownTopicError,
)
from tailrace.net.offsets import LATEST, partitions_of_recreated_topics
from tailrace.observe.events import CommitFailed
from tailrace.observe.hooks import Observer
from tailrace.records import TopicPartition
from tailrace.spark.expression import PackedHandler, pack_handler
from tailrace.spark.loop_thread import LoopThread
from tailrace.spark.offsets.ranges import Offsets, next_ends
from tailrace.spark.offsets.start_offsets import start_offsets_of
from tailrace.spark.offsets.store import (
    RECOMMIT_S,
    ClusterState,
    PartitionCommit,
    SparkOffsetStore,
    remaining_map,
)
from tailrace.spark.worker.rows import arrow_type_of, expression_type
from tailrace.spark.worker.shipment import Shipment
from tailrace.spark.worker.task_runner import run_expression

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    LIMITS_BATCHES = True
    """True if Spark passes limits to sources in Python, from pyspark 4.2 on."""
except ImportError:  # before pyspark 4.2
    LIMITS_BATCHES = False
    if not TYPE_CHECKING:
        SupportsTriggerAvailableNow = object

__all__ = [
    "LIMITS_BATCHES",
    "BatchReader",
    "OffsetRange",
    "RangeReader",
    "SparkSource",
    "StreamReader",
    "offsets_json",
    "offsets_of_json",
]

# ---- options ---------------------------------------------------------------------------------------------------------

_OWN = (
    "subscribe", "subscribePattern", "includeHeaders", "maxOffsetsPerTrigger", "maxRecordsPerPartition", "app",
    "handler",
)  # fmt: skip
"""Options in addition to those of a Consumer; Spark passes their names in lower case."""
_REPLACED = {
    "assign": "use subscribe, which reads all partitions of the topics",
    "endingoffsets": "leave it out; a batch ends at the current ends of the logs",
    "failondataloss": "leave it out; deleted records are always an error",
    "minpartitions": "use maxRecordsPerPartition",
    "startingoffsets": "use auto_offset_reset, or group_id for the committed offsets of a group",
    "startingtimestamp": "use auto_offset_reset, which may be a time",
    "topic": "use subscribe",
    "topics": "use subscribe",
}
"""Options of Spark's Kafka source, and what to do instead."""
_SECRETS = frozenset({
    "proxy_url", "sasl_oauthbearer_assertion_private_key_passphrase", "sasl_oauthbearer_client_secret",
    "sasl_plain_password", "ssl_key_pem", "ssl_password",
})  # fmt: skip
"""Options with secrets. Spark Connect writes the options of a source to its event log and user interface."""
_READING = (
    "allow_offset_gaps", "check_crcs", "client_rack", "default_api_timeout_ms", "fetch_max_bytes", "fetch_max_wait_ms",
    "fetch_min_bytes", "isolation_level", "max_batch_bytes", "max_buffered_bytes", "max_decompressed_batch_bytes",
    "max_partition_fetch_bytes", "max_queued_records", "num_fetchers",
)  # fmt: skip
"""Options of consumers that tasks need in addition to those of all clients."""


@dataclass(frozen=True)
class SparkSource:
    """Records to read, as the options of a DataFrame describe them.

    Attributes:
        config: options of the client.
        topics: names of the topics.
        patterns: patterns of topics.
        has_headers: True for a column ``headers``.
        max_offsets: maximum number of offsets in a batch of a stream; None for all.
        max_records_per_partition: maximum number of offsets that a task reads; None for all of one Kafka partition.
        packed: handler whose results are the rows; None to read the records.
    """

    config: ConsumerConfig
    topics: tuple[str, ...]
    patterns: tuple[NamePattern, ...]
    has_headers: bool
    max_offsets: int | None
    max_records_per_partition: int | None
    packed: PackedHandler | None

    @classmethod
    def of_options(
        cls, options: Mapping[str, str], schema: StructType | None = None, *, is_batch: bool = False
    ) -> SparkSource:
        """Return the source that options of a DataFrame describe, without a request to brokers.

        Args:
            options: options by name.
            schema: schema of the DataFrame, which must be that of the source; None to accept any.
            is_batch: True to start at the beginning of the logs by default, as Spark's Kafka source does in a batch.

        Raises:
            ConfigurationError: an option is unknown, has an invalid value, or contradicts another.
        """
        own = {name: options[name] for name in _OWN if name in options}
        names = [name for name in options if name.lower() not in {one.lower() for one in _OWN}]
        settings = {name: _parsed(name, options[name]) for name in names}
        packed: PackedHandler | None = None
        patterns: tuple[NamePattern, ...]
        if "app" in own or "handler" in own:
            packed = _packed(own)
            config = packed.config
            settings = {**_changed(config), "group_id": packed.selected.group_id, **settings}
            topics, patterns = packed.selected.topics, tuple(packed.selected.patterns)
        else:
            topics, patterns = _subscription(own)
        if is_batch:
            settings.setdefault("auto_offset_reset", "earliest")
        source = cls(
            resolve(settings),
            topics,
            patterns,
            packed is not None or _flag(own, "includeHeaders"),
            _count(own, "maxOffsetsPerTrigger"),
            _count(own, "maxRecordsPerPartition"),
            packed,
        )
        source._check(schema)
        return source

    @property
    def schema(self) -> StructType:
        """Columns of the rows."""
        if self.packed is not None:
            return cast("StructType", expression_type(self.packed.row_type).elementType)
        return _columns(has_headers=self.has_headers)

    @property
    def commits(self) -> bool:
        """True if a stream commits what it has finished to the group."""
        return self.config.group_id is not None and self.config.commits_automatically

    @property
    def observer(self) -> Observer:
        """Receiver of events of the driver."""
        return Observer(cast("Any", self.config.hooks), client_id=self.config.client_id)

    def open_store(self) -> SparkOffsetStore:
        """Connect the driver to the cluster.

        Raises:
            TailraceError: no broker answers, or the brokers refuse the credentials.
        """
        return SparkOffsetStore(self.config, self.config.group_id or "", self.observer)

    def range_reader(self) -> RangeReader:
        """Return the reader of the ranges, for tasks."""
        options = {
            name: value
            for name, value in _changed(self.config).items()
            if name in _READING or (name in _OF_CLIENTS and name != "hooks")
        }
        packed = self.packed
        if packed is None:
            return RangeReader(options, self.schema)
        return RangeReader(options, _columns(has_headers=True), packed.shipment, packed.row_type, packed.topic)

    def ranges(
        self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], topic_ids: TopicIds
    ) -> list[InputPartition]:
        """Return the ranges from ``starts`` to ``ends``, none of which has more than the maximum number of records."""
        found: list[InputPartition] = []
        for partition, start in sorted(starts.items()):
            end = ends.get(partition, start)
            step = self.max_records_per_partition or max(1, end - start)
            found += [
                OffsetRange(*partition, topic_ids.get(partition.topic, ""), first, min(first + step, end))
                for first in range(start, end, step)
            ]
        return found

    def check_topics(self, state: ClusterState) -> None:
        """Raise UnknownTopicError if no topic matches the pattern."""
        if not state.logs:
            detail = "no topic matches the pattern; a stream looks for new topics only after it has found one"
            raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)

    def _check(self, schema: StructType | None) -> None:
        if schema is not None and schema != self.schema:
            raise ConfigurationError(
                f"the columns are {self.schema.simpleString()}, not {schema.simpleString()}"
                " - leave schema() out, and cast the columns with select()"
            )
        if self.max_offsets is not None and not LIMITS_BATCHES:
            raise ConfigurationError(
                "maxOffsetsPerTrigger needs pyspark 4.2 or newer - upgrade pyspark, or leave it out"
            )
        if self.max_records_per_partition and self.packed is not None and self.packed.selected.keeps_order:
            raise ConfigurationError(
                "maxRecordsPerPartition splits Kafka partitions, which breaks the order of the handler's records"
                ' - leave it out, or set order_by="none"'
            )


def _columns(*, has_headers: bool) -> StructType:
    """Return the columns of records, with the types of Spark's Kafka source."""
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    kinds: dict[str, DataType] = {
        "key": BinaryType(),
        "value": BinaryType(),
        "topic": StringType(),
        "partition": IntegerType(),
        "offset": LongType(),
        "timestamp": TimestampType(),
        **({"headers": ArrayType(header)} if has_headers else {}),
    }
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


TopicIds: TypeAlias = Mapping[str, str]
"""Ids of topics by name; empty if the brokers have none."""
_OF_CLIENTS = frozenset(one.name for one in dataclasses.fields(ClientConfig))


def _parsed(name: str, text: str) -> object:
    """Return the value of an option of a Consumer."""
    plain = name.removeprefix("kafka.")
    if hint := _REPLACED.get(plain.lower()):
        raise ConfigurationError(f"there is no option {name!r} - {hint}")
    known = {one.lower(): one for one in _OWN}
    if plain.replace(".", "_") not in _CONSUMER_OPTIONS and (close := similar(plain.lower(), known)).endswith("?"):
        word = close.split("'")[1]
        raise ConfigurationError(f"there is no option {name!r} - did you mean {known[word]!r}?")
    if plain != name:
        raise ConfigurationError(
            f"{name!r} is an option of Spark's Java connector - use the option of tailrace's Consumer, such as"
            " bootstrap_servers in place of kafka.bootstrap.servers"
        )
    if name in _SECRETS:
        variable = f"TAILRACE_{name.upper()}"
        raise ConfigurationError(
            f"{name} must not be an option of a source, because Spark Connect shows options in its user interface"
            f" and event log - set {variable} or {variable}_FILE, or set it in App() and use the option app"
        )
    return parse_option(name, text, "option")


_CONSUMER_OPTIONS = frozenset(one.name for one in dataclasses.fields(ConsumerConfig))


def _changed(config: ConsumerConfig) -> dict[str, Any]:
    """Return the options that do not have their default values."""
    values = {one.name: (getattr(config, one.name), one.default) for one in dataclasses.fields(config)}
    return {name: value for name, (value, default) in values.items() if value != default}


def _packed(own: Mapping[str, str]) -> PackedHandler:
    if missing := [name for name in ("app", "handler") if name not in own]:
        raise ConfigurationError(
            f"the options app and handler belong together, and {missing[0]} is missing - set both, such as"
            ' app="shop:billing" and handler="charge"'
        )
    if taken := [name for name in ("subscribe", "subscribePattern", "includeHeaders") if name in own]:
        raise ConfigurationError(f"the handler decides what is read - leave out {taken[0]}")
    try:
        return pack_handler(own["app"], own["handler"])
    except ConfigurationError as error:
        error.add_note(
            f"Spark plans in a Python process of its own: install the module of app={own['app']!r} there, or add its"
            " folder to PYTHONPATH or its file to spark.submit.pyFiles"
        )
        raise


def _subscription(own: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[NamePattern, ...]]:
    from tailrace.consumer.arguments import checked_pattern  # noqa: PLC0415 - not in tasks

    if ("subscribe" in own) is ("subscribePattern" in own):
        problem = "both are set" if "subscribe" in own else "neither is set"
        raise ConfigurationError(
            f"the topics are those of subscribe or subscribePattern, and {problem}"
            ' - set one, such as subscribe="orders,payments", or set app and handler'
        )
    if "subscribe" in own:
        topics = tuple(dict.fromkeys(one.strip() for one in own["subscribe"].split(",") if one.strip()))
        if not topics:
            raise ConfigurationError('subscribe is empty - name topics, such as subscribe="orders,payments"')
        return topics, ()
    return (), (cast("NamePattern", checked_pattern(own["subscribePattern"], "classic")),)


def _flag(own: Mapping[str, str], name: str) -> bool:
    if (text := own.get(name, "false").lower()) not in {"true", "false"}:
        raise ConfigurationError(f"{name} must be true or false, not {text!r}")
    return text == "true"


def _count(own: Mapping[str, str], name: str) -> int | None:
    if name not in own:
        return None
    text = own[name].strip()
    if not (text.isdecimal() and text.isascii() and int(text)):
        raise ConfigurationError(f"{name} must be a positive integer, not {text!r}")
    return int(text)


# ---- planning of a batch ---------------------------------------------------------------------------------------------


class OffsetRange(InputPartition):
    """Offsets of one partition that a task reads; ``end`` is exclusive."""

    def __init__(self, topic: str, partition: int, topic_id: str, start: int, end: int) -> None:
        self.topic_partition = TopicPartition(topic, partition)
        self.topic_id, self.start, self.end = topic_id, start, end


class BatchReader(DataSourceReader):
    """Reader of the records from the group's committed offsets, or ``auto_offset_reset``, to the ends of the logs."""

    def __init__(self, source: SparkSource) -> None:
        self._source: SparkSource | None = source
        self._range_reader = source.range_reader()

    def __getstate__(self) -> Mapping[str, object]:
        return {"_source": None, "_range_reader": self._range_reader}

    def partitions(self) -> list[InputPartition]:
        """Return the ranges, which Spark requests once for each execution plan.

        Raises:
            UnknownTopicError: a topic does not exist.
            OffsetOutOfRangeError: a committed offset is not in the log, and ``auto_offset_reset="none"``.
            TailraceError: no broker answers, or the principal is not authorized.
        """
        source = self._source
        assert source is not None, "Spark plans on the driver"
        with source.open_store() as store:
            state = store.cluster_state(source.topics, source.patterns)
            source.check_topics(state)
            starts = start_offsets_of(store, state, source.config, Observer())
        return source.ranges(starts.offsets, {one: log.end for one, log in state.logs.items()}, state.topic_ids)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a range as Arrow batches; see ``RangeReader.read``."""
        return self._range_reader.read(partition)


# ---- planning of a stream --------------------------------------------------------------------------------------------

_VERSION = 1
"""Version of the offsets in a checkpoint."""
_METADATA_INTERVAL_S = 5.0
"""Interval at which a stream looks for new partitions, recreated topics and removed records."""
_IDLE_S = 0.05
"""Pause after a request that has found no new records; Spark would repeat the request after 10 ms."""
_COMMIT_TEXT = "spark source"
"""Text in the metadata of the commits."""
_NEW_CHECKPOINT = "start the query with a new checkpoint, to read on from the group's offsets or auto_offset_reset"


def offsets_json(offsets: Mapping[TopicPartition, int], topic_ids: TopicIds) -> dict[str, Any]:
    """Return offsets as they are in Spark's checkpoint; equal offsets have equal JSON."""
    topics: dict[str, Any] = {}
    for (topic, number), offset in sorted(offsets.items()):
        topics.setdefault(topic, {"id": topic_ids.get(topic, ""), "offsets": {}})["offsets"][str(number)] = offset
    return {"version": _VERSION, "topics": topics}


_BEFORE_START: Mapping[str, Any] = {"version": _VERSION, "topics": {}}
"""Offsets before the first batch. Spark stores the end of this batch, but not its start, and asks for it again after a
crash. So the end of the first batch contains the start, as ``start``, and a repeated batch has the same records."""


def offsets_of_json(text: Mapping[str, Any]) -> tuple[Offsets, dict[str, str]]:
    """Return the offsets of a checkpoint, and the ids of its topics.

    Raises:
        CorruptCheckpointError: the offsets have another format.
    """
    if (version := text.get("version")) != _VERSION:
        raise CorruptCheckpointError(
            f"the checkpoint has offsets of version {version!r}, and this version of tailrace reads {_VERSION}"
            " - install the version of tailrace that has written it, or start with a new checkpoint"
        )
    topics: Mapping[str, Any] = text["topics"]
    offsets = {
        TopicPartition(topic, int(number)): int(offset)
        for topic, one in topics.items()
        for number, offset in one["offsets"].items()
    }
    return offsets, {topic: one["id"] for topic, one in topics.items()}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Planner of a stream's batches on the driver, and reader of their ranges in tasks."""

    def __init__(self, source: SparkSource) -> None:
        if source.packed is not None and source.commits:
            source.packed.selected.check_alone()
        self._source: SparkSource | None = source
        self._range_reader = source.range_reader()
        self._store: SparkOffsetStore | None = None
        self._topic_ids: TopicIds = {}
        self._begins: Offsets = {}
        self._ends: Offsets = {}
        """First offset and end offset of each log, as far as they are known."""
        self._next_look_up_at = 0.0
        self._initial: Offsets | None = None
        """Offsets at which the query starts; None if they are those of a checkpoint."""
        self._target: Offsets | None = None
        """End offsets of a query with the trigger availableNow; None for another trigger."""
        self._committed: Offsets | None = None
        """Committed offsets of the group; None until they are read."""
        self._next_recommit_at = 0.0
        """Time at which all offsets are committed again, also those that do not change."""
        self._offset_maps: dict[TopicPartition, OffsetMap] = {}
        """Offset maps of the group's commits at the start of the query."""
        self._last_end: Mapping[str, Any] = {}
        """Last offsets that Spark knows, for versions of Spark that do not pass them."""

    def __getstate__(self) -> Mapping[str, object]:
        return {"_source": None, "_store": None, "_range_reader": self._range_reader}

    # ---- called by Spark on the driver -----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return no offsets; ``latestOffset`` looks up the start of a query without a checkpoint."""
        return dict(_BEFORE_START)

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next batch, and commit its start, before which the query has finished all records.

        Raises:
            GroupNotEmptyError: the stream commits, and the group has live members.
            CommitFailedError: the group's offsets were changed by another client.
            OffsetOutOfRangeError: the log does not contain the next record: it was removed by retention, or the log was
                truncated. Also if there is no checkpoint, and a committed offset is not in the log, with
                ``auto_offset_reset="none"``.
            UnknownTopicError: a topic does not exist.
            TailraceError: a topic was recreated, no broker answers, or the principal is not authorized.
        """
        source, store = self._opened()
        start = start or self._last_end or _BEFORE_START  # pyspark before 4.2 passes no start
        is_first = not start["topics"]
        if is_first:
            start = self._start(source, store)
        starts, topic_ids = offsets_of_json(start)
        self._look_up(store, starts, topic_ids)
        self._commit(store, starts)
        known = {one: offset for one, offset in starts.items() if one in self._ends}
        max_offsets = limit.max_rows if LIMITS_BATCHES and isinstance(limit, ReadMaxRows) else None
        self._check_not_truncated(store, known)
        ends = {one: max(offset, self._ends[one]) for one, offset in known.items()}
        if max_offsets is not None:
            ends = next_ends(known, ends, max_offsets)
        # A new partition starts at the beginning of its log. That offset is stored before records are read from it, so
        # that a batch has the same records when it is repeated.
        new = {one: begin for one, begin in self._begins.items() if one not in starts}
        latest = offsets_json({**starts, **ends, **new}, {**self._topic_ids, **topic_ids})
        if is_first:
            return {**latest, "start": start}
        if latest["topics"] != start["topics"]:
            return latest
        threading.Event().wait(_IDLE_S)
        return dict(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a batch: the option ``maxOffsetsPerTrigger``."""
        source = self._source
        return ReadAllAvailable() if source is None or source.max_offsets is None else ReadMaxRows(source.max_offsets)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the ends of the logs, for the progress of the query."""
        return offsets_json(self._ends, self._topic_ids) if self._ends else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Store the current ends of the logs as the end of the query."""
        source, store = self._opened()
        self._read_logs(source, store)
        self._target = self._ends

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the ranges of a batch."""
        self._last_end = end
        starts, _ = offsets_of_json(start if start["topics"] else end["start"])
        ends, topic_ids = offsets_of_json(end)
        source = self._source
        assert source is not None, "Spark plans on the driver"
        return source.ranges(starts, ends, topic_ids)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Commit the end of a batch, which ``latestOffset`` does not know after a restart before pyspark 4.2."""
        _, store = self._opened()
        self._commit(store, offsets_of_json(end)[0])

    def stop(self) -> None:
        """Close the connections."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    # ---- called by Spark in tasks ----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a range as Arrow batches; see ``RangeReader.read``."""
        return self._range_reader.read(partition)

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _opened(self) -> tuple[SparkSource, SparkOffsetStore]:
        source = self._source
        assert source is not None, "Spark plans on the driver"
        if self._store is None:
            store = source.open_store()
            try:
                if source.commits:
                    store.check_idle()
            except BaseException:
                store.close()
                raise
            self._store = store
        return source, self._store

    def _start(self, source: SparkSource, store: SparkOffsetStore) -> Mapping[str, Any]:
        """Return the offsets at which a query without a checkpoint starts."""
        if self._initial is None:
            state = store.cluster_state(source.topics, source.patterns)
            source.check_topics(state)
            self._topic_ids = state.topic_ids
            self._initial = start_offsets_of(store, state, source.config, Observer()).offsets
        return offsets_json(self._initial, self._topic_ids)

    def _read_logs(self, source: SparkSource, store: SparkOffsetStore) -> None:
        logs = store.logs(store.partitions(source.topics, source.patterns))
        self._topic_ids = store.topic_ids({one.topic for one in logs})
        self._begins = {one: log.begin for one, log in logs.items()}
        self._ends = {one: log.end for one, log in logs.items()}

    def _look_up(self, store: SparkOffsetStore, starts: Offsets, topic_ids: TopicIds) -> None:
        """Look up the ends of the logs, and now and then their topics."""
        source = self._source
        assert source is not None
        if self._target is not None:
            self._ends = self._target
        elif store.now < self._next_look_up_at:
            self._ends = store.offsets_at(dict.fromkeys(self._ends, LATEST))
            return
        else:
            self._read_logs(source, store)
            self._next_look_up_at = store.now + _METADATA_INTERVAL_S
        for topic, topic_id in topic_ids.items():
            if topic_id and self._topic_ids.get(topic, topic_id) != topic_id:
                raise _recreated_error(topic)
        for one, offset in starts.items():
            if self._begins.get(one, offset) > offset:
                raise _removed_error(one, offset)

    def _check_not_truncated(self, store: SparkOffsetStore, starts: Offsets) -> None:
        """Raise OffsetOutOfRangeError if a log ends before the next offset, as after the election of an old replica.

        An offset may be after the last stable offset if the query has read without ``read_committed`` before, and after
        the end of a query with the trigger availableNow.
        """
        if beyond := {one: offset for one, offset in starts.items() if offset > self._ends[one]}:
            ends = store.offsets_at(dict.fromkeys(beyond, LATEST), isolation_level="read_uncommitted")
            for one, offset in beyond.items():
                if offset > ends[one]:
                    raise _removed_error(one, offset)

    def _commit(self, store: SparkOffsetStore, offsets: Offsets) -> None:
        """Commit offsets that are higher than those of the group, and all offsets from time to time."""
        source = self._source
        assert source is not None
        if not source.commits:
            return
        is_start = self._committed is None and offsets == self._initial
        if self._committed is None:
            found = store.committed(offsets)
            self._committed = {one: commit.offset for one, commit in found.items()}
            maps = {one: commit.decoded_metadata.offset_map for one, commit in found.items()}
            self._offset_maps = {one: offset_map for one, offset_map in maps.items() if offset_map is not None}
            ahead = sorted(one for one, offset in self._committed.items() if offset > offsets[one])
            if ahead and not is_start:
                raise CommitFailedError(
                    f"{ahead[0]}: group {source.config.group_id!r} has committed offset {self._committed[ahead[0]]},"
                    f" and the query's checkpoint ends at offset {offsets[ahead[0]]}, so another client has read on"
                    f" - {_NEW_CHECKPOINT}",
                    retriable=False,
                )
        is_due = store.now >= self._next_recommit_at
        changed = {
            one: PartitionCommit(offset, remaining_map(self._offset_maps.get(one), offset))
            for one, offset in offsets.items()
            if is_due
            or one not in self._committed
            or (self._committed[one] != offset if is_start else self._committed[one] < offset)
        }
        if not changed:
            return
        try:
            store.commit(changed, _COMMIT_TEXT, may_go_back=is_start)
        except BrokerConnectionError as error:
            if is_start:
                raise
            # The next commit includes these offsets.
            source.observer.emit(CommitFailed(store.group_id, str(error), will_retry=True, exception=error))
            return
        self._committed |= {one: commit.offset for one, commit in changed.items()}
        if is_due:
            self._next_recommit_at = store.now + RECOMMIT_S


def _recreated_error(topic: str) -> TailraceError:
    return TailraceError(
        f"topic {topic!r} was recreated, so the planned offsets belong to other records - {_NEW_CHECKPOINT}"
    )


def _removed_error(partition: TopicPartition, offset: int) -> OffsetOutOfRangeError:
    error = OffsetOutOfRangeError(*partition, offset)
    error.add_note(f"The log does not contain the next record to read: {_NEW_CHECKPOINT}.")
    return error


# ---- reading in tasks ------------------------------------------------------------------------------------------------

_MAX_ROWS = 50_000
"""Maximum number of rows in an Arrow batch, unless ``max_queued_records`` is set."""
_BUFFER = {"max_queued_records": 100_000, "max_buffered_bytes": 64 << 20, "max_partition_fetch_bytes": 8 << 20}
"""Options of the consumer of a task, which reads one partition, unless the program has set them."""
_POLL_MS = 50
"""Time after which a task that waits for records checks whether only invisible ones were left in its range."""


@dataclass(frozen=True)
class RangeReader:
    """Reader of ranges in tasks; Spark sends it to workers.

    Attributes:
        options: options of the consumers.
        columns: columns of the records.
        shipment: app whose handler's results are the rows; None to yield the records.
        row_type: Spark type of the results.
        topic: topic of all records; None if there are several.
    """

    options: Mapping[str, Any]
    columns: StructType
    shipment: Shipment | None = None
    row_type: DataType | None = None
    topic: str | None = None

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the records of a range, or the results of the handler for them, as Arrow batches.

        Raises:
            OffsetOutOfRangeError: retention has removed records of the range.
            BrokerConnectionError: the leader did not answer within ``default_api_timeout_ms``.
            HandlerFailedError: the handler failed for good.
            TailraceError: the topic was recreated, or another error occurred.
        """
        if not isinstance(partition, OffsetRange):
            return  # Spark's own partition, because there are no records.
        pa: Any = import_module("pyarrow")  # an extra
        batches = (self._rows(batch, pa) for batch in _connection_for(self.options).read(partition))
        if self.shipment is None or self.row_type is None:
            yield from batches
            return
        schema = pa.schema(arrow_type_of(expression_type(self.row_type).elementType))
        rows = (batch.to_struct_array() for batch in map(_without_empty_headers, batches))
        for results in run_expression(self.shipment, self.row_type, self.topic, rows):
            yield pa.RecordBatch.from_arrays(results.flatten().flatten(), schema=schema)

    def _rows(self, batch: Any, pa: Any) -> Any:  # noqa: ANN401 - pyarrow is untyped
        schema = pa.schema(arrow_type_of(self.columns))
        return pa.RecordBatch.from_arrays([batch.column(one.name).cast(one.type) for one in schema], schema=schema)


def _without_empty_headers(batch: Any) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Return the batch without the column of the headers, whose conversion is slow, if there are no headers."""
    return batch if len(batch.column("headers").flatten()) else batch.drop_columns(["headers"])


class _RangeConsumer:
    """Consumer of a worker process, which remains connected from task to task.

    Args:
        options: options of the consumer.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options, self.is_open = options, True
        settings: dict[str, Any] = {name: value for name, value in _BUFFER.items() if name not in options}
        self._cluster = SharedCluster(**options)
        self._consumer: Consumer = Consumer(
            cluster=self._cluster, auto_offset_reset="none", consumer_timeout_ms=_POLL_MS, **settings
        )
        self._limit_s = resolve(options).default_api_timeout_ms / 1000
        self._thread = LoopThread("tailrace source")
        try:
            self._thread.call(self._cluster.start())
            self._thread.call(self._consumer.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect and stop the thread; do nothing if it is closed already."""
        if self.is_open:
            self.is_open = False
            try:
                self._thread.call(self._consumer.stop())
                self._thread.call(self._cluster.stop())
            finally:
                self._thread.close()

    def read(self, planned: OffsetRange) -> Iterator[Any]:
        """Yield all records of a range as Arrow batches of the consumer; see ``RangeReader.read``."""
        try:
            self._thread.call(self._consumer.assign({planned.topic_partition: planned.start}))
            position = planned.start
            while position < planned.end:
                batch, position = self._thread.call(self._next_batch(planned, position))
                if batch.num_rows:
                    yield batch
            self._thread.call(self._check_topic(planned))
            self._thread.call(self._consumer.assign())
        except OffsetOutOfRangeError as error:
            try:
                self._thread.call(self._check_topic(planned))
            finally:
                self.close()
            raise _removed_error(planned.topic_partition, planned.start) from error
        except BaseException:
            self.close()
            raise

    async def _next_batch(self, planned: OffsetRange, position: int) -> tuple[Any, int]:
        """Return the next records of a range, and the position after them.

        The last offsets of a range may have no visible records. Then the position reaches the end without a record.
        """
        partition, clock = planned.topic_partition, asyncio.get_running_loop().time
        gives_up_at = clock() + self._limit_s
        batches = self._consumer.arrow_batches(max_records=min(_MAX_ROWS, planned.end - position))
        while True:
            try:
                batch = await anext(batches)
            except ConsumerTimeoutError:
                if (reached := await self._consumer.position(partition)) != position:
                    return arrow_of(()), reached
                if clock() < gives_up_at:
                    continue
                raise BrokerConnectionError(
                    f"{partition}: no record from offset {position} on arrived for {self._limit_s:.0f} s, although the"
                    f" log has records up to offset {planned.end} - check that its leader runs"
                ) from None
            offsets = batch.column("offset")
            if (last := offsets[-1].as_py()) >= planned.end:
                batch = batch.slice(0, bisect.bisect_left(offsets.to_numpy(), planned.end))
            return batch, last + 1

    async def _check_topic(self, planned: OffsetRange) -> None:
        """Raise an error if the topic was recreated after the range was planned."""
        cluster, partition = self._cluster.cluster, planned.topic_partition
        leadership = None if cluster is None else cluster.topology.leader(partition)
        if cluster is None or not planned.topic_id or leadership is None or leadership.leader_id < 0:
            return
        send = cluster.broker(leadership.leader_id).send
        if await partitions_of_recreated_topics(send, {partition: UUID(planned.topic_id)}):
            raise _recreated_error(partition.topic)


_connection: _RangeConsumer | None = None


def _connection_for(options: Mapping[str, Any]) -> _RangeConsumer:
    """Return the open connection of this process, after replacing one with other options."""
    global _connection  # noqa: PLW0603 - a worker process runs one task at a time
    if _connection is None or not _connection.is_open or _connection.options != options:
        if _connection is not None:
            _connection.close()
        _connection = None
        _connection = _RangeConsumer(options)
    return _connection
