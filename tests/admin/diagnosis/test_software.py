"""Findings about this process, from given facts."""

from __future__ import annotations

from tailrace.admin.diagnosis.findings import Level
from tailrace.admin.diagnosis.software import SoftwareFacts, software_findings

FACTS = SoftwareFacts("3.12.1 (CPython)", "Linux x86_64", {"tailrace": "1.0", "aiokafka": "0.14.0"})


def test_versions_and_implementations_are_two_lines():
    """Two findings name the versions of Python, platform and packages, and the decoder and checksums."""
    versions, decoder = software_findings(FACTS)

    assert versions.text == "Python 3.12.1 (CPython) on Linux x86_64; tailrace 1.0, aiokafka 0.14.0"
    assert (versions.level, decoder.level) == (Level.OK, Level.OK)


def test_slow_implementations_are_warnings():
    """A slow implementation is a warning that names the variable or the missing module that causes it."""
    slow = SoftwareFacts("3.12.1", "Linux", is_compiled=False, is_pure_requested=True, has_fast_checksums=False)
    absent = SoftwareFacts("3.12.1", "Linux", is_compiled=False)

    assert [one.check for one in software_findings(slow) if one.level is Level.WARNING] == [
        "software.decoder",
        "software.checksums",
    ]
    assert "TAILRACE_PURE_PYTHON is set" in list(software_findings(slow))[1].text
    assert "tailrace._native is not installed" in list(software_findings(absent))[1].text


def test_missing_packages_are_a_problem():
    """A missing package is a problem with the command that installs it."""
    facts = SoftwareFacts("3.12.1", "Linux", {"tailrace": "1.0", "msgspec": ""})
    (one,) = [one for one in software_findings(facts) if one.level is Level.PROBLEM]

    assert one.command == "python -m pip install msgspec"
