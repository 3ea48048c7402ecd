"""The README's program runs as it stands, and its pages lead somewhere."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def is_python(block: str) -> bool:
    try:
        compile(block, "a page", "exec")
    except SyntaxError:
        return False
    return True


async def started(program: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-uc", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def test_the_first_program_prints_records_and_ends_on_sigterm(kafka_server):
    """What a newcomer copies first works: it prints what is produced, and SIGTERM ends it with exit code 0."""
    from confluent_kafka import Producer  # noqa: PLC0415 - the one use

    kafka_server.create_topic("greetings", 2)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    for n in range(5):
        producer.produce("greetings", b"order %d" % n, key=b"ann")
    assert producer.flush(20) == 0
    program = (
        blocks(PAGES[0])[0].replace("localhost:9092", kafka_server.bootstrap_servers).replace("orders", "greetings")
    )

    process = await started(program)
    async with asyncio.timeout(60):
        lines = [(await process.stdout.readline()).decode() for _ in range(5)]
        process.send_signal(signal.SIGTERM)
        _, complaints = await process.communicate()

    assert all(line.startswith("greetings ") and "b'ann'" in line for line in lines)
    assert (process.returncode, complaints) == (0, b"")


async def test_the_app_of_the_readme_publishes_and_ends_on_sigterm(kafka_server):
    """The handler that a newcomer copies charges an order, publishes its result, and ends with exit code 0."""
    from confluent_kafka import Consumer, Producer  # noqa: PLC0415 - the one use

    for topic in ("sales", "bills", "sales.billing.dead"):
        kafka_server.create_topic(topic)
    program = blocks(PAGES[0])[1].replace("localhost:9092", kafka_server.bootstrap_servers)
    program = program.replace('"orders"', '"sales"').replace('"invoices"', '"bills"')
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    producer.produce("sales", b'{"customer":"ann","total":5}', key=b"ann")
    assert producer.flush(20) == 0
    witness = Consumer(
        {"bootstrap.servers": kafka_server.bootstrap_servers, "group.id": "w", "auto.offset.reset": "earliest"}
    )
    witness.subscribe(["bills"])

    process = await started(program)
    try:
        async with asyncio.timeout(60):
            while (message := await asyncio.to_thread(witness.poll, 0.2)) is None or message.error():
                pass
            process.send_signal(signal.SIGTERM)
            _, complaints = await process.communicate()
    finally:
        await asyncio.to_thread(witness.close)

    assert message.value() == b'{"paid":5}'
    assert (process.returncode, complaints) == (0, b"")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_on_every_page_is_python(page):
    """Every Python block compiles."""
    assert [block for block in blocks(page) if not is_python(block)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_exist(page):
    """A file or folder that a page names in backquotes, with a known ending, is there."""
    named = re.findall(r"`((?:src/|tests/|docs/|scripts/|[a-z_]+/)[\w./-]+)`", page.read_text())
    places = (ROOT, ROOT / "src" / "tailrace", ROOT / "tests" / "consumer")
    missing = [name for name in named if not any((place / name).exists() for place in places)]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    """A link to a file of ours names one that is there."""
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []
