"""Checks of the combination of options."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from tailrace.config.addresses import split_address
from tailrace.config.options import ASSIGNMENT_STRATEGIES, ConsumerConfig
from tailrace.errors import ConfigurationError

__all__ = ["check_combinations", "refuse_inline_pem"]


def check_combinations(config: ConsumerConfig, set_names: Collection[str]) -> None:
    """Check that options do not contradict each other.

    Args:
        config: values of all options.
        set_names: names of the options that an argument or an environment variable has set.

    Raises:
        ConfigurationError: options contradict each other; the message names them.
    """
    if config.heartbeat_interval_ms >= config.session_timeout_ms:
        raise ConfigurationError(
            f"heartbeat_interval_ms={config.heartbeat_interval_ms} must be less than "
            f"session_timeout_ms={config.session_timeout_ms} - set it to at most a third of session_timeout_ms, so that"
            " the member stays in the group when one heartbeat is lost"
        )
    _check_group(config)
    _check_protocol(config, set_names)
    for pause in ("reconnect_backoff", "retry_backoff"):
        first, longest = getattr(config, f"{pause}_ms"), getattr(config, f"{pause}_max_ms")
        if first > longest:
            raise ConfigurationError(
                f"{pause}_ms={first} must be at most {pause}_max_ms={longest} - lower the first or raise the second"
            )
    if config.request_timeout_ms <= config.fetch_max_wait_ms:
        raise ConfigurationError(
            f"request_timeout_ms={config.request_timeout_ms} must be more than "
            f"fetch_max_wait_ms={config.fetch_max_wait_ms}, for which a broker without new records holds a request"
            " - raise the first or lower the second"
        )
    for address in config.bootstrap_servers:
        split_address(address)
    _check_security(config)


def _check_group(config: ConsumerConfig) -> None:
    if config.enable_auto_commit and config.group_id is None:
        raise ConfigurationError(
            "enable_auto_commit=True needs a group_id: offsets are committed for a group - set group_id, or remove"
            " enable_auto_commit=True"
        )
    if config.reset_offset_on_start and config.group_id is None:
        raise ConfigurationError(
            "reset_offset_on_start=True needs a group_id, whose committed offsets it ignores - set group_id, or remove"
            " reset_offset_on_start=True"
        )
    if config.reset_offset_on_start and config.offset_reset == "none":
        raise ConfigurationError(
            "reset_offset_on_start=True starts at auto_offset_reset, which must not be 'none' - set auto_offset_reset"
            " to 'earliest', 'latest', a duration or a time"
        )
    if config.group_id == "":
        raise ConfigurationError(
            "group_id must not be empty - set the name of a group, or leave it out to read without a group"
        )
    if config.group_instance_id is not None and config.group_id is None:
        raise ConfigurationError("group_instance_id needs a group_id: it names a member of that group - set group_id")


def _check_protocol(config: ConsumerConfig, set_names: Collection[str]) -> None:
    if config.group_protocol == "consumer":
        classic_only = [
            f.name for f in dataclasses.fields(ConsumerConfig) if f.metadata["classic"] and f.name in set_names
        ]
        if classic_only:
            raise ConfigurationError(
                f"{', '.join(classic_only)} cannot be set with group_protocol='consumer', where the brokers' settings"
                f" group.consumer.* apply - remove {'it' if len(classic_only) == 1 else 'them'}, and change those"
                " settings if necessary"
            )
        if config.group_id is None:
            raise ConfigurationError("group_protocol='consumer' needs a group_id - set it to the group to join")
    elif config.group_remote_assignor is not None:
        raise ConfigurationError(
            "group_remote_assignor needs group_protocol='consumer' - set it; with the classic protocol, set"
            " partition_assignment_strategy instead"
        )
    named = [one for one in config.partition_assignment_strategy if isinstance(one, str)]
    unknown = [name for name in named if name not in ASSIGNMENT_STRATEGIES]
    if unknown or not config.partition_assignment_strategy:
        names = ", ".join(map(repr, unknown))
        raise ConfigurationError(
            f"partition_assignment_strategy {f'has unknown names: {names}' if unknown else 'must not be empty'}"
            f" - name one or more of {', '.join(ASSIGNMENT_STRATEGIES)}, most preferred first, or pass a function"
        )


def refuse_inline_pem(name: str, path: str | None, advice: str) -> None:
    """Check that ``path`` is not PEM text, which may be a secret key and must not appear in errors or logs.

    Raises:
        ConfigurationError: ``path`` is PEM text; the message contains ``name`` and ``advice``, but not the text.
    """
    if path is not None and "-----BEGIN" in path:
        raise ConfigurationError(f"{name} must be the path of a file, not its PEM text - {advice}")


def _check_security(config: ConsumerConfig) -> None:
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        refuse_inline_pem(name, getattr(config, name), "write it to a file, or pass an ssl_context")
    if config.ssl_keyfile is not None and config.ssl_certfile is None:
        raise ConfigurationError("ssl_keyfile needs ssl_certfile - set it to the path of the key's certificate")
    if not config.security_protocol.startswith("SASL"):
        return
    mechanism = config.sasl_mechanism
    if mechanism == "OAUTHBEARER":
        if config.sasl_oauth_token_provider is None:
            raise ConfigurationError(
                "sasl_mechanism='OAUTHBEARER' needs sasl_oauth_token_provider"
                " - set it to an async function that returns a token"
            )
    elif mechanism != "GSSAPI" and (config.sasl_plain_username is None or config.sasl_plain_password is None):
        raise ConfigurationError(
            f"sasl_mechanism={mechanism!r} needs sasl_plain_username and sasl_plain_password - set both"
        )
