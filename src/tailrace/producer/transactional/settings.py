"""What a transactional producer's options say, checked."""

from __future__ import annotations

from tailrace.batches.batch_writer import COMPRESSIONS
from tailrace.config import ConsumerConfig
from tailrace.core.producer.events import TransactionSettings
from tailrace.errors import ConfigurationError

__all__ = ["A_MOMENT_S", "check_options", "settings_of"]

A_MOMENT_S = 5.0
"""For an abort that nobody waits for."""


def check_options(transactional_id: str, transaction_timeout_ms: int, compression: str, max_batch_bytes: int) -> None:
    """Refuse what will not do.

    Raises:
        ConfigurationError: naming the option.
    """
    if not transactional_id:
        raise ConfigurationError("transactional_id: an empty name will not do - give each process a name of its own")
    if transaction_timeout_ms < 1:
        raise ConfigurationError(
            f"transaction_timeout_ms={transaction_timeout_ms} will not do: it has to be at least 1"
        )
    if compression not in COMPRESSIONS:
        raise ConfigurationError(
            f"compression={compression!r} will not do: it has to be one of {', '.join(COMPRESSIONS)}"
        )
    if max_batch_bytes < 1:
        raise ConfigurationError(f"max_batch_bytes={max_batch_bytes} will not do: it has to be at least 1")


def settings_of(config: ConsumerConfig, transactional_id: str, transaction_timeout_ms: int) -> TransactionSettings:
    """The same in seconds, for the machine."""
    timeout_s = transaction_timeout_ms / 1000
    return TransactionSettings(
        transactional_id,
        transaction_timeout_s=timeout_s,
        # So that another broker can still be asked before the transaction is over.
        request_timeout_s=min(config.request_timeout_ms / 1000, timeout_s / 3),
        abort_s=min(A_MOMENT_S, config.default_api_timeout_ms / 1000, timeout_s),
        retry_first_s=config.retry_backoff_ms / 1000,
        retry_longest_s=config.retry_backoff_max_ms / 1000,
    )
