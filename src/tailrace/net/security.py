"""Who we are and whom we trust: TLS by the standard library, SASL by aiokafka's authenticators.

Rule of this file: a secret goes from the config to the wire and into nothing else: no log, no error text, no repr.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, Protocol, cast

from tailrace.config import ConsumerConfig, TokenProvider
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import AuthenticationError, BrokerConnectionError, ConfigurationError, TailraceError
from tailrace.protocol.handshake import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from tailrace.protocol.message import Request

__all__ = ["Exchange", "Token", "authenticate", "tls_context"]

_FEWEST_ITERATIONS, _MOST_ITERATIONS = 4_096, 1_000_000


class Exchange(Protocol):
    """Sends one request of the handshake and gives its answer."""

    def __call__(self, request: Request[Any], /) -> Awaitable[Any]: ...


class _Authenticator(Protocol):
    """aiokafka's: each step takes what the broker said and gives what to say next, or None at the end."""

    def step(self, payload: bytes | None) -> Awaitable[tuple[bytes, bool] | None]: ...


def tls_context(config: ConsumerConfig) -> ssl.SSLContext | None:
    """The TLS context that the options ask for; None for protocols without TLS.

    Raises:
        ConfigurationError: a file cannot be read or is not what it should be.
    """
    if config.security_protocol not in {"SSL", "SASL_SSL"}:
        return None
    if config.ssl_context is not None:
        return config.ssl_context
    try:
        context = ssl.create_default_context(cafile=config.ssl_cafile)
        context.check_hostname = config.ssl_check_hostname
        if config.ssl_certfile is not None:
            # Without any password OpenSSL would ask for one at the terminal, and everything would stand still.
            context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, config.ssl_password or "")
    except (OSError, ValueError) as error:
        files = [f for f in (config.ssl_cafile, config.ssl_certfile, config.ssl_keyfile) if f]
        raise ConfigurationError(
            f"the TLS files ({', '.join(files) or 'the system store'}): {error}"
            " - each has to be PEM, and ssl_password that of the key, if it has one"
        ) from None
    return context


async def authenticate(exchange: Exchange, config: ConsumerConfig, host: str) -> float | None:
    """Log in by SASL; gives the seconds that the session lasts, None for ever.

    Raises:
        AuthenticationError: the broker does not know us, or not this mechanism.
    """
    mechanism = config.sasl_mechanism
    handshake = await exchange(SaslHandshakeRequest(mechanism))
    if handshake.error_code:
        offers = ", ".join(handshake.mechanisms)
        way_out = f"set sasl_mechanism to one of: {offers}" if offers else "this listener has no SASL at all"
        raise AuthenticationError(f"the broker does not take {mechanism} - {way_out}")
    authenticator = _authenticator(config, host)
    answer: SaslAuthenticateResponse | None = None
    # What is said and heard stays inside of messages, which do not show it: tracebacks may print locals.
    while (said := await _step(authenticator, mechanism, answer)) is not None:
        answer = await exchange(said)
        if answer.error_code:
            raise AuthenticationError(_refusal(answer.error_code, answer.error_message, mechanism))
        if mechanism == "OAUTHBEARER" and answer.auth_bytes:
            # A refused token comes back as a challenge and no error (RFC 7628, section 3.2.2).
            why = answer.auth_bytes.decode(errors="replace")
            raise AuthenticationError(f"OAUTHBEARER: the broker refused the token: {why}")
        if mechanism.startswith("SCRAM"):
            _check_iterations(answer.auth_bytes, mechanism)
    return answer.session_lifetime_ms / 1000 if answer is not None and answer.session_lifetime_ms > 0 else None


async def _step(
    authenticator: _Authenticator, mechanism: str, heard: SaslAuthenticateResponse | None
) -> SaslAuthenticateRequest | None:
    try:
        step = await authenticator.step(None if heard is None else heard.auth_bytes)
        return None if step is None else SaslAuthenticateRequest(step[0])
    except TailraceError:
        raise
    except Exception as error:  # noqa: BLE001 - ValueError, KeyError, AssertionError of aiokafka, GSSError of gssapi
        if mechanism == "GSSAPI":
            raise AuthenticationError(f"GSSAPI: {error} - is there a Kerberos ticket? see `klist`") from None
        # The server's proof does not fit: it does not know our password, or is not who it claims to be. The text
        # of the error may hold what was exchanged, so it stays out of ours.
        raise AuthenticationError(f"{mechanism}: the broker's answer does not prove that it knows us") from None


def _check_iterations(challenge: bytes, mechanism: str) -> None:
    """Too few make the password easy to guess for a listener (RFC 7677), too many keep a thread busy for hours."""
    fields = dict(part.split(b"=", 1) for part in challenge.split(b",") if b"=" in part)
    asked = fields.get(b"i")
    if asked is None or (re.fullmatch(rb"\d{1,7}", asked) and _FEWEST_ITERATIONS <= int(asked) <= _MOST_ITERATIONS):
        return
    raise AuthenticationError(
        f"{mechanism}: the broker asks for {asked[:20].decode(errors='replace')} iterations, which no honest one does"
        f" ({_FEWEST_ITERATIONS} to {_MOST_ITERATIONS}) - is it the broker?"
    )


def _refusal(code: int, message: str | None, mechanism: str) -> str:
    if code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        return f"{mechanism}: {message or 'the broker refused the credentials'} - check user and password or token"
    return f"{mechanism}: {message or 'refused'} ({name_of(code)})"


def _authenticator(config: ConsumerConfig, host: str) -> _Authenticator:
    # Imports all of aiokafka's client, which only a consumer with SASL has to wait for.
    from aiokafka.conn import (  # noqa: PLC0415
        OAuthAuthenticator,
        SaslGSSAPIAuthenticator,
        SaslPlainAuthenticator,
        ScramAuthenticator,
    )

    loop, mechanism = asyncio.get_running_loop(), config.sasl_mechanism
    made: object
    if mechanism == "OAUTHBEARER":
        assert config.sasl_oauth_token_provider is not None
        made = OAuthAuthenticator(sasl_oauth_token_provider=Token(config.sasl_oauth_token_provider))
    elif mechanism == "GSSAPI":
        if find_spec("gssapi") is None:
            raise ConfigurationError("sasl_mechanism='GSSAPI' needs the package gssapi - pip install gssapi")
        domain = config.sasl_kerberos_domain_name or host
        made = SaslGSSAPIAuthenticator(loop=loop, principal=f"{config.sasl_kerberos_service_name}@{domain}")
    else:
        _check_writable(config)
        # Never a local variable of ours: see authenticate.
        kind = SaslPlainAuthenticator if mechanism == "PLAIN" else partial(ScramAuthenticator, sasl_mechanism=mechanism)
        made = kind(
            loop=loop,
            sasl_plain_username=config.sasl_plain_username,
            sasl_plain_password=config.sasl_plain_password,
        )
    return cast(_Authenticator, made)


def _check_writable(config: ConsumerConfig) -> None:
    # Looked at before, since the error of encoding carries the whole text.
    for name in ("sasl_plain_username", "sasl_plain_password"):
        if re.search("[\ud800-\udfff]", getattr(config, name)):
            raise ConfigurationError(f"{name} has bytes that are no text - give it as UTF-8")


class Token:
    """The user's provider as aiokafka's authenticator wants it; what it raises becomes ours.

    One that is an object may have ``extensions() -> dict[str, str]`` too (KIP-342).
    """

    def __init__(self, provide: TokenProvider) -> None:
        self._provide: Callable[[], object] = provide
        self.extensions: object = getattr(provide, "extensions", None)

    async def token(self) -> str:
        """Ask the user's provider.

        Raises:
            BrokerConnectionError: it failed.
            ConfigurationError: what it gave is no token.
        """
        try:
            token = await self._ask()
        except TailraceError:
            raise
        except Exception as error:
            # Its text may hold what it has sent to the identity provider.
            raise BrokerConnectionError(
                f"OAUTHBEARER: sasl_oauth_token_provider raised {type(error).__name__} - it returns a token, or logs"
                " itself why there is none"
            ) from error
        if isinstance(token, str):
            return token
        del token
        raise ConfigurationError("sasl_oauth_token_provider gave no token - make it `async def` and return a str")

    async def _ask(self) -> object:
        coming = self._provide()
        return await coming if inspect.isawaitable(coming) else None
