"""Worker without a web framework, with metrics, probes and traces, like `tailrace run --http-port`.

tailrace kafka --topic orders:6                       # in one terminal; prints an export command
pip install 'tailrace[prometheus,opentelemetry]'      # in another terminal, after that export command
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

# The hook creates spans with the tracer provider of the program; examples/traced.py sets a tracer provider.
billing = App(group_id="billing", hooks=[OpenTelemetry()])


@billing.handler("orders")
async def charge(order: bytes) -> None:
    """Charge an order."""
    print("charged", order.decode(), flush=True)


async def main() -> None:
    """Run the app, and serve metrics and probes while it starts, runs and stops."""
    async with serve(billing, port=int(os.environ.get("PORT", "8080"))):
        await billing.run()


if __name__ == "__main__":
    asyncio.run(main())
