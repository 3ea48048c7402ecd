"""Shop that charges orders and publishes invoices; orders that cannot be charged become dead letters.

tailrace kafka --topic orders:6 --topic invoices      # in one terminal; prints an export command
python examples/shop.py order ann 5                   # in another terminal, after that command: place an order
tailrace run examples.shop:billing                    # charge orders, until Ctrl-C
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import msgspec

from tailrace import App, Key, Reject, Retry

billing = App(group_id="billing", dead_letter="{topic}.{group}.dead")


class Order(msgspec.Struct):
    """Order of a customer; the key of the record is the customer's name."""

    total: int


class Invoice(msgspec.Struct):
    """Amount that a customer owes."""

    customer: str
    total: int


@billing.handler("orders", order_by="key", concurrency=100, publish="invoices", retry=Retry(attempts=5))
async def charge(order: Order, customer: Annotated[str, Key]) -> Invoice:
    """Charge the orders of one customer in order, and those of a hundred customers at the same time."""
    if order.total < 0:
        raise Reject("negative total")
    return Invoice(customer, order.total)


async def order(customer: str, total: int) -> None:
    """Publish an order."""
    async with billing:
        await billing.publish("orders", Order(total), key=customer)


if __name__ == "__main__":
    _, _, who, amount = sys.argv
    asyncio.run(order(who, int(amount)))
