"""Write docs/compatibility.md from the results in docs/compatibility.json: python docs/compatibility.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

PAGE = Path(__file__).parent / "compatibility.md"
RESULTS = Path(__file__).parent / "compatibility.json"

OPENING = """\
# Which brokers, which clouds

[`scripts/brokers`](../CONTRIBUTING.md#test-brokers) runs one suite of tests on each broker and writes this page. The
suite reads, publishes and commits with tailrace, and compares the result with what librdkafka wrote.

| capability | what the suite does |
|---|---|
| consume | reads 1,000 records in order |
| classic group | two members share the partitions of a topic; one of them leaves |
| KIP-848 | reads with `group_protocol="consumer"` |
| offset map | acknowledges records out of order, and restarts: only the others are delivered again |
| publish | publishes with `App.publish` |
| retry topics, dead letters | a record that fails goes through a retry topic to the dead-letter topic |
| exactly once | results of 200 records with `delivery="exactly_once"`, read with `read_committed` |
| doctor | `tailrace doctor` on a topic |
| commands | `groups list`, `lag`, `offsets show`, `offsets reset`, `tail` |

"no" means that tailrace refuses with an error, which the footnote shows.
"""

RELEASES_INTRO = "Apache Kafka, one broker of each release, with ZooKeeper before 3.3."

SERVICES_INTRO = (
    "Services that cannot run in a test. A proxy in front of Apache Kafka offers the versions that the service offers"
    " according to a public source, and closes the connection on any other version. This shows that tailrace finds a"
    " version of each request, not that the service behaves like Apache Kafka. The records are older than the services"
    " are today: the only record of Event Hubs that has InitProducerId, of 2019, says that it is not supported. There,"
    " tailrace publishes without idempotence, so a record whose answer is lost may be stored twice."
)

NOT_TRIED = """\
Not tried, because no complete list of their versions was found: Confluent Cloud, Amazon MSK, WarpStream, AutoMQ, OCI
Streaming and Google Cloud Managed Service for Apache Kafka. Where a service runs a release of Apache Kafka, see that
release in the first table. Of WarpStream, the [documentation](https://docs.warpstream.com/warpstream/reference/protocol-and-feature-support)
lists requests without versions. `tailrace doctor` shows what your brokers support.
"""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Footnotes:
    """Numbered texts below a table; equal texts share a number."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def number(self, text: str) -> int:
        """Return the number of a text."""
        if text not in self._texts:
            self._texts.append(text)
        return self._texts.index(text) + 1

    def lines(self) -> Iterator[str]:
        """Yield the texts with their numbers."""
        for number, text in enumerate(self._texts, 1):
            yield fill(f"{number}. {text}", 120, subsequent_indent="   ", break_long_words=False)


def section(found: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the table of some brokers, with its footnotes."""
    notes = Footnotes()
    capabilities = list(found[0][1]["capabilities"])
    rows = []
    for name, result in found:
        label = f"[{name}]({result['source']})" if "source" in result else name
        cells = []
        for capability in capabilities:
            one = result["capabilities"].get(capability, {"result": "not tried"})
            note = f" ({notes.number(one['error'])})" if one.get("error") else ""
            cells.append(f"{one['result']}{note}")
        evidence = "run with recorded ranges" if "source" in result else "run here"
        rows.append([label, result["version"], result["date"], evidence, *cells])
    text = table(["broker", "version", "date", "evidence", *capabilities], rows)
    listed = "\n".join(notes.lines())
    return f"{text}\n\n{listed}\n" if listed else f"{text}\n"


def written(results: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return the page."""
    found = json.loads(RESULTS.read_text()) if results is None else results
    releases = sorted(
        ((f"Kafka {name}", one) for name, one in found.items() if "source" not in one),
        key=lambda row: [int(part) for part in row[1]["version"].split(".")],
    )
    services = sorted((name, one) for name, one in found.items() if "source" in one)
    parts = [OPENING]
    if releases:
        parts += ["## Releases of Apache Kafka\n", f"{fill(RELEASES_INTRO, 120)}\n", section(releases)]
    if services:
        parts += ["## Services\n", f"{fill(SERVICES_INTRO, 120)}\n", section(services)]
    parts.append(NOT_TRIED)
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    before = PAGE.read_text() if PAGE.exists() else ""
    page = written()
    PAGE.write_text(page)
    sys.stderr.write(f"{PAGE}: {'unchanged' if page == before else 'updated'}\n")


if __name__ == "__main__":
    main()
