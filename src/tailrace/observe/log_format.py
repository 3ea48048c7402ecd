"""Formats of the log on stderr: lines of text for people, or JSON for programs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, TypeAlias

from tailrace.observe.escaping import escaped

if TYPE_CHECKING:
    import structlog

__all__ = ["LogFormat", "configure_logging", "json_formatter"]

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
