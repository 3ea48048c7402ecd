"""Worker without a web framework, with metrics, probes and traces: `tailrace run --http-port` as a program.

tailrace kafka --topic orders:6                       # in one terminal; prints a variable to export
pip install 'tailrace[prometheus,opentelemetry]'      # in another, with that variable
python examples/monitored_worker.py
curl localhost:8080/metrics
curl localhost:8080/readyz
curl localhost:8080/lag
"""

from __future__ import annotations

import asyncio
import os

from tailrace import App
from tailrace.integrations.endpoints import serve
from tailrace.integrations.opentelemetry import OpenTelemetry

# The hook makes spans with the tracer provider of the program; examples/traced.py sets one.
billing = App(group_id="billing", hooks=[OpenTelemetry()])


@billing.handler("orders")
async def charge(order: bytes) -> None:
    """Charge an order."""
    print("charged", order.decode(), flush=True)


async def main() -> None:
    """Serve metrics and probes from before the start until after the stop."""
    async with serve(billing, port=int(os.environ.get("PORT", "8080"))):
        await billing.run()


if __name__ == "__main__":
    asyncio.run(main())
