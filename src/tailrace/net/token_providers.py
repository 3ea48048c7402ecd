"""Token providers for OAUTHBEARER that ``sasl_oauth_token_provider`` names.

The libraries of the vendors block. Therefore, they run in threads, and a caller waits for a limited time. The threads
are daemons, because the threads of asyncio's executor would delay the end of the program while a library hangs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable
from http.client import HTTPException
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from tailrace.awaitables import is_coroutine_function, resolve_result
from tailrace.config import ClientConfig, TokenProvider, similar_provider
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ConfigurationError,
    RequestTimedOutError,
    TailraceError,
)
from tailrace.installation import install_hint
from tailrace.observe.events import TokenRenewalFailed
from tailrace.values import Hidden

__all__ = ["expired_since_s", "expiry_of", "named_provider"]

_RENEWAL = 0.8
"""Part of a token's lifetime after which the next connection or renewal of a session requests a new token."""
_ABANDONED_AFTER_S = 60.0
"""Time in seconds after which another thread replaces one that has not returned a token."""
_PATIENCE = 0.25
"""Part of the time limit of a connection for which it waits for a new token while the former one is valid."""
_RETRY_AFTER_S = 10.0
"""Maximum time in seconds between a failed renewal and the next one."""
_MARGIN, _MAX_MARGIN_S = 0.05, 5.0
"""Part of a token's lifetime, and its maximum in seconds, at whose beginning the token counts as expired.

A broker whose clock is ahead refuses an expired token as it refuses wrong credentials.
"""
_HTTP_TIMEOUT_S = 10.0
_MAX_RESPONSE_BYTES = 1 << 20
_ASSERTION_LIFETIME_S = 300
_NAME = "sasl_oauth_token_provider"


class _Token(NamedTuple):
    hidden: Hidden
    """The token."""
    expires_at: float | None
    """End of the token's lifetime in seconds since 1970; None if it is unknown."""


Emit: TypeAlias = Callable[[TokenRenewalFailed], None]


def named_provider(name: str, config: ClientConfig, emit: Emit) -> TokenProvider:
    """Return the token provider of a name, such as ``aws:eu-west-1`` or ``package.module:function``.

    ``emit`` is called if a token cannot be renewed and the former one is used.

    Raises:
        ConfigurationError: a package is missing, or the function does not exist.
    """
    kind, _, argument = name.partition(":")

    def cached(fetch: Callable[[], _Token], advice: str) -> TokenProvider:
        return _CachedProvider(name, fetch, advice, _PATIENCE * config.socket_connection_setup_timeout_ms / 1000, emit)

    if kind == "aws":
        _require("aws_msk_iam_sasl_signer", "aws-msk-iam-sasl-signer-python", kind)
        advice = "set AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role of this machine"
        return cached(lambda: _aws_token(argument), advice)
    if kind == "azure":
        _require("azure.identity", "azure-identity", kind)
        advice = (
            "run `az login`, set AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or give this machine a"
            " managed identity"
        )
        return cached(_AzureTokens(_azure_scope(argument)), advice)
    if kind == "gcp":
        _require("google.auth", "google-auth", kind)
        advice = (
            "run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS, or give this machine a"
            " service account"
        )
        return cached(_GoogleTokens(), advice)
    if kind == "oidc":
        if config.sasl_oauthbearer_assertion_private_key_file is not None:
            _require("jwt", "pyjwt", kind)
        return cached(_OidcTokens(config), "see the options sasl_oauthbearer_…")
    return _function_provider(name, kind, argument)


def _require(module: str, package: str, extra: str) -> None:
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigurationError(f"{_NAME}='{extra}…' needs the package {package} - {install_hint(extra)}")


def expiry_of(token: str) -> float | None:
    """Return the claim ``exp`` of a JWT; None if the token is not a JWT with this claim."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def expired_since_s(token: str) -> float:
    """Return the time in seconds since a JWT has expired; negative for a valid JWT and for another token."""
    expires_at = expiry_of(token)
    return -1.0 if expires_at is None else time.time() - expires_at


# ---- threads and cache -----------------------------------------------------------------------------------------------


def _run_in_thread(function: Callable[[], Any]) -> asyncio.Future[Any]:
    """Return the future of the result of ``function``, which a daemon thread calls."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    # Mark an exception as retrieved: all callers may have been canceled.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def finish(result: Hidden, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result.value)
        else:
            future.set_exception(error)

    def run() -> None:
        result, raised = Hidden(None), None
        try:
            result = Hidden(function())
        except BaseException as error:  # noqa: BLE001 - SystemExit of a user's function, for example
            # A future cannot hold a StopIteration, and a SystemExit would end the event loop.
            is_plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
            raised = error if is_plain else RuntimeError(type(error).__name__)
        with contextlib.suppress(RuntimeError):  # The event loop is closed.
            loop.call_soon_threadsafe(finish, result, raised)

    threading.Thread(target=run, name="tailrace-token", daemon=True).start()
    return future


class _CachedProvider:
    """Token provider that caches the token of a blocking function, and renews it before it expires."""

    def __init__(self, name: str, fetch: Callable[[], _Token], advice: str, patience_s: float, emit: Emit) -> None:
        self._name, self._fetch, self._advice = name, fetch, advice
        self._patience_s, self._emit = patience_s, emit
        self._token: _Token | None = None
        self._renew_at = 0.0
        self._usable_until = 0.0
        self._fetching: asyncio.Future[_Token] | None = None
        self._began_at = 0.0

    async def __call__(self) -> str:
        """Return the cached token, or a new one after four fifths of its lifetime.

        If the token cannot be renewed, return it until it expires, and emit ``TokenRenewalFailed``.

        Raises:
            AuthenticationError: the identity provider refused the credentials.
            BrokerConnectionError: the function raised another exception, or returned an expired token.
            ConfigurationError: a file cannot be read before the first token.
        """
        if (now := time.time()) >= self._renew_at:
            fetching, is_usable = self._begun_fetch(), now + self._patience_s < self._usable_until
            await asyncio.wait([fetching], timeout=self._patience_s if is_usable else None)
            if fetching.done() and self._fetching is fetching:
                self._fetching = None
            try:
                self._keep(fetching)
            except TailraceError as error:
                if not is_usable:
                    raise
                self._put_off(error)
        assert self._token is not None
        return cast("str", self._token.hidden.value)  # not in a local variable, which a traceback may show

    def _begun_fetch(self) -> asyncio.Future[_Token]:
        """Return the pending call of the function, which concurrent callers share; begin one if there is none."""
        now, fetching = asyncio.get_running_loop().time(), self._fetching
        is_abandoned = now - self._began_at > _ABANDONED_AFTER_S
        if fetching is None or is_abandoned or (fetching.done() and not _has_valid_token(fetching)):
            fetching, self._began_at = _run_in_thread(self._fetch), now
        self._fetching = fetching
        return fetching

    def _keep(self, fetching: asyncio.Future[_Token]) -> None:
        if not fetching.done():
            raise RequestTimedOutError(
                f"{_NAME}={self._name!r} returned no token within {self._patience_s:.1f} s"
                " - can it reach the identity provider?"
            )
        match fetching.exception():
            case None:
                token = fetching.result()
            case ConfigurationError() as error if self._token is not None:
                # A file is being written, or was removed, since the first token.
                raise BrokerConnectionError(str(error)) from None
            case TailraceError() as error:
                raise type(error)(str(error)) from error.__cause__
            case error:
                raise BrokerConnectionError(
                    f"{_NAME}={self._name!r}: no token, because of {type(error).__name__} - {self._advice};"
                    " see __cause__ for the text of the error, which may contain credentials"
                ) from error
        now = time.time()
        lifetime_s = None if token.expires_at is None else token.expires_at - now
        if lifetime_s is not None and lifetime_s <= 0:
            raise BrokerConnectionError(
                f"{_NAME}={self._name!r} returned a token that expired {-lifetime_s:.0f} s ago"
                " - check the clock of this machine and that of the identity provider"
            )
        self._token = token
        # A token of unknown lifetime is used once.
        self._renew_at = self._usable_until = now
        if lifetime_s is not None:
            self._renew_at += _RENEWAL * lifetime_s
            self._usable_until += lifetime_s - min(_MARGIN * lifetime_s, _MAX_MARGIN_S)

    def _put_off(self, error: TailraceError) -> None:
        """Use the cached token until the next renewal."""
        now = time.time()
        if now >= self._renew_at:  # Only the first of concurrent callers reports the failure.
            self._renew_at = now + min(_RETRY_AFTER_S, (self._usable_until - now) / 4)
            until = dt.datetime.fromtimestamp(self._usable_until, dt.UTC).isoformat(timespec="seconds")
            self._emit(TokenRenewalFailed(self._name, until, str(error), error))


def _has_valid_token(fetched: asyncio.Future[_Token]) -> bool:
    if fetched.exception() is not None:
        return False
    expires_at = fetched.result().expires_at
    return expires_at is None or expires_at > time.time()


# ---- functions -------------------------------------------------------------------------------------------------------


def _function_provider(name: str, module_name: str, function_name: str) -> TokenProvider:
    try:
        module = import_module(module_name)
    except TailraceError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and module_name.startswith(error.name or " "):
            reason = f"there is no module {module_name!r}"
        else:
            reason = f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}"
        hint = similar_provider(name) or f" - run this where `import {module_name}` works"
        raise ConfigurationError(f"{_NAME}={name!r}: {reason}{hint}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigurationError(f"{_NAME}={name!r}: {module_name} has no function {function_name!r}")
    if is_coroutine_function(function):
        return cast("TokenProvider", function)

    async def provide() -> str:
        found = Hidden(await _run_in_thread(function))
        return cast("str", await resolve_result(found.value, f"{_NAME}={name!r}"))

    return provide


# ---- cloud services --------------------------------------------------------------------------------------------------


def _aws_token(region: str) -> _Token:
    """Return a presigned URL for Amazon MSK, from the default chain of credentials."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 - an extra

    token, expires_at_ms = MSKAuthTokenProvider.generate_auth_token(region)
    return _Token(Hidden(token), expires_at_ms / 1000)


def _azure_scope(target: str) -> str:
    """Return the scope for a scope, or for the name or host of an Event Hubs namespace."""
    if "://" in target or target.endswith("/.default"):
        return target
    host = target.partition(":")[0]
    return f"https://{host if '.' in host else f'{host}.servicebus.windows.net'}/.default"


class _AzureTokens:
    """Tokens of Microsoft Entra ID, from the default chain of credentials."""

    def __init__(self, scope: str) -> None:
        self._scope, self._credential = scope, Hidden(None)

    def __call__(self) -> _Token:
        if self._credential.value is None:
            from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - an extra

            self._credential = Hidden(DefaultAzureCredential())
        found = Hidden(self._credential.value.get_token(self._scope))
        return _Token(Hidden(found.value.token), float(found.value.expires_on))


class _GoogleTokens:
    """Tokens of Google Cloud, from the application default credentials, in the form that its brokers expect."""

    def __init__(self) -> None:
        self._credentials = Hidden(None)

    def __call__(self) -> _Token:
        from google import auth  # noqa: PLC0415 - an extra
        from google.auth.transport.requests import Request  # noqa: PLC0415

        if self._credentials.value is None:
            self._credentials = Hidden(auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])[0])
        found = self._credentials.value
        found.refresh(Request())
        # google-auth's times are in UTC, without a time zone.
        expires_at = found.expiry.replace(tzinfo=dt.UTC).timestamp()
        account = getattr(found, "service_account_email", None) or getattr(found, "account", None) or "unknown"
        header = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
        claims = {"exp": expires_at, "iat": time.time(), "iss": "Google", "scope": "kafka", "sub": account}
        parts = (json.dumps(header).encode(), json.dumps(claims).encode(), found.token.encode())
        return _Token(
            Hidden(".".join(base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts)), expires_at
        )


# ---- identity providers ----------------------------------------------------------------------------------------------


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that refuses redirects, because they would send the credentials to another address."""

    def redirect_request(self, *_args: object) -> None:
        return None


class _OidcTokens:
    """Tokens of an identity provider, by client credentials (RFC 6749) or a JWT as authorization grant (RFC 7523)."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config

    def __call__(self) -> _Token:
        config = self._config
        url = config.sasl_oauthbearer_token_endpoint_url
        assert url is not None
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if config.https_ca_location is not None:
            try:
                handlers.append(
                    urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=config.https_ca_location))
                )
            except OSError as error:
                raise ConfigurationError(
                    f"https_ca_location: cannot load {config.https_ca_location}: {error}"
                ) from None
        request = Hidden(urllib.request.Request(url, self._form(), self._headers()))  # noqa: S310 - checked: http(s)
        opener, failure = urllib.request.build_opener(*handlers), ""
        status, body, began_at = 0, Hidden(b""), time.time()
        try:
            with opener.open(request.value, timeout=_HTTP_TIMEOUT_S) as response:
                status, body = response.status, Hidden(response.read(_MAX_RESPONSE_BYTES))
        except urllib.error.HTTPError as error:
            status = error.code
            with error, contextlib.suppress(OSError, HTTPException):
                body = Hidden(error.read(_MAX_RESPONSE_BYTES))
        except (OSError, HTTPException) as error:
            failure = str(getattr(error, "reason", error)) or type(error).__name__
        # Raised here, so that the caught exception is not the context: urllib's frames have the credentials.
        if failure:
            raise BrokerConnectionError(f"{url}: no token: {failure} - check sasl_oauthbearer_token_endpoint_url")
        return _token_of_response(url, status, body, began_at)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if (
            self._config.sasl_oauthbearer_client_id is not None
            and self._config.sasl_oauthbearer_client_secret is not None
        ):
            both = (self._config.sasl_oauthbearer_client_id, self._config.sasl_oauthbearer_client_secret)
            pair = ":".join(urllib.parse.quote_plus(one) for one in both)
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return headers

    def _form(self) -> bytes:
        config = self._config
        form: dict[str, str] = {"grant_type": config.sasl_oauthbearer_grant_type}
        if config.sasl_oauthbearer_scope is not None:
            form["scope"] = config.sasl_oauthbearer_scope
        if config.sasl_oauthbearer_assertion_file is not None:
            path = config.sasl_oauthbearer_assertion_file
            form["assertion"] = _read_text("sasl_oauthbearer_assertion_file", path).strip()
        elif config.sasl_oauthbearer_assertion_private_key_file is not None:
            form["assertion"] = self._signed(config.sasl_oauthbearer_assertion_private_key_file)
        return urllib.parse.urlencode(form).encode()

    def _signed(self, key_file: str) -> str:
        """Return a JWT that the private key has signed."""
        import jwt  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

        config, now = self._config, int(time.time())
        issuer = config.sasl_oauthbearer_assertion_claim_iss or config.sasl_oauthbearer_client_id
        template = _read_template(config.sasl_oauthbearer_assertion_jwt_template_file)
        claims = {
            "iss": issuer,
            "sub": config.sasl_oauthbearer_assertion_claim_sub or issuer,
            "aud": config.sasl_oauthbearer_assertion_claim_aud or config.sasl_oauthbearer_token_endpoint_url,
            "iat": now,
            "exp": now + _ASSERTION_LIFETIME_S,
            "jti": str(uuid.uuid4()),
            **template.get("payload", {}),
        }
        pem = Hidden(_read_text("sasl_oauthbearer_assertion_private_key_file", key_file).encode())
        passphrase = config.sasl_oauthbearer_assertion_private_key_passphrase
        reason = ""
        try:
            key = load_pem_private_key(pem.value, None if passphrase is None else passphrase.encode())
            return jwt.encode(claims, key, config.sasl_oauthbearer_assertion_algorithm, template.get("header"))  # type: ignore[arg-type]
        except (TypeError, ValueError, jwt.exceptions.PyJWTError) as error:
            reason = type(error).__name__
        raise ConfigurationError(
            f"sasl_oauthbearer_assertion_private_key_file: cannot sign with the key in {key_file} ({reason}) - use"
            f" a PEM file with a key for {config.sasl_oauthbearer_assertion_algorithm}, and set"
            " sasl_oauthbearer_assertion_private_key_passphrase if it is encrypted"
        )


def _read_text(option: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{option}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        pass
    # Raised here, so that the caught exception, which has the text of the file, is not the context.
    raise ConfigurationError(f"{option}: {path} is not UTF-8 text")


def _read_template(path: str | None) -> dict[str, dict[str, Any]]:
    if path is None:
        return {}
    option = "sasl_oauthbearer_assertion_jwt_template_file"
    try:
        found = json.loads(_read_text(option, path))
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(found.get(one, {}), dict) for one in ("header", "payload")):
        raise ConfigurationError(f"{option}: {path} must be a JSON object with objects 'header' and 'payload'")
    return found


def _token_of_response(url: str, status: int, body: Hidden, began_at: float) -> _Token:
    """Return the token of a response of the token endpoint (RFC 6749, section 5).

    Raises:
        AuthenticationError: the identity provider refused the credentials or the request.
        BrokerConnectionError: the response has no token.
    """
    try:
        answer = Hidden(json.loads(body.value))
    except ValueError:
        answer = Hidden(None)
    fields = answer if isinstance(answer.value, dict) else Hidden({})
    if status != 200:
        # Only the code: other fields may repeat credentials.
        code = fields.value.get("error")
        is_code = isinstance(code, str) and len(code) <= 60 and code.replace("_", "").replace("-", "").isalnum()
        shown = f"HTTP status {status}{f', {code}' if is_code else ''}"
        if status in {400, 401, 403}:
            raise AuthenticationError(
                f"{url}: the identity provider refused to issue a token: {shown} - check the options sasl_oauthbearer_…"
            )
        raise BrokerConnectionError(f"{url}: no token: {shown} - check sasl_oauthbearer_token_endpoint_url")
    token = Hidden(fields.value.get("access_token"))
    if not isinstance(token.value, str) or not token.value:
        raise BrokerConnectionError(
            f"{url}: the response has no access_token - check sasl_oauthbearer_token_endpoint_url"
        )
    lifetime_s = fields.value.get("expires_in")
    if isinstance(lifetime_s, str) and lifetime_s.isdigit():
        lifetime_s = int(lifetime_s)
    # The lifetime is relative, so it does not depend on the clocks.
    is_known = isinstance(lifetime_s, int | float) and not isinstance(lifetime_s, bool)
    return _Token(token, began_at + lifetime_s if is_known else expiry_of(token.value))
