"""`tailrace exporter`: metrics of a cluster over HTTP, until a signal."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.support.commands import COMMAND, end, environment, tailrace


@contextmanager
def exporter(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command on a free port, and return the process and its address."""
    process = subprocess.Popen(
        [*COMMAND, "exporter", "--http-port", "0", "--http-host", "127.0.0.1", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "metrics are served at" in line)
            yield process, re.findall(r"http://[\d.]+:\d+", line)[0]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_metrics_are_served_until_a_signal(kafka, number):
    """The exporter serves the metrics of the selected groups and topics, and exits with 0 on a signal."""
    topic = kafka.topic(2)
    kafka.produce(topic, b"1", b"2", b"3")
    kafka.commit(topic, {0: 1})
    selection = ["--topic-filter", topic, "--topic-exclude", "^$", "--group-filter", f"^{kafka.group}$"]

    with exporter("--bootstrap-servers", kafka.bootstrap_servers, *selection) as (process, address):
        text = httpx.get(f"{address}/metrics", timeout=20).text
        index = httpx.get(address, timeout=20).text
        code, rest = end(process, number)

    lags = [line for line in text.splitlines() if line.startswith("kafka_consumergroup_lag{")]
    assert lags == [
        f'kafka_consumergroup_lag{{consumergroup="{kafka.group}",partition="{partition}",topic="{topic}"}} {lag}'
        for partition, lag in ((0, "2.0"), (1, "-1.0"))
    ]
    assert "/metrics" in index
    assert code == 0
    assert "Traceback" not in rest


def test_an_unreachable_cluster_does_not_end_the_command():
    """While the cluster is unreachable, /metrics answers 503 and the reason is logged once."""
    with exporter("--bootstrap-servers", "127.0.0.1:1", "--timeout", "2") as (process, address):
        answers = [httpx.get(f"{address}/metrics", timeout=20) for _ in range(2)]
        code, log = end(process, signal.SIGTERM)

    assert [one.status_code for one in answers] == [503, 503]
    assert "127.0.0.1:1" in answers[0].text
    assert log.count("no metrics: ") == 1
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--topic-filter", "("], 2, "must be a regular expression, not '('"),
        (["--http-port", "70000"], 2, "must be a port number up to 65535"),
        ([], 1, "brokers are missing - give --bootstrap-servers HOST:PORT"),
        (["--bootstrap-servers", "k:9092", "--set", "x=1"], 1, "x"),
    ],
)
def test_wrong_options_are_errors_with_the_next_step(arguments, code, message):
    """A wrong option ends the exporter with an error that says what to do."""
    done = tailrace("exporter", *arguments)

    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_one_line(kafka):
    """A port in use is one error line with the port and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = tailrace(
            *("exporter", "--bootstrap-servers", kafka.bootstrap_servers),
            *("--http-host", "127.0.0.1", "--http-port", port),
        )

    assert done.returncode == 1
    assert re.fullmatch(
        rf"tailrace exporter: cannot serve HTTP at 127.0.0.1:{port}: .* - choose another port\n", done.stderr
    )


def test_wrong_credentials_end_the_command(kafka_server, kafka):
    """If the brokers refuse the security options, the exporter ends at its start with the reason."""
    done = tailrace(
        *("exporter", "--bootstrap-servers", kafka.bootstrap_servers, "--http-port", "0"),
        *("--set", "security_protocol=SASL_PLAINTEXT", "--set", "sasl_mechanism=PLAIN"),
        *("--set", "sasl_plain_username=ann", "--set", "sasl_plain_password=wrong"),
    )

    assert done.returncode == 1
    assert "tailrace exporter: " in done.stderr
    assert "Traceback" not in done.stderr
