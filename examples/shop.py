"""A shop: orders are charged, invoices come of it, and what cannot be charged is a dead letter.

tailrace kafka --topic orders:6 --topic invoices      # in one terminal; it prints what to export
python examples/shop.py order ann 5                   # in another, after that export: a few orders
tailrace run examples.shop:billing                    # charges them, until Ctrl-C
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import msgspec

from tailrace import App, Key, Reject, Retry

billing = App(group_id="billing", dead_letter="{topic}.{group}.dead")


class Order(msgspec.Struct):
    """What a customer wants."""

    total: int


class Invoice(msgspec.Struct):
    """What a customer has to pay."""

    customer: str
    total: int


@billing.handler("orders", order_by="key", concurrency=100, publish="invoices", retry=Retry(attempts=5))
async def charge(order: Order, customer: Annotated[str, Key]) -> Invoice:
    """One customer's orders one after the other, a hundred customers' at once."""
    if order.total < 0:
        raise Reject("negative total")
    return Invoice(customer, order.total)


async def order(customer: str, total: int) -> None:
    """Place an order."""
    async with billing:
        await billing.publish("orders", Order(total), key=customer)


if __name__ == "__main__":
    _, _, who, amount = sys.argv
    asyncio.run(order(who, int(amount)))
