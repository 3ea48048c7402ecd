"""Options of a handler with the app's values where it has none of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tailrace.app.codec_protocols import AnyCodec
from tailrace.app.handlers import Handler
from tailrace.core.failures.retry import OnFailure, Retry

__all__ = ["ResolvedOptions"]


@dataclass(frozen=True, kw_only=True)
class ResolvedOptions:
    """Options that an app and its handlers share; those of an app, or those in effect for a handler."""

    retry: Retry
    on_failure: OnFailure
    dead_letter: str | None
    codec: AnyCodec
    middleware: tuple[Callable[..., Any], ...] = ()

    def of(self, handler: Handler) -> ResolvedOptions:
        """Return the options in effect for a handler of the app with these options."""
        # The app's middleware takes single records.
        own = handler.middleware
        return replace(
            self,
            retry=handler.retry or self.retry,
            on_failure=handler.on_failure or self.on_failure,
            dead_letter=handler.dead_letter or self.dead_letter,
            codec=handler.codec or self.codec,
            middleware=own if handler.batch is not None else (*self.middleware, *own),
        )
