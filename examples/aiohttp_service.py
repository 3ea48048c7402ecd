"""A web service with aiohttp: orders come over HTTP, go through Kafka, and invoices come of them, in one process.

tailrace kafka --topic orders:6 --topic invoices      # in one terminal; it prints what to export
python examples/aiohttp_service.py                    # in another, after that export
curl localhost:8080/orders -d '{"customer": "ann", "total": 5}'
curl localhost:8080/readyz
"""

from __future__ import annotations

import logging
import os

import msgspec
from aiohttp import web

from tailrace import App, PublishError

# tailrace logs as any library does: what becomes of it is for the program to say.
logging.basicConfig(level=logging.INFO)


class Order(msgspec.Struct):
    """What a customer wants."""

    customer: str
    total: int


class Invoice(msgspec.Struct):
    """What a customer has to pay."""

    customer: str
    due: int


billing = App(group_id="billing")


@billing.handler("orders", publish="invoices")
async def charge(order: Order) -> Invoice:
    """What it returns is published before the order counts as done."""
    return Invoice(order.customer, order.total)


async def place(request: web.Request) -> web.Response:
    """Answers when Kafka has the order for good."""
    try:
        order = msgspec.json.decode(await request.read(), type=Order)
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    try:
        await billing.publish("orders", order, key=order.customer)
    except PublishError as error:
        raise web.HTTPServiceUnavailable(text="not placed, please try again") from error
    return web.Response(status=202)


async def probe(request: web.Request) -> web.Response:
    """Live unless a restart would heal it; ready once the group has dealt out its partitions."""
    health = billing.health()
    is_good = health.is_live if request.path == "/livez" else health.is_ready
    body = msgspec.json.encode(health)
    return web.Response(status=200 if is_good else 503, body=body, content_type="application/json")


service = web.Application()
service.add_routes([web.post("/orders", place), web.get("/livez", probe), web.get("/readyz", probe)])
# The handlers run from before the first request until after the last one. Contexts that stand before this one,
# such as a database's, are entered before and left after it.
service.cleanup_ctx.append(billing.cleanup_ctx)

if __name__ == "__main__":
    web.run_app(service, port=int(os.environ.get("PORT", "8080")))
