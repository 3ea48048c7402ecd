"""Options that handlers have in common with their app, which provides the defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tailrace.app.handlers import Handler
from tailrace.app.policies import OnFailure, Retry
from tailrace.codecs.protocols import AnyCodec

__all__ = ["ResolvedOptions"]


@dataclass(frozen=True, kw_only=True)
class ResolvedOptions:
    """Options that can be set for an app and for a handler: the values of an app, or the values that a handler uses."""

    retry: Retry
    on_failure: OnFailure
    dead_letter: str | None
    codec: AnyCodec
    middleware: tuple[Callable[..., Any], ...] = ()

    def for_handler(self, handler: Handler) -> ResolvedOptions:
        """Return the options that a handler uses: its own, and these options of its app where it has none."""
        own = handler.middleware
        return replace(
            self,
            retry=handler.retry or self.retry,
            on_failure=handler.on_failure or self.on_failure,
            dead_letter=handler.dead_letter or self.dead_letter,
            codec=handler.codec or self.codec,
            # The app's middleware takes single records, so it does not wrap handlers of batches.
            middleware=own if handler.batch is not None else (*self.middleware, *own),
        )
