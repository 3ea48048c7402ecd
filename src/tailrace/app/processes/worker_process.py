"""A worker: an App in a process of its own, for as long as the pool that has started it wants it.

Rule of this file: it runs in the child and does what its pool says, but for signals, which App heeds by itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import traceback
from typing import Any

import anyio

from tailrace.app.app import App
from tailrace.app.health.checks import Health
from tailrace.app.loading import load_app
from tailrace.app.processes.labelled_output import label_output
from tailrace.app.processes.parent import Parent, failed
from tailrace.app.shutdown import first_of
from tailrace.app.substitution import settings_of
from tailrace.config import resolve
from tailrace.core.processes.messages import ReadyMessage, StatusMessage, StopMessage, ToChild
from tailrace.core.processes.worker_plan import check_transactional_id, member_name
from tailrace.errors import ConfigurationError, ConsumerStateError, TailraceError

__all__ = ["main"]

_LOOK_S = 1.0
"""How often it says how it is, and with that that its event loop turns."""


class _WorkerProcess:
    def __init__(self, parent: Parent, spec: dict[str, Any]) -> None:
        self._parent, self._spec = parent, spec
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()
        self._is_asked = threading.Event()
        self._silence_s = 45.0

    def run(self) -> int:
        self._parent.listen(self._take)
        try:
            app = self._load()
            app.configure(**self._spec["options"])
            self._name(app)
            asyncio.run(self._work(app))
        except Exception as error:  # noqa: BLE001 - whatever the app's module or its handlers raise is told
            told = failed(error)
            self._parent.send(told)
            if told.error is None:
                traceback.print_exc()
            return 1
        return 0

    def _load(self) -> App:
        try:
            return load_app(self._spec["app"])
        except (ImportError, SyntaxError) as error:
            # The next start would read the same files.
            traceback.print_exc()
            said = f"{type(error).__name__}: {error}"
            raise ConfigurationError(f"{self._spec['app']} cannot be imported: {said}") from error

    def _name(self, app: App) -> None:
        """Give it a name of its own in the group, so that it has its partitions back when it is started again."""
        options = app._options  # noqa: SLF001 - this room's own
        given = options.get("group_instance_id", os.environ.get("TAILRACE_GROUP_INSTANCE_ID"))
        if (transactions := settings_of(app).transactions) is not None:
            check_transactional_id(transactions.transactional_id, self._spec["workers"])
        life = f"{os.getppid()}.{self._spec['pool']}"
        app.configure(group_instance_id=member_name(given, self._spec["workers"], life))
        if given is None and "leave_on_stop" not in options and "TAILRACE_LEAVE_ON_STOP" not in os.environ:
            # The name is of this pool's life, so nobody comes back by it.
            app.configure(leave_on_stop=True)
        config = resolve(options)
        self._parent.stop_timeout_s = config.stop_timeout_ms / 1000
        # By then its groups have given its partitions to others, so that nothing is lost with it.
        self._silence_s = config.session_timeout_ms / 1000

    async def _work(self, app: App) -> None:
        self._loop = asyncio.get_running_loop()
        if self._is_asked.is_set():
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_when_asked, app)
            tasks.start_soon(self._tell, app)
            try:
                await app.run()
            except ConsumerStateError:
                # Asked to end before it had started, it has ended as it should.
                if not self._is_asked.is_set():
                    raise
            tasks.cancel_scope.cancel()

    async def _end_when_asked(self, app: App) -> None:
        await self._asked.wait()
        try:
            await app.stop()
        except TailraceError:
            return  # run() raises it as well

    async def _tell(self, app: App) -> None:
        supervisor = app._supervisor  # noqa: SLF001 - this room's own
        if supervisor is None:
            return
        await first_of(supervisor.ready, supervisor.stopping)
        self._parent.send(ReadyMessage(self._parent.stop_timeout_s))
        try:
            await app.wait_ready()
        except TailraceError:
            return  # run() raises it as well
        while True:
            self._parent.beat(StatusMessage(*_summary(app.health()), self._silence_s))
            await asyncio.sleep(_LOOK_S)

    def _take(self, message: ToChild) -> None:
        """In the listening thread."""
        if isinstance(message, StopMessage):
            self._is_asked.set()
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._asked.set)


def _summary(health: Health) -> tuple[str, str]:
    """The worst of it."""
    reasons = [f"{one.name}: {one.detail}" for one in health.checks if one.status == health.status and one.detail]
    return health.status, "" if health.status == "ok" else "; ".join(reasons)


def main() -> None:
    """Be a worker; the socket's number is the one argument."""
    parent = Parent(int(sys.argv[1]))
    spec = parent.begin()
    label_output(f"worker {os.environ['TAILRACE_WORKER']} | ")
    if spec["log_level"] is not None:
        logging.basicConfig(
            level=spec["log_level"].upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
        )
    raise SystemExit(_WorkerProcess(parent, spec).run())


if __name__ == "__main__":
    main()
