"""Findings: results of checks, each with its severity and the next step. Pure: no clock, IO or logging."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Level", "exit_code"]


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    SKIPPED = "skipped"
    """Not checked, for example because a permission is missing."""
    WARNING = "warning"
    """Works now, and will fail or lose records under a foreseeable condition."""
    PROBLEM = "problem"
    """Fails or loses records now."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check of one subject."""

    check: str
    """Stable name of the check, such as ``topic.min-isr``."""
    level: Level
    subject: str
    """Object that was checked, such as ``topic orders``."""
    text: str
    """Measured value and its consequence, worded so that the text can follow the subject and a colon."""
    advice: str = ""
    """Next step; empty if nothing has to be done."""
    command: str = ""
    """Command of the next step; empty if there is none."""


def exit_code(findings: Iterable[Finding], *, strict: bool) -> int:
    """Return 2 if there is a problem, 1 for warnings if ``strict``, otherwise 0."""
    levels = {one.level for one in findings}
    if Level.PROBLEM in levels:
        return 2
    return int(strict and Level.WARNING in levels)
