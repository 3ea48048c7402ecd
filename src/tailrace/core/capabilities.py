"""Versions that each broker of a cluster offers, and the capabilities that follow. Pure: no clock, IO or logging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.errors import UnsupportedVersionError
from tailrace.protocol.handshake import BrokerVersions, Capability

__all__ = ["ClusterVersions"]


@dataclass(frozen=True, slots=True)
class ClusterVersions:
    """Versions that the brokers of a cluster offer.

    A capability of the cluster is one of all brokers, because any of them may lead a partition or coordinate a group.
    """

    by_broker: Mapping[str, BrokerVersions]
    """Versions by broker, such as ``1 (kafka-1:9092)``, of the brokers that answered."""
    unreached: Mapping[str, str]
    """Reasons by broker, of the brokers that did not answer."""

    def lacks(self, capability: Capability) -> str:
        """Return a clause that names the brokers without a capability, and the requests they lack; empty if none."""
        by_reason: dict[str, list[str]] = {}
        for broker, versions in self.by_broker.items():
            if reason := versions.lacks(capability):
                by_reason.setdefault(reason, []).append(broker)
        count = len(self.by_broker) + len(self.unreached)
        return "; ".join(
            f"{_subject(brokers, count)} not support {capability.name}: {reason}"
            for reason, brokers in by_reason.items()
        )

    def check(self, capability: Capability) -> None:
        """Check that all brokers that answered have a capability.

        Raises:
            UnsupportedVersionError: a broker lacks it; the message names the requests, the versions on both sides, and
                the next step.
        """
        if lack := self.lacks(capability):
            raise UnsupportedVersionError(f"{lack} - {capability.advice}")


def _subject(brokers: list[str], count: int) -> str:
    """Return the subject of a sentence about ``brokers``, of ``count`` in all, with "do" or "does"."""
    if count == 1:
        return "the broker does"
    if len(brokers) == count:
        return "the brokers do"
    if len(brokers) == 1:
        return f"broker {brokers[0]} does"
    return f"brokers {', '.join(brokers)} do"
