"""Certificates and keys as PEM text (KIP-651)."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from tailrace.config import resolve
from tailrace.errors import AuthenticationError, ConfigurationError
from tailrace.net.dialer import Dialer
from tests.support.commands import tailrace
from tests.support.net.open_connections import dialled
from tests.support.net.secrets_shown import shown_by
from tests.support.net.security_setups import MTLS, PASSWORD, WRONG, by, holds_a_secret, reached


def encrypted(private_key: str) -> str:
    key = serialization.load_pem_private_key(private_key.encode(), None)
    encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode()


def texts_of(options) -> dict[str, str]:
    """Replace the files in options by their texts."""
    names = {"ssl_cafile": "ssl_ca_pem", "ssl_certfile": "ssl_certificate_pem", "ssl_keyfile": "ssl_key_pem"}
    return {
        names.get(name, name): Path(value).read_text() if name in names else value for name, value in options.items()
    }


@pytest.fixture(params=["in memory", "on disk"])
def storage(request, monkeypatch, tmp_path):
    """Store keys for OpenSSL in memory, or on disk, as systems without files in memory do."""
    if request.param == "on disk":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change", ["nothing", "encrypted key", "key in the chain", "escaped line breaks", "file of a key"]
)
@by(MTLS)
async def test_pem_texts_sign_in(secured, storage, change, tmp_path_factory):
    """Texts have the same effect as files, and no file with the key is left."""
    options = texts_of(secured.client_options)
    match change:
        case "encrypted key":
            options |= {"ssl_key_pem": encrypted(options["ssl_key_pem"]), "ssl_password": PASSWORD}
        case "key in the chain":
            options["ssl_certificate_pem"] += options.pop("ssl_key_pem")
        case "escaped line breaks":
            options = {name: value.replace("\n", "\\n") for name, value in options.items()}
        case "file of a key":
            del options["ssl_key_pem"]
            options["ssl_keyfile"] = secured.client_options["ssl_keyfile"]
    async with dialled(options.pop("bootstrap_servers"), **options) as connection:
        assert connection.is_open


@by(MTLS)
async def test_a_ca_of_text_is_the_only_one_that_is_trusted(secured):
    """A broker whose certificate is of another authority is refused."""
    options = texts_of(secured.client_options) | {"ssl_ca_pem": trustme.CA().cert_pem.bytes().decode()}
    with pytest.raises(AuthenticationError, match="the certificate is not trusted"):
        async with dialled(options.pop("bootstrap_servers"), **options):
            pass


@by(MTLS)
def test_a_command_takes_pem_texts_from_the_environment(secured):
    """Commands take the texts from environment variables, as a container has them of a secret of Kubernetes."""
    options = texts_of(secured.client_options) | {"ssl_password": PASSWORD}
    options["ssl_key_pem"] = encrypted(options["ssl_key_pem"])
    done = tailrace("doctor", **{f"TAILRACE_{name.upper()}": value for name, value in options.items()})

    assert done.returncode == 0, done.stdout + done.stderr
    assert "PRIVATE KEY" not in done.stdout + done.stderr


@pytest.mark.parametrize("wrong", ["half of a certificate", "half of a key", "wrong password", "another key"])
def test_invalid_texts_raise(storage, wrong):
    """A text that cannot be loaded raises an error that names the option, without its text or a prompt."""
    issued = trustme.CA().issue_cert("alice@example.org")
    certificate, key = issued.cert_chain_pems[0].bytes().decode(), issued.private_key_pem.bytes().decode()
    options = {"ssl_certificate_pem": certificate, "ssl_key_pem": key}
    match wrong:
        case "half of a certificate":
            options["ssl_ca_pem"] = certificate[:100]
        case "half of a key":
            options["ssl_key_pem"] = key[:100]
        case "wrong password":
            options |= {"ssl_key_pem": encrypted(key), "ssl_password": WRONG}
        case "another key":
            options["ssl_key_pem"] = trustme.CA().issue_cert("bob@example.org").private_key_pem.bytes().decode()
    body = options["ssl_key_pem"].splitlines()[1]
    with pytest.raises(ConfigurationError, match=r"ssl_certificate_pem, ssl_key_pem\).* - use .*PEM") as caught:
        Dialer(resolve({"bootstrap_servers": "x:1", "security_protocol": "SSL", **options}, {}))

    assert not [one for one in shown_by(caught.value) if holds_a_secret(one) or body in one]


@by(MTLS)
async def test_no_repr_shows_a_key(secured):
    """The repr of a cluster, of its options, and errors of its connections do not show the key."""
    options = texts_of(secured.client_options)
    body = options["ssl_key_pem"].splitlines()[1]
    async with reached(
        secured,
        **{name: None for name in secured.client_options if "file" in name},
        **{name: value for name, value in options.items() if name.endswith("_pem")},
    ) as cluster:
        await cluster.bootstrap()
        assert body not in f"{cluster!r} {cluster.config!r}"


def test_tls_is_at_least_1_2(monkeypatch):
    """A connection uses TLS 1.2 or newer, even if the system's default is older."""
    create = ssl.create_default_context

    def older(**arguments):
        context = create(**arguments)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        return context

    monkeypatch.setattr(ssl, "create_default_context", older)
    context = Dialer(resolve({"security_protocol": "SSL"}, {}))._tls.context()

    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
