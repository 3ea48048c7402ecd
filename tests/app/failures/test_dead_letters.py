"""A dead letter says what happened to its record, keeps it byte for byte, and can be read back whatever is in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigurationError, Record
from tailrace.app.failures.dead_letters import (
    MOST_ADDED_BYTES,
    Failure,
    Origin,
    attempts_before,
    dead_letter,
    due_at,
    first_read,
    handler_of,
    origin_headers,
    origin_of,
    read_dead_letter,
    replay_letter,
    retry_record,
)

RECORD = Record(
    "orders", 3, 17, b"ann", b'{"total": -5}', 1_700_000_000_000, [("x", b"1"), ("x", b"2"), ("none", None)]
)


def raised(error: BaseException) -> BaseException:
    """The same, with a traceback."""
    with pytest.raises(type(error)) as caught:
        dig(0, error)
    return caught.value


def dig(depth: int, error: BaseException) -> None:
    """Raises it from below so many functions."""
    if depth == 0:
        raise error
    exec(f"def dig_{depth}(): dig({depth - 1}, error)\ndig_{depth}()", {"dig": dig, "error": error})


def failure(error: BaseException | None = None, **what: object) -> Failure:
    given_ = {"attempts": 3, "handler": "shop.charge", "group_id": "billing", "at_ms": 1_700_000_123_456, **what}
    return Failure(raised(ValueError("negative total")) if error is None else error, **given_)


def written(letter, *, topic="orders.billing.dead", partition=0, offset=0, timestamp=1_800_000_000_000) -> Record:
    """As it stands in a topic."""
    return Record(topic, partition, offset, letter.key, letter.value, timestamp, list(letter.headers))


def died(record: Record = RECORD, error: BaseException | None = None, **what: object):
    return read_dead_letter(written(dead_letter(record, failure(error, **what))))


# ---- what it says --------------------------------------------------------------------------------------------------


def test_a_letter_is_its_record_and_what_happened():
    """Key, value and headers come back as they were, beside the error, the attempts, the handler and the origin."""
    letter = died()

    assert (letter.key, letter.value, letter.headers) == (RECORD.key, RECORD.value, tuple(RECORD.headers))
    assert (letter.error_type, letter.reason) == ("ValueError", "negative total")
    assert letter.traceback.startswith("Traceback (most recent call last):")
    assert letter.traceback.endswith("ValueError: negative total\n")
    assert (letter.attempts, letter.handler, letter.group_id) == (3, "shop.charge", "billing")
    assert (letter.at_ms, letter.origin) == (1_700_000_123_456, Origin("orders", 3, 17, 1_700_000_000_000))
    assert (letter.deaths, letter.replays) == (1, 0)


def test_every_header_that_is_added_stands_under_one_prefix():
    """Whoever reads the topic without tailrace finds them by name, as text, behind the record's own."""
    headers = dead_letter(RECORD, failure()).headers

    added = {name: value.decode() for name, value in headers[3:]}
    assert headers[:3] == tuple(RECORD.headers)
    assert all(name.startswith("tailrace-") for name in added)
    assert added["tailrace-error-type"] == "ValueError"
    assert added["tailrace-failed-at"] == "1700000123456"
    assert [added[f"tailrace-origin-{one}"] for one in ("topic", "partition", "offset")] == ["orders", "3", "17"]


@pytest.mark.parametrize("part", ["key", "value"])
def test_nothing_is_kept_apart_from_empty(part):
    """A null key or value stays null, an empty one empty."""
    for content in (None, b""):
        record = Record("t", 0, 0, **{"key": b"k", "value": b"v", part: content}, timestamp=0)
        assert getattr(dead_letter(record, failure()), part) == content


class OddError(Exception):
    """One of a user's own."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_is_named_with_its_module():
    """Two errors of one name can be told apart."""
    assert died(error=raised(ConfigurationError("x - y"))).error_type == "tailrace.errors.ConfigurationError"


def test_an_error_without_words_makes_a_letter_too():
    """Whatever the user's error does when it is asked for its text, the letter is written."""
    letter = died(error=raised(OddError()))

    assert letter.error_type.endswith(".OddError")
    assert letter.reason == "(no message: __str__ raised RuntimeError)"


def test_a_chain_of_errors_is_told():
    """The traceback has the cause as well."""
    effect = ValueError("the effect")
    effect.__cause__ = raised(KeyError("the cause"))

    letter = died(error=raised(effect))

    assert letter.reason == "the effect"
    assert "KeyError: 'the cause'" in letter.traceback


def test_a_long_traceback_keeps_both_ends():
    """It begins where the handler was called and ends at the error; what is between is left out, and says so."""
    with pytest.raises(ValueError, match="bottom") as caught:
        dig(120, ValueError("at the bottom"))

    text = died(error=caught.value).traceback
    assert len(text.encode()) <= 8_192
    assert text.startswith("Traceback (most recent call last):")
    assert text.endswith("ValueError: at the bottom\n")
    assert re.search(r"\n\.\.\. more than \d+ bytes omitted \.\.\.\n", text)


@given(st.text(st.characters(codec=None), min_size=0, max_size=40), st.integers(1, 2_000))
def test_what_is_added_is_bounded_and_utf8(text, times):
    """However long an error, a handler's or a group's name is, and whatever is in it, it is valid UTF-8 and bounded."""
    long = text * times
    letter = dead_letter(RECORD, failure(ValueError(long), handler=long, group_id=long))

    added = letter.headers[len(RECORD.headers) :]
    assert sum(len(name) + len(value) + 20 for name, value in added) <= MOST_ADDED_BYTES
    assert all(value.decode() is not None for _, value in added)


# ---- dying again ---------------------------------------------------------------------------------------------------


def test_a_replayed_record_is_the_record():
    """A replay has the key, value and headers of the first day, and says where it comes from; it is no dead letter."""
    replayed = written(replay_letter(died()), topic="orders.billing.replay")

    assert (replayed.key, replayed.value) == (RECORD.key, RECORD.value)
    assert replayed.headers[:3] == RECORD.headers
    assert {name for name, _ in replayed.headers[3:]} == {
        "tailrace-deaths",
        "tailrace-replays",
        *(f"tailrace-origin-{part}" for part in ("topic", "partition", "offset", "timestamp")),
    }
    assert origin_of(replayed) == Origin("orders", 3, 17, 1_700_000_000_000)
    assert read_dead_letter(replayed) is None


def test_who_dies_again_is_counted():
    """After replays that failed too, the letter has its first origin, the last error, and how often it died."""
    letter, headers = died(), ()
    for number in range(1, 4):
        replayed = written(replay_letter(letter), topic="orders.billing.replay", offset=number)
        again = dead_letter(replayed, failure(KeyError(number), attempts=number))
        letter, headers = read_dead_letter(written(again)), again.headers

    added = [name for name, _ in headers if name.startswith("tailrace-")]
    assert len(added) == len(set(added))
    assert (letter.origin, letter.deaths, letter.replays) == (Origin("orders", 3, 17, 1_700_000_000_000), 4, 3)
    assert (letter.error_type, letter.reason, letter.attempts) == ("KeyError", "3", 3)
    assert letter.headers == tuple(RECORD.headers)


def test_a_letter_that_dies_as_a_letter_is_counted_too():
    """When who reads dead letters fails, its letter is of the first record, and both deaths count."""
    letter = died(written(dead_letter(RECORD, failure())), group_id="undertaker")

    assert (letter.group_id, letter.deaths, letter.replays) == ("undertaker", 2, 0)
    assert letter.origin == Origin("orders", 3, 17, 1_700_000_000_000)


def test_a_record_takes_its_origin_along():
    """On its way through retry topics a record is known by where it was read first."""
    hop = Record("orders.billing.retry.30s", 0, 4, b"k", b"v", 5, origin_headers(origin_of(RECORD)))

    assert origin_of(hop) == died(hop).origin == Origin("orders", 3, 17, 1_700_000_000_000)


def test_a_record_on_its_way_to_a_later_attempt_says_what_happened():
    """It is the record, and says when it is due, who failed, how often so far and why; it is no dead letter."""
    hop = written(retry_record(RECORD, failure(), 1_700_000_128_456), topic="orders.billing.retry.5s")

    assert (hop.key, hop.value, hop.headers[:3]) == (RECORD.key, RECORD.value, RECORD.headers)
    assert (due_at(hop), handler_of(hop), attempts_before(hop)) == (1_700_000_128_456, "shop.charge", 3)
    assert dict(hop.headers)["tailrace-error-message"] == b"negative total"
    assert origin_of(hop) == Origin("orders", 3, 17, 1_700_000_000_000)
    assert read_dead_letter(hop) is None


def test_who_dies_after_later_attempts_dies_of_its_first_origin():
    """Through two retry topics, one replay and a second death, the origin stays, deaths count, no header piles up."""
    first = written(retry_record(RECORD, failure(), 1), topic="orders.billing.retry.5s")
    second = written(retry_record(first, failure(attempts=6), 2), topic="orders.billing.retry.1m")
    letter = died(second, attempts=9)
    again = died(written(retry_record(written(replay_letter(letter)), failure(), 3)))

    assert (attempts_before(first), attempts_before(second), letter.attempts) == (3, 6, 9)
    assert (letter.deaths, letter.origin) == (1, Origin("orders", 3, 17, 1_700_000_000_000))
    assert (again.deaths, again.replays, again.origin) == (2, 1, letter.origin)
    assert [name for name, _ in second.headers] == [name for name, _ in first.headers]
    assert letter.headers == tuple(RECORD.headers)


def test_a_record_that_was_never_delayed_says_nothing_of_it():
    """Neither one of the user's topic nor a replayed one has attempts, a handler or a time before which it waits."""
    for record in (RECORD, written(replay_letter(died())), written(dead_letter(RECORD, failure()))):
        assert (due_at(record), handler_of(record), attempts_before(record)) == (None, "", 0)


def test_a_handler_sees_the_record_that_it_saw_first():
    """Topic, partition, offset and timestamp are those of the origin, wherever the record comes from by now."""
    hop = written(retry_record(RECORD, failure(), 1), topic="orders.billing.retry.5s", offset=4)

    seen = first_read(hop)
    assert tuple(seen) == tuple(RECORD)
    assert (seen.timestamp, seen.headers) == (RECORD.timestamp, hop.headers)


def test_a_brief_letter_has_the_essence():
    """Where a whole letter is too large, less than a kibibyte says where it came from and what it died of."""
    long = "x" * 5_000
    letter = dead_letter(RECORD, failure(ValueError(long)), is_brief=True)
    read = read_dead_letter(written(letter))

    added = letter.headers[len(RECORD.headers) :]
    assert sum(len(name) + len(value) for name, value in added) < 1_024
    assert (read.error_type, read.attempts, read.handler, read.traceback) == ("ValueError", 3, "shop.charge", "")
    assert len(read.reason) <= 200
    assert read.origin == Origin("orders", 3, 17, 1_700_000_000_000)


# ---- reading what somebody wrote -----------------------------------------------------------------------------------


def with_headers(*headers: tuple[str, bytes | None]) -> Record:
    return Record("t.dead", 0, 0, None, b"v", 123, list(headers))


@pytest.mark.parametrize(
    "headers", [(), [("x", b"1")], [("tailrace-error-type", None)], [("tailrace-origin-topic", b"t")]]
)
def test_another_record_is_no_dead_letter(headers):
    """Only a record that says what error it died of is one."""
    assert read_dead_letter(with_headers(*headers)) is None


def test_what_is_missing_is_empty():
    """A letter with nothing but an error's type can be read: it failed when it was written, and died once."""
    letter = read_dead_letter(with_headers(("tailrace-error-type", b"Boom")))

    assert (letter.error_type, letter.reason, letter.traceback, letter.handler) == ("Boom", "", "", "")
    assert (letter.attempts, letter.at_ms, letter.origin, letter.deaths) == (0, 123, None, 1)


OURS = sorted(
    {name for name, _ in (*replay_letter(died()).headers, *dead_letter(RECORD, failure()).headers)} - {"x", "none"}
)
CONTENTS = st.none() | st.binary(max_size=30) | st.integers(-(2**70), 2**70).map(lambda number: b"%d" % number)


@given(st.lists(st.tuples(st.sampled_from([*OURS, "tailrace-", "own"]), CONTENTS)))
def test_garbage_is_read(headers):
    """No header is too broken: reading, dying again and being replayed never fail, and own headers are kept."""
    record = with_headers(*headers, ("tailrace-error-type", b"Boom"))
    letter = read_dead_letter(record)

    own = tuple(one for one in headers if one[0] == "own")
    assert letter.headers == own
    again = died(written(replay_letter(letter)))
    assert again.headers == own
    assert again.deaths == letter.deaths + 1
    assert letter.origin is None or again.origin == letter.origin
