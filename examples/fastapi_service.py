"""A web service with FastAPI: orders come over HTTP, go through Kafka, and a handler in the same process charges them.

tailrace kafka --topic orders:6                       # in one terminal; it prints what to export
uvicorn examples.fastapi_service:web                  # in another, after that export
curl localhost:8000/orders -H 'content-type: application/json' -d '{"customer": "ann", "total": 5}'
curl localhost:8000/customers/ann
curl localhost:8000/readyz
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from tailrace import App, PublishError

# tailrace logs as any library does: what becomes of it is for the program to say.
logging.basicConfig(level=logging.INFO)


class Order(BaseModel):
    """What a customer wants: one model for the route and for the handler."""

    customer: str
    total: int


billing = App(group_id="billing")


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """The database first, then the handlers that need it; on the way down in reverse.

    A service whose handlers need nothing opened before says ``FastAPI(lifespan=billing.lifespan)`` instead.
    """
    path = os.environ.get("BILLING_DATABASE", "billing.db")
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as database:
        database.execute("PRAGMA journal_mode = WAL")  # who reads is in no writer's way
        database.execute("CREATE TABLE IF NOT EXISTS charges (customer TEXT, total INTEGER)")
        web.state.database = database
        async with billing:
            yield


web = FastAPI(title="billing", lifespan=lifespan)


@billing.handler("orders", order_by="key", concurrency=10)
def charge(order: Order) -> None:
    """One customer's orders one after the other, those of ten customers at once.

    It is a plain function, as sqlite3 blocks, and runs in a worker thread; what awaits its database is ``async def``.
    """
    web.state.database.execute("INSERT INTO charges VALUES (?, ?)", (order.customer, order.total))


@web.post("/orders", status_code=202)
async def place(order: Order) -> Order:
    """Answers when Kafka has the order for good."""
    try:
        await billing.publish("orders", order, key=order.customer)
    except PublishError as error:
        raise HTTPException(503, "not placed, please try again") from error
    return order


@web.get("/customers/{customer}")
def charged(customer: str) -> dict[str, int]:
    """What a customer was charged so far."""
    sums = web.state.database.execute("SELECT sum(total) FROM charges WHERE customer = ?", (customer,))
    return {"charged": sums.fetchone()[0] or 0}


web.add_route("/livez", billing.health_app)
web.add_route("/readyz", billing.health_app)
