"""Check that prevents abandoned handlers from publishing.

A handler is abandoned if it still runs after the app has canceled it and stopped. A context variable identifies the
handler, also in tasks and threads that the handler has started.
"""

from __future__ import annotations

from contextvars import Context, ContextVar

from tailrace.errors import PublishError

__all__ = ["HandlerTask", "check_not_abandoned"]


class HandlerTask:
    """Task that runs a handler.

    Args:
        context: context in which the task runs; its context variable for the handler is set to this object.

    Attributes:
        is_abandoned: True if the app has stopped while the task was still running.
    """

    __slots__ = ("is_abandoned",)

    def __init__(self, context: Context) -> None:
        self.is_abandoned = False
        context.run(_task.set, self)


_task: ContextVar[HandlerTask | None] = ContextVar("tailrace_handler_task", default=None)


def check_not_abandoned(topic: str) -> None:
    """Check that the caller may publish to ``topic``; only an abandoned handler may not.

    Raises:
        PublishError: the handler was abandoned; its record is delivered again.
    """
    task = _task.get()
    if task is not None and task.is_abandoned:
        raise PublishError(
            f"{topic}: the app has stopped, but this handler still runs after its cancellation; the record is delivered"
            " again, so this message would be published twice - make the handler end when it is canceled"
        )
