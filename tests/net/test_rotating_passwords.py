"""Passwords in a file that changes: the file is read for each authentication."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tailrace import Consumer
from tailrace.config import resolve
from tailrace.errors import AuthenticationError, BrokerConnectionError, ConfigurationError
from tailrace.net.dialer import Dialer
from tailrace.observe.events import BrokerUnreachable
from tailrace.testing import KafkaServer
from tests.support.commands import tailrace
from tests.support.event_recorder import EventRecorder
from tests.support.net.secrets_shown import shown_by
from tests.support.net.security_setups import PASSWORD, PLAIN, SCRAM_256, WRONG, by, holds_a_secret, refusal
from tests.support.witness import Witness


@pytest.fixture
def file(tmp_path) -> Path:
    """Provide a file with the password, and a line break."""
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    return path


def options_of(server: KafkaServer, file: Path) -> dict[str, object]:
    found = {**server.client_options, "sasl_plain_password_file": str(file)}
    del found["sasl_plain_password"]
    return found


def change_password(server: KafkaServer, password: str) -> None:
    """Change the user's password on the broker."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.node.ports.internal}"})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
    change = UserScramCredentialUpsertion("alice", info, password.encode())
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(30)


@by(SCRAM_256)
async def test_no_record_is_lost_when_the_password_changes(secured, file, name):
    """A consumer whose sessions end reads on after the password has changed, on the broker first and in the file later.

    Meanwhile the broker refuses the former password, and the file is empty for a time.
    """
    secured.create_topic(name)
    witness, events, found = Witness(f"127.0.0.1:{secured.node.ports.internal}"), EventRecorder(), []
    options = {**options_of(secured, file), "hooks": [events]}
    try:
        async with Consumer(name, **options, group_id=name, auto_offset_reset="earliest") as consumer:

            async def read(*values: bytes) -> None:
                await asyncio.to_thread(witness.produce, name, values)
                found.extend([(await asyncio.wait_for(consumer.getone(), 30)).value for _ in values])

            await read(b"1", b"2")
            change_password(secured, WRONG)
            await events.wait_for(BrokerUnreachable, where=lambda one: "reads the password in" in one.reason)
            file.write_text("")
            await events.wait_for(BrokerUnreachable, where=lambda one: "it is empty" in one.reason)
            file.write_text(WRONG)
            await read(b"3", b"4")
    finally:
        change_password(secured, PASSWORD)

    assert found == [b"1", b"2", b"3", b"4"]
    reasons = [one.reason for one in events.of(BrokerUnreachable)]
    assert any(f"the next attempt reads the password in {file} again" in one for one in reasons)
    assert any(f"there is no password in {file}: it is empty - write the password" in one for one in reasons)
    assert not any(map(holds_a_secret, map(repr, events.events)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory - write the password to this file"),
        (b"", "it is empty - write"),
        (b"\n", "it is empty - write"),
        (WRONG.encode() + b"\xff", "it is not UTF-8 text - write"),
    ],
)
def test_a_file_without_a_password_is_refused_at_the_start(tmp_path, content, message):
    """At the start, a file that is missing, empty or no text raises an error that names it, but not its text."""
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    options = {"sasl_plain_username": "alice", "sasl_plain_password_file": str(path)}
    with pytest.raises(ConfigurationError) as caught:
        Dialer(resolve({"security_protocol": "SASL_SSL", **options}, {}))

    assert f"sasl_plain_password_file: there is no password in {path}: {message}" in str(caught.value)
    assert not any(map(holds_a_secret, shown_by(caught.value)))


@by(PLAIN, SCRAM_256)
async def test_a_wrong_password_in_the_file_is_refused_at_the_start(secured, file):
    """A wrong password is an authentication error before the first success; no frame shows it."""
    file.write_text(WRONG)
    error = await refusal(secured, sasl_plain_password=None, sasl_plain_password_file=str(file))

    assert type(error) is AuthenticationError
    assert not any(map(holds_a_secret, shown_by(error)))


@by(PLAIN)
async def test_a_file_that_vanishes_is_an_error_that_allows_a_retry(secured, file):
    """A running client whose file is removed, as while a secret is replaced, gets an error after which it retries."""
    dialer = Dialer(resolve(options_of(secured, file), {}))
    host, port = secured.bootstrap_servers.split(":")
    (await dialer.dial(host, int(port))).close()
    file.unlink()
    with pytest.raises(BrokerConnectionError, match=r"there is no password in .*: No such file") as caught:
        await dialer.dial(host, int(port))
    assert type(caught.value) is BrokerConnectionError
    file.write_text(PASSWORD)
    (await dialer.dial(host, int(port))).close()


@pytest.mark.parametrize("way", ["--set", "environment"])
@by(PLAIN)
def test_commands_take_the_file(secured, file, way):
    """Commands take the file from ``--set`` or from the environment."""
    secured.create_topic(f"cli-{way.strip('-')}")
    options = options_of(secured, file)
    servers = options.pop("bootstrap_servers")
    sets = [part for one in options.items() for part in ("--set", "=".join(one))] if way == "--set" else []
    variables = {} if sets else {f"TAILRACE_{name.upper()}": value for name, value in options.items()}
    done = tailrace("doctor", "--bootstrap-servers", servers, *sets, **variables)

    assert done.returncode == 0, done.stdout + done.stderr
    assert PASSWORD not in done.stdout + done.stderr
