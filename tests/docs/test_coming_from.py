"""Pages for users of other clients: the program for the other client and the one for tailrace do the same."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import os
import re
import signal
import sys
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tailrace import Consumer, Producer
from tailrace.config import ProducerConfig
from tests.support.witness import Witness

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PACKAGES = {
    "aiokafka": "aiokafka",
    "confluent-kafka": "confluent_kafka",
    "faststream": "faststream",
    "kafka-python": "kafka",
    "pykafka": None,  # Kafka 4 supports no version that it uses
}
ORDERS = [b'{"customer":"%s","total":%d}' % (name, n) for n, name in enumerate((b"ann", b"bob", b"cleo"))]
SEEN = {
    "faststream": ["ann 0", "bob 1", "cleo 2"],
    **{one: [f"{n} {order!r}" for n, order in enumerate(ORDERS)] for one in PACKAGES if one != "faststream"},
}


def programs(origin: str) -> list[str]:
    """Return the program for the other client and the one for tailrace."""
    return re.findall(r"```python\n(.*?)```", (HOWTO / f"coming-from-{origin}.md").read_text(), re.DOTALL)


def runs(origin: str) -> list[str]:
    package = PACKAGES[origin]
    return ["old", "ours"] if package is not None and importlib.util.find_spec(package) else ["ours"]


@pytest.mark.parametrize(("origin", "which"), [(origin, which) for origin in PACKAGES for which in runs(origin)])
async def test_programs_of_both_columns_do_the_same(kafka_server, origin, which):
    """Both programs of a page print the three orders and end with exit code 0."""
    topic = f"t-{uuid.uuid4().hex[:12]}"
    kafka_server.create_topic(topic)
    Witness(kafka_server.bootstrap_servers).produce(topic, ORDERS)
    program = programs(origin)[which == "ours"].replace("localhost:9092", kafka_server.bootstrap_servers)
    program = program.replace('"orders"', repr(topic)).replace('"billing"', f'"g-{topic}"')

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-uc", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(90):
        seen: list[str] = []
        while len(seen) < 3 and (line := (await process.stdout.readline()).decode().strip()):
            seen += [line] if line in SEEN[origin] else []
        if origin == "faststream":
            process.send_signal(signal.SIGTERM)
        _, complaints = await process.communicate()

    assert seen == SEEN[origin], complaints.decode()
    assert process.returncode == 0
    assert which == "old" or complaints == b""


async def test_the_program_with_signal_handlers_ends_between_two_batches(kafka_server):
    """At SIGTERM, the program for services ends with exit code 0, and each published order is committed."""
    orders, invoices, group = (f"{kind}-{uuid.uuid4().hex[:12]}" for kind in "oig")
    kafka_server.create_topic(orders)
    kafka_server.create_topic(invoices)
    witness = Witness(kafka_server.bootstrap_servers)
    witness.produce(orders, ORDERS)
    program = programs("aiokafka")[2].replace('"orders"', repr(orders)).replace('"invoices"', repr(invoices))
    environment = {**os.environ, "TAILRACE_BOOTSTRAP_SERVERS": kafka_server.bootstrap_servers}

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program.replace('"billing"', repr(group)), stderr=asyncio.subprocess.PIPE, env=environment
    )
    options = {"bootstrap_servers": kafka_server.bootstrap_servers, "group_id": f"{group}-check"}
    async with asyncio.timeout(90):
        async with Consumer(invoices, **options) as consumer:
            published = [(await consumer.getone()).value for _ in ORDERS]
        process.send_signal(signal.SIGTERM)
        _, complaints = await process.communicate()

    assert (process.returncode, published) == (0, ORDERS), complaints.decode()
    assert await witness.committed(group, orders, 1) == {0: len(ORDERS)}


def test_the_differences_that_break_programs_silently_come_first():
    """The page on aiokafka starts with the differences that cause no error at the start of a program."""
    _, title, surprises, *_ = (HOWTO / "coming-from-aiokafka.md").read_text().split("\n\n")

    assert title == "## Differences to know first"
    for name in ("seek", "pattern", "max_poll_records", "enable_auto_commit", "rebalance_listener", "getmany"):
        assert name in surprises, name


# ---- producers -------------------------------------------------------------------------------------------------------

PRODUCERS = [
    ("aiokafka", "aiokafka", "AIOKafkaProducer"),
    ("confluent-kafka", "confluent_kafka", "Producer"),
    ("confluent-kafka", "confluent_kafka.aio", "AIOProducer"),
    ("kafka-python", "kafka", "KafkaProducer"),
]
OF_CALLS = {"codec", "headers", "key", "partition", "timestamp_ms"}


@pytest.mark.parametrize(("origin", "module", "name"), PRODUCERS)
def test_the_page_names_each_method_of_another_producer(origin, module, name):
    """Each public method of the other producer has a row, and each method and option that replaces it exists."""
    other = getattr(pytest.importorskip(module), name)
    text = (HOWTO / f"coming-from-{origin}.md").read_text()
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", text[text.index("Producer` answers") :], re.MULTILINE)
    old, new = (" ".join(columns) for columns in zip(*rows, strict=True))

    methods = {one for one in dir(other) if not one.startswith("_") and callable(getattr(other, one))}
    assert not {one for one in methods if not re.search(rf"\b{one}\(", old)}
    assert all(callable(getattr(Producer, one)) for one in re.findall(r"\bproducer\.(\w+)\(", new))
    options = {field.name for field in dataclasses.fields(ProducerConfig)} | OF_CALLS
    assert set(re.findall(r"\b(\w+)=", new)) <= options


async def test_what_the_tables_of_producers_promise(kafka_server):
    """Callbacks, calls from threads, transactions from function to function, and headers work as the pages say."""
    topic, loop = f"t-{uuid.uuid4().hex[:12]}", asyncio.get_running_loop()
    kafka_server.create_topic(topic)
    options = {"bootstrap_servers": kafka_server.bootstrap_servers}
    called: list[int] = []
    async with Producer(**options) as producer, Producer(transactional_id=topic, **options) as transactional:
        future = await producer.enqueue(topic, b"0", headers=list({"a": b"b"}.items()))
        future.add_done_callback(lambda one: called.append(one.result().offset))
        await producer.flush()

        def publish():
            return asyncio.run_coroutine_threadsafe(producer.send(topic, None), loop).result(60)

        assert (await asyncio.to_thread(publish)).offset == 1
        assert (called, producer.statistics().buffered_records) == ([0], 0)

        stack = AsyncExitStack()
        await stack.enter_async_context(transactional.transaction())
        await transactional.send(topic, b"2")
        await stack.aclose()

    async with Consumer(topic, auto_offset_reset="earliest", isolation_level="read_committed", **options) as consumer:
        records = [await consumer.getone() for _ in range(3)]
    assert [one.value for one in records] == [b"0", None, b"2"]
    assert records[0].headers == (("a", b"b"),)
