"""Connections through SOCKS5 and HTTP CONNECT proxies of other projects."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tailrace import Consumer
from tailrace.config import resolve
from tailrace.errors import AuthenticationError, BrokerConnectionError, ConfigurationError, RequestTimedOutError
from tailrace.net import proxy as proxy_module
from tailrace.net.dialer import Dialer
from tailrace.observe.events import BrokerUnreachable, ConnectionLost
from tests.support.commands import tailrace
from tests.support.event_recorder import EventRecorder
from tests.support.net.open_connections import dialled
from tests.support.net.peers import Peer, sends, silent
from tests.support.net.proxies import PASSWORD, USER, ProxyProcess
from tests.support.net.secrets_shown import shown_by
from tests.support.net.security_setups import SCRAM_512_TLS, by
from tests.support.witness import Witness

CREDENTIALS = f"{USER}:{PASSWORD}"
SCHEMES = ["socks5", "socks5h", "http"]


@pytest.fixture(scope="module", params=SCHEMES)
def scheme(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def proxy(scheme, tmp_path_factory):
    """Start a proxy that requires a user name and a password."""
    kind = scheme.removesuffix("h")
    with ProxyProcess(kind, tmp_path_factory.mktemp("proxy"), needs_password=True) as started:
        yield started


@pytest.fixture
def url(proxy, scheme) -> str:
    return proxy.url(scheme, CREDENTIALS)


async def failure(address: str, url: str, **options) -> BrokerConnectionError:
    """Return the error of a connection through a proxy; it shows no password."""
    with pytest.raises(BrokerConnectionError) as caught:
        async with dialled(address, proxy_url=url, **options):
            pass
    assert not [one for one in shown_by(caught.value) if PASSWORD in one]
    return caught.value


@by(SCRAM_512_TLS)
async def test_all_connections_use_the_proxy(secured, proxy, url, name):
    """A consumer reads through the proxy, TLS and SASL included; a restart of the proxy loses no record."""
    secured.create_topic(name)
    witness, events, found = Witness(f"127.0.0.1:{secured.node.ports.internal}"), EventRecorder(), []
    options = {**secured.client_options, "proxy_url": url, "hooks": [events], "auto_offset_reset": "earliest"}
    async with Consumer(name, **options, group_id=name) as consumer:

        async def read(*values: bytes) -> None:
            await asyncio.to_thread(witness.produce, name, values)
            found.extend([(await asyncio.wait_for(consumer.getone(), 30)).value for _ in values])

        await read(b"1", b"2")
        await asyncio.to_thread(proxy.stop)
        await events.wait_for(ConnectionLost, 2)  # of the group and the fetches: none is without the proxy
        await events.wait_for(BrokerUnreachable, where=lambda one: "the proxy at 127.0.0.1:" in one.reason)
        await asyncio.to_thread(proxy.start)
        await read(b"3", b"4")

    assert found == [b"1", b"2", b"3", b"4"]
    assert PASSWORD not in repr(events.events)


async def test_the_scheme_says_who_resolves_names(direct, url, scheme, monkeypatch):
    """With ``socks5``, this client resolves the names of brokers; otherwise, only the proxy has to know them."""
    _, _, port = direct.partition(":")
    known = socket.getaddrinfo

    def getaddrinfo(host, *arguments, **more):
        if host == "only-here.example":
            host = "127.0.0.1"
        elif host == "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    reachable, unreachable = ("only-here.example", "localhost")[:: 1 if scheme == "socks5" else -1]
    async with dialled(f"{reachable}:{port}", proxy_url=url) as connection:
        assert connection.is_open
    error = await failure(f"{unreachable}:{port}", url)
    if scheme == "socks5":
        assert f"{unreachable}:{port}: cannot resolve the host name" in str(error)
    else:
        assert "did not connect to the broker: " in str(error)


async def test_several_addresses_of_a_name_are_tried_through_the_proxy(direct, url, scheme, monkeypatch):
    """With ``socks5``, the second address of a name is used if the proxy does not reach the first one."""
    if scheme != "socks5":
        pytest.skip("the proxy resolves names")
    port = int(direct.partition(":")[2])
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", one)) for one in (1, port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_more: found)
    async with dialled("kafka.example:9092", proxy_url=url) as connection:
        assert connection.is_open


@pytest.mark.parametrize("credentials", ["", f"{USER}:wrong"])
async def test_refused_credentials_are_an_authentication_error(direct, proxy, scheme, credentials):
    """A proxy that refuses user name and password raises the error that no retry would resolve."""
    error = await failure(direct, proxy.url(scheme, credentials))

    assert type(error) is AuthenticationError
    assert f"{direct}: the proxy at 127.0.0.1:{proxy.port} refused user name and password" in str(error)
    assert "check those in proxy_url" in str(error)


async def test_a_broker_that_the_proxy_does_not_reach_is_named(url, proxy):
    """The error names the broker and the proxy, and says that the proxy works."""
    error = await failure("127.0.0.1:1", url)

    assert type(error) is BrokerConnectionError
    assert f"127.0.0.1:1: the proxy at 127.0.0.1:{proxy.port} did not connect to the broker: " in str(error)


async def test_a_proxy_that_is_down_is_named(direct, scheme):
    error = await failure(direct, f"{scheme}://{CREDENTIALS}@127.0.0.1:1")

    assert type(error) is BrokerConnectionError
    assert "the proxy at 127.0.0.1:1 cannot be reached: " in str(error)
    assert " - is it running? check proxy_url" in str(error)


async def test_a_proxy_whose_name_is_unknown_is_named(direct, scheme, monkeypatch):
    def getaddrinfo(*_arguments, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    error = await failure(direct, f"{scheme}://{CREDENTIALS}@no-such-host.invalid:1080")

    assert "the proxy at no-such-host.invalid:1080 cannot be reached: Name or service not known" in str(error)


async def test_a_proxy_that_hangs_ends_in_time(direct, scheme):
    """A proxy that accepts connections and sends nothing fails after the time limit of a connection."""
    async with Peer(silent) as hanging:
        url = f"{scheme}://{CREDENTIALS}@127.0.0.1:{hanging.port}"
        error = await failure(direct, url, socket_connection_setup_timeout_ms=300)

    assert type(error) is RequestTimedOutError
    assert f"no connection within 0.3 s through the proxy at 127.0.0.1:{hanging.port}" in str(error)


async def test_another_server_in_place_of_the_proxy_is_recognized(direct, scheme):
    """A server that is no proxy raises an error that names the option."""
    async with Peer(sends(b"SSH-2.0-OpenSSH_9.2\r\n")) as other:
        error = await failure(direct, f"{scheme}://{CREDENTIALS}@{other.address}")

    assert type(error) is BrokerConnectionError
    assert f"the proxy at {other.address} gave no valid answer" in str(error)
    assert "check the scheme in proxy_url" in str(error)


def test_commands_use_the_proxy(kafka, direct, url, proxy):
    """Commands take the proxy from the environment, and say why it fails."""
    assert tailrace("doctor", "--bootstrap-servers", direct, TAILRACE_PROXY_URL=url).returncode == 0
    failed = tailrace(
        "groups", "list", "--bootstrap-servers", direct, "--set", f"proxy_url={url.replace('ann', 'bob')}"
    )

    assert failed.returncode == 1
    assert "refused user name and password" in failed.stderr
    assert PASSWORD not in failed.stderr


@pytest.mark.parametrize(
    "value",
    [
        "proxy.example.org:1080",
        "https://proxy.example.org:3128",
        "socks4://proxy.example.org:1080",
        "socks5://proxy.example.org",
        f"http://{PASSWORD}@proxy.example.org:3128",
        f"http://user:{PASSWORD}@:3128",
        f"http://user:{PASSWORD}@x:3128/path",
        f"http://user:{'%41' * 256}{PASSWORD}@x:3128",
    ],
)
def test_an_invalid_url_is_refused(value):
    """The error has the valid forms, and not the value, which may contain a password."""
    with pytest.raises(ConfigurationError, match=r"proxy_url must be socks5h://host:port, .*not the given") as caught:
        resolve({"proxy_url": value}, {})

    assert not [one for one in shown_by(caught.value) if PASSWORD in one]


def test_the_password_of_a_proxy_is_not_shown():
    config = resolve({"proxy_url": f"http://user:{PASSWORD}@[::1]:3128"}, {})

    assert PASSWORD not in f"{config!r} {Consumer('t', proxy_url=config.proxy_url)!r}"


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(proxy_module, "find_spec", lambda _name: None)

    with pytest.raises(
        ConfigurationError, match=r"proxy_url needs the package python-socks - pip install '.\[proxy\]'"
    ):
        Dialer(resolve({"proxy_url": "http://x:3128"}, {}))
