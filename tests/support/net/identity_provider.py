"""Identity provider with a token endpoint and a JWKS endpoint, and a broker that validates its tokens."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE = "kafka"
CLIENT_ID, CLIENT_SECRET = "billing", "not-the-s3cret+/:"
"""The secret has characters that RFC 6749 requires to encode."""


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class IdentityProvider:
    """HTTP server that issues JWTs, signed with RS256, at ``/token``, and lists its key at ``/jwks``.

    ``/identity`` is the endpoint of a managed identity in Azure App Service.

    Attributes:
        requests: forms of the token requests, each with the credentials of HTTP basic authentication.
        lifetime_s: lifetime of the tokens in seconds.
        answer: status and body to send instead of a token; None for tokens.
        hangs: True to answer no token request until ``close``.
        trusted_key: public key whose JWTs are accepted as authorization grants.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], str | None]] = []
        self.lifetime_s = 60.0
        self.answer: tuple[int, bytes] | None = None
        self.hangs = False
        self.trusted_key: Any = None
        self._key = rsa.generate_private_key(65_537, 2048)
        self._closing = threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/identity?"):
                    self._send(*provider.identify(self.path, dict(self.headers)))
                else:
                    self._send(200, json.dumps(provider.jwks()).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._send(*provider.respond(dict(urllib.parse.parse_qsl(body)), self.headers["Authorization"]))

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"{provider.url}/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def restore(self) -> None:
        """Issue valid tokens again."""
        self.requests, self.lifetime_s, self.answer, self.hangs = [], 60.0, None, False
        self._closing.set()
        self._closing = threading.Event()

    def close(self) -> None:
        """Stop the server."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def jwks(self) -> dict[str, Any]:
        """Return the public key as a JSON Web Key Set (RFC 7517)."""
        numbers = self._key.public_key().public_numbers()
        n, e = (one.to_bytes((one.bit_length() + 7) // 8, "big") for one in (numbers.n, numbers.e))
        key = {"kty": "RSA", "kid": "k1", "use": "sig", "alg": "RS256", "n": _base64url(n), "e": _base64url(e)}
        return {"keys": [key]}

    def token(self, **changed: Any) -> str:
        """Return a signed JWT."""
        now = time.time()
        times = {"iat": int(now) - 1, "exp": now + self.lifetime_s}
        claims = {"sub": CLIENT_ID, "aud": AUDIENCE, "jti": str(uuid.uuid4()), **times, **changed}
        claims["exp"] = int(claims["exp"])
        header = {"alg": "RS256", "typ": "JWT", "kid": "k1"}
        signed = ".".join(_base64url(json.dumps(one).encode()) for one in (header, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64url(signature)}"

    def respond(self, form: dict[str, str], authorization: str | None) -> tuple[int, bytes]:
        """Return status and body of the answer to a token request."""
        given = None if authorization is None else base64.b64decode(authorization.removeprefix("Basic ")).decode()
        self.requests.append((form, given))
        if self.hangs:
            self._closing.wait(60)
        if self.answer is not None:
            return self.answer
        if form["grant_type"] == "client_credentials":
            is_known = given == f"{CLIENT_ID}:{urllib.parse.quote_plus(CLIENT_SECRET)}"
        else:
            is_known = self._is_signed(form["assertion"])
        if not is_known:
            description = f"no client {given}"
            return 401, json.dumps({"error": "invalid_client", "error_description": description}).encode()
        answer = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lifetime_s}
        return 200, json.dumps(answer).encode()

    def identify(self, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        """Return status and body of the answer to a request of a managed identity."""
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(path).query))
        given = {name.lower(): value for name, value in headers.items()}.get("x-identity-header")
        self.requests.append((query, given))
        answer = {"access_token": self.token(), "token_type": "Bearer", "expires_on": str(int(time.time() + 3_600))}
        return 200, json.dumps({**answer, "resource": query["resource"]}).encode()

    def _is_signed(self, assertion: str) -> bool:
        signed, _, signature = assertion.rpartition(".")
        try:
            data = base64.urlsafe_b64decode(signature + "==")
            self.trusted_key.verify(data, signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        except Exception:  # noqa: BLE001 - any failure is a refusal
            return False
        return True


def new_key(passphrase: bytes | None = None) -> tuple[bytes, Any]:
    """Return a private key in PEM format, and its public key."""
    key = rsa.generate_private_key(65_537, 2048)
    encryption = (
        serialization.NoEncryption() if passphrase is None else serialization.BestAvailableEncryption(passphrase)
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    return pem, key.public_key()


def broker_settings(provider: IdentityProvider) -> dict[str, str]:
    """Return the settings of a broker that validates the tokens of ``provider`` with Kafka's own validator."""
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    return {
        "listener.name.client.oauthbearer.sasl.server.callback.handler.class": handler,
        "listener.name.client.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"{provider.url}/jwks",
        "listener.name.client.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
        # Sessions end with their tokens (KIP-368).
        "listener.name.client.oauthbearer.connections.max.reauth.ms": "3600000",
    }
