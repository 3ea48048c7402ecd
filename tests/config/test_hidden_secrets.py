"""Secrets in options are in no local variable of the frames of a ConfigurationError."""

from __future__ import annotations

import pickle

import pytest

from tailrace import App, ConfigurationError, Consumer, GroupMember, ProcessPoolConsumer, SharedCluster
from tailrace.app.processes.worker_pool import WorkerPool
from tailrace.config import hide_secrets, parse_option, resolve
from tests.support.net.secrets_shown import shown_by

SECRET = "hunter2"
VALID = {"sasl_plain_password": SECRET, "ssl_password": SECRET}
INVALID = {
    "another option is invalid": {**VALID, "fetch_min_bytes": -1},
    "options contradict each other": {**VALID, "security_protocol": "SASL_SSL"},
    "mistyped name": {"sasl_plain_pasword": SECRET},
    "name in librdkafka": {"sasl.password": SECRET},
    "name in Java": {"sasl.jaas.config": f"PlainLoginModule required password={SECRET};"},
    "bytes": {"sasl_plain_password": SECRET.encode()},
    "a token instead of a function": {"sasl_oauth_token_provider": SECRET},
}
CONSTRUCTORS = {
    "Consumer": lambda options: Consumer("t", **options),
    "App": lambda options: App(group_id="g", **options),
    "configure": lambda options: App(group_id="g").configure(**options),
    "GroupMember": lambda options: GroupMember(None, **options),
    "SharedCluster": lambda options: SharedCluster(**options),
    "ProcessPoolConsumer": lambda options: ProcessPoolConsumer("t", **options),
    "WorkerPool": lambda options: WorkerPool("a:app", workers=1, **options),
    "resolve": resolve,
}


@pytest.mark.parametrize("options", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("construct", CONSTRUCTORS.values(), ids=CONSTRUCTORS)
def test_no_frame_of_an_error_shows_secret_options(construct, options):
    """If options are invalid, no local variable of a frame shows a secret among them."""
    with pytest.raises(ConfigurationError) as refused:
        construct(options)

    assert not [one for one in shown_by(refused.value) if SECRET in one]


@pytest.mark.parametrize(
    "options", [{"fetch_min_bytes": -1}, {"group_instance_id": "{unknown}"}, {"sesion_timeout_ms": 1}]
)
@pytest.mark.parametrize("suffix", ["", "_FILE"])
def test_no_frame_of_an_error_shows_the_environment(options, suffix, monkeypatch, tmp_path):
    """If options are invalid, no local variable of a frame shows a secret of the environment, such as another's."""
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv(f"TAILRACE_SASL_PLAIN_PASSWORD{suffix}", str(tmp_path / "secret") if suffix else SECRET)
    monkeypatch.setenv("DATABASE_URL", f"postgres://alice:{SECRET}@host")

    with pytest.raises(ConfigurationError) as refused:
        resolve(options)

    assert not [one for one in shown_by(refused.value) if SECRET in one]


def test_a_mistyped_variable_shows_no_values(monkeypatch):
    """The error of a mistyped variable shows no value in its frames."""
    monkeypatch.setenv("TAILRACE_SASL_PLAIN_PASWORD", SECRET)

    with pytest.raises(ConfigurationError, match="did you mean") as refused:
        resolve({})

    assert not [one for one in shown_by(refused.value) if SECRET in one]


def test_a_file_that_is_not_text_is_not_shown(monkeypatch, tmp_path):
    """The error of a secret's file that is not UTF-8 shows no content of the file."""
    (tmp_path / "secret").write_bytes(SECRET.encode() + b"\xff")
    monkeypatch.setenv("TAILRACE_SSL_PASSWORD_FILE", str(tmp_path / "secret"))

    with pytest.raises(ConfigurationError, match="is not UTF-8 text") as refused:
        resolve({})

    assert not [one for one in shown_by(refused.value) if SECRET in one]


def test_a_hidden_secret_is_a_string_otherwise():
    """Options keep their values: only ``repr`` changes, also after pickling for another process."""
    hidden = pickle.loads(pickle.dumps(hide_secrets({"sasl_plain_password": SECRET, "client_id": "me"})))

    assert hidden == {"sasl_plain_password": SECRET, "client_id": "me"}
    assert repr(hidden) == "{'sasl_plain_password': <hidden>, 'client_id': 'me'}"
    assert f"{hidden['sasl_plain_password']}" == SECRET
    assert parse_option("ssl_password", SECRET, "--set") == SECRET
    assert SECRET not in repr(App(group_id="g", ssl_password=SECRET).options)
