"""What is done with a flight: one handler, the same function for the group of consumers and for Spark.

Rule of this file: Spark's workers import it, so nothing that is not needed to handle a flight is imported here.
"""

from __future__ import annotations

import msgspec

from tailrace.app.app import App
from tailrace.cli.demo.flights import Flight
from tailrace.config import ConsumerOptions

__all__ = ["Arrival", "app_of", "arrived"]


class Arrival(msgspec.Struct):
    """What the report needs of a flight."""

    route: str
    delay: int | None
    """Minutes; None if it never arrived."""


async def arrived(flight: Flight) -> Arrival:
    """One flight, whether it arrived or not."""
    return Arrival(flight.route, flight.arr_delay)


def app_of(topic: str, options: ConsumerOptions) -> App:
    """An app that handles the flights of this topic."""
    app = App(**options)
    app.handler(topic)(arrived)
    return app
