"""Handlers that went on after the app had canceled them, and publish nothing more.

A handler is known by its context, so that tasks and threads which it has started are its own.
"""

from __future__ import annotations

from contextvars import Context, ContextVar

from tailrace.errors import PublishError

__all__ = ["HandlerTask", "check_not_abandoned"]


class HandlerTask:
    """The task that runs a handler.

    Args:
        context: the context of the task.

    Attributes:
        is_abandoned: True if the app has ended without it.
    """

    __slots__ = ("is_abandoned",)

    def __init__(self, context: Context) -> None:
        self.is_abandoned = False
        context.run(_task.set, self)


_task: ContextVar[HandlerTask | None] = ContextVar("tailrace_handler_task", default=None)


def check_not_abandoned(topic: str) -> None:
    """Refuse to publish for a handler that was abandoned.

    Raises:
        PublishError: it was; its record is delivered again.
    """
    task = _task.get()
    if task is not None and task.is_abandoned:
        raise PublishError(
            f"{topic}: the handler went on after being canceled and was abandoned - its record is delivered again, and"
            " what it publishes now would be published twice"
        )
