"""Sources, valid values and contradictions of options, and their error messages."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pickle
import re
import ssl
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigurationError, Consumer
from tailrace.config import ConsumerConfig, ProducerConfig, check_names, resolve, resolve_producer, split_address
from tailrace.config.other_clients import OTHER_SPELLINGS, PRODUCER_SPELLINGS

OPTIONS = {option.name: option for option in dataclasses.fields(ConsumerConfig)}
HINTS = typing.get_type_hints(ConsumerConfig)
NUMBERS = [name for name in OPTIONS if HINTS[name] in {int, int | None}]
OBJECTS = [name for name, option in OPTIONS.items() if option.metadata["is_object"]]
SECRETS = [name for name, option in OPTIONS.items() if option.metadata["secret"]]
SECRET = "hunter2-hunter2"


class Listener:
    def on_partitions_lost(self, partitions): ...


class Hook:
    def on_event(self, event): ...


def words_of(error: BaseException | None) -> str:
    """Return all text shown for an error, that of its causes included."""
    if error is None:
        return ""
    shown = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return f"{error!r} {error} {words_of(shown)}"


# ---- sources of options ----------------------------------------------------------------------------------------------


def test_an_argument_takes_precedence_over_the_environment():
    """An argument, None included, takes precedence over a variable."""
    environ = {"TAILRACE_GROUP_ID": "from outside", "TAILRACE_CLIENT_ID": "from outside"}

    config = resolve({"group_id": None, "client_id": "mine"}, environ)

    assert (config.group_id, config.client_id) == (None, "mine")


def test_a_variable_takes_precedence_over_a_mounted_file(tmp_path):
    """TAILRACE_X takes precedence over TAILRACE_X_FILE, which is not read then."""
    environ = {"TAILRACE_CLIENT_ID": "variable", "TAILRACE_CLIENT_ID_FILE": str(tmp_path / "absent")}

    assert resolve({}, environ).client_id == "variable"


def test_a_mounted_file_takes_precedence_over_the_default(tmp_path):
    """TAILRACE_X_FILE is read without its last newline, and spaces are kept."""
    (tmp_path / "password").write_bytes(b" open sesame \r\n")
    (tmp_path / "timeout").write_text("6000\n")
    environ = {
        "TAILRACE_SSL_PASSWORD_FILE": str(tmp_path / "password"),
        "TAILRACE_SESSION_TIMEOUT_MS_FILE": str(tmp_path / "timeout"),
    }

    config = resolve({}, environ)

    assert (config.ssl_password, config.session_timeout_ms) == (" open sesame ", 6000)


@pytest.mark.parametrize("text", ["sasl_plain_password", "ssl_ca_pem", "ssl_certificate_pem", "ssl_key_pem"])
def test_an_argument_takes_precedence_over_a_variable_of_the_other_form(text):
    """A file and a text of the same thing contradict each other, but an argument replaces a variable."""
    path = {
        "sasl_plain_password": "sasl_plain_password_file",
        "ssl_ca_pem": "ssl_cafile",
        "ssl_certificate_pem": "ssl_certfile",
        "ssl_key_pem": "ssl_keyfile",
    }[text]
    certificate = {"ssl_certfile": "c.pem"} if "key" in text else {}
    pem = "-----BEGIN X-----"
    for option, other in ((text, path), (path, text)):
        config = resolve({**certificate, option: pem if option == text else "f"}, {f"TAILRACE_{other.upper()}": pem})
        assert getattr(config, option)
        assert getattr(config, other) is None
    with pytest.raises(ConfigurationError, match=f"{path} and {text} contradict each other - set only one of them"):
        resolve({**certificate, text: pem, path: "f"}, {})
    with pytest.raises(ConfigurationError, match="contradict each other"):
        resolve(certificate, {f"TAILRACE_{path.upper()}": "f", f"TAILRACE_{text.upper()}": pem})


def test_every_option_has_a_default():
    """Each option has a default, so that neither variables nor arguments are required."""
    assert resolve({}, {}) == ConsumerConfig()
    assert resolve({}, {"HOME": "/root", "TAILRACE_TEST_BOOTSTRAP_SERVERS": "ours-alone:9092"}) == ConsumerConfig()


def test_the_environment_is_that_of_the_process(monkeypatch):
    """By default, the variables are those of the process, read when the options are resolved."""
    monkeypatch.setenv("TAILRACE_CLIENT_RACK", "eu-1a")
    assert resolve({}).client_rack == "eu-1a"
    monkeypatch.setenv("TAILRACE_CLIENT_RACK", "eu-1b")
    assert resolve({}).client_rack == "eu-1b"


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["absent", "not text"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    """A mounted secret that is missing or not text raises an error that names the variable."""
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigurationError, match=rf"TAILRACE_SSL_PASSWORD_FILE: .*{re.escape(str(path))}"):
        resolve({}, {"TAILRACE_SSL_PASSWORD_FILE": str(path)})


def test_a_config_is_frozen():
    """A config is frozen, and may be copied and shared between tasks."""
    config = resolve({"group_id": "billing"}, {})

    with pytest.raises(dataclasses.FrozenInstanceError):
        config.group_id = "another"
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config


@pytest.mark.parametrize(
    ("name", "default"),
    {
        "auto_commit_interval_ms": 5_000,
        "ack": "auto",
        "offset_metadata_max_bytes": 4_096,
        "check_crcs": True,
        "enable_auto_commit": None,
        "fetch_max_wait_ms": 500,
        "fetch_min_bytes": 1,
        "heartbeat_interval_ms": 3_000,
        "isolation_level": "read_uncommitted",
        "leave_on_stop": None,
        "max_buffered_bytes": 16_777_216,
        "max_partition_fetch_bytes": 1_048_576,
        "max_poll_interval_ms": 300_000,
        "max_queued_records": 2_000,
        "rebalance_drain_ms": 30_000,
        "security_protocol": "PLAINTEXT",
        "session_timeout_ms": 45_000,
        "stop_timeout_ms": 20_000,
    }.items(),
)
def test_defaults_are_those_that_are_documented(name, default):
    """The defaults are those listed in this test."""
    assert getattr(ConsumerConfig(), name) == default


def test_defaults_depend_on_group_id():
    """With a group, the defaults are earliest and automatic commits, without one latest and no commits."""
    alone, member = resolve({}, {}), resolve({"group_id": "billing"}, {})
    static = resolve({"group_id": "billing", "group_instance_id": "one"}, {})

    assert (alone.offset_reset, alone.commits_automatically) == ("latest", False)
    assert (member.offset_reset, member.commits_automatically, member.leaves_on_stop) == ("earliest", True, True)
    assert static.leaves_on_stop is False
    assert resolve({"group_id": "billing", "auto_offset_reset": "latest"}, {}).offset_reset == "latest"
    assert resolve({"group_id": "billing", "enable_auto_commit": False}, {}).commits_automatically is False
    assert resolve({"leave_on_stop": False, "group_id": "billing"}, {}).leaves_on_stop is False


# ---- types and bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("6000", "session_timeout_ms", 6_000),
        (" 6000 ", "session_timeout_ms", 6_000),
        ("true", "enable_auto_commit", True),
        ("False", "check_crcs", False),
        ("0", "check_crcs", False),
        ("read_committed", "isolation_level", "read_committed"),
        ("a:1, b:2", "bootstrap_servers", ("a:1", "b:2")),
        ("roundrobin,range", "partition_assignment_strategy", ("roundrobin", "range")),
        ("127.0.0.1:0", "local_addr", ("127.0.0.1", 0)),
        ("10.0.0.1", "local_addr", ("10.0.0.1", 0)),
        ("[::1]:7000", "local_addr", ("::1", 7000)),
        ("65536", "receive_buffer_bytes", 65_536),
        ("5", "group_id", "5"),
        ("null", "group_id", "null"),
        ("Grüße", "group_id", "Grüße"),
        ("null", "sasl_plain_password", "null"),
    ],
)
def test_variables_are_converted_to_the_types_of_their_options(text, name, value):
    """A variable is converted to the option's type: numbers, booleans, lists, addresses; a string is unchanged."""
    options = {"group_id": "billing"} if name == "enable_auto_commit" else {}

    assert getattr(resolve(options, {f"TAILRACE_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"session_timeout_ms": "6000"}, "session_timeout_ms must be an integer, not '6000'"),
        ({"session_timeout_ms": 6000.0}, "session_timeout_ms must be an integer, not 6000.0"),
        ({"session_timeout_ms": True}, "session_timeout_ms must be an integer, not True"),
        ({"check_crcs": 1}, "check_crcs must be True or False, not 1"),
        ({"client_id": None}, "client_id must be a string, not None"),
        ({"group_id": b"billing"}, "group_id must be a string or None, not b'billing'"),
        ({"isolation_level": "serializable"}, "one of 'read_uncommitted', 'read_committed', not 'serializable'"),
        ({"auto_offset_reset": "smallest"}, "must be 'earliest', 'latest', 'none', .*, not 'smallest'"),
        ({"auto_offset_reset": -2}, "must be 'earliest', 'latest', 'none', .*, not -2"),
        ({"security_protocol": "sasl_ssl"}, "'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT', 'SASL_SSL', not 'sasl_ssl'"),
        ({"bootstrap_servers": 9092}, "bootstrap_servers must be .* separated by commas, not 9092"),
        ({"local_addr": "127.0.0.1"}, "local_addr must be a host and a port or None, not '127.0.0.1'"),
    ],
)
def test_a_wrong_type_is_refused(options, words):
    """An argument of the wrong type raises an error with the option, its valid values and the given one."""
    with pytest.raises(ConfigurationError, match=words):
        resolve(options, {})


def test_the_error_for_an_invalid_variable_names_it(tmp_path):
    """An invalid variable raises an error that names the variable, not the argument."""
    (tmp_path / "count").write_text("many")

    with pytest.raises(ConfigurationError, match=r"^TAILRACE_CHECK_CRCS must be True or False, not 'yes'$"):
        resolve({}, {"TAILRACE_CHECK_CRCS": "yes"})
    with pytest.raises(ConfigurationError, match=r"^TAILRACE_MAX_QUEUED_RECORDS_FILE must be an integer, not 'many'$"):
        resolve({}, {"TAILRACE_MAX_QUEUED_RECORDS_FILE": str(tmp_path / "count")})
    with pytest.raises(ConfigurationError, match=r"^TAILRACE_LOCAL_ADDR: 'here:x' is not an address"):
        resolve({}, {"TAILRACE_LOCAL_ADDR": "here:x"})


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_have_bounds(name):
    """A number that is negative, or exceeds 32 bits if it is sent to a broker, raises."""
    with pytest.raises(ConfigurationError, match=rf"^{name} must be at least [01], not -1$"):
        resolve({name: -1}, {})
    if name != "max_buffered_bytes":
        with pytest.raises(ConfigurationError, match=rf"^{name} must be at most 2147483647, not 2147483648$"):
            resolve({name: 2**31}, {})


@pytest.mark.parametrize("name", OBJECTS)
def test_python_objects_can_only_be_arguments(name):
    """A variable for a callback, a hook or a TLS context raises an error that says why."""
    with pytest.raises(ConfigurationError, match=f"TAILRACE_{name.upper()}: .* pass it as an argument"):
        resolve({}, {f"TAILRACE_{name.upper()}": "os.system"})


@pytest.mark.parametrize("name", OBJECTS)
def test_python_objects_are_checked(name):
    """An object that is not callable, or lacks the methods, raises before a consumer starts."""
    with pytest.raises(ConfigurationError, match=f"^{name} must be an? .*, not (<object object|the given value)"):
        resolve({name: object()}, {})


def test_python_objects_are_not_copied():
    listener, hook, context = Listener(), Hook(), ssl.create_default_context()

    config = resolve(
        {
            "rebalance_listener": listener,
            "hooks": [hook],
            "ssl_context": context,
            "post_rebalance_callback": print,
            "sasl_oauth_token_provider": input,
        },
        {},
    )

    assert config.rebalance_listener is listener
    assert config.hooks == (hook,)
    assert config.ssl_context is context
    assert (config.post_rebalance_callback, config.sasl_oauth_token_provider) == (print, input)


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "ours"), OTHER_SPELLINGS.items())
def test_an_option_of_another_client_is_translated(old, ours):
    """An option under the name of another client raises an error with tailrace's name."""
    assert ours in OPTIONS
    assert old not in OPTIONS
    with pytest.raises(ConfigurationError, match=f"no option '{old}' - it is called '{ours}' here"):
        resolve({old: 1}, {})
    with pytest.raises(ConfigurationError, match=f"it is called '{ours}' here"):
        check_names({old.replace("_", "."): 1})


@pytest.mark.parametrize(("old", "ours"), PRODUCER_SPELLINGS.items())
def test_a_producers_option_of_another_client_is_translated(old, ours):
    """An option of a producer under the name of another client raises an error with tailrace's name."""
    for spelling in (old, old.replace("_", ".")):
        with pytest.raises(ConfigurationError, match=f"no option '{spelling}' - it is called '{ours}' here"):
            resolve_producer({spelling: 1}, {})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retries": 5}, "no option 'retries' - use delivery_timeout_ms"),
        ({"max_in_flight_requests_per_connection": 1}, "leave it out: up to five batches of a partition are in flight"),
        ({"statistics.interval.ms": 1_000}, r"no option 'statistics.interval.ms' - use statistics\(\)"),
        ({"error_cb": print}, r"no option 'error_cb' - use hooks=\[...\]: on_event\(\) receives BrokerUnreachable"),
        ({"client.dns.lookup": "use_all_dns_ips"}, "leave it out: all addresses of a name are tried"),
        ({"ssl.cipher.suites": "x"}, "use ssl_context=, with a context that has the setting"),
        ({"queue.buffering.max.kbytes": 1_024}, "it is called 'buffer_memory' here, in bytes"),
        ({"batch.num.messages": 1_024}, "it is called 'max_batch_size' here, in bytes"),
        ({"group_id": "billing"}, "'group_id' is an option of consumers"),
        ({"linger": 5}, "no option 'linger' - did you mean 'linger_ms'"),
        ({"acks": 2}, "acks must be 'all', 1 or 0, not 2"),
        ({"acks": 1, "enable_idempotence": True}, "enable_idempotence=True needs acks='all', not 1"),
        ({"acks": 0, "transactional_id": "one"}, "transactional_id='one' needs acks='all', not 0"),
        ({"transactional_id": "one", "enable_idempotence": False}, "transactional_id needs idempotence"),
        ({"transactional_id": ""}, "transactional_id must not be empty"),
        ({"compression_type": "brotli"}, "one of 'none', 'gzip', 'snappy', 'lz4', 'zstd', not 'brotli'"),
        ({"compression_level": 3}, "compression_level=3 needs compression_type 'gzip', 'lz4' or 'zstd', not 'none'"),
        ({"compression_type": "gzip", "compression_level": 12}, "must be 1 to 9 with compression_type='gzip', not 12"),
        ({"linger_ms": 500, "delivery_timeout_ms": 500}, "linger_ms=500 must be less than delivery_timeout_ms=500"),
        ({"partitioner": "random"}, "partitioner must be 'murmur2', 'consistent_random', 'sticky', or a function"),
        ({"partitioner": "murmur2_random"}, "not 'murmur2_random' - the nearest is 'murmur2'"),
        ({"receive.message.max.bytes": 1}, "no option 'receive.message.max.bytes' - did you mean 'max_request_size'?"),
        ({"max_buffered_byte": 1}, "no option 'max_buffered_byte' - did you mean 'buffer_memory'?"),
        ({"socket.keepalive.enable": True}, "leave it out: connections are kept alive"),
        ({"value_serializer": "json"}, "value_serializer must be a plain function that returns bytes"),
    ],
)
def test_a_producers_wrong_options_are_refused(options, words):
    """A wrong or contradictory option of a producer raises an error that says what is right."""
    with pytest.raises(ConfigurationError, match=words):
        resolve_producer(options, {})


def test_a_producers_options_have_several_spellings_of_one_value():
    """acks=-1 is "all", compression_type=None is "none", and variables set the options as those of a consumer."""
    found = resolve_producer({"acks": -1, "compression_type": None}, {"TAILRACE_LINGER_MS": "5"})

    assert (found.acks, found.compression_type, found.linger_ms) == ("all", "none", 5)
    assert resolve_producer({}, {"TAILRACE_ACKS": "0"}).acks == 0
    assert resolve_producer({}, {}) == ProducerConfig()
    assert resolve({}, {"TAILRACE_LINGER_MS": "5"}) == ConsumerConfig()


@pytest.mark.parametrize("name", OPTIONS)
def test_kafkas_dotted_spelling_is_translated(name):
    """An option such as `session.timeout.ms`, in any case, raises an error that names `session_timeout_ms`."""
    for spelling in {name.replace("_", "."), name.upper()} - {name}:
        with pytest.raises(ConfigurationError, match=f"it is called '{name}' here"):
            check_names({spelling: 1})


def test_an_unknown_option_names_a_similar_one():
    """An unknown option raises an error with the most similar option, or else with all."""
    with pytest.raises(ConfigurationError, match="no option 'session_timout_ms' - did you mean 'session_timeout_ms'"):
        check_names({"session_timout_ms": 1})
    with pytest.raises(ConfigurationError, match=r"no option 'zookeeper_connect' - help\(tailrace.Consumer\)"):
        check_names({"zookeeper_connect": 1})
    with pytest.raises(ConfigurationError, match=r"no option 'max_poll_records' - use getmany\(max_records=...\)"):
        check_names({"max_poll_records": 1})
    for kind in (ConsumerConfig, ProducerConfig):
        for name in ("loop", "api_version"):
            with pytest.raises(ConfigurationError, match=f"no option '{name}' - leave it out: "):
                check_names({name: None}, kind=kind)


def test_a_class_as_assignor_is_refused_in_the_constructor():
    """A class in ``partition_assignment_strategy``, as in aiokafka, raises with the names to use."""
    with pytest.raises(ConfigurationError, match=r"not the class list - name one or more of range, roundrobin"):
        Consumer("orders", group_id="g", partition_assignment_strategy=[list])


def test_a_consumer_refuses_options_in_its_constructor():
    """The constructor of a consumer, not start(), raises for invalid options."""
    with pytest.raises(ConfigurationError, match="bootstrap_servers"):
        Consumer("orders", brokers="localhost:9092")
    with pytest.raises(ConfigurationError, match="group_id"):
        Consumer("orders", enable_auto_commit=True)


# ---- contradictions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"session_timeout_ms": 3_000}, "heartbeat_interval_ms=3000 must be less than session_timeout_ms=3000"),
        ({"enable_auto_commit": True}, "enable_auto_commit=True needs a group_id"),
        ({"group_id": ""}, "leave it out to read without a group"),
        ({"group_instance_id": "one"}, "group_instance_id needs a group_id"),
        ({"partition_assignment_strategy": ()}, "partition_assignment_strategy"),
        ({"partition_assignment_strategy": ("alphabetical",)}, "alphabetical"),
        ({"retry_backoff_ms": 2_000}, "retry_backoff_ms=2000 must be at most retry_backoff_max_ms=1000"),
        ({"reconnect_backoff_ms": 2_000}, "reconnect_backoff_ms=2000 must be at most reconnect_backoff_max_ms=1000"),
        ({"request_timeout_ms": 500}, "request_timeout_ms=500 must be more than fetch_max_wait_ms=500"),
        ({"ssl_keyfile": "key.pem"}, "ssl_keyfile needs ssl_certfile"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_plain_username and sasl_plain_password"),
        ({"ssl_key_pem": "-----BEGIN X-----"}, "ssl_key_pem needs ssl_certificate_pem - set it to"),
        ({"ssl_ca_pem": "ca.pem"}, "ssl_ca_pem must be PEM text, .* - set ssl_cafile to the path of a file"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "ann"},
            "sasl_mechanism='SCRAM-SHA-512' needs sasl_plain_username and sasl_plain_password",
        ),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "needs sasl_oauth_token_provider"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, words):
    """Options that contradict each other raise an error that names both, before a request is sent."""
    with pytest.raises(ConfigurationError, match=words):
        resolve(options, {})


@pytest.mark.parametrize(
    "options",
    [
        {"session_timeout_ms": 3_001},
        {"enable_auto_commit": True, "group_id": "billing"},
        {"enable_auto_commit": False},
        {"group_id": "billing", "group_instance_id": "one"},
        {"retry_backoff_ms": 1_000},
        {"request_timeout_ms": 501},
        {"ssl_certfile": "all.pem"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"},
        {"security_protocol": "SASL_SSL", "sasl_plain_username": "ann", "sasl_plain_password": ""},
        {"fetch_min_bytes": 0, "fetch_max_wait_ms": 0},
    ],
)
def test_options_at_their_bounds_are_accepted(options):
    """Options at a bound, and combinations that are barely valid, are accepted."""
    config = resolve(options, {})

    assert {name: getattr(config, name) for name in options} == options


# ---- secrets ---------------------------------------------------------------------------------------------------------


def test_passwords_and_token_providers_are_secrets():
    """Passwords, PEM texts and the token provider are declared as secrets."""
    files = {name for name in OPTIONS if name.endswith("_file")}
    words = ("password", "passphrase", "secret", "token_provider", "_pem", "proxy_url")
    assert set(SECRETS) == {name for name in OPTIONS if any(word in name for word in words)} - files


def test_no_repr_shows_a_secret():
    """The repr of a config or a consumer, and the locals of a traceback, show no secret."""
    options = {name: f"-----BEGIN {SECRET}" for name in SECRETS if name != "sasl_oauth_token_provider"}
    options["proxy_url"] = f"http://user:{SECRET}@proxy.example.org:3128"

    class Tokens:
        def __repr__(self) -> str:
            return SECRET

        async def __call__(self) -> str:
            return SECRET

    config = resolve({**options, "sasl_oauth_token_provider": Tokens(), "group_id": "billing"}, {})

    assert "billing" in repr(config)
    assert SECRET not in f"{config!r} {config} {Consumer('orders', **options)!r}"


@pytest.mark.parametrize("name", SECRETS)
def test_no_error_shows_a_secret(name, tmp_path):
    """No error shows a secret, be it of the wrong type, in an unreadable file, or beside another mistake."""
    (tmp_path / "secret").write_bytes(SECRET.encode() + b"\xff")
    variable = f"TAILRACE_{name.upper()}"
    unreadable = {} if f"{name}_file" in OPTIONS else {f"{variable}_FILE": str(tmp_path / "secret")}
    for options, environ in [
        ({name: SECRET.encode()}, {}),
        ({name: [SECRET]}, {}),
        ({name: {"password": SECRET}}, {}),
        ({"group_id": ""}, unreadable),
        ({name: SECRET, "session_timeout_ms": 0}, {}),
        ({"group_id": ""}, {variable: SECRET}),
        ({name: SECRET, "security_protocol": "SASL_SSL"}, {}),
    ]:
        with pytest.raises(ConfigurationError) as caught:
            resolve(options, environ)
        assert SECRET not in words_of(caught.value)
        assert str(caught.value)


# ---- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("localhost", ("localhost", 9092)),
        (" broker-1.example.org:1 ", ("broker-1.example.org", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65_535)),
        ("[::1]:9093", ("::1", 9093)),
        ("[fe80::1%eth0]", ("fe80::1%eth0", 9092)),
    ],
)
def test_addresses_are_parsed(text, address):
    """An address is host:port, [v6]:port, or a host with Kafka's default port."""
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":9092",
        "host:",
        "host:port",
        "host:0",
        "host:65536",
        "host:-1",
        "host:\N{FULLWIDTH DIGIT ONE}",
        "::1",
        "[::1",
        "[]:9092",
        "[::1]9092",
        "PLAINTEXT://host:9092",
        "host:9092/topic",
        "a:1,b:2",
        "two words:9092",
        "host:9092:9092",
    ],
)
def test_an_invalid_address_is_refused(text):
    """An invalid address raises in the constructor with an example."""
    with pytest.raises(ConfigurationError, match=rf"{re.escape(repr(text))} is not an address - write host:port"):
        split_address(text)
    with pytest.raises(ConfigurationError, match="bootstrap_servers"):
        Consumer("orders", bootstrap_servers=["localhost:9092", text])


@pytest.mark.parametrize(
    "given", ["user:secret@kafka:9092", "kafka://user:secret@kafka:9092", "secret@kafka:9092", "a@secret@kafka"]
)
def test_credentials_in_an_address_are_not_shown(given):
    """An address with credentials, as in a URL, is refused without repeating them."""
    with pytest.raises(ConfigurationError, match=r"\*\*\*@kafka") as raised:
        resolve({"bootstrap_servers": given})

    assert "secret" not in str(raised.value)


@given(st.text())
def test_any_text_is_an_address_or_is_refused(text):
    """Any text is parsed to host and port, or raises ConfigurationError."""
    with contextlib.suppress(ConfigurationError):
        host, port = split_address(text)
        assert host
        assert host in text
        assert 0 < port < 65_536


def test_several_addresses_are_a_list_or_one_text():
    """A list, a tuple and a comma-separated string are equivalent; empty parts of a string are skipped."""
    both = ("a:1", "b:2")

    for given_ in (["a:1", "b:2"], both, "a:1,b:2", " a:1 , b:2 ,"):
        assert resolve({"bootstrap_servers": given_}, {}).bootstrap_servers == both
