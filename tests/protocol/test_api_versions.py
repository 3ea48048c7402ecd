"""Version negotiation."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import UnsupportedVersionError
from tailrace.protocol.admin import CreateTopicsRequest
from tailrace.protocol.groups import (
    CommitOffset,
    HeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
)
from tailrace.protocol.handshake import (
    CONSUMER_PROTOCOL,
    CONSUMING,
    TOPIC_IDS,
    ApiVersionRange,
    ApiVersionsResponse,
    BrokerVersions,
    FinalizedFeature,
)
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import FetchRequest
from tailrace.protocol.transactions import IDEMPOTENCE, PUBLISHING, TRANSACTIONS, transaction_version
from tailrace.testing.faults import APIS, api_by_key


def offered(**ranges: tuple[int, int]) -> BrokerVersions:
    """Return a broker that supports all versions that tailrace does, except the given ones."""
    rows = {api.name: (api.versions[0], api.versions[-1]) for api in APIS} | ranges
    keys = {api.name: api.key for api in APIS}
    return BrokerVersions(
        ApiVersionsResponse(0, tuple(ApiVersionRange(keys[name], *row) for name, row in rows.items() if row))
    )


def test_each_message_and_each_number_has_one_api():
    """A request class and an API key each have one API."""
    assert len(APIS) == len({api.key for api in APIS}) == len({api.request_type for api in APIS})
    assert all(api_by_key(api.key) is api for api in APIS)
    assert api_by_key(9999) is None
    assert HeartbeatRequest.api is HeartbeatRequest("g", 1, "m").api


@given(st.integers(0, 20), st.integers(0, 20))
def test_the_newest_common_version_is_used(low, high):
    """The newest common version is used, and an API without one is not supported."""
    ours = FetchRequest.api.versions
    common = [version for version in ours if low <= version <= high]
    broker = offered(Fetch=(low, high))

    assert bool(common) == (FetchRequest.api in broker)
    if common:
        assert max(common) == broker.version_of(FetchRequest.api)
    else:
        with pytest.raises(UnsupportedVersionError):
            broker.version_of(FetchRequest.api)


def test_a_commit_names_topics_by_id_only_if_each_id_is_known():
    """OffsetCommit and OffsetFetch use topic ids (version 10) only if the id of each topic is known."""
    by_id, by_name = CommitOffset("a", 0, 5, topic_id=UUID(int=7)), CommitOffset("b", 0, 5)
    broker = offered(OffsetCommit=(2, 10))

    def spoken(*entries):
        return broker.version_of(OffsetCommitRequest.api, OffsetCommitRequest("g", entries).newest_version)

    assert (spoken(by_id), spoken(by_id, by_name), spoken(by_name)) == (10, 9, 9)
    assert OffsetFetchRequest("g", None).newest_version == 9
    assert OffsetFetchRequest("g", (OffsetFetchPartition("a", 0, UUID(int=7)),)).newest_version is None


def test_an_unsupported_api_raises_with_both_versions():
    """An unsupported API raises an error with its name and the versions of both sides."""
    with pytest.raises(UnsupportedVersionError, match=r"^CreateTopics: .* 2 to 7, the broker supports 0 to 1$"):
        offered(CreateTopics=(0, 1)).version_of(CreateTopicsRequest.api)
    with pytest.raises(UnsupportedVersionError, match=r"^Metadata: .* 4 to 13, the broker does not support this API$"):
        offered(Metadata=()).version_of(MetadataRequest.api)
    with pytest.raises(UnsupportedVersionError, match="the broker supports 99 to 100"):
        offered(Metadata=(99, 100)).version_of(MetadataRequest.api)


def test_a_broker_without_apis_for_tools_is_accepted():
    """A broker without the APIs for tools is accepted."""
    broker = offered(CreateTopics=(), DeleteRecords=())

    broker.check_consuming()

    assert broker.version_of(FetchRequest.api) in FetchRequest.api.versions


@pytest.mark.parametrize("api", [api for api in CONSUMING if api.versions[0]], ids=lambda api: api.name)
def test_a_broker_too_old_is_refused(api):
    """A broker that is too old raises an error with each missing API, the versions of both sides, and advice."""
    oldest = api.versions[0]

    with pytest.raises(UnsupportedVersionError) as refused:
        offered(**{api.name: (0, oldest - 1)}).check_consuming()

    assert (
        f"{api.name}: tailrace supports versions {oldest} to {api.versions[-1]}, the broker supports 0 to {oldest - 1}"
        in str(refused.value)
    )
    assert "upgrade the broker" in str(refused.value)


@pytest.mark.parametrize(
    ("capability", "missing", "text"),
    [
        (IDEMPOTENCE, {"InitProducerId": ()}, "InitProducerId: .*does not support this API - accept duplicates"),
        (TRANSACTIONS, {"InitProducerId": (0, 2)}, "InitProducerId: required are versions 3 to .* 0 to 2 - set "),
        (TOPIC_IDS, {"Metadata": (4, 9)}, "Metadata: required are versions 10 to 13, the broker supports 4 to 9 - "),
        (PUBLISHING, {"Produce": (0, 2)}, "Produce: .*the broker supports 0 to 2 - publish to another"),
        (TRANSACTIONS, {"TxnOffsetCommit": (0, 2)}, "TxnOffsetCommit: .*0 to 2 - set delivery='at_least_once'"),
        (
            CONSUMER_PROTOCOL,
            {"ConsumerGroupHeartbeat": ()},
            "ConsumerGroupHeartbeat: .* - set group_protocol=",
        ),
    ],
    ids=["no producer ids", "old producer ids", "no topic ids", "old records", "old transactions", "classic only"],
)
def test_a_missing_capability_raises_with_the_next_step(capability, missing, text):
    """The error names the capability, the missing requests and the next step; the broker has all others."""
    with pytest.raises(UnsupportedVersionError, match=f"^the broker does not support .*: {text}"):
        offered(**missing).check(capability)
    offered().check(capability)
    assert offered().lacks(capability) == ""


def test_the_error_names_the_versions_that_may_be_used():
    """The error for a request that needs an old version has this version, not tailrace's newest one."""
    with pytest.raises(UnsupportedVersionError, match="tailrace supports versions 4 to 5, the broker supports 6 to 13"):
        offered(Fetch=(6, 13)).version_of(FetchRequest.api, 5)


def test_the_error_lists_all_missing_apis():
    """One error lists all missing APIs."""
    with pytest.raises(UnsupportedVersionError, match=r"JoinGroup: .*; .*OffsetFetch: .*does not support this API"):
        offered(JoinGroup=(0, 1), OffsetFetch=()).check_consuming()


@pytest.mark.parametrize(
    ("finalized", "produce", "version"),
    [
        pytest.param(2, 13, 2, id="finalized"),
        pytest.param(3, 13, 2, id="a later version"),
        pytest.param(1, 13, 1, id="offered and not finalized"),
        pytest.param(None, 13, 1, id="offered without features"),
        pytest.param(2, 11, 1, id="features that a proxy passes on"),
    ],
)
def test_transactions_have_the_finalized_version(finalized, produce, version):
    """Version 2 of transactions is used if it is finalized, and the broker offers its requests."""
    ranges = {api.name: ApiVersionRange(api.key, api.versions[0], api.versions[-1]) for api in APIS}
    ranges["Produce"] = ApiVersionRange(0, 3, produce)
    features = () if finalized is None else (FinalizedFeature("transaction.version", finalized, finalized),)
    answer = ApiVersionsResponse(0, tuple(ranges.values()), finalized_features=features)

    assert transaction_version(BrokerVersions(answer)) == version
