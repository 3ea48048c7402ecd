"""Security setups of brokers: clients with client_options connect, others do not."""

from __future__ import annotations

import base64
import json
import re
import time

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from tailrace.config import resolve
from tailrace.testing import KafkaServer, unsecured_token

pytestmark = pytest.mark.xdist_group("embedded-security")  # they share brokers

KINDS = [
    ("SSL", False),
    ("MTLS", False),
    ("PLAIN", False),
    ("PLAIN", True),
    ("SCRAM-SHA-256", False),
    ("SCRAM-SHA-512", True),
    ("OAUTHBEARER", False),
]

PATIENCE_S = 20

NAMES = {
    "bootstrap_servers": "bootstrap.servers",
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
}


def as_librdkafka(options: dict[str, object]) -> dict[str, object]:
    """Convert options of a consumer to those of librdkafka."""
    config = {NAMES[name]: value for name, value in options.items() if name in NAMES}
    if options.get("sasl_mechanism") == "OAUTHBEARER":
        config |= {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": "principal=alice"}
    return config


def first_error(config: dict[str, object]) -> KafkaError | None:
    """Return the error with which the client is refused, or None if it got the topics."""
    errors: list[KafkaError] = []
    client = AdminClient({**config, "error_cb": errors.append, "log_level": 0})
    asked = client.describe_cluster(request_timeout=PATIENCE_S)
    while not errors and not asked.done():
        client.poll(0.05)
    return errors[0] if errors else asked.exception()


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind[0]}{'-over-TLS' * kind[1]}")
def server(request):
    security, tls = request.param
    with KafkaServer(security=security, tls=tls) as one:
        one.create_topic("inside")
        yield one


def test_client_options_connect(server):
    """With client_options, another client connects."""
    config = resolve(server.client_options, {})

    assert config.security_protocol != "PLAINTEXT"
    assert first_error(as_librdkafka(server.client_options)) is None


def test_plain_text_is_refused(server):
    """The CLIENT listener accepts only its own security protocol."""
    error = first_error({"bootstrap.servers": server.bootstrap_servers})

    assert error is not None
    assert error.code() in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}


def test_wrong_credentials_are_refused(server):
    """A wrong password, certificate, authority or mechanism is refused."""
    config = as_librdkafka(server.client_options)
    match config:
        case {"sasl.password": _}:
            config["sasl.password"] = "not hers"
        case {"ssl.key.location": _}:
            del config["ssl.key.location"], config["ssl.certificate.location"]
        case {"ssl.ca.location": _}:
            del config["ssl.ca.location"]
        case _:
            config = {key: value for key, value in config.items() if "oauthbearer" not in key}
            config |= {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "alice-secret"}

    error = first_error(config)

    assert re.search(r"(?i)authentication|certificate|mechanism", str(error))


def test_an_unsecured_token_has_subject_and_expiration():
    """unsecured_token returns a JWT without a signature."""
    header, claims, signature = unsecured_token("bob", lifetime_s=60).split(".")

    def read(part: str) -> dict[str, object]:
        return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))

    now = time.time()
    assert (read(header), signature) == ({"alg": "none"}, "")
    assert read(claims)["sub"] == "bob"
    assert read(claims)["iat"] <= now
    assert now + 50 < read(claims)["exp"] <= now + 60
