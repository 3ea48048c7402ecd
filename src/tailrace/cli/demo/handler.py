"""Handler of flights, for the consumer group and for Spark.

Spark's workers import this module, so it imports only the modules that the handler needs.
"""

from __future__ import annotations

import msgspec

from tailrace.app.app import App
from tailrace.cli.demo.flights import Flight
from tailrace.config import ConsumerOptions

__all__ = ["Arrival", "app_of", "arrived"]


class Arrival(msgspec.Struct):
    """Route and delay of a flight."""

    route: str
    delay: int | None
    """Delay in minutes; None if the flight did not arrive."""


async def arrived(flight: Flight) -> Arrival:
    """Return the route and the delay of a flight."""
    return Arrival(flight.route, flight.arr_delay)


def app_of(topic: str, options: ConsumerOptions) -> App:
    """Return an app that handles the flights of ``topic``."""
    app = App(**options)
    app.handler(topic)(arrived)
    return app
