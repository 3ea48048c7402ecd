"""The FastAPI example with failing handlers."""

from spoils import spoils

from examples.fastapi_service import billing, web

__all__ = ["web"]

billing.include(spoils)
