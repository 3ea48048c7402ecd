"""Keys, values and headers as JSON, text or hex."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Format", "as_json", "readable"]

Format: TypeAlias = Literal["null", "JSON", "text", "hex"]


def readable(content: bytes | None, *, indent: int = -1) -> tuple[Format, str]:
    """Return the format and the text of ``content``: JSON on one line or indented, printable text, or hex.

    Numbers in JSON are not changed.
    """
    if content is None:
        return "null", ""
    if content[:1] in {b"{", b"["}:
        try:
            msgspec.json.decode(content)
            return "JSON", msgspec.json.format(content, indent=indent).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # the content starts like JSON but is not JSON
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "hex", content.hex()
    return ("text", text) if all(one.isprintable() or one in "\n\r\t" for one in text) else ("hex", content.hex())


def as_json(content: bytes | None) -> tuple[Format, object]:
    """Return the format of ``content`` and the value to embed in a line of JSON."""
    kind, text = readable(content)
    return kind, None if kind == "null" else msgspec.Raw(text.encode()) if kind == "JSON" else text
