"""Protection of record handling against errors of tracing and metrics."""

from __future__ import annotations

from types import TracebackType

from tailrace.observe.events import TelemetryFailed
from tailrace.observe.hooks import Observer
from tailrace.user_exceptions import error_text

__all__ = ["TelemetryGuard"]


class TelemetryGuard:
    """Context manager that suppresses exceptions of OpenTelemetry, and logs the first one.

    A guard can be entered any number of times.

    Args:
        step: name of the guarded step for the log.
    """

    __slots__ = ("_has_failed", "_step")

    def __init__(self, step: str) -> None:
        self._step, self._has_failed = step, False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._has_failed:
            self._has_failed = True
            Observer().emit(TelemetryFailed(self._step, error_text(error), error))
        return True
