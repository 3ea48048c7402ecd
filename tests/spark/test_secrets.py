"""Passwords and private keys in everything that Spark shows."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tailrace import Producer
from tailrace.testing import KafkaServer
from tests.support.commands import environment

_DRIVER = Path(__file__).with_name("secrets_driver.py")


@pytest.mark.xdist_group("spark")
@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize(("security", "tls"), [("MTLS", False), ("SCRAM-SHA-512", True)])
def test_spark_shows_no_secret(tmp_path, security, tls):
    """Pages, plans, progress, event log and log contain neither password nor private key."""
    with KafkaServer(security=security, tls=tls) as server:
        server.create_topic("secrets")
        options = dict(server.client_options)
        secrets = [str(options.get("sasl_plain_password"))]
        if security == "MTLS":
            options["ssl_keyfile"], secrets = pkcs8(Path(options["ssl_keyfile"]), tmp_path / "client.key")
        asyncio.run(produce(server))
        done = subprocess.run(
            [sys.executable, str(_DRIVER), str(tmp_path), "secrets"],
            input=json.dumps(options),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    files = [one for one in tmp_path.rglob("*") if one.is_file() and one.name.startswith(("shown", "events"))]
    shown = {file.name: file.read_text() for file in files}
    shown = {"stdout": done.stdout, "stderr": done.stderr, **shown}
    assert all(len(secret) > 7 for secret in secrets)
    assert len(shown) > 14
    assert [name for name, text in shown.items() if any(secret in text for secret in secrets)] == []


async def produce(server: KafkaServer) -> None:
    async with Producer(**server.client_options) as producer:
        for number in range(3):
            await producer.send("secrets", number)


def pkcs8(old: Path, new: Path) -> tuple[str, list[str]]:
    """Convert a private key to the form that Java reads; return its file, and the lines of the key."""
    key = serialization.load_pem_private_key(old.read_bytes(), None)
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    new.write_bytes(key.private_bytes(*forms))
    return str(new), new.read_text().splitlines()[1:-1]
