"""Capabilities of brokers that an app needs: those without which it does not start, and those that it may use.

Pure: no clock, IO or logging.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.app.policies import Retry
from tailrace.core.capabilities import ClusterVersions
from tailrace.errors import UnsupportedVersionError
from tailrace.protocol.handshake import CONSUMER_PROTOCOL, TOPIC_IDS, Capability
from tailrace.protocol.transactions import PUBLISHING, TRANSACTIONS

__all__ = ["CANNOT_PUBLISH", "BrokerNeeds", "PublishingOptions", "Shortfall", "broker_needs"]

CANNOT_PUBLISH = "App.publish() raises an error"
"""Consequence if publishing is not possible and no handler publishes."""


class PublishingOptions(Protocol):
    """Options of a handler that publish."""

    @property
    def name(self) -> str: ...
    @property
    def publish(self) -> str | None: ...
    @property
    def dead_letter(self) -> str | None: ...
    @property
    def retry(self) -> Retry | None: ...
    @property
    def delays_ms(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Capability that an app may use, and that a broker lacks."""

    reason: str
    consequence: str


@dataclass(frozen=True, slots=True)
class BrokerNeeds:
    """Capabilities of brokers that an app needs."""

    required: Mapping[Capability, str]
    """Capabilities without which the app does not start, and a clause about what needs them; empty if it is clear."""
    useful: Mapping[Capability, str]
    """Capabilities that the app may use, and what does not work without them."""

    def check(self, versions: ClusterVersions) -> Sequence[Shortfall]:
        """Return the useful capabilities that a broker lacks.

        Raises:
            UnsupportedVersionError: a broker lacks a required capability.
        """
        for capability, user in self.required.items():
            if lack := versions.lacks(capability):
                raise UnsupportedVersionError(f"{user and f'{user}, but '}{lack} - {capability.advice}")
        lacks = ((versions.lacks(capability), consequence) for capability, consequence in self.useful.items())
        return [Shortfall(lack, consequence) for lack, consequence in lacks if lack]


def broker_needs(handlers: Iterable[PublishingOptions], group_protocol: str, *, has_transactions: bool) -> BrokerNeeds:
    """Return the needs of an app with these handlers, whose options are filled in.

    Publishing is required if a handler publishes results, uses retry topics or has a dead-letter topic; or if there is
    no handler, because such an app only publishes. Otherwise only ``App.publish`` uses it.
    """
    handlers = list(handlers)
    required: dict[Capability, str] = {}
    if user := next(
        filter(None, map(_publisher, handlers)), "" if handlers else "the app has no handlers and publishes"
    ):
        required[PUBLISHING] = user
    if has_transactions:
        required[TRANSACTIONS] = ""
    if group_protocol == "consumer" and handlers:
        required[CONSUMER_PROTOCOL] = "the app has group_protocol='consumer'"
    useful: dict[Capability, str] = {}
    if PUBLISHING not in required:
        useful[PUBLISHING] = CANNOT_PUBLISH
    if handlers:
        useful[TOPIC_IDS] = "a topic that is deleted and created again is read on from the former offsets"
    return BrokerNeeds(required, useful)


def _publisher(handler: PublishingOptions) -> str:
    """Return a clause about the first option of a handler that publishes; empty if there is none."""
    if handler.delays_ms:
        return "the app has publish_delays_ms"
    if handler.publish is not None:
        return f"{handler.name} has publish={handler.publish!r}"
    if handler.dead_letter is not None:
        return f"{handler.name} has dead_letter={handler.dead_letter!r}"
    if handler.retry is not None and handler.retry.topic_delays_ms:
        return f"{handler.name} has retry topics"
    return ""
