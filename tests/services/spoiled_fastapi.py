"""The example with FastAPI, and handlers that go wrong."""

from spoils import spoils

from examples.fastapi_service import billing, web

__all__ = ["web"]

billing.include(spoils)
