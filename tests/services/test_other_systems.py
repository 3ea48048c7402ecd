"""tailrace without the parts of Python that Windows lacks, as far as another system can show it."""

from __future__ import annotations

import subprocess
import sys

# Windows lacks these names. Its default event loop has no readers, writers, signal handlers and unix sockets, and its
# clock advances 64 times a second before Python 3.13. The standard library is imported first, since it uses the names.
WINDOWS = """
import asyncio, concurrent.futures, contextlib, logging, multiprocessing, os, pathlib, shutil, signal, socket, ssl
import subprocess, sys, tempfile, threading, time, urllib.request

pair, family = socket.socketpair, socket.AF_UNIX
socket.socketpair = lambda *_: pair(family)
for module, names in {
    os: "fork forkpty getuid geteuid getgid getpgid setsid killpg pread pwrite register_at_fork uname posix_spawn",
    signal: "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGALRM SIGPIPE SIGCHLD pthread_sigmask alarm setitimer sigwait",
    socket: "AF_UNIX SO_REUSEPORT sendmsg recvmsg",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty", "uvloop"):
    sys.modules[name] = None

class WindowsLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__()
        self._clock_resolution = 1 / 64

    def _missing(self, *arguments, **options):
        raise NotImplementedError

    add_reader = add_writer = add_signal_handler = remove_signal_handler = _missing
    create_unix_connection = create_unix_server = connect_read_pipe = connect_write_pipe = _missing

    def time(self):
        return int(super().time() * 64) / 64

def run(main):
    with asyncio.Runner(loop_factory=WindowsLoop) as runner:
        return runner.run(main)
"""
PROGRAM = """
from tailrace import App, Consumer, Retry

async def main(servers, orders, invoices):
    seen = []
    app = App(bootstrap_servers=servers, group_id=f"{orders}-app", auto_offset_reset="earliest")

    @app.handler(orders, publish=invoices, retry=Retry(attempts=2, backoff_ms=10))
    async def handle(value: bytes) -> bytes:
        seen.append(value)
        if value == b"7" and seen.count(b"7") == 1:
            raise ValueError("fails once")
        return value

    reader = {"bootstrap_servers": servers, "group_id": f"{orders}-reader", "auto_offset_reset": "earliest"}
    async with app:
        for number in range(100):
            await app.publish(orders, b"%d" % number)
        async with Consumer(invoices, **reader) as consumer:
            values = {(await anext(consumer)).value for _ in range(100)}
            assert await consumer.getmany(timeout_ms=50) == []
            await consumer.commit()
        assert app.health().status == "ok", app.health()
    assert values == {b"%d" % number for number in range(100)} and len(seen) == 101, (len(values), len(seen))

    async with Consumer(invoices, **reader) as consumer:
        await consumer.assigned()
        assert (await consumer.lag()).total == 0

run(main(*sys.argv[1:]))
print("done")
"""
RUN = """
import tailrace.signals

async def main():
    asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.{signal})
    with tailrace.signals.handle_signals([signal.SIGTERM, signal.SIGINT], (stopped := asyncio.Event()).set):
        await asyncio.wait_for(stopped.wait(), 20)

run(main())
print("done")
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", WINDOWS + program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_records_are_handled_without_what_windows_lacks(kafka_server, new_topic):
    """An app and a consumer publish, retry, handle, commit and stop on a loop like that of Windows."""
    done = run(PROGRAM, kafka_server.bootstrap_servers, new_topic(3), new_topic())

    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_signals_end_a_program_without_what_windows_lacks():
    """A signal is handled although the loop has neither signal handlers nor readers."""
    for name in ("SIGTERM", "SIGINT"):
        done = run(RUN.replace("{signal}", name))

        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
