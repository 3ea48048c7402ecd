"""What the driver asks of Kafka, and commits there: the one place in which a pipeline speaks to brokers itself.

Rule of this file: offsets are committed by a plain commit, as of no member, and never below what is committed already.
So the broker itself refuses when a live member has joined. One that has come and gone shows in what the group has
committed: where that is not what was seen or committed here before, nothing more is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from tailrace.admin.groups import check_idle, describe_group
from tailrace.admin.offsets import (
    EARLIEST,
    LATEST,
    GroupOffset,
    commit_offsets,
    committed_offsets,
    epoch_end_offsets,
    list_offsets,
)
from tailrace.admin.topics import partitions_of, watched
from tailrace.app.handlers import Handler
from tailrace.app.resolved_options import ResolvedOptions
from tailrace.app.topics.creation import create_group_topics
from tailrace.app.topics.routes import Routes
from tailrace.config import ConsumerConfig
from tailrace.core.offset_map import EncodedMetadata, OffsetMap, encode_metadata
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    CommitFailedError,
    TailraceError,
    TopicRecreatedError,
    UnknownGroupError,
    UnknownTopicError,
    broker_error,
)
from tailrace.net.cluster import Cluster
from tailrace.observe.events import OffsetMapDropped, OffsetsCommitted
from tailrace.observe.hooks import Observer
from tailrace.protocol.committed_offsets import CommitOffset
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import TopicPartition
from tailrace.spark.loop_thread import LoopThread
from tailrace.spark.offsets.ranges import Offsets

__all__ = ["ClusterState", "LogBounds", "PartitionCommit", "SparkOffsetStore", "beside", "remaining"]

_LIVE = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
}
_WHAT = "running its handlers on Spark"
_LEAST_FOR_TEXT = 256
"""With less room for metadata nothing is said of who committed."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """From where to where a partition's log goes."""

    begin: int
    end: int


@dataclass(frozen=True)
class ClusterState:
    """What brokers say before anything runs.

    Attributes:
        topics: the id of each that is read; empty where brokers have none.
        logs: from where to where the log of each partition goes.
        found: what the group has committed of them.
        epoch_ends: where logs end the leader epochs of the offset maps among that.
    """

    cluster_id: str
    topics: Mapping[str, str]
    logs: Mapping[TopicPartition, LogBounds]
    found: Mapping[TopicPartition, GroupOffset]
    epoch_ends: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    """What to commit of one partition."""

    offset: int
    done: OffsetMap | None = None
    """What is finished behind it, which the next one to read has to know."""


def remaining(done: OffsetMap | None, offset: int) -> OffsetMap | None:
    """What a map still says from ``offset`` on."""
    return None if done is None else done.from_offset(offset)


def beside(commit: PartitionCommit, said: str, limit: int, writer: str) -> EncodedMetadata:
    """The text beside a commit: what is finished behind it goes before who wrote it and what he says."""
    said = said if limit >= _LEAST_FOR_TEXT else ""
    for text, name in ((said, writer), ("", writer), ("", "")):
        envelope = encode_metadata(commit.done, text, limit, writer=name)
        if not envelope.is_map_dropped:
            return envelope
    return replace(encode_metadata(None, said, limit, writer=writer), is_map_dropped=True)


class SparkOffsetStore(AbstractContextManager["SparkOffsetStore"]):
    """One group's, for as long as a ``with`` lasts, or until it is closed.

    Args:
        config: how to reach the brokers.
        group_id: the group.
        observer: told of commits.
    """

    def __init__(self, config: ConsumerConfig, group_id: str, observer: Observer) -> None:
        self.group_id = group_id
        self._config, self._observer = config, observer
        self._thread = LoopThread("tailrace spark")
        self._cluster = Cluster(config, observer)
        self._timeout_s = config.default_api_timeout_ms / 1000
        self._is_open = True
        self._turn = asyncio.Lock()
        self._known: dict[TopicPartition, set[tuple[int, str]]] = {}
        """What was seen or committed here last, with its text; two where nobody knows whether a commit came through."""
        self._topics: dict[str, UUID] = {}
        """Those that were looked at, and their ids then."""
        self._maps: Mapping[TopicPartition, OffsetMap] = {}
        """Offset maps by which records are skipped."""
        try:
            self._thread.call(self._cluster.reach(config.start_timeout_ms / 1000))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End connections and the thread; once is enough."""
        if self._is_open:
            self._is_open = False

            async def end() -> None:
                self._cluster.close()

            self._thread.call(end())
            self._thread.close()

    @property
    def now(self) -> float:
        """Its clock, in seconds."""
        return self._thread.loop.time()

    # ---- asking ------------------------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """Refuse a group that has live members.

        Raises:
            GroupNotEmptyError: naming them.
        """
        self._thread.call(self._check_idle())

    def check_untouched(self) -> None:
        """Refuse a group that has live members, or had some since it was looked at: all they did would be done again.

        Raises:
            GroupNotEmptyError: naming them.
            CommitFailedError: the group was moved.
            TailraceError: a topic was made anew, or records that an offset map covers were written again.
        """
        self._thread.call(self._check_untouched())

    def look(self, topics: Sequence[str], patterns: Sequence[Any]) -> ClusterState:
        """What there is: partitions, how far their logs go, and where the group stands.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        partitions = self.partitions(topics, patterns)
        topology = self._cluster.topology
        ids = self._topics = {one.topic: topology.topic_id(one.topic) for one in partitions}
        # The commits first: no log ends before what is committed of it already.
        found = self.committed(partitions)
        return ClusterState(
            topology.cluster_id or "",
            {topic: "" if one == NO_TOPIC_ID else str(one) for topic, one in ids.items()},
            self.logs(partitions),
            found,
            self.epoch_ends(found),
        )

    def partitions(self, topics: Collection[str], patterns: Sequence[Any]) -> list[TopicPartition]:
        """All partitions of the topics, and of those whose whole name a pattern matches.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        return self._thread.call(self._partitions(topics, patterns))

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """What the group has committed; from now on nobody else may move it."""
        return self._thread.call(self._look_at_group(partitions))

    def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Where the logs begin and end now; the end is that of the app's ``isolation_level``.

        Raises:
            UnknownTopicError: a topic does not exist any more.
        """
        # Else somebody to lead it would be waited for.
        self.partitions({one.topic for one in partitions}, ())
        begins, ends = self.at(dict.fromkeys(partitions, EARLIEST)), self.at(dict.fromkeys(partitions, LATEST))
        return {one: LogBounds(begins[one], ends[one]) for one in partitions}

    def at(self, times: Mapping[TopicPartition, int]) -> Offsets:
        """The first offsets at or after times; -1 where there is none."""
        found = self._thread.call(list_offsets(self._cluster, times, timeout_s=self._timeout_s))
        return {one: listed.offset for one, listed in found.items()}

    def epoch_ends(self, found: Mapping[TopicPartition, GroupOffset]) -> Offsets:
        """Return where logs end the leader epochs of the offset maps beside these commits.

        Raises:
            TailraceError: a leader cannot be asked.
        """
        maps = {one: known for one, at in found.items() if (known := at.said.offset_map) is not None}
        return self._thread.call(self._epoch_ends(maps))

    def watch_maps(self, maps: Mapping[TopicPartition, OffsetMap]) -> None:
        """Refuse to go on as soon as a log no longer has the records that its map covers."""
        self._maps = maps

    def members(self) -> int:
        """How many live members the group has."""

        async def count() -> int:
            try:
                group = await describe_group(self._cluster, self.group_id, timeout_s=self._timeout_s)
            except UnknownGroupError:
                return 0
            return len(group.members)

        return self._thread.call(count())

    # ---- changing ----------------------------------------------------------------------------------------------

    def make_topics(self, handlers: Sequence[Handler], defaults: ResolvedOptions) -> None:
        """Make the retry topics and dead letters that are missing, as the service does.

        Raises:
            BrokerError: a retry topic may not be made.
        """
        routes = Routes(self.group_id, [(one, defaults.of(one)) for one in handlers])
        self._thread.call(create_group_topics(self._config, routes, self._observer))

    def commit(
        self, offsets: Mapping[TopicPartition, PartitionCommit], said: str, *, may_go_back: bool = False
    ) -> None:
        """Commit, but for partitions of which the group has committed more.

        Args:
            offsets: what to commit.
            said: the text beside it.
            may_go_back: also where more is committed: the log was made anew, and has it not.

        Raises:
            GroupNotEmptyError: somebody joined the group.
            CommitFailedError: it was refused, or somebody else has moved the group.
            TailraceError: a topic was made anew, or records that an offset map covers were written again.
            BrokerConnectionError: the coordinator does not answer in time.
        """
        self._thread.call(self._commit(offsets, said, may_go_back=may_go_back))

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _check_idle(self) -> None:
        try:
            group = await describe_group(self._cluster, self.group_id, timeout_s=self._timeout_s)
        except UnknownGroupError:
            return
        check_idle(group, _WHAT)

    async def _check_untouched(self) -> None:
        await self._check_idle()
        await self._check_logs()
        async with self._turn:
            if self._known:
                self._check_known(await self._committed(self._known))

    async def _check_logs(self) -> None:
        """What was made anew has other records at the offsets that are next, and Spark knows topics by name alone."""
        await partitions_of(self._cluster, self._topics, timeout_s=self._timeout_s)
        for name, known in self._topics.items():
            found = self._cluster.topology.topic_id(name)
            if NO_TOPIC_ID not in {known, found} and known != found:
                raise _recreated(name)
        for partition, end in (await self._epoch_ends(self._maps)).items():
            if reason := self._maps[partition].contradiction_of_epoch(end):
                raise TailraceError(
                    f"{partition} was truncated meanwhile: {reason} - start once more, and what is there is handled"
                )

    async def _epoch_ends(self, maps: Mapping[TopicPartition, OffsetMap]) -> Offsets:
        epochs = {one: known.leader_epoch for one, known in maps.items() if known.leader_epoch >= 0}
        return await epoch_end_offsets(self._cluster, epochs, timeout_s=self._timeout_s) if epochs else {}

    async def _look_at_group(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        async with self._turn:
            found = await self._committed(partitions)
            self._known = {one: {(at.offset, at.metadata)} for one, at in found.items()}
            return found

    async def _committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        return await committed_offsets(
            self._cluster, self.group_id, list(partitions), stable=True, timeout_s=self._timeout_s
        )

    def _check_known(self, found: Mapping[TopicPartition, GroupOffset]) -> None:
        """What is absent was not moved, but forgotten."""
        for one, known in self._known.items():
            if one in found and (found[one].offset, found[one].metadata) not in known:
                raise CommitFailedError(
                    f"somebody else has moved group {self.group_id!r}, which stands at {found[one].offset} in {one} now"
                    " - start once more, and it goes on from there"
                )

    async def _partitions(self, topics: Collection[str], patterns: Sequence[Any]) -> list[TopicPartition]:
        names = set(topics)
        if patterns:
            with watched(self._cluster, None):
                await self._cluster.retrying(
                    self._cluster.refresh, timeout_s=self._timeout_s, what="looking for topics"
                )
                names = names.union(*map(self._cluster.topology.matching, patterns))
        counts = await partitions_of(self._cluster, names, timeout_s=self._timeout_s)
        if missing := sorted(names - counts.keys()):
            raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {missing[0]!r}")
        return sorted(TopicPartition(name, number) for name, count in counts.items() for number in range(count))

    async def _commit(self, offsets: Mapping[TopicPartition, PartitionCommit], said: str, *, may_go_back: bool) -> None:
        if offsets:
            await self._check_logs()
            async with self._turn:
                await self._commit_in_turn(offsets, said, may_go_back=may_go_back)

    async def _commit_in_turn(
        self, offsets: Mapping[TopicPartition, PartitionCommit], said: str, *, may_go_back: bool
    ) -> None:
        before = await self._committed(offsets.keys() | self._known.keys())
        self._check_known(before)
        forward = {
            one: commit
            for one, commit in offsets.items()
            if may_go_back or one not in before or before[one].offset <= commit.offset
        }
        if not forward:
            return
        texts = {one: self._text(one, commit, said) for one, commit in forward.items()}
        for one, commit in forward.items():
            self._known.setdefault(one, set()).add((commit.offset, texts[one]))
        what = f"committing offsets of group {self.group_id!r}"
        entries = [
            CommitOffset(*one, commit.offset, metadata=texts[one], topic_id=self._topics.get(one.topic, NO_TOPIC_ID))
            for one, commit in forward.items()
        ]
        try:
            codes = await commit_offsets(self._cluster, self.group_id, entries, timeout_s=self._timeout_s, what=what)
        except TopicRecreatedError as error:
            raise _recreated(error.partitions[0].topic) from error
        if _LIVE & set(codes.values()):
            await self._check_idle()
            raise CommitFailedError(
                f"{what}: somebody joined the group and left it again meanwhile - start once more; the last batch"
                " is handled again"
            )
        for one in forward:
            if code := codes[one]:
                raise CommitFailedError(str(broker_error(code, f"{what}: {one}")))
        self._known |= {one: {(commit.offset, texts[one])} for one, commit in forward.items()}
        self._maps = {one: known for one, known in self._maps.items() if one not in offsets or offsets[one].done}
        self._observer.emit(OffsetsCommitted(self.group_id, {one: commit.offset for one, commit in forward.items()}))

    def _text(self, partition: TopicPartition, commit: PartitionCommit, said: str) -> str:
        limit = self._config.offset_metadata_max_bytes
        envelope = beside(commit, said, limit, self._config.client_id)
        if envelope.is_map_dropped:
            reason = f"it does not fit into offset_metadata_max_bytes={limit}"
            self._observer.emit(OffsetMapDropped(partition, commit.offset, reason))
        return envelope.text


def _recreated(topic: str) -> TailraceError:
    return TailraceError(
        f"topic {topic!r} was made anew meanwhile, and has other records where the old one was read to"
        " - start once more, and it is read by auto_offset_reset"
    )
