"""Abandoned handlers: they still ran when the app had canceled them and stopped, and may not publish any more.

A context variable identifies the handler, also in tasks and threads that the handler has started.
"""

from __future__ import annotations

from contextvars import Context, ContextVar

from tailrace.errors import PublishError

__all__ = ["HandlerTask", "check_not_abandoned"]


class HandlerTask:
    """Task that runs a handler.

    Args:
        context: context of the task.

    Attributes:
        is_abandoned: True if the app has stopped without waiting for the end of the task.
    """

    __slots__ = ("is_abandoned",)

    def __init__(self, context: Context) -> None:
        self.is_abandoned = False
        context.run(_task.set, self)


_task: ContextVar[HandlerTask | None] = ContextVar("tailrace_handler_task", default=None)


def check_not_abandoned(topic: str) -> None:
    """Check that the calling handler, if any, may publish to ``topic``.

    Raises:
        PublishError: the handler was abandoned; its record is delivered again.
    """
    task = _task.get()
    if task is not None and task.is_abandoned:
        raise PublishError(
            f"{topic}: the app has stopped without this handler, which ran on after its cancellation; its record is"
            " delivered again, and its message would be published twice - make the handler end when it is canceled"
        )
