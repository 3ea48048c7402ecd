"""Dead letters describe the failure, keep the record unchanged, and can be parsed whatever they contain."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigurationError, Record
from tailrace.app.failures.dead_letters import (
    MAX_ADDED_BYTES,
    Failure,
    Origin,
    as_first_read,
    dead_letter,
    due_at,
    earlier_attempts,
    handler_of,
    origin_headers,
    origin_of,
    read_dead_letter,
    replay_record,
    retry_record,
)
from tailrace.batches.columns import arrow_of

RECORD = Record(
    "orders", 3, 17, b"ann", b'{"total": -5}', 1_700_000_000_000, [("x", b"1"), ("x", b"2"), ("none", None)]
)


def raised(error: BaseException) -> BaseException:
    """Return the error with a traceback."""
    with pytest.raises(type(error)) as caught:
        dig(0, error)
    return caught.value


def dig(depth: int, error: BaseException) -> None:
    """Raise an error below ``depth`` nested function calls."""
    if depth == 0:
        raise error
    exec(f"def dig_{depth}(): dig({depth - 1}, error)\ndig_{depth}()", {"dig": dig, "error": error})


def failure(error: BaseException | None = None, **what: object) -> Failure:
    given_ = {"attempts": 3, "handler": "shop.charge", "group_id": "billing", "at_ms": 1_700_000_123_456, **what}
    return Failure(raised(ValueError("negative total")) if error is None else error, **given_)


def written(letter, *, topic="orders.billing.dead", partition=0, offset=0, timestamp=1_800_000_000_000) -> Record:
    """Return the record as a reader of a topic receives it."""
    return Record(topic, partition, offset, letter.key, letter.value, timestamp, list(letter.headers))


def died(record: Record = RECORD, error: BaseException | None = None, **what: object):
    return read_dead_letter(written(dead_letter(record, failure(error, **what))))


# ---- contents ------------------------------------------------------------------------------------------------------


def test_a_dead_letter_has_the_record_and_its_failure():
    """A dead letter has the record's key, value and headers, and the error, attempts, handler and origin."""
    letter = died()

    assert (letter.key, letter.value, letter.headers) == (RECORD.key, RECORD.value, tuple(RECORD.headers))
    assert (letter.error_type, letter.reason) == ("ValueError", "negative total")
    assert letter.traceback.startswith("Traceback (most recent call last):")
    assert letter.traceback.endswith("ValueError: negative total\n")
    assert (letter.attempts, letter.handler, letter.group_id) == (3, "shop.charge", "billing")
    assert (letter.at_ms, letter.origin) == (1_700_000_123_456, Origin("orders", 3, 17, 1_700_000_000_000))
    assert (letter.deaths, letter.replays) == (1, 0)


def test_added_headers_have_one_prefix():
    """Added headers are text, start with "tailrace-" and follow the record's own."""
    headers = dead_letter(RECORD, failure()).headers

    added = {name: value.decode() for name, value in headers[3:]}
    assert headers[:3] == tuple(RECORD.headers)
    assert all(name.startswith("tailrace-") for name in added)
    assert added["tailrace-error-type"] == "ValueError"
    assert added["tailrace-failed-at"] == "1700000123456"
    assert [added[f"tailrace-origin-{one}"] for one in ("topic", "partition", "offset")] == ["orders", "3", "17"]


@pytest.mark.parametrize("part", ["key", "value"])
def test_null_and_empty_are_distinct(part):
    """A null key or value stays null, an empty one empty."""
    for content in (None, b""):
        record = Record("t", 0, 0, **{"key": b"k", "value": b"v", part: content}, timestamp=0)
        assert getattr(dead_letter(record, failure()), part) == content


class OddError(Exception):
    """User-defined error whose ``__str__`` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_is_named_with_its_module():
    """The error type in a dead letter includes the module."""
    assert died(error=raised(ConfigurationError("x - y"))).error_type == "tailrace.errors.ConfigurationError"


def test_an_error_whose_str_raises_has_a_dead_letter():
    """A dead letter is written even if the error's ``__str__`` raises."""
    letter = died(error=raised(OddError()))

    assert letter.error_type.endswith(".OddError")
    assert letter.reason == "(no message: __str__ raised RuntimeError)"


def test_the_traceback_has_the_chain_of_errors():
    """The traceback in a dead letter includes the cause of the error."""
    effect = ValueError("the effect")
    effect.__cause__ = raised(KeyError("the cause"))

    letter = died(error=raised(effect))

    assert letter.reason == "the effect"
    assert "KeyError: 'the cause'" in letter.traceback


def test_a_long_traceback_keeps_both_ends():
    """A long traceback starts at the handler's call, ends at the error, and notes how much of its middle is omitted."""
    with pytest.raises(ValueError, match="bottom") as caught:
        dig(120, ValueError("at the bottom"))

    text = died(error=caught.value).traceback
    assert len(text.encode()) <= 8_192
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("ValueError: at the bottom\n")
    assert re.search(r"\n\.\.\. more than \d+ bytes omitted \.\.\.\n", text)


@given(st.text(st.characters(codec=None), min_size=0, max_size=40), st.integers(1, 2_000))
def test_added_headers_are_bounded_and_valid_utf8(text, times):
    """Added headers are UTF-8 of bounded size, for any error, handler and group."""
    long = text * times
    letter = dead_letter(RECORD, failure(ValueError(long), handler=long, group_id=long))

    added = letter.headers[len(RECORD.headers) :]
    assert sum(len(name) + len(value) + 20 for name, value in added) <= MAX_ADDED_BYTES
    assert all(value.decode() is not None for _, value in added)


# ---- replays and repeated failures ---------------------------------------------------------------------------------


def test_a_replay_has_the_original_record():
    """A replay has the original key, value, headers and origin, and is not a dead letter."""
    replayed = written(replay_record(died()), topic="orders.billing.replay")

    assert (replayed.key, replayed.value) == (RECORD.key, RECORD.value)
    assert replayed.headers[:3] == RECORD.headers
    assert {name for name, _ in replayed.headers[3:]} == {
        "tailrace-deaths",
        "tailrace-replays",
        *(f"tailrace-origin-{part}" for part in ("topic", "partition", "offset", "timestamp")),
    }
    assert origin_of(replayed) == Origin("orders", 3, 17, 1_700_000_000_000)
    assert read_dead_letter(replayed) is None


def test_deaths_are_counted_across_replays():
    """After failed replays, the dead letter has the first origin, the last error and the number of deaths."""
    letter, headers = died(), ()
    for number in range(1, 4):
        replayed = written(replay_record(letter), topic="orders.billing.replay", offset=number)
        again = dead_letter(replayed, failure(KeyError(number), attempts=number))
        letter, headers = read_dead_letter(written(again)), again.headers

    added = [name for name, _ in headers if name.startswith("tailrace-")]
    assert len(added) == len(set(added))
    assert (letter.origin, letter.deaths, letter.replays) == (Origin("orders", 3, 17, 1_700_000_000_000), 4, 3)
    assert (letter.error_type, letter.reason, letter.attempts) == ("KeyError", "3", 3)
    assert letter.headers == tuple(RECORD.headers)


def test_a_dead_letter_of_a_dead_letter_is_counted():
    """If a reader of dead letters fails, its dead letter has the first origin, and both deaths count."""
    letter = died(written(dead_letter(RECORD, failure())), group_id="undertaker")

    assert (letter.group_id, letter.deaths, letter.replays) == ("undertaker", 2, 0)
    assert letter.origin == Origin("orders", 3, 17, 1_700_000_000_000)


def test_a_record_keeps_its_origin():
    """A record keeps the position at which it was first read when it passes retry topics."""
    hop = Record("orders.billing.retry.30s", 0, 4, b"k", b"v", 5, origin_headers(origin_of(RECORD)))

    assert origin_of(hop) == died(hop).origin == Origin("orders", 3, 17, 1_700_000_000_000)


def test_a_record_in_a_retry_topic_has_its_failure():
    """A record in a retry topic has due time, handler, attempts and reason as headers, and is not a dead letter."""
    hop = written(retry_record(RECORD, failure(), 1_700_000_128_456), topic="orders.billing.retry.5s")

    assert (hop.key, hop.value, hop.headers[:3]) == (RECORD.key, RECORD.value, RECORD.headers)
    assert (due_at(hop), handler_of(hop), earlier_attempts(hop)) == (1_700_000_128_456, "shop.charge", 3)
    assert dict(hop.headers)["tailrace-error-message"] == b"negative total"
    assert origin_of(hop) == Origin("orders", 3, 17, 1_700_000_000_000)
    assert read_dead_letter(hop) is None


def test_a_dead_letter_after_retry_topics_has_the_first_origin():
    """A dead letter after retry topics and a replay has the first origin, counted deaths, and each header once."""
    first = written(retry_record(RECORD, failure(), 1), topic="orders.billing.retry.5s")
    second = written(retry_record(first, failure(attempts=6), 2), topic="orders.billing.retry.1m")
    letter = died(second, attempts=9)
    again = died(written(retry_record(written(replay_record(letter)), failure(), 3)))

    assert (earlier_attempts(first), earlier_attempts(second), letter.attempts) == (3, 6, 9)
    assert (letter.deaths, letter.origin) == (1, Origin("orders", 3, 17, 1_700_000_000_000))
    assert (again.deaths, again.replays, again.origin) == (2, 1, letter.origin)
    assert [name for name, _ in second.headers] == [name for name, _ in first.headers]
    assert letter.headers == tuple(RECORD.headers)


def test_other_records_have_no_retry_headers():
    """Records of the user's topics, replays and dead letters have no attempts, handler or due time."""
    for record in (RECORD, written(replay_record(died())), written(dead_letter(RECORD, failure()))):
        assert (due_at(record), handler_of(record), earlier_attempts(record)) == (None, "", 0)


def test_a_handler_sees_the_original_position():
    """A handler sees the original topic, partition, offset and timestamp of a record from any topic."""
    hop = written(retry_record(RECORD, failure(), 1), topic="orders.billing.retry.5s", offset=4)

    seen = as_first_read(hop)
    assert tuple(seen) == tuple(RECORD)
    assert (seen.timestamp, seen.headers) == (RECORD.timestamp, hop.headers)


def test_a_brief_dead_letter_has_the_origin_and_the_error():
    """A brief dead letter has origin and error in less than a kibibyte of headers."""
    long = "x" * 5_000
    letter = dead_letter(RECORD, failure(ValueError(long)), is_brief=True)
    read = read_dead_letter(written(letter))

    added = letter.headers[len(RECORD.headers) :]
    assert sum(len(name) + len(value) for name, value in added) < 1_024
    assert (read.error_type, read.attempts, read.handler, read.traceback) == ("ValueError", 3, "shop.charge", "")
    assert len(read.reason) <= 200
    assert read.origin == Origin("orders", 3, 17, 1_700_000_000_000)


# ---- reading foreign headers ---------------------------------------------------------------------------------------


def with_headers(*headers: tuple[str, bytes | None]) -> Record:
    return Record("t.dead", 0, 0, None, b"v", 123, list(headers))


@pytest.mark.parametrize(
    "headers", [(), [("x", b"1")], [("tailrace-error-type", None)], [("tailrace-origin-topic", b"t")]]
)
def test_a_record_without_an_error_type_is_not_a_dead_letter(headers):
    """A record without the header of the error type is not a dead letter."""
    assert read_dead_letter(with_headers(*headers)) is None


def test_missing_headers_are_empty():
    """A dead letter that has only the header of the error type can be parsed, and has the time of the record."""
    letter = read_dead_letter(with_headers(("tailrace-error-type", b"Boom")))

    assert (letter.error_type, letter.reason, letter.traceback, letter.handler) == ("Boom", "", "", "")
    assert (letter.attempts, letter.at_ms, letter.origin, letter.deaths) == (0, 123, None, 1)


def hop_with(**changed: bytes) -> Record:
    """Return a record of a retry topic with changed headers; names are without prefix, and have underscores."""
    hop = written(retry_record(RECORD, failure(), 1), topic="orders.billing.retry.5s", partition=1, offset=4)
    names = {f"tailrace-{name.replace('_', '-')}": value for name, value in changed.items()}
    return msgspec.structs.replace(hop, headers=[*(one for one in hop.headers if one[0] not in names), *names.items()])


@pytest.mark.parametrize(
    "header",
    [
        {"origin_partition": b"2147483648"},
        {"origin_partition": b"-1"},
        {"origin_offset": b"9223372036854775808"},
        {"origin_offset": b"-5"},
        {"origin_topic": b"caf\xe9"},
        {"origin_topic": b"a b"},
        {"origin_topic": b"x" * 250},
    ],
)
def test_an_origin_that_no_record_can_have_is_ignored(header):
    """An origin with an illegal topic, or a number beyond Kafka's, is ignored, and the record counts as its own."""
    hop = hop_with(**header)

    assert origin_of(hop) == Origin(hop.topic, 1, 4, hop.timestamp)
    assert read_dead_letter(written(dead_letter(hop, failure()))).origin == origin_of(hop)
    assert arrow_of([as_first_read(hop)]).column("partition").to_pylist() == [1]


def test_a_timestamp_that_no_record_can_have_is_ignored():
    """An origin's timestamp beyond 64 bits counts as unknown."""
    assert as_first_read(hop_with(origin_timestamp=b"9223372036854775808")).timestamp == -1
    assert as_first_read(hop_with(origin_timestamp=b"-1")).timestamp == -1


@pytest.mark.parametrize("number", [b"-3", b"2147483648", b"9" * 18, b"1e3", b"\xff"])
def test_counts_out_of_range_are_ignored(number):
    """Counts that are negative, above 2**31 - 1 or no number are ignored and not passed on."""
    hop = hop_with(attempts=number, deaths=number, replays=number, due_at=number)
    letter = read_dead_letter(written(dead_letter(hop, failure())))
    again = dict(retry_record(hop, failure(), 2).headers)

    assert (earlier_attempts(hop), letter.deaths, letter.replays) == (0, 1, 0)
    assert (again.get("tailrace-deaths"), again.get("tailrace-replays")) == (None, None)


def test_counts_stop_at_their_limit():
    """A count at its limit stays there, so that it remains valid."""
    hop = hop_with(deaths=b"2147483647", replays=b"2147483647", attempts=b"2147483647")
    letter = read_dead_letter(written(dead_letter(hop, failure(attempts=1 << 31))))
    replayed = dict(replay_record(letter).headers)

    assert (letter.deaths, letter.replays, letter.attempts) == (2_147_483_647,) * 3
    assert (replayed["tailrace-deaths"], replayed["tailrace-replays"]) == (b"2147483647",) * 2


OURS = sorted(
    {name for name, _ in (*replay_record(died()).headers, *dead_letter(RECORD, failure()).headers)} - {"x", "none"}
)
CONTENTS = st.none() | st.binary(max_size=30) | st.integers(-(2**70), 2**70).map(lambda number: b"%d" % number)


@given(st.lists(st.tuples(st.sampled_from([*OURS, "tailrace-", "own"]), CONTENTS)))
def test_malformed_headers_are_ignored(headers):
    """Malformed headers break neither parsing nor replays, and the record's own headers are kept."""
    record = with_headers(*headers, ("tailrace-error-type", b"Boom"))
    letter = read_dead_letter(record)

    own = tuple(one for one in headers if one[0] == "own")
    assert letter.headers == own
    again = died(written(replay_record(letter)))
    assert again.headers == own
    assert again.deaths == letter.deaths + 1
    assert letter.origin is None or again.origin == letter.origin
