"""Conversion of keys, values and headers to JSON, text or hex."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Format", "to_json", "to_text"]

Format: TypeAlias = Literal["null", "JSON", "text", "hex"]


def to_text(content: bytes | None, *, indent: int = -1) -> tuple[Format, str]:
    """Return the format of ``content`` and its text in this format; the text of None is empty.

    Only objects and arrays have the format JSON. They are indented by ``indent`` spaces per level, or on one line if
    ``indent`` is negative; numbers keep their digits. Hex is the format of bytes that are not printable UTF-8.
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


def to_json(content: bytes | None) -> tuple[Format, object]:
    """Return the format of ``content``, and a value that msgspec encodes as JSON."""
    kind, text = to_text(content)
    return kind, None if kind == "null" else msgspec.Raw(text.encode()) if kind == "JSON" else text
