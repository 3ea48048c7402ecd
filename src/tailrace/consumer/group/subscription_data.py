"""Subscriptions of classic group members, with the user data of the sticky assignors.

Only later versions of the subscription have fields for owned partitions (KIP-429) and the generation (KIP-792). The
``sticky`` assignor is older and writes both into the user data (KIP-341). ``cooperative-sticky`` uses the field for
owned partitions, and writes the generation into the user data, for members that read only older versions.
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
    subscription: MemberSubscription, assignor: str, last_assigned: Sequence[OwnedPartitions], last_generation: int
) -> bytes:
    """Return the encoded subscription that a join offers with ``assignor``.

    Args:
        subscription: subscription of the member.
        assignor: name of the assignor, which decides about the user data.
        last_assigned: last assignment of the member, for ``sticky``.
        last_generation: generation of ``last_assigned``.
    """
    if assignor == "sticky":
        subscription = replace(subscription, user_data=encode_sticky_data(last_assigned, last_generation))
    elif assignor == "cooperative-sticky":
        subscription = replace(subscription, user_data=encode_cooperative_data(subscription.generation_id))
    return encode_subscription(subscription)


def read_subscription(data: bytes, assignor: str) -> MemberSubscription:
    """Return the subscription of a member; for the sticky assignors, partly decoded from the user data.

    Raises:
        MalformedMessageError: ``data`` is not a valid subscription.
    """
    subscription = decode_subscription(data)
    if assignor == "sticky":
        owned, generation = decode_sticky_data(subscription.user_data)
        return replace(subscription, owned_partitions=owned, generation_id=generation)
    if assignor == "cooperative-sticky" and subscription.generation_id < 0:
        return replace(subscription, generation_id=decode_cooperative_data(subscription.user_data))
    return subscription
