"""Subscriptions as members of a classic group tell each other: what the assignor's own data adds to the common part.

``sticky`` is older than the common part's owned partitions and says what was held in data of its own;
``cooperative-sticky`` says the generation there, for readers of old versions (KIP-341, KIP-429, KIP-792).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.protocol.member_metadata import (
    MemberSubscription,
    OwnedPartitions,
    decode_cooperative_data,
    decode_sticky_data,
    decode_subscription,
    encode_cooperative_data,
    encode_sticky_data,
    encode_subscription,
)

__all__ = ["read_subscription", "write_subscription"]


def write_subscription(
    said: MemberSubscription, assignor: str, held_before: Sequence[OwnedPartitions], generation: int
) -> bytes:
    """The bytes of a subscription that is offered under the name of ``assignor``."""
    if assignor == "sticky":
        said = replace(said, user_data=encode_sticky_data(held_before, generation))
    elif assignor == "cooperative-sticky":
        said = replace(said, user_data=encode_cooperative_data(said.generation_id))
    return encode_subscription(said)


def read_subscription(data: bytes, assignor: str) -> MemberSubscription:
    """A member's subscription, with all that it says of what it held, wherever it says it.

    Raises:
        MalformedMessageError: the bytes are no subscription.
    """
    said = decode_subscription(data)
    if assignor == "sticky":
        held, generation = decode_sticky_data(said.user_data)
        return replace(said, owned_partitions=held, generation_id=generation)
    if assignor == "cooperative-sticky" and said.generation_id < 0:
        return replace(said, generation_id=decode_cooperative_data(said.user_data))
    return said
