"""`tailrace run`: an app of a module, until SIGTERM."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
import uuid

import httpx
import pytest
from confluent_kafka import Consumer, Producer

from tests.support.commands import COMMAND, environment, tailrace

SHOP = """
from tailrace import App

billing = App(group_id="billing")


@billing.handler("{topic}", publish="{topic}-out")
async def double(n: int) -> int:
    return 2 * n
"""


@pytest.fixture
def shop(tmp_path, kafka_server):
    """Create a folder with a module of an app, and its topics."""
    topic = f"t-{uuid.uuid4().hex[:12]}"
    for name in (topic, f"{topic}-out"):
        kafka_server.create_topic(name)
    (tmp_path / "shop.py").write_text(SHOP.format(topic=topic))
    return tmp_path, topic


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_run_handles_records_until_sigterm(shop, kafka_server, log_format):
    """`run` handles records until SIGTERM and exits with 0, and each line of its log in JSON is JSON."""
    folder, topic = shop
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    producer.produce(topic, b"21")
    assert producer.flush(20) == 0
    witness = Consumer(
        {"bootstrap.servers": kafka_server.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    witness.subscribe([f"{topic}-out"])

    with subprocess.Popen(
        [
            *(*COMMAND, "run", "shop:billing", "--log-format", log_format),
            *("--set", f"bootstrap_servers={kafka_server.bootstrap_servers}"),
        ],
        cwd=folder,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        message = next(one for _ in range(600) if (one := witness.poll(0.1)) is not None and not one.error())
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=60)
    witness.close()

    assert message.value() == b"42"
    assert process.returncode == 0
    assert "group joined" in output
    if log_format == "json":
        lines = [json.loads(line) for line in output.splitlines()]
        (joined,) = (line for line in lines if line["event"] == "group joined")
        assert (joined["group_id"], type(joined["generation"]), joined["is_leader"]) == ("billing", int, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere:app"], "there is no module 'nowhere'"),
        (["shop.py:billing"], "did you mean shop:billing?"),
        (["./shop.py:billing"], "did you mean shop:billing?"),
        (["json:loads"], "'loads' of json is not an App - the module defines no App"),
        (["json"], "write MODULE:APP"),
        (["json:x", "--set", "session_timeout_ms"], "is not an App"),
    ],
)
def test_an_invalid_app_is_one_line_and_exit_code_1(arguments, message):
    """An argument that names no App is one line on stderr and exit code 1."""
    done = tailrace("run", *arguments)

    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code"), [(["run"], 1), (["offsets", "show", "g", "--app"], 1), (["spark", "backfill"], 2)]
)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise RuntimeError('no such queue')", "RuntimeError: no such queue at broken.py:1 in <module>"),
        ("def (:", "SyntaxError: invalid syntax (broken.py, line 1)"),
    ],
)
def test_an_import_error_is_one_line_with_its_location(tmp_path, arguments, code, text, message):
    """An error while the module is imported is one line with its location and how to see the traceback."""
    (tmp_path / "broken.py").write_text(text)
    done = subprocess.run(
        [*COMMAND, *arguments, "broken:app"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code
    assert message in done.stderr
    assert "python -c 'import broken'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_unknown_options_of_set_are_refused(shop):
    """An unknown option is refused with a similar name."""
    folder, _ = shop
    done = subprocess.run(
        [*COMMAND, "run", "shop:billing", "--set", "session_timeout=5"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "session_timeout_ms" in done.stderr


def test_an_unreachable_broker_is_logged_while_start_retries(shop):
    """While start retries, a warning has the address and the reason."""
    folder, _ = shop
    with subprocess.Popen(
        [*COMMAND, "run", "shop:billing", "--set", "bootstrap_servers=127.0.0.1:1", "--set", "start_timeout_ms=120000"],
        cwd=folder,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            first = process.stderr.readline()
            is_trying = process.poll() is None
        finally:
            process.terminate()
            rest = process.stderr.read()

    assert "broker unreachable" in first
    assert "127.0.0.1:1: connection refused" in first
    assert is_trying
    assert "Traceback" not in rest


def get(port: int, path: str, *, until: str = "", timeout: float = 60) -> str:
    """Return the text at a path, once it contains ``until``."""
    deadline, text = time.monotonic() + timeout, ""
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            text = httpx.get(f"http://127.0.0.1:{port}{path}", timeout=10).text
            if until in text:
                return text
        time.sleep(0.1)
    raise AssertionError(f"{path} has no {until!r}: {text}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@pytest.mark.parametrize("workers", [None, 2])
def test_run_serves_probes_and_metrics(shop, kafka_server, workers):
    """--http-port serves probes, lag and metrics, those of all workers if there are several."""
    folder, topic = shop
    producer, port = Producer({"bootstrap.servers": kafka_server.bootstrap_servers}), free_port()
    producer.produce(topic, b"21")
    assert producer.flush(20) == 0
    command = [*COMMAND, "run", "shop:billing", "--set", f"bootstrap_servers={kafka_server.bootstrap_servers}"]
    command += ["--http-port", str(port), "--set", f"group_id={topic}"]
    if workers is not None:
        command += ["--workers", str(workers)]

    with (
        subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)
        get(port, "/readyz", until='"status":"ok"')
        metrics = get(
            port, "/metrics", until='handler="double"} 1.0' if workers is None else 'handler="double",worker='
        )
        if workers is not None:
            metrics = get(port, "/metrics", until='tailrace_worker_up{worker="1"} 1.0')
        lag = get(port, "/lag", until='"partitions":1')
        again = subprocess.run(
            command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=60)

    assert process.returncode == 0, output
    assert "tailrace_partition_lag{" in metrics
    assert '"work_lag":0' in lag
    assert again.returncode == 1
    assert f"cannot serve HTTP at *:{port}" in again.stderr
    assert "Traceback" not in again.stderr
