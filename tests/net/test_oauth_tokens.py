"""OAuth token providers: failures are typed errors in time and show no token."""

from __future__ import annotations

import asyncio
import re

import pytest

from tailrace.errors import BrokerConnectionError, ConfigurationError
from tests.support.net.secrets_shown import shown_by
from tests.support.net.security_setups import OAUTH, WRONG, by, holds_a_secret, reached, refusal


async def failing() -> str:
    raise LookupError("the identity provider is down")


async def hanging() -> str:
    return await asyncio.Event().wait()


def not_async() -> str:
    return f"header.{WRONG}.signature"


async def no_text() -> bytes:
    return f"header.{WRONG}.signature".encode()


@pytest.mark.parametrize(
    ("provider", "in_ms", "kind", "message"),
    [
        (failing, 60_000, BrokerConnectionError, "sasl_oauth_token_provider raised LookupError - "),
        (hanging, 3_000, BrokerConnectionError, "sasl_oauth_token_provider returned no token within 2.7 s"),
        (
            not_async,
            60_000,
            ConfigurationError,
            "sasl_oauth_token_provider did not return a str - make it an `async def`",
        ),
        (
            no_text,
            60_000,
            ConfigurationError,
            "sasl_oauth_token_provider did not return a str - make it an `async def` that returns the token",
        ),
    ],
    ids=["fails", "hangs", "is not async", "gives bytes"],
)
@by(OAUTH)
async def test_a_failing_token_provider_raises_no_authentication_error(secured, provider, in_ms, kind, message):
    """A token provider that fails, perhaps temporarily, raises no AuthenticationError."""
    error = await refusal(secured, sasl_oauth_token_provider=provider, socket_connection_setup_timeout_ms=in_ms)

    assert type(error) is kind
    # On a slow machine, the limit of the connection, which began to count earlier, may end before the provider's own.
    assert message in str(error) or "not signed in within 3.0 s - sasl_oauth_token_provider or" in str(error)
    assert not any(map(holds_a_secret, shown_by(error)))


class WithExtensions:
    """Provider object with SASL extensions (KIP-342)."""

    def __init__(self, provide) -> None:
        self._provide = provide
        self.asked = 0

    async def __call__(self) -> str:
        return await self._provide()

    def extensions(self) -> dict[str, str]:
        self.asked += 1
        return {"tenant": "a"}


@by(OAUTH)
async def test_a_token_provider_may_be_an_object(secured):
    """A token provider may be a callable object, whose SASL extensions are sent."""
    provider = WithExtensions(secured.client_options["sasl_oauth_token_provider"])

    async with reached(secured, sasl_oauth_token_provider=provider) as cluster:
        await cluster.bootstrap()

    assert provider.asked


class BadExtensions:
    """Provider object with a token and a method ``extensions`` that fails or returns invalid values."""

    def __init__(self, returned) -> None:
        self._returned = returned

    async def __call__(self) -> str:
        return f"header.{WRONG}.signature"

    def extensions(self):
        if isinstance(self._returned, Exception):
            raise self._returned
        return self._returned


async def not_encodable() -> str:
    return f"header.{WRONG}.\udc80"


@pytest.mark.parametrize(
    ("provider", "kind", "message"),
    [
        (BadExtensions(LookupError("no tenant")), BrokerConnectionError, "extensions() of .* raised LookupError - see"),
        (BadExtensions(["tenant"]), ConfigurationError, "extensions() of .* must return a dict of str, not list"),
        (BadExtensions({"tenant": 1}), ConfigurationError, "extensions() of .* must return a dict of str"),
        (not_encodable, ConfigurationError, "the token or the extensions of .* contain surrogates"),
    ],
    ids=["extensions fail", "a list", "a number", "surrogates in the token"],
)
@by(OAUTH)
async def test_no_frame_shows_a_token_that_cannot_be_sent(secured, provider, kind, message):
    """A token that cannot be sent is in no local variable of the error's frames, and the error names the reason."""
    error = await refusal(secured, sasl_oauth_token_provider=provider)

    assert type(error) is kind
    assert re.search(message.replace("()", r"\(\)"), str(error))
    assert not [one for one in shown_by(error) if holds_a_secret(one)]
