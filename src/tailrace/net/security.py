"""TLS contexts, and SASL authentication with aiokafka's authenticators.

Secrets appear in no log, error message or repr.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import ssl
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, cast

from tailrace.config import ClientConfig, TokenProvider
from tailrace.context_managers import contextmanager
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ConfigurationError,
    RequestTimedOutError,
    TailraceError,
)
from tailrace.observe.events import TokenRenewalFailed
from tailrace.protocol.handshake import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest
from tailrace.protocol.message import Request
from tailrace.values import Hidden, Secret

__all__ = [
    "Exchange",
    "TlsFiles",
    "TokenProviderAdapter",
    "authenticate",
    "check_password_file",
    "password_of",
    "pem_text",
    "token_provider",
]

_MIN_ITERATIONS, _MAX_ITERATIONS = 4_096, 1_000_000
"""Accepted iteration counts of SCRAM."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Exchange(Protocol):
    """Function that sends a request of the SASL handshake and returns the response."""

    def __call__(self, request: Request[Any], /) -> Awaitable[Any]: ...


class _Authenticator(Protocol):
    """Interface of aiokafka's authenticators.

    ``step`` is called with the bytes of the broker's last answer, or None in the first call. It returns a tuple whose
    first item is the bytes to send, or None when authentication is complete.
    """

    def step(self, payload: bytes | None) -> Awaitable[tuple[bytes, bool] | None]: ...


class TlsFiles:
    """TLS context, loaded again before the next connection when one of its files has changed.

    If the changed files cannot be loaded, for example because one of them is half written, ``on_failure`` is called
    with the reason, and connections use the former context until the files change again.

    Raises:
        ConfigurationError: a file cannot be read or is invalid.
    """

    def __init__(self, config: ClientConfig, on_failure: Callable[[str], None]) -> None:
        self._config, self._on_failure = config, on_failure
        self._loaded_of = self._stamps()
        self._context = _tls_context(config)

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection; None if ``security_protocol`` does not use TLS."""
        if self._context is not None and (found := self._stamps()) != self._loaded_of:
            self._loaded_of = found
            try:
                self._context = _tls_context(self._config)
            except ConfigurationError as error:
                self._on_failure(str(error))
        return self._context

    def _stamps(self) -> list[tuple[int, ...] | None]:
        """Return what changes when a file is written or replaced; None for a file that cannot be read."""
        stamps: list[tuple[int, ...] | None] = []
        for name in filter(None, (self._config.ssl_cafile, self._config.ssl_certfile, self._config.ssl_keyfile)):
            try:
                found = Path(name).stat()
            except OSError:
                stamps.append(None)
            else:
                stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
        return stamps


def _tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    if config.security_protocol not in {"SSL", "SASL_SSL"}:
        return None
    if config.ssl_context is not None:
        return config.ssl_context
    try:
        context = ssl.create_default_context(cafile=config.ssl_cafile, cadata=pem_text(config.ssl_ca_pem))
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
        context.check_hostname = config.ssl_check_hostname
        with (
            _file_of(config.ssl_certfile, config.ssl_certificate_pem) as certificate,
            _file_of(config.ssl_keyfile, config.ssl_key_pem) as key,
        ):
            if certificate is not None:
                # If the password were None, OpenSSL would prompt for it on the terminal and block.
                context.load_cert_chain(certificate, key, config.ssl_password or "")
    except (OSError, ValueError) as error:
        texts = ("ssl_ca_pem", "ssl_certificate_pem", "ssl_key_pem")
        sources = [one for one in (config.ssl_cafile, config.ssl_certfile, config.ssl_keyfile) if one]
        sources += [name for name in texts if getattr(config, name) is not None]
        raise ConfigurationError(
            f"cannot load the TLS files ({', '.join(sources) or 'certificates of the system'}): {error}"
            " - use files in PEM format, and set ssl_password if the key is encrypted"
        ) from None
    return context


def pem_text(text: str | None) -> Secret | None:
    """Return PEM text whose escaped line breaks, as in files of environment variables, are line breaks."""
    return None if text is None else Secret(text.replace("\\n", "\n"))


@contextmanager
def _file_of(path: str | None, text: str | None) -> Iterator[str | None]:
    """Yield ``path``, or the path of a file with ``text`` that exists during the context; None if both are None.

    OpenSSL reads certificate chains and keys from files only.
    """
    if text is None:
        yield path
    elif hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():  # A file in memory only.
        with open(os.memfd_create("pem"), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(Secret(pem_text(text)).encode())
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        descriptor, name = tempfile.mkstemp()  # Only this user may read the file.
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123
                file.write(Secret(pem_text(text)).encode())
            yield name
        finally:
            Path(name).unlink()


def check_password_file(config: ClientConfig) -> None:
    """Check that ``sasl_plain_password_file``, if it is needed, contains a password.

    Raises:
        ConfigurationError: it does not.
    """
    if config.security_protocol.startswith("SASL") and config.sasl_mechanism not in {"OAUTHBEARER", "GSSAPI"}:
        try:
            password_of(config)
        except BrokerConnectionError as error:
            raise ConfigurationError(str(error)) from None


def password_of(config: ClientConfig) -> Secret:
    """Return the password for PLAIN and SCRAM.

    Raises:
        BrokerConnectionError: ``sasl_plain_password_file`` is missing, empty or not text; a retry may succeed, because
            another program may be writing the file.
    """
    path = config.sasl_plain_password_file
    if path is None:
        return Secret(config.sasl_plain_password)
    try:
        found = Secret(Path(path).read_text(encoding="utf-8").rstrip("\r\n"))
        reason = "" if found else "it is empty"
    except OSError as error:
        found, reason = Secret(), error.strerror or type(error).__name__
    except UnicodeDecodeError:
        found, reason = Secret(), "it is not UTF-8 text"
    # Raised here, so that the caught exception, which has the text of the file, is not the context.
    if reason:
        raise BrokerConnectionError(
            f"sasl_plain_password_file: there is no password in {path}: {reason} - write the password to this file"
        )
    return found


async def authenticate(
    exchange: Exchange, config: ClientConfig, host: str, provider: TokenProvider | None, *, has_signed_in: bool
) -> float | None:
    """Authenticate by SASL and return the lifetime of the session in seconds; None if the session does not expire.

    ``provider`` returns the tokens for OAUTHBEARER. ``has_signed_in`` is True if this client has authenticated before.

    Raises:
        AuthenticationError: the broker refused the mechanism or the credentials, or did not prove its identity.
        ConfigurationError: a SASL option is invalid, or a package is missing.
        BrokerConnectionError: the token provider raised or returned an expired token, the file of the password has
            none, or has one that the broker refused although ``has_signed_in``, or the broker did not answer.
        RequestTimedOutError: the token provider did not return.
    """
    mechanism = config.sasl_mechanism
    handshake = await exchange(SaslHandshakeRequest(mechanism))
    if handshake.error_code:
        offers = ", ".join(handshake.mechanisms)
        advice = f"set sasl_mechanism to one of: {offers}" if offers else "the listener does not use SASL"
        raise AuthenticationError(f"the broker does not support {mechanism} - {advice}")
    authenticator = _authenticator(config, host, provider)
    answer: SaslAuthenticateResponse | None = None
    # Tracebacks may print local variables. Therefore, the exchanged bytes are only held in messages, whose repr hides
    # them.
    while (request := await _step(authenticator, mechanism, answer)) is not None:
        answer = await exchange(request)
        if answer.error_code:
            refusal, file = (
                _refusal(answer.error_code, answer.error_message, mechanism),
                config.sasl_plain_password_file,
            )
            # While a password is changed, the file and the brokers may have different ones for some time.
            if file is not None and has_signed_in:
                raise BrokerConnectionError(f"{refusal}; the next attempt reads the password in {file} again")
            raise AuthenticationError(refusal)
        if mechanism == "OAUTHBEARER" and answer.auth_bytes:
            # The broker answers a refused token with a challenge, not with an error code (RFC 7628, section 3.2.2).
            reason = answer.auth_bytes.decode(errors="replace")
            raise AuthenticationError(f"OAUTHBEARER: the broker refused the token: {reason}")
        if mechanism.startswith("SCRAM"):
            _check_iterations(answer.auth_bytes, mechanism)
    return answer.session_lifetime_ms / 1000 if answer is not None and answer.session_lifetime_ms > 0 else None


async def _step(
    authenticator: _Authenticator, mechanism: str, answer: SaslAuthenticateResponse | None
) -> SaslAuthenticateRequest | None:
    try:
        step = await authenticator.step(None if answer is None else answer.auth_bytes)
        return None if step is None else SaslAuthenticateRequest(step[0])
    except TailraceError:
        raise
    except Exception as error:  # noqa: BLE001 - ValueError, KeyError, AssertionError of aiokafka, GSSError of gssapi
        # Only a server that knows the password can sign its answer. The text of the error is left out, because it may
        # contain the exchanged bytes.
        reason = (
            f"{error} - is there a Kerberos ticket? see `klist`"
            if mechanism == "GSSAPI"
            else "the broker's answer has no valid server signature - is this the broker?"
        )
    # Raised here, so that the caught exception is not the context: local variables of aiokafka's frames hold the
    # password.
    raise AuthenticationError(f"{mechanism}: {reason}")


def _check_iterations(challenge: bytes, mechanism: str) -> None:
    """Raise AuthenticationError if the iteration count in a SCRAM challenge is too low or too high.

    With a low count, an eavesdropper can guess the password (RFC 7677); with a high count, authentication takes hours.
    """
    fields = dict(part.split(b"=", 1) for part in challenge.split(b",") if b"=" in part)
    count = fields.get(b"i")
    if count is None or (re.fullmatch(rb"\d{1,7}", count) and _MIN_ITERATIONS <= int(count) <= _MAX_ITERATIONS):
        return
    raise AuthenticationError(
        f"{mechanism}: the broker requests {count[:20].decode(errors='replace')} iterations, but only"
        f" {_MIN_ITERATIONS} to {_MAX_ITERATIONS} are accepted - is this the broker?"
    )


def _refusal(code: int, message: str | None, mechanism: str) -> str:
    if code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        return f"{mechanism}: {message or 'the broker refused the credentials'} - check user name, password or token"
    return f"{mechanism}: {message or 'refused'} ({name_of(code)})"


def _authenticator(config: ClientConfig, host: str, provider: TokenProvider | None) -> _Authenticator:
    # Imported here, because this import loads aiokafka's whole client, which is needed for SASL only.
    from aiokafka.conn import (  # noqa: PLC0415
        OAuthAuthenticator,
        SaslGSSAPIAuthenticator,
        SaslPlainAuthenticator,
        ScramAuthenticator,
    )

    loop, mechanism = asyncio.get_running_loop(), config.sasl_mechanism
    authenticator: object
    if mechanism == "OAUTHBEARER":
        assert provider is not None
        authenticator = OAuthAuthenticator(sasl_oauth_token_provider=TokenProviderAdapter(provider, config))
    elif mechanism == "GSSAPI":
        if find_spec("gssapi") is None:
            raise ConfigurationError("sasl_mechanism='GSSAPI' needs the package gssapi - pip install gssapi")
        domain = config.sasl_kerberos_domain_name or host
        authenticator = SaslGSSAPIAuthenticator(loop=loop, principal=f"{config.sasl_kerberos_service_name}@{domain}")
    else:
        password = password_of(config)
        _check_encodable(sasl_plain_username=config.sasl_plain_username or "", sasl_plain_password=password)
        create = (
            SaslPlainAuthenticator if mechanism == "PLAIN" else partial(ScramAuthenticator, sasl_mechanism=mechanism)
        )
        authenticator = create(
            loop=loop,
            sasl_plain_username=config.sasl_plain_username,
            sasl_plain_password=password,
        )
    return cast(_Authenticator, authenticator)


def _check_encodable(**options: str) -> None:
    # Surrogates cannot be encoded. Without this check, the text of the UnicodeEncodeError would contain the password.
    for name, value in options.items():
        if _SURROGATE.search(value):
            raise ConfigurationError(
                f"{name} cannot be encoded as UTF-8, because it contains surrogates - if it is read from bytes, decode"
                " them as UTF-8"
            )


def token_provider(config: ClientConfig, emit: Callable[[TokenRenewalFailed], None]) -> TokenProvider | None:
    """Return the token provider of a client, which caches tokens if it is named; None if the client needs none.

    ``emit`` is called if a token cannot be renewed and the former one is used.

    Raises:
        ConfigurationError: a package is missing, or the function that the option names does not exist.
    """
    provider = config.sasl_oauth_token_provider
    if not config.security_protocol.startswith("SASL") or config.sasl_mechanism != "OAUTHBEARER":
        return None
    if not isinstance(provider, str):
        return provider
    from tailrace.net.token_providers import named_provider  # noqa: PLC0415 - imports urllib

    return named_provider(str.__str__(provider), config, emit)


class TokenProviderAdapter:
    """Adapter from the user's token provider to aiokafka's interface.

    The provider's method ``extensions() -> dict[str, str]``, if it has one (KIP-342), is called for each token. It is
    not called by aiokafka, whose frames have the token in a local variable.
    """

    def __init__(self, provider: TokenProvider, config: ClientConfig) -> None:
        self._provider: Callable[[], object] = provider
        # Less than the time limit of the connection, so that the error names the provider.
        self._timeout_s = 0.9 * config.socket_connection_setup_timeout_ms / 1000
        self._configured = dict(one.split("=", 1) for one in config.sasl_oauthbearer_extensions)
        self._extensions: Mapping[str, str] = {}

    async def token(self) -> str:
        """Call the user's provider and return its token.

        Raises:
            BrokerConnectionError: the provider raised an exception other than TailraceError, or returned a JWT that has
                expired, which is not sent: brokers refuse it as they refuse wrong credentials.
            RequestTimedOutError: the provider did not return within nine tenths of
                ``socket_connection_setup_timeout_ms``.
            ConfigurationError: the provider did not return a string, or its extensions are no mapping of strings.
        """
        what, limit = "sasl_oauth_token_provider", asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                token = Hidden(await self._call_provider())
            what = "extensions() of sasl_oauth_token_provider"
            extensions = self._call_extensions()
        except TailraceError:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                raise RequestTimedOutError(
                    f"OAUTHBEARER: {what} returned no token within {self._timeout_s:.1f} s"
                    " - can it reach the identity provider?"
                ) from None
            # The text of the exception may contain credentials that were sent to the identity provider.
            raise BrokerConnectionError(
                f"OAUTHBEARER: {what} raised {type(error).__name__} - see __cause__ for its text,"
                " which may contain credentials and is therefore not shown here"
            ) from error
        if not isinstance(token.value, str):
            raise ConfigurationError(
                "sasl_oauth_token_provider did not return a str - make it an `async def` that returns the token"
            )
        from tailrace.net.token_providers import expired_since_s  # noqa: PLC0415 - imports urllib

        if (expired_s := expired_since_s(token.value)) >= 0:
            raise BrokerConnectionError(
                f"OAUTHBEARER: sasl_oauth_token_provider returned a token that expired {expired_s:.0f} s"
                " ago - return a new token, and check the clock of this machine"
            )
        if not isinstance(extensions, Mapping) or not all(isinstance(one, str) for one in chain(*extensions.items())):
            raise ConfigurationError(f"{what} must return a dict of str, not {type(extensions).__name__}")
        # The text of a UnicodeEncodeError would contain the token.
        if any(map(_SURROGATE.search, (token.value, *chain(*extensions.items())))):
            raise ConfigurationError(
                "the token or the extensions of sasl_oauth_token_provider contain surrogates, which cannot be encoded"
                " as UTF-8 - decode them as UTF-8"
            )
        self._extensions = {**self._configured, **extensions}
        return token.value

    def extensions(self) -> Mapping[str, str]:
        """Return the SASL extensions of the last token."""
        return self._extensions

    async def _call_provider(self) -> object:
        result = self._provider()
        return await result if inspect.isawaitable(result) else None

    def _call_extensions(self) -> object:
        method = getattr(self._provider, "extensions", None)
        return method() if callable(method) else {}
