"""Options of a transactional producer: checks, and conversion to settings."""

from __future__ import annotations

from tailrace.batches.batch_writer import COMPRESSIONS
from tailrace.config import ConsumerConfig
from tailrace.core.producer.events import TransactionSettings
from tailrace.errors import ConfigurationError

__all__ = ["ABORT_S", "check_options", "settings_of"]

ABORT_S = 5.0
"""Maximum time in seconds for an abort that the user did not call."""


def check_options(transactional_id: str, transaction_timeout_ms: int, compression: str, max_batch_bytes: int) -> None:
    """Check the options.

    Raises:
        ConfigurationError: an option is invalid.
    """
    if not transactional_id:
        raise ConfigurationError("transactional_id must not be empty - give each process a name of its own")
    for name, value in (
        ("transaction_timeout_ms", transaction_timeout_ms),
        ("max_batch_bytes", max_batch_bytes),
    ):
        if value < 1:
            raise ConfigurationError(f"{name} must be at least 1, not {value}")
    if compression not in COMPRESSIONS:
        raise ConfigurationError(f"compression must be one of {', '.join(COMPRESSIONS)}, not {compression!r}")


def settings_of(config: ConsumerConfig, transactional_id: str, transaction_timeout_ms: int) -> TransactionSettings:
    """Return the settings of the producer, derived from its options."""
    timeout_s = transaction_timeout_ms / 1000
    return TransactionSettings(
        transactional_id,
        transaction_timeout_s=timeout_s,
        # A third of the transaction's timeout leaves time to ask another broker.
        request_timeout_s=min(config.request_timeout_ms / 1000, timeout_s / 3),
        abort_s=min(ABORT_S, config.default_api_timeout_ms / 1000, timeout_s),
        retry_first_s=config.retry_backoff_ms / 1000,
        retry_longest_s=config.retry_backoff_max_ms / 1000,
    )
