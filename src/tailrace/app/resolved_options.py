"""Options of a handler, in which the app's values replace missing values."""

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
    """Options that exist for apps and for handlers: the values of an app, or the values in effect for a handler."""

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
