"""The output of `tailrace doctor` on pages about services is that of a broker with the versions of the service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.commands import tailrace
from tests.support.compatibility.brokers import running_broker
from tests.support.compatibility.capabilities import Cluster
from tests.support.compatibility.services import SERVICES, running_service

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
BROKERS = {
    "connect-to-amazon-msk": "3.9",
    "connect-to-event-hubs": "Azure Event Hubs",
    "connect-to-google-cloud": "4.1",
    "connect-to-redpanda": "Redpanda",
}
"""Release or service that the output on a page is from."""


@contextmanager
def running(name: str) -> Iterator[Cluster]:
    """Run a release, or a broker that offers the versions of a service."""
    if name in SERVICES:
        with running_service(SERVICES[name]) as (cluster, _):
            yield cluster
    else:
        with running_broker(name) as address:
            yield Cluster(address, address)


def findings_about_versions(output: str) -> str:
    """Return the findings about versions and features, without addresses and line breaks."""
    text = " ".join(output.split())
    found = re.search(r"OK versions: .* transactions have version \d", text)
    assert found is not None, text
    return re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", found[0])


@pytest.mark.slow
@pytest.mark.parametrize("page", BROKERS)
def test_doctor_says_what_the_page_says(page):
    """The findings about versions on a page are those of `tailrace doctor`."""
    (shown,) = re.findall(
        r"^\$ tailrace doctor$\n(.*?)^```", (HOWTO / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE
    )

    with running(BROKERS[page]) as cluster:
        output = tailrace("doctor", f"--bootstrap-servers={cluster.address}").stdout

    assert findings_about_versions(output) == findings_about_versions(shown), output
