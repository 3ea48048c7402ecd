"""How brokers are reached, as aiokafka's producer wants it said: a consumer's options mean the same here."""

from __future__ import annotations

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from tailrace.config import ConsumerConfig, TokenProvider
from tailrace.errors import TailraceError
from tailrace.net.security import Token, tls_context

__all__ = ["TokenSource", "connection_options"]


def connection_options(config: ConsumerConfig) -> dict[str, object]:
    """Ours as aiokafka spells them, but for tokens; it has no time for connecting and no local address."""
    return {
        "bootstrap_servers": list(config.bootstrap_servers),
        "client_id": config.client_id,
        "request_timeout_ms": config.request_timeout_ms,
        "retry_backoff_ms": config.retry_backoff_ms,
        "metadata_max_age_ms": config.metadata_max_age_ms,
        "connections_max_idle_ms": config.connections_max_idle_ms,
        "security_protocol": config.security_protocol,
        "ssl_context": tls_context(config),
        "sasl_mechanism": config.sasl_mechanism,
        "sasl_plain_username": config.sasl_plain_username,
        "sasl_plain_password": config.sasl_plain_password,
        "sasl_kerberos_service_name": config.sasl_kerberos_service_name,
        "sasl_kerberos_domain_name": config.sasl_kerberos_domain_name,
    }


class TokenSource(AbstractTokenProvider):
    """The user's provider as aiokafka's producer wants it: where it fails, it is asked again, as is a broker.

    Attributes:
        error: why there was no token the last time.
    """

    def __init__(self, provide: TokenProvider) -> None:
        self._token = Token(provide)
        self.error = ""

    async def token(self) -> str:
        """Ask the user's provider.

        Raises:
            KafkaConnectionError: it failed; what aiokafka does not know would end its sender.
        """
        try:
            token = await self._token.token()
        except TailraceError as error:
            self.error = str(error)
            raise KafkaConnectionError(self.error) from error
        self.error = ""
        return token

    def extensions(self) -> dict[str, str]:
        """What the user's provider adds (KIP-342)."""
        given = self._token.extensions
        return dict(given()) if callable(given) else {}
