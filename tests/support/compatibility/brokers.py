"""Releases of Apache Kafka on which the compatibility suite runs, and how their brokers start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.testing import KafkaServer
from tests.support.compatibility.zookeeper_broker import zookeeper_broker

__all__ = ["RELEASES", "expected_refusals", "running_broker"]

RELEASES = {
    "2.1": "2.1.1",
    "2.4": "2.4.1",
    "2.8": "2.8.2",
    "3.3": "3.3.2",
    "3.9": "3.9.1",
    "4.0": "4.0.0",
    "4.1": "4.1.0",
    "4.2": "4.2.0",
    "4.3": "4.3.0",
    "4.4": "4.4.0",
}
"""Version that is run, by minor release."""

_FIRST_RELEASE = {"KIP-848": (4, 0), "exactly once": (2, 5), "deleting commands": (2, 4)}
"""First release of Apache Kafka with a capability that not all supported releases have."""


def expected_refusals(release: str) -> set[str]:
    """Return the capabilities that tailrace refuses on a release, because its brokers lack them."""
    numbers = tuple(map(int, release.split(".")))
    return {name for name, first in _FIRST_RELEASE.items() if numbers < first}


@contextmanager
def running_broker(release: str) -> Iterator[str]:
    """Run a broker of a release; yield its address.

    Raises:
        KafkaNotAvailableError: the broker cannot be downloaded or does not start.
    """
    version = RELEASES[release]
    if int(release[0]) < 3:
        with zookeeper_broker(version) as address:
            yield address
    else:
        with KafkaServer(version=version) as server:
            yield server.bootstrap_servers
