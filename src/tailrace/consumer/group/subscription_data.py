"""Subscriptions of classic group members, with the user data of the sticky assignors.

The ``sticky`` assignor is older than the subscription's field for owned partitions, and puts owned partitions into its
user data. ``cooperative-sticky`` puts the generation into its user data, for readers of old subscription versions
(KIP-341, KIP-429, KIP-792).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

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
    subscription: MemberSubscription, assignor: str, held_before: Sequence[OwnedPartitions], generation: int
) -> bytes:
    """Return the encoded subscription that is offered with ``assignor``."""
    if assignor == "sticky":
        subscription = replace(subscription, user_data=encode_sticky_data(held_before, generation))
    elif assignor == "cooperative-sticky":
        subscription = replace(subscription, user_data=encode_cooperative_data(subscription.generation_id))
    return encode_subscription(subscription)


def read_subscription(data: bytes, assignor: str) -> MemberSubscription:
    """Return a member's subscription; owned partitions and generation are read from where ``assignor`` puts them.

    Raises:
        MalformedMessageError: ``data`` is not a valid subscription.
    """
    subscription = decode_subscription(data)
    if assignor == "sticky":
        held, generation = decode_sticky_data(subscription.user_data)
        return replace(subscription, owned_partitions=held, generation_id=generation)
    if assignor == "cooperative-sticky" and subscription.generation_id < 0:
        return replace(subscription, generation_id=decode_cooperative_data(subscription.user_data))
    return subscription
