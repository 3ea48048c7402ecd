"""Parser of broker addresses."""

from __future__ import annotations

import re

from tailrace.errors import ConfigurationError

__all__ = ["split_address"]

_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\s\[\]]+)\]|(?P<host>[^\s:,/@\[\]]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII)


def split_address(address: str, where: str = "bootstrap_servers", *, default_port: int = 9092) -> tuple[str, int]:
    """Split ``host:port`` or ``[IPv6 address]:port`` into host and port; without a port, use ``default_port``.

    Port 0 is valid only with ``default_port=0``.

    Raises:
        ConfigurationError: the address is invalid; the message starts with ``where``.
    """
    found = _ADDRESS.fullmatch(address.strip())
    host, port = (found["v6"] or found["host"], int(found["port"] or default_port)) if found else ("", -1)
    if not host or not min(default_port, 1) <= port <= 65_535:
        raise ConfigurationError(
            f"{where}: {_without_credentials(address)!r} is not an address - write host:port, such as localhost:9092"
        )
    return host, port


def _without_credentials(address: str) -> str:
    """Return a text for error messages, with ``***`` in place of what a URL has before the ``@`` of its host."""
    credentials, at, host = address.rpartition("@")
    return f"{credentials.rpartition('//')[0]}{'//' if '//' in credentials else ''}***@{host}" if at else address
