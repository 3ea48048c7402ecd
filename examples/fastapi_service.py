"""Web service with FastAPI: publishes orders to Kafka and charges them in the same process.

tailrace kafka --topic orders:6                       # in one terminal; prints an export command
uvicorn examples.fastapi_service:web                  # in another terminal, after that export command
curl localhost:8000/orders -H 'content-type: application/json' -d '{"customer": "ann", "total": 5}'
curl localhost:8000/customers/ann
curl localhost:8000/readyz
curl localhost:8000/metrics
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing, contextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from starlette.routing import Route

from tailrace import App, PublishError, PublishTimeoutError, Record
from tailrace.integrations.opentelemetry import OpenTelemetry
from tailrace.integrations.prometheus import metrics_app

# tailrace logs with the standard library's logging, which the program configures.
logging.basicConfig(level=logging.INFO)


class Order(BaseModel):
    """Order of a customer, which both the route and the handler decode."""

    customer: str
    total: int


# The hook creates spans with the tracer provider of the program; examples/traced.py sets a tracer provider.
billing = App(group_id="billing", hooks=[OpenTelemetry()])


@contextmanager
def transaction() -> Generator[sqlite3.Connection]:
    """Open a connection for one transaction, because handlers and routes run in several threads at once."""
    with closing(sqlite3.connect(os.environ.get("BILLING_DATABASE", "billing.db"), timeout=30)) as database, database:
        yield database


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncGenerator[None]:
    """Create the database before the handlers start.

    A service whose handlers need no preparation uses ``FastAPI(lifespan=billing.lifespan)``.
    """
    with transaction() as database:
        database.execute("PRAGMA journal_mode = WAL")  # Routes read while a handler writes.
        database.execute(
            "CREATE TABLE IF NOT EXISTS charges (topic TEXT, partition INTEGER, offset INTEGER, customer TEXT,"
            " total INTEGER, PRIMARY KEY (topic, partition, offset))"
        )
    async with billing:
        yield


web = FastAPI(title="billing", lifespan=lifespan)


@billing.handler("orders", order_by="key", concurrency=10)
def charge(order: Order, record: Record) -> None:
    """Charge the orders of one customer in order, and those of ten customers at the same time.

    sqlite3 blocks, so this is a plain function, of which tailrace runs up to ten calls at once, each in a thread. With
    an async driver, use ``async def``. A record may be handled again, for example after a crash; the primary key
    prevents that it is charged again.
    """
    with transaction() as database:
        database.execute(
            "INSERT OR IGNORE INTO charges VALUES (?, ?, ?, ?, ?)",
            (record.topic, record.partition, record.offset, order.customer, order.total),
        )


@web.post("/orders", status_code=202)
async def place(order: Order) -> Order:
    """Publish an order, and respond after Kafka has acknowledged it."""
    try:
        await billing.publish("orders", order, key=order.customer)
    except PublishTimeoutError as error:
        detail = "unknown, please check" if error.may_be_stored else "not placed, please try again"
        raise HTTPException(503, detail) from error
    except PublishError as error:
        raise HTTPException(503, "not placed") from error
    return order


@web.get("/customers/{customer}")
def show_charges(customer: str) -> dict[str, int]:
    """Return the total amount that a customer was charged."""
    with transaction() as database:
        sums = database.execute("SELECT sum(total) FROM charges WHERE customer = ?", (customer,))
        return {"charged": sums.fetchone()[0] or 0}


web.routes.extend(Route(path, billing.health_app) for path in ("/livez", "/readyz"))
web.routes.append(Route("/metrics", metrics_app(billing)))
