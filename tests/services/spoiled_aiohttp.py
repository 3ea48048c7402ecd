"""The aiohttp example with failing handlers."""

import os

from aiohttp import web
from spoils import spoils

from examples.aiohttp_service import billing, service

billing.include(spoils)
web.run_app(service, port=int(os.environ["PORT"]))
