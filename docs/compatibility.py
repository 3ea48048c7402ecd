"""Write docs/compatibility.md from the results in docs/compatibility.json: python docs/compatibility.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from textwrap import fill
from typing import Any

PAGE = Path(__file__).parent / "compatibility.md"
RESULTS = Path(__file__).parent / "compatibility.json"

OPENING = """\
# Which brokers, which clouds

[`scripts/brokers`](../CONTRIBUTING.md#test-brokers) runs one suite of tests on each broker and writes this page. The
suite reads, publishes and commits with tailrace, and compares the result with what librdkafka wrote and reads.
"""

CAPABILITIES = {
    "consume": "reads 1,000 records in order",
    "classic group": "two members share the partitions of a topic; one of them leaves",
    "KIP-848": 'reads with `group_protocol="consumer"`',
    "offset map": "acknowledges records out of order: the commit's metadata lists them, and after a restart only the"
    " others are delivered again",
    "publish": "publishes with `App.publish`",
    "retry topics, dead letters": "a record that fails goes through a retry topic to the dead-letter topic",
    "exactly once": 'results of 200 records with `delivery="exactly_once"`, read with `read_committed`, and the'
    " committed offsets",
    "doctor": "`tailrace doctor` on a topic",
    "commands": "`groups list` and `show`, `lag`, `offsets show` and `reset`, `tail`, `run`",
    "dead-letter commands": "`dead-letters list`, `show` and `replay`",
    "deleting commands": "`offsets delete` and `groups delete`",
}
"""Actions of the suite, by capability."""

MEANINGS = """\
"no" means that tailrace refuses with an error, "fails" that the broker is the cause; the footnote has the reason.
"""

RELEASES_INTRO = "Apache Kafka, one broker of each release, with ZooKeeper before 3.3."

ENGINES_INTRO = (
    "Programs other than Apache Kafka that speak its protocol. kfake is the broker with which franz-go is tested;"
    " librdkafka's mock cluster is in the package confluent-kafka."
)

SERVICES_INTRO = (
    "Services that cannot run in a test. A proxy in front of Apache Kafka offers the versions that the service offers"
    " according to a public source, and closes the connection on any other version. This shows that tailrace finds a"
    " version of each request, not that the service behaves like Apache Kafka. The records are older than the services"
    " are today."
)

SERVICES_NOTES = """\
The only record of Event Hubs that has InitProducerId, of 2019, says that it is not supported. There, tailrace publishes
without idempotence, so a record whose answer is lost may be stored twice. The documentation of Event Hubs now
[describes transactions](https://learn.microsoft.com/azure/event-hubs/apache-kafka-transactions) as a preview of the
tiers Premium and Dedicated.
"""

OTHER_SERVICES = {
    "[Amazon MSK](howto/connect-to-amazon-msk.md)": "Apache Kafka, [3.7 to 4.1]"
    "(https://docs.aws.amazon.com/msk/latest/developerguide/supported-kafka-versions.html): see the first table",
    "[Google's Managed Service for Apache Kafka](howto/connect-to-google-cloud.md)": "Apache Kafka with KRaft: see the"
    " first table",
    "[OCI Streaming with Apache Kafka](https://docs.oracle.com/iaas/Content/kafka/versions.htm)": "Apache Kafka 3.9.1"
    " and 4.0.0: see the first table",
    "[OCI Streaming](https://docs.oracle.com/en-us/iaas/Content/Streaming/Tasks/kafkacompatibility.htm)": "its own"
    " broker; its documentation says that idempotent producers and transactions are missing",
    "[Confluent Cloud](howto/connect-to-confluent-cloud.md)": "its own build of Apache Kafka; no list of versions is"
    " published",
    "[WarpStream](https://docs.warpstream.com/warpstream/reference/protocol-and-feature-support)": "its own broker; its"
    " documentation lists requests without versions",
    "AutoMQ": "its own build of Apache Kafka; no list of versions was found",
}
"""Brokers of the services that were not tried, by name."""

ENDING = """\
[`tailrace doctor`](howto/check-a-cluster.md) shows what your brokers support.
"""

SECTIONS = {
    "release": ("Releases of Apache Kafka", RELEASES_INTRO),
    "engine": ("Other programs", ENGINES_INTRO),
    "service": ("Services", SERVICES_INTRO),
}
"""Heading and introduction by kind of broker."""


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
        evidence = "run with recorded ranges" if result.get("kind") == "service" else "run here"
        rows.append([label, result["version"], result["date"], evidence, *cells])
    text = table(["broker", "version", "date", "evidence", *capabilities], rows)
    listed = "\n".join(notes.lines())
    return f"{text}\n\n{listed}\n" if listed else f"{text}\n"


def written(results: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return the page."""
    found = json.loads(RESULTS.read_text()) if results is None else results
    parts = [OPENING, f"{table(['capability', 'what the suite does'], list(CAPABILITIES.items()))}\n", MEANINGS]
    for kind, (heading, introduction) in SECTIONS.items():
        rows = [(name, one) for name, one in found.items() if one.get("kind", "release") == kind]
        if kind == "release":
            rows = [(f"Kafka {name}", one) for name, one in rows]
        rows.sort(key=_version if kind == "release" else itemgetter(0))
        if rows:
            parts += [f"## {heading}\n", f"{fill(introduction, 120)}\n", section(rows)]
    others = [[name, runs, "not tried"] for name, runs in OTHER_SERVICES.items()]
    parts += [SERVICES_NOTES, f"{table(['service', 'runs', 'evidence'], others)}\n", ENDING]
    return "\n".join(parts)


def _version(row: tuple[str, Mapping[str, Any]]) -> list[int]:
    return [int(part) for part in row[1]["version"].split(".")]


def main() -> None:
    """Write the page."""
    before = PAGE.read_text() if PAGE.exists() else ""
    page = written()
    PAGE.write_text(page)
    sys.stderr.write(f"{PAGE}: {'unchanged' if page == before else 'updated'}\n")


if __name__ == "__main__":
    main()
