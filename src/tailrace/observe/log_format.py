"""Text of the log: lines for people or JSON for programs, and escaping.

Texts from brokers, records and exceptions must not control a terminal or forge log lines.
"""

from __future__ import annotations

import json
import logging
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias

from tailrace.user_exceptions import traceback_parts

if TYPE_CHECKING:
    import structlog

__all__ = ["LogFormat", "configure_logging", "escaped", "escaped_json", "escaped_traceback", "json_formatter"]

# ---- escaping --------------------------------------------------------------------------------------------------------


def escaped(text: str, *, keep: str = "") -> str:
    """Return ``text`` with unprintable characters escaped, except those in ``keep``.

    Unprintable are, for example, control characters, line ends and bidirectional controls.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text)


def escaped_json(line: str) -> str:
    """Return a line of JSON with unprintable characters replaced by JSON's escape sequences.

    ``line`` must not contain unprintable characters outside JSON strings.
    """
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in line)


def escaped_traceback(
    kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
) -> str:
    """Return a traceback with unprintable characters escaped, and all lines of a message but the first indented.

    The indentation prevents that a message of several lines looks like several log lines.
    """
    if kind is None or exception is None:
        return ""
    text = "".join(map(_indented, traceback_parts(exception, traceback, compact=True)))
    return escaped(text.rstrip("\n"), keep="\n")


def _indented(part: str) -> str:
    # The text between two chained exceptions is the only part that begins with an empty line.
    if part.startswith("\n"):
        return part
    first, *others = part.splitlines()
    return "".join(f"{line}\n" for line in (first, *(one if one[:1] == " " else f"    {one}" for one in others)))


# ---- formats ---------------------------------------------------------------------------------------------------------

LogFormat: TypeAlias = Literal["console", "json"]


def configure_logging(level: str, log_format: LogFormat, **fields: object) -> None:
    """Replace the handlers of the root logger by one that writes to stderr.

    Args:
        level: name of the lowest level to log.
        log_format: format of the lines.
        fields: fields to add to each line; only for "json".
    """
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(json_formatter(**fields))
    else:
        handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _LineFormatter(logging.Formatter):
    """Formatter that escapes control characters, because any logger may log the contents of records."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record), keep="\n\t")


def json_formatter(**fields: object) -> logging.Formatter:
    """Return a formatter that writes each log record as one line of JSON.

    Each line has ``event``, ``level``, ``logger`` and ``timestamp`` (UTC), and ``exception`` if there is one. A line
    also has the fields of a tailrace event, of ``extra=``, or of a structlog logger that is configured with
    ``structlog.stdlib.ProcessorFormatter.wrap_for_formatter``. Numbers and booleans are not converted to strings.

    Args:
        fields: fields to add to each line.
    """
    # structlog is imported here, because it imports rich if available, which takes 0.1 s.
    import structlog  # noqa: PLC0415

    def with_fields(_logger: object, _method: str, values: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event_fields = values.pop("tailrace", {})
        return {**values, **event_fields, **fields}

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder()],
        processors=[
            with_fields,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(default=str),
        ],
    )
