"""Web service with aiohttp: publishes orders to Kafka and handles them in the same process.

tailrace kafka --topic orders:6 --topic invoices      # in one terminal; prints an export command
python examples/aiohttp_service.py                    # in another terminal, after that export command
curl localhost:8080/orders -d '{"customer": "ann", "total": 5}'
curl localhost:8080/readyz
curl localhost:8080/metrics
"""

from __future__ import annotations

import logging
import os

import msgspec
from aiohttp import web

from tailrace import App, PublishError, PublishTimeoutError
from tailrace.integrations.prometheus import exposition

# tailrace logs with the standard library's logging, which the program configures.
logging.basicConfig(level=logging.INFO)


class Order(msgspec.Struct):
    """Order of a customer."""

    customer: str
    total: int


class Invoice(msgspec.Struct):
    """Amount that a customer owes."""

    customer: str
    due: int


billing = App(group_id="billing")


@billing.handler("orders", publish="invoices")
async def charge(order: Order) -> Invoice:
    """Return the invoice, which tailrace publishes before it commits the offset of the order."""
    return Invoice(order.customer, order.total)


async def place(request: web.Request) -> web.Response:
    """Publish an order, and respond after Kafka has acknowledged it."""
    try:
        order = msgspec.json.decode(await request.read(), type=Order)
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=str(error)) from error
    try:
        await billing.publish("orders", order, key=order.customer)
    except PublishTimeoutError as error:
        text = "unknown, please check" if error.may_be_stored else "not placed, please try again"
        raise web.HTTPServiceUnavailable(text=text) from error
    except PublishError as error:
        raise web.HTTPServiceUnavailable(text="not placed") from error
    return web.Response(status=202)


async def probe(request: web.Request) -> web.Response:
    """Respond to a probe: /livez fails if a restart would help, and /readyz while no partitions are assigned."""
    health = billing.health()
    is_good = health.is_live if request.path == "/livez" else health.is_ready
    body = msgspec.json.encode(health)
    return web.Response(status=200 if is_good else 503, body=body, content_type="application/json")


async def metrics(request: web.Request) -> web.Response:
    """Return the metrics for Prometheus."""
    body, content_type = await exposition(billing, accept=request.headers.get("accept", ""))
    return web.Response(body=body, headers={"content-type": content_type})


service = web.Application()
service.add_routes([web.post("/orders", place), web.get("/livez", probe), web.get("/readyz", probe)])
service.add_routes([web.get("/metrics", metrics)])
# The handlers start before the first request and stop after the last one. Contexts that are appended earlier, such as
# that of a database, are entered before the handlers start, and exited after the handlers stop.
service.cleanup_ctx.append(billing.cleanup_ctx)

if __name__ == "__main__":
    web.run_app(service, port=int(os.environ.get("PORT", "8080")))
