"""App on the real broker: order, failures, delivery, members that join and leave, and stops."""

from __future__ import annotations

import asyncio
import contextvars
import json
import sys
import threading
import time
from collections import Counter, defaultdict
from typing import Annotated

import msgspec
import pytest

from tailrace import (
    App,
    ConfigurationError,
    Consumer,
    Depends,
    HandlerFailedError,
    Handlers,
    Header,
    Key,
    Message,
    Record,
    Reject,
    Retry,
)
from tailrace.observe.events import ConsumerStarted, HandlerFailed, RecordDeadLettered, RecordSkipped
from tests.support.commands import environment
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

QUICK = Retry(attempts=2, backoff_ms=1, max_backoff_ms=50)


class Order(msgspec.Struct):
    customer: str
    total: int


opened: list[str] = []


async def open_bank():
    """Dependency of a handler."""
    opened.append("open")
    yield "bank"
    opened.append("closed")


async def read_all(kafka_server, topic, count):
    async with Consumer(
        topic, bootstrap_servers=kafka_server.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(30):
            return [await consumer.getone() for _ in range(count)]


@pytest.fixture
def new_app(kafka_server, group):
    def make(**options):
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **{"group_id": group, **options})

    return make


@pytest.mark.parametrize("suspends", [False, True], ids=["at once", "suspends"])
@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
async def test_every_record_is_handled_once_in_the_requested_order(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, group, order_by, suspends
):
    """Each record is handled once and committed; records of a lane run one at a time, in order."""
    topic, app = new_topic(3), new_app()
    keys = [b"k%d" % (n % 20) for n in range(600)]
    witness.produce(topic, (b"%d" % n for n in range(600)), keys=keys)
    seen, running, most = defaultdict(list), Counter(), 0
    at_once, are_enough = {"partition": 3}.get(order_by, 16), asyncio.Event()

    @app.handler(topic, order_by=order_by, concurrency=16)
    async def handle(record: Record) -> None:
        nonlocal most
        lane = {"partition": record.partition, "key": (record.partition, record.key)}.get(order_by, record.offset)
        running[lane] += 1
        most = max(most, running.total())
        assert order_by == "none" or running[lane] == 1
        if suspends:
            if most == at_once:
                are_enough.set()
            await are_enough.wait()
            await asyncio.sleep(0.001)
        running[lane] -= 1
        seen[lane].append((record.partition, record.offset))

    async with app:
        await until(lambda: sum(map(len, seen.values())) == 600)

    everything = [one for lane in seen.values() for one in lane]
    assert len(set(everything)) == len(everything) == 600
    assert order_by == "none" or all(lane == sorted(lane) for lane in seen.values())
    assert sum((await witness.committed(group, topic, 3)).values()) == 600
    assert most == (at_once if suspends else 1)


async def test_parameters_are_filled_by_annotation(new_app, new_topic, witness):
    """A handler receives a value, the key, a header, the record and a dependency, each by its annotation."""
    topic, app, got = new_topic(), new_app(), []
    witness.produce(topic, [json.dumps({"customer": "ann", "total": 5}).encode()], keys=[b"ann"])
    opened.clear()

    @app.handler(topic)
    async def charge(
        order: Order,
        customer: Annotated[str, Key],
        record: Record,
        bank: Annotated[str, Depends(open_bank, scope="app")],
        trace: Annotated[str | None, Header("trace")] = None,
    ) -> None:
        got.append((order, customer, record.offset, bank, trace))

    async with app:
        await until(lambda: got)

    assert got == [(Order("ann", 5), "ann", 0, "bank", None)]
    assert opened == ["open", "closed"]


async def test_a_poisoned_record_is_retried_and_dead_lettered_while_other_keys_continue(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, kafka_server, group, recorder
):
    """A poisoned record holds up its own key only, is retried, and has one dead letter."""
    topic = new_topic()
    kafka_server.create_topic(f"{topic}.{group}.dead")
    app = new_app(dead_letter="{topic}.{group}.dead", hooks=[recorder])
    witness.produce(topic, (b"%d" % n for n in range(100)), keys=[b"k%d" % (n % 5) for n in range(100)])
    handled, attempts, others_are_through = [], 0, asyncio.Event()

    @app.handler(topic, order_by="key", retry=Retry(attempts=3, backoff_ms=100, jitter=False))
    async def handle(value: bytes) -> None:
        nonlocal attempts
        if value == b"3":
            attempts += 1
            if attempts > 1:
                await others_are_through.wait()
            raise ValueError("poison")
        handled.append(int(value))
        if len(handled) == 80:
            others_are_through.set()

    async with app:
        await until(lambda: len(handled) == 99)

    (letter,) = await read_all(kafka_server, f"{topic}.{group}.dead", 1)
    headers = dict(letter.headers)
    assert (letter.value, letter.key, attempts) == (b"3", b"k3", 3)
    assert headers["tailrace-error-type"] == b"ValueError"
    assert headers["tailrace-attempts"] == b"3"
    assert [n for n in handled if n % 5 == 3] == [n for n in range(100) if n % 5 == 3 and n != 3]
    assert handled.index(8) > handled.index(99)
    assert len(recorder.of(RecordDeadLettered)) == 1
    assert await witness.committed(group, topic, 1) == {0: 100}


async def test_a_dead_letter_is_replayed_to_success_after_a_fix(new_app, new_topic, witness, kafka_server, group):
    """`tailrace dead-letters replay` writes a dead letter to the replay topic, from which the handler receives it."""
    topic = new_topic()
    dead = f"{topic}.{group}.dead"
    kafka_server.create_topic(dead)
    app, handled, is_fixed = new_app(dead_letter=dead, metadata_max_age_ms=300), [], False
    witness.produce(topic, [b"poison"])

    @app.handler(topic, retry=QUICK)
    async def handle(value: bytes) -> None:
        if not is_fixed:
            raise ValueError("not yet")
        handled.append(value)

    async with app:
        await until(lambda: app.health().status == "ok")
        await read_all(kafka_server, dead, 1)
        is_fixed = True
        command = [sys.executable, "-m", "tailrace", "dead-letters", "replay", dead, "--all", "--execute"]
        replay = await asyncio.create_subprocess_exec(
            *command, env=environment(TAILRACE_BOOTSTRAP_SERVERS=kafka_server.bootstrap_servers)
        )
        assert await replay.wait() == 0
        await until(lambda: handled)

    assert handled == [b"poison"]


@pytest.mark.parametrize("broken", ["rejected", "undecodable"])
async def test_rejected_and_undecodable_records_are_not_retried(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, kafka_server, group, broken
):
    """A rejected record and an undecodable record are dead-lettered at once with their raw bytes."""
    topic = new_topic()
    kafka_server.create_topic(f"{topic}.{group}.dead")
    app, calls = new_app(dead_letter="{topic}.{group}.dead"), []
    value = b"no json" if broken == "undecodable" else b'{"customer":"ann","total":-1}'
    witness.produce(topic, [value, b'{"customer":"bob","total":1}'])

    @app.handler(topic)
    async def charge(order: Order) -> None:
        calls.append(order.customer)
        if order.total < 0:
            raise Reject("negative total")

    async with app:
        await until(lambda: "bob" in calls)

    (letter,) = await read_all(kafka_server, f"{topic}.{group}.dead", 1)
    assert letter.value == value
    assert calls == (["bob"] if broken == "undecodable" else ["ann", "bob"])


async def test_on_failure_pause_retries_the_record_until_it_succeeds(new_app, new_topic, witness, group, recorder):
    """With on_failure="pause" a failed record is retried at intervals and blocks its key only; none is skipped."""
    topic, app = new_topic(), new_app(hooks=[recorder])
    witness.produce(topic, (b"%d" % n for n in range(50)), keys=[b"k%d" % (n % 2) for n in range(50)])
    handled, is_broken = [], True

    @app.handler(topic, order_by="key", retry=QUICK)
    async def handle(value: bytes) -> None:
        if value == b"0" and is_broken:
            raise ConnectionError("the bank is away")
        handled.append(int(value))

    async with app:
        await until(lambda: len(handled) == 25)
        assert all(n % 2 for n in handled)
        await until(lambda: len(recorder.of(HandlerFailed)) > 4)
        is_broken = False
        await until(lambda: len(handled) == 50)

    assert [n for n in handled if n % 2 == 0] == list(range(0, 50, 2))
    assert await witness.committed(group, topic, 1) == {0: 50}


def declare_failing_at_seven(app, topic) -> list[int]:
    """Declare a handler that fails at 7, and return the list of numbers that it handled."""
    handled = []

    @app.handler(topic, retry=QUICK)
    async def handle(n: int) -> None:
        if n == 7:
            raise ValueError("no")
        handled.append(n)

    return handled


async def test_on_failure_stop_ends_the_app_and_commits_up_to_the_failure(new_app, new_topic, witness, group):
    """The app raises the failure on exit; earlier records are committed, the failed one is not."""
    topic, app = new_topic(), new_app(on_failure="stop")
    witness.produce(topic, (b"%d" % n for n in range(10)))

    declare_failing_at_seven(app, topic)
    with pytest.raises(HandlerFailedError, match=r"offset 7: .*on_failure='stop'"):
        await asyncio.wait_for(app.run(), 30)

    assert await witness.committed(group, topic, 1) == {0: 7}


async def test_on_failure_skip_continues_and_emits_an_event(new_app, new_topic, witness, group, recorder):
    """A skipped record emits an event, and later records are handled."""
    topic, app = new_topic(), new_app(on_failure="skip", hooks=[recorder])
    witness.produce(topic, (b"%d" % n for n in range(10)))
    handled = declare_failing_at_seven(app, topic)

    async with app:
        await until(lambda: len(handled) == 9)

    assert [event.offset for event in recorder.of(RecordSkipped)] == [7]
    assert await witness.committed(group, topic, 1) == {0: 10}


async def test_results_are_published_in_each_form(new_app, new_topic, witness, kafka_server, group):
    """A handler may return a value, a Message or a list of them; each is published, and the offset is committed."""
    topic, out = new_topic(), new_topic(2)
    app = new_app()
    witness.produce(topic, [b"1", b"2", b"3"])

    @app.handler(topic, publish=out)
    async def double(n: int) -> object:
        return {1: {"n": 2}, 2: Message({"n": 4}, key="four", partition=1)}.get(n, [Message(b"a"), Message(b"b")])

    async with app:
        records = await read_all(kafka_server, out, 4)
        await app.publish(out, {"from": "anywhere"}, key="k")
        (fifth,) = [one for one in await read_all(kafka_server, out, 5) if one.key == b"k"]

    assert Counter(one.value for one in records) == Counter([b'{"n":2}', b'{"n":4}', b"a", b"b"])
    assert [(one.partition, one.key) for one in records if one.value == b'{"n":4}'] == [(1, b"four")]
    assert json.loads(fifth.value) == {"from": "anywhere"}
    assert await witness.committed(group, topic, 1) == {0: 3}


async def test_a_stop_waits_for_running_handlers(new_app, new_topic, witness, group):
    """stop() waits for running handlers and commits their records; the next start repeats none of them."""
    topic, app, begun, ended, may_end = new_topic(), new_app(), [], [], asyncio.Event()
    witness.produce(topic, (b"%d" % n for n in range(100)), keys=[b"k%d" % n for n in range(100)])

    @app.handler(topic, order_by="key", concurrency=4)
    async def handle(value: bytes) -> None:
        begun.append(int(value))
        await may_end.wait()
        ended.append(int(value))

    async with app:
        await until(lambda: len(begun) == 4)
        stopping = asyncio.create_task(app.stop())
        await until(lambda: app.health().status == "stopping")
        may_end.set()
        await stopping

    assert sorted(begun) == sorted(ended) == [0, 1, 2, 3]
    assert await witness.committed(group, topic, 1) == {0: 4}


async def test_each_record_is_handled_once_when_an_app_joins_and_leaves(new_app, new_topic, witness, group):
    """Each record is handled once while one app joins and another stops."""
    topic, handled = new_topic(6), Counter()
    options = {"heartbeat_interval_ms": 300}

    def one():
        app = new_app(**options)

        @app.handler(topic, order_by="key", concurrency=8)
        async def handle(record: Record) -> None:
            await asyncio.sleep(0.002)
            handled[record.partition, record.offset] += 1

        return app

    async with one():
        witness.produce(topic, (b"%d" % n for n in range(2_000)), keys=[b"k%d" % (n % 50) for n in range(2_000)])
        await until(lambda: len(handled) > 200)
        async with one() as second:
            await second.wait_ready()
            await until(lambda: len(handled) == 2_000)

    assert set(handled.values()) == {1}


async def test_a_plain_function_runs_in_a_thread(new_app, new_topic, witness):
    """A plain function that blocks does not block the event loop."""
    topic, app, threads = new_topic(), new_app(), []
    witness.produce(topic, [b"0", b"1"])

    @app.handler(topic)
    def handle(value: bytes) -> None:
        time.sleep(0.05)
        threads.append(threading.current_thread())

    async with app:
        await until(lambda: len(threads) == 2)

    assert threading.main_thread() not in threads


async def test_changes_to_the_task_of_a_handler_affect_its_record_only(new_app, new_topic, witness):
    """Cancellations, deadlines, task groups and context variables of a handler affect its own record only."""
    topic, app, seen = new_topic(), new_app(), []
    variable = contextvars.ContextVar("variable", default=0)
    witness.produce(topic, (b"%d" % n for n in range(60)))

    @app.handler(topic, retry=QUICK)
    async def handle(n: int) -> None:
        seen.append(variable.get())
        variable.set(n + 1)
        if n % 3 == 0:
            async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.sleep(0))
        if n == 5 and len(seen) < 7:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    async with app:
        await until(lambda: len(seen) == 61)

    # The second attempt at record 5 sees the value of its first attempt; all other handlers see the default.
    assert Counter(seen) == {0: 60, 6: 1}


async def test_a_handler_that_exceeds_timeout_ms_has_failed(new_app, new_topic, witness, recorder):
    """A handler that exceeds timeout_ms is canceled, and its record fails with TimeoutError."""
    topic, app = new_topic(), new_app(on_failure="skip", hooks=[recorder])
    witness.produce(topic, [b"0"])

    @app.handler(topic, timeout_ms=20, retry=QUICK)
    async def handle(value: bytes) -> None:
        await asyncio.sleep(60)

    async with app:
        await until(lambda: recorder.of(RecordSkipped))

    assert "TimeoutError" in recorder.of(RecordSkipped)[0].error


async def test_several_handlers_share_a_topic_by_when(new_app, new_topic, witness, group):
    """Each handler receives the records that its `when` matches; all are committed when both have finished."""
    topic, handlers, app = new_topic(), Handlers(), new_app()
    even, odd = [], []
    witness.produce(topic, (b"%d" % n for n in range(100)))

    @handlers.handler(topic, when=lambda record: int(record.value) % 2 == 0)
    async def take_even(n: int) -> None:
        await asyncio.sleep(0)
        even.append(n)

    @handlers.handler(topic, when=lambda record: int(record.value) % 2 == 1)
    async def take_odd(n: int) -> None:
        odd.append(n)

    app.include(handlers)
    async with app:
        await until(lambda: len(even) + len(odd) == 100)

    assert (even, odd) == (list(range(0, 100, 2)), list(range(1, 100, 2)))
    assert await witness.committed(group, topic, 1) == {0: 100}


@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
async def test_a_slow_handler_does_not_block_other_handlers_of_its_topic(new_app, new_topic, witness, group, order_by):
    """While a handler is slow, other handlers of its topic receive their records, in each order_by."""
    topic, app = new_topic(), new_app()
    let_go, begun, slow, quick = asyncio.Event(), asyncio.Event(), [], []

    @app.handler(topic, when=lambda record: record.key is None, order_by=order_by, concurrency=1)
    async def take_long(n: int) -> None:
        begun.set()
        await let_go.wait()
        slow.append(n)

    @app.handler(topic, when=lambda record: record.key is not None)
    async def take_quickly(n: int) -> None:
        quick.append(n)

    async with app:
        witness.produce(topic, [b"0"])
        await asyncio.wait_for(begun.wait(), 30)
        for n in range(1, 11):
            witness.produce(topic, [b"%d" % n])
            witness.produce(topic, [b"%d" % n], keys=[b"key"])
            await until(lambda n=n: len(quick) == n)
        assert slow == []
        let_go.set()
        await until(lambda: len(slow) == 11)

    assert (slow, quick) == (list(range(11)), list(range(1, 11)))
    assert await witness.committed(group, topic, 1) == {0: 21}


@pytest.mark.parametrize("unmatched", ["fail", "skip"])
async def test_a_record_without_a_matching_handler_fails(new_app, new_topic, witness, group, unmatched):
    """A record that no handler matches fails unless `unmatched="skip"` is set; so does one for which `when` raises."""
    topic, app, handled = new_topic(), new_app(on_failure="stop"), []
    witness.produce(topic, [b"1", b"nobody's" if unmatched == "skip" else b"x", b"1"])

    def is_one(record: Record) -> bool:
        if record.value == b"x":
            raise ValueError("no number")
        return record.value == b"1"

    @app.handler(topic, when=is_one, unmatched=unmatched)
    async def handle(value: bytes) -> None:
        handled.append(value)

    if unmatched == "skip":
        async with app:
            await until(lambda: len(handled) == 2)
        assert await witness.committed(group, topic, 1) == {0: 3}
    else:
        with pytest.raises(HandlerFailedError, match="no number"):
            await asyncio.wait_for(app.run(), 30)
        assert await witness.committed(group, topic, 1) == {0: 1}


async def test_unmatched_fails_by_default(new_app, new_topic, witness, group):
    """By default, a record that no handler matches fails and is not committed."""
    topic, app = new_topic(), new_app(on_failure="stop")
    witness.produce(topic, [b"1"])

    @app.handler(topic, when=lambda _record: False)
    async def handle(value: bytes) -> None: ...

    with pytest.raises(HandlerFailedError, match="no handler's when= matches this record"):
        await asyncio.wait_for(app.run(), 30)

    assert (await witness.committed(group, topic, 1)).get(0, 0) == 0


async def test_an_app_without_handlers_publishes(kafka_server, new_topic, witness):
    """Without handlers, an app needs no group, starts no consumer, is ready once a broker answers, and publishes."""
    topic, recorder = new_topic(), EventRecorder()
    app = App(**kafka_server.client_options, hooks=[recorder])

    async with app:
        await app.wait_ready()
        assert app.health().is_ready
        assert (await app.publish(topic, b"1")).offset == 0

    assert recorder.of(ConsumerStarted) == []
    assert not app.health().is_ready


async def test_an_app_without_handlers_cannot_run():
    """run() raises for an app without handlers, which were probably not included."""
    with pytest.raises(ConfigurationError, match="no handlers to run"):
        await App(bootstrap_servers="localhost:1", group_id="g").run()


def test_an_app_always_commits(monkeypatch):
    """App refuses enable_auto_commit=False from configure() and the environment, and keeps its configuration."""
    app = App(group_id="g", enable_auto_commit=True)
    with pytest.raises(ConfigurationError, match="always commits the offsets of finished records"):
        app.configure(enable_auto_commit=False, client_id="other")
    assert dict(app.options) == {"group_id": "g", "enable_auto_commit": True}
    monkeypatch.setenv("TAILRACE_ENABLE_AUTO_COMMIT", "false")
    with pytest.raises(ConfigurationError, match="always commits the offsets of finished records"):
        App(group_id="g")


def test_configure_takes_options_of_consumers_only():
    """configure() refuses options of App itself, with advice, and App() suggests the option meant by a typo."""
    with pytest.raises(ConfigurationError, match=r"dead_letter is an option of App\(\)"):
        App(group_id="g").configure(dead_letter="dead")
    with pytest.raises(ConfigurationError, match="did you mean 'dead_letter'"):
        App(group_id="g", dead_leter="dead")


def two_of_one_topic(app):
    for _ in range(2):

        @app.handler("t")
        async def handle(value: bytes) -> None: ...


def without_parameters(app):
    @app.handler("t")
    async def handle() -> None: ...


@pytest.mark.parametrize(
    ("declare", "message"),
    [(two_of_one_topic, "both receive topic 't'.*when="), (without_parameters, "handle")],
)
async def test_invalid_handlers_are_refused_before_the_start(declare, message):
    """A handler that cannot work raises ConfigurationError at the start, before a broker is contacted."""
    app = App(bootstrap_servers="localhost:1", group_id="g")
    declare(app)

    with pytest.raises(ConfigurationError, match=message):
        await app.start()


@pytest.mark.parametrize(
    "options", [{"order_by": "keys"}, {"concurrency": 0}, {"timeout_ms": -1}, {"on_failure": "ignore"}, {"retry": 3}]
)
def test_options_of_a_handler_are_checked_when_it_is_declared(options):
    """An invalid option raises ConfigurationError with its name."""
    (name,) = options

    with pytest.raises(ConfigurationError, match=name):
        App(group_id="g").handler("t", **options)
