"""Foreign text cannot control a terminal or forge log lines, and secrets are not shown."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from tailrace import ConfigurationError, Record, SchemaRegistry, TopicPartition
from tailrace.app.processes.supervised_process import Child
from tailrace.cli import main
from tailrace.cli.tail import writer_of
from tailrace.config import resolve
from tailrace.net.cluster import Cluster
from tailrace.observe.events import ConsumerFailed, CredentialsUnencrypted, FetchFailed
from tailrace.observe.hooks import Observer
from tailrace.observe.log_format import escaped, escaped_json
from tailrace.spark.worker.shipment import Shipment
from tests.support.event_recorder import EventRecorder

STEERING = "\x1b[2J", "\x9b31m", "\u202eevil", "\nERROR forged", "\r", "\x00", "\x7f", "\u2028", "\u2066"


@pytest.mark.parametrize("text", STEERING)
def test_control_characters_are_escaped(text):
    """Escape sequences, bidirectional controls and line ends are escaped, and text of all languages is kept."""
    assert escaped(f"größe {text}").isprintable()
    assert escaped("größe 漢字 😀") == "größe 漢字 😀"
    line = json.dumps({"a": f"ü 😀 {text}", "b": 1}, ensure_ascii=False)
    assert escaped_json(line).isprintable()
    assert json.loads(escaped_json(line)) == json.loads(line)


@pytest.mark.parametrize("text", STEERING)
def test_a_log_line_has_no_line_breaks(text, caplog):
    """Names and errors from a broker cannot add a line to the log."""
    with caplog.at_level(logging.DEBUG, "tailrace"):
        Observer(client_id=f"c{text}").emit(FetchFailed(f"broker {text}", TopicPartition(f"t{text}", 0), text))

    (record,) = caplog.records
    assert record.getMessage().isprintable()


@pytest.mark.parametrize("text", STEERING)
@pytest.mark.parametrize("is_cause", [False, True])
def test_a_traceback_cannot_forge_a_log_line(text, is_cause):
    """Lines of an exception's message are indented and escaped in a traceback."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("tailrace")
    logger.addHandler(handler)
    try:
        fail(f"said {text}\nERROR forged", is_cause=is_cause)
    except ValueError as error:
        Observer().emit(ConsumerFailed("failed", error))
    finally:
        logger.removeHandler(handler)

    lines = written.getvalue().splitlines()
    assert written.getvalue().replace("\n", "").isprintable()
    assert [line for line in lines if line.startswith("ERROR")] == ["ERROR consumer failed error=failed"]
    assert "    ERROR forged" in lines
    assert any(line.startswith("  File ") and line.endswith("in fail") for line in lines)
    assert lines[-1].startswith("ValueError: " if is_cause else "    ERROR forged")


def fail(message: str, *, is_cause: bool) -> None:
    if not is_cause:
        raise ValueError(message)
    try:
        fail(message, is_cause=False)
    except ValueError as error:
        raise ValueError("told of a cause") from error


@pytest.mark.parametrize("text", STEERING)
@pytest.mark.parametrize("form", ["json", "raw", "table"])
def test_tail_escapes_records_for_a_terminal(text, form, monkeypatch):
    """`tail` escapes records on a terminal, and prints raw values unchanged elsewhere."""
    record = Record("t", 0, 0, b"k", f"ü{text}".encode(), 0, [])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    written = writer_of(form)(record)
    assert written.decode().replace("\n", "").isprintable()
    if form == "raw":
        monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
        assert writer_of(form)(record) == f"ü{text}\n".encode()


def test_an_error_on_the_terminal_is_escaped(capsys, monkeypatch):
    """An error message on the terminal is escaped, and its second line is indented."""

    def refuse(*_arguments: object) -> int:
        raise ConfigurationError("topic \x1b[2J\u202e\ntailrace lag: forged")

    monkeypatch.setattr("tailrace.cli.lag.run", refuse)
    assert main(["lag", "g"]) == 1
    assert capsys.readouterr().err == "tailrace lag: topic \\x1b[2J\\u202e\n  tailrace lag: forged\n"


# ---- secrets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ssl_cafile", "ssl_certfile", "ssl_keyfile"])
def test_inline_pem_is_refused_and_not_shown(name):
    """A key in place of a path raises an error that does not show it."""
    pem = "-----BEGIN PRIVATE KEY-----\nMIIsecret\n-----END PRIVATE KEY-----"
    options = {"bootstrap_servers": "b:1", "security_protocol": "SSL", "ssl_certfile": "cert.pem", name: pem}

    with pytest.raises(ConfigurationError, match=f"{name} must be the path of a file") as raised:
        resolve(options, {})

    assert "MIIsecret" not in str(raised.value)


@pytest.mark.parametrize("name", ["ssl_cafile", "ssl_certfile", "ssl_keyfile"])
def test_inline_pem_for_a_registry_is_refused_and_not_shown(name):
    """A key in place of a path for the registry raises an error that does not show it."""
    pem = "-----BEGIN PRIVATE KEY-----\nMIIsecret\n-----END PRIVATE KEY-----"

    with pytest.raises(ConfigurationError, match=f"{name} must be the path of a file") as raised:
        SchemaRegistry("https://registry:8081", **{name: pem})

    assert "MIIsecret" not in str(raised.value)


def test_a_shipment_shows_no_secrets():
    """The repr of a shipment does not show the pickled options, which include passwords."""
    shipment = Shipment(None, b"hunter2", (0,), ("handle",), "g", ("t",), has_sink=False, sys_path=())

    assert "hunter2" not in repr(shipment)
    assert "handle" in repr(shipment)


@pytest.mark.parametrize(
    ("protocol", "mechanism", "is_told"),
    [
        ("SASL_PLAINTEXT", "PLAIN", True),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512", False),
        ("SASL_SSL", "PLAIN", False),
    ],
)
async def test_an_event_reports_a_password_without_tls(protocol, mechanism, is_told):
    """PLAIN without TLS emits an event, since it sends the password itself; SCRAM does not."""
    events = EventRecorder()
    options = {"sasl_plain_username": "u", "sasl_plain_password": "hunter2", "sasl_mechanism": mechanism}
    config = resolve({"bootstrap_servers": "127.0.0.1:1", "security_protocol": protocol, **options}, {})
    cluster = Cluster(config, Observer((events,)))
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        await cluster.bootstrap()
    cluster.close()

    assert [event.address for event in events.of(CredentialsUnencrypted)] == ["127.0.0.1:1"] * is_told


@pytest.mark.parametrize(
    ("url", "auth", "is_told"),
    [
        ("http://u:hunter2@registry:8081", None, True),
        ("http://registry:8081", ("u", "hunter2"), True),
        ("https://registry:8081", ("u", "hunter2"), False),
        ("http://registry:8081", None, False),
    ],
)
def test_an_event_reports_registry_credentials_without_tls(url, auth, is_told, caplog):
    """Registry credentials without TLS emit an event that does not show them."""
    SchemaRegistry(url, auth=auth)

    assert ["credentials unencrypted" in record.getMessage() for record in caplog.records] == [True] * is_told
    assert "hunter2" not in caplog.text


async def test_a_child_process_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    """A child process imports no module from its working directory, where another user may have put one."""
    (tmp_path / "structlog.py").write_text("import pathlib; pathlib.Path('imported').touch()")
    monkeypatch.chdir(tmp_path)
    child = await Child.start("structlog", {}, {})

    await child.wait()

    assert not (tmp_path / "imported").exists()
