"""Answers of a registry are limited in size, and its credentials are not found in tracebacks."""

from __future__ import annotations

import ssl
import traceback

import pytest
import trustme
from rich.pretty import pretty_repr

from tailrace import ConfigurationError, SchemaRegistry, SchemaRegistryError

DATA = b"\x00\x7f\xff\xff\xff"
pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("schema registry")]


def shown(error):
    """The local variables of an error's frames, except those of this file, as rich shows them."""
    frames, chain = [], error
    while chain is not None:
        frames += [frame for frame, _ in traceback.walk_tb(chain.__traceback__)]
        chain = chain.__cause__ or chain.__context__
    variables = [frame.f_locals for frame in frames if frame.f_code.co_filename != __file__]
    assert variables
    return "\n".join(pretty_repr(one) for one in variables)


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_an_answer_that_is_too_large_raises_an_error(status, gate):
    """An answer of 17 MiB is not read to its end; the error says what to check."""
    gate.refusal = status, b'{"schema": "' + b"x" * (17 << 20) + b'"}'
    with pytest.raises(SchemaRegistryError, match="larger than 16 MiB - check the url, or split the schema"):
        await SchemaRegistry(gate.url).fetch(DATA)


@pytest.mark.parametrize(
    "auth", [("ann", "hunter2"), "hunter2", lambda: ("ann", "hunter2"), None], ids=["user", "token", "function", "url"]
)
@pytest.mark.parametrize("fault", ["refused", "unreachable", "too large"])
async def test_credentials_are_not_in_the_local_variables_of_a_traceback(auth, fault, gate):
    """No frame of an error has the password or token in a local variable."""
    url = gate.url if auth is not None else gate.url.replace("http://", "http://ann:hunter2@")
    codec = SchemaRegistry(url, auth=auth)
    gate.refusal = (401, b"{}") if fault == "refused" else (200, b"x" * (17 << 20))
    if fault == "unreachable":
        gate.stop()
    with pytest.raises(SchemaRegistryError) as raised:
        await codec.fetch(DATA)

    text = shown(raised.value)
    assert "hunter2" not in text
    assert "YW5uO" not in text


@pytest.mark.parametrize(
    "options",
    [
        {"auth": ("a:b", "hunter2")},
        {"auth": "hunter2", "format": "xml"},
        {"auth": "hunter2", "url": "http://u:hunter2@x"},
        {"url": "ftp://u:hunter2@x"},
        {"url": "http://u:hunter2@"},
        {"ssl_password": "hunter2", "timeout_ms": 0},
    ],
)
def test_invalid_options_do_not_show_secrets_in_tracebacks(options):
    """The local variables of the constructor contain no secret when it raises ConfigurationError."""
    with pytest.raises(ConfigurationError) as raised:
        SchemaRegistry(**{"url": "http://x", **options})

    assert "hunter2" not in shown(raised.value)


async def test_the_password_of_a_key_is_not_in_a_traceback(registry, tmp_path):
    """A wrong ``ssl_password`` raises SchemaRegistryError, in whose traceback no local variable contains it."""
    authority, certificate = trustme.CA(), trustme.CA().issue_cert("client")
    (tmp_path / "cert.pem").write_bytes(certificate.cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(b"no key")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    codec = SchemaRegistry(
        "https://127.0.0.1:9",
        ssl_cafile=str(tmp_path / "ca.pem"),
        ssl_certfile=str(tmp_path / "cert.pem"),
        ssl_keyfile=str(tmp_path / "key.pem"),
        ssl_password="hunter2",
    )
    with pytest.raises(SchemaRegistryError) as raised:
        await codec.fetch(DATA)

    assert isinstance(raised.value.__cause__, ssl.SSLError)
    assert "hunter2" not in shown(raised.value)
