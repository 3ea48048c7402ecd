"""What holds for a handler: what it says itself, or else its app."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from tailrace.app.declare.codecs import AnyCodec
from tailrace.app.handlers import Handler, Middleware
from tailrace.core.failures.retry import OnFailure, Retry

__all__ = ["ResolvedOptions"]


@dataclass(frozen=True, kw_only=True)
class ResolvedOptions:
    """What an app says for its handlers, or what holds for one of them."""

    retry: Retry
    on_failure: OnFailure
    dead_letter: str | None
    codec: AnyCodec
    middleware: tuple[Middleware, ...] = ()

    def of(self, handler: Handler) -> ResolvedOptions:
        """What holds for a handler of an app that says this: its own word, where it has one."""
        return replace(
            self,
            retry=handler.retry or self.retry,
            on_failure=handler.on_failure or self.on_failure,
            dead_letter=handler.dead_letter or self.dead_letter,
            codec=cast("AnyCodec", handler.codec or self.codec),
            middleware=(*self.middleware, *handler.middleware),
        )
