"""Names of environment variables."""

from __future__ import annotations

import pytest

from tailrace import ConfigurationError
from tailrace.config import resolve


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("TAILRACE_SESION_TIMEOUT_MS", "TAILRACE_SESSION_TIMEOUT_MS"),
        ("TAILRACE_BOOTSTRAP_SERVER", "TAILRACE_BOOTSTRAP_SERVERS"),
        ("TAILRACE_SASL_PLAIN_PASWORD_FILE", "TAILRACE_SASL_PLAIN_PASSWORD_FILE"),
        ("TAILRACE_GROUPID", "TAILRACE_GROUP_ID"),
    ],
)
def test_a_mistyped_variable_is_refused(variable, meant):
    """A mistyped variable raises an error with the one that was probably meant, and without its value."""
    with pytest.raises(ConfigurationError, match=f"{variable} .* did you mean {meant}[?]") as refused:
        resolve({}, {variable: "hunter2"})

    assert "hunter2" not in str(refused.value)


def test_another_unknown_variable_is_warned_of_once(caplog):
    """Any other unknown variable causes one warning without its value."""
    for _ in range(3):
        resolve({}, {"TAILRACE_COLOUR_OF_SHED": "hunter2"})

    (warned,) = [record.getMessage() for record in caplog.records if "SHED" in record.getMessage()]
    assert warned == "TAILRACE_COLOUR_OF_SHED is not the variable of an option and is ignored"


@pytest.mark.parametrize(
    "variable",
    [
        "TAILRACE_SERVICE_HOST",
        "TAILRACE_SERVICE_PORT",
        "TAILRACE_SERVICE_PORT_HTTP",
        "TAILRACE_PORT",
        "TAILRACE_PORT_8080_TCP",
        "TAILRACE_PORT_8080_TCP_ADDR",
        "TAILRACE_SHOP_SERVICE_HOST",
        "TAILRACE_SHOP_PORT_53_UDP_PROTO",
        "TAILRACE_WORKER",
        "TAILRACE_DEAD_LETTER_TOPIC",
        "TAILRACE_TEST_BOOTSTRAP_SERVERS",
        "TAILRACE_CLIENT_ID_FILE",
        "PATH",
    ],
)
def test_variables_of_kubernetes_and_the_tools_are_accepted(variable, caplog):
    """Variables that Kubernetes sets for a service named tailrace are accepted, and so are those of the tools."""
    resolve({}, {variable: __file__})

    assert not caplog.records
