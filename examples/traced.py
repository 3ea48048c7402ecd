"""Publish a receipt for each payment, and print a span for each payment, receipt, fetch and commit.

tailrace kafka --topic payments:6 --topic receipts    # in one terminal; prints an export command
pip install opentelemetry-sdk                         # in another terminal, after that export command
python examples/traced.py 5                           # pay 5; prints the span of sending the payment
tailrace run examples.traced:cashier                  # prints the other spans of the trace, until Ctrl-C
"""

from __future__ import annotations

import asyncio
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from tailrace import App
from tailrace.integrations.opentelemetry import OpenTelemetry

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)

cashier = App(group_id="cashier", hooks=[OpenTelemetry()])


@cashier.handler("payments", publish="receipts")
async def acknowledge(total: int) -> str:
    """Return a receipt, which is published to the topic receipts."""
    return f"received {total}"


async def pay(total: int) -> None:
    """Publish a payment."""
    async with App(hooks=[OpenTelemetry()]) as app:
        await app.publish("payments", total)


if __name__ == "__main__":
    asyncio.run(pay(int(sys.argv[1])))
