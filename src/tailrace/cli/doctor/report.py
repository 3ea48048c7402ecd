"""Report of findings: lines of text, or lines of JSON with ``--json``.

Control characters are escaped, because names and texts from brokers are untrusted. On a terminal, or if COLUMNS is set,
text is wrapped. A command is then continued on the next line after a backslash, so that it can be copied.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable

from tailrace.admin.diagnosis.findings import Finding, Level
from tailrace.admin.diagnosis.wording import named
from tailrace.cli.tools.tables import counted, write_json
from tailrace.observe.log_format import escaped

__all__ = ["JsonReport", "TextReport"]

_LABEL_WIDTH = 10
_MAX_WIDTH = 100
_MAX_IN_FULL = 5
"""Maximum number of findings of one check and level that are printed in full; of warnings about topics, only one is."""
_MAX_NAMED = 4
"""Maximum number of other findings whose subjects are named."""
_LABELS = {Level.OK: "OK", Level.SKIPPED: "skipped", Level.WARNING: "warning", Level.PROBLEM: "problem"}
_COLORS = {Level.OK: "32", Level.SKIPPED: "2", Level.WARNING: "33", Level.PROBLEM: "31"}


class JsonReport:
    """Report with one line of JSON for each finding.

    Attributes:
        findings: all findings so far.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def add(self, findings: Iterable[Finding]) -> None:
        """Print each finding as a line of JSON."""
        new = list(findings)
        self.findings += new
        write_json(
            {
                "check": one.check,
                "level": str(one.level),
                "subject": one.subject,
                "text": one.text,
                "advice": one.advice,
                "command": one.command,
            }
            for one in new
        )

    def end(self) -> None:
        """Print nothing."""


class TextReport:
    """Report of findings and their next steps as text, with the number of findings at the end.

    Attributes:
        findings: all findings so far.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        is_terminal = sys.stdout.isatty()
        is_wrapped = is_terminal or bool(os.environ.get("COLUMNS"))
        self._width = min(shutil.get_terminal_size().columns, _MAX_WIDTH) if is_wrapped else None
        self._is_colored = is_terminal and not os.environ.get("NO_COLOR")

    def add(self, findings: Iterable[Finding]) -> None:
        """Print findings; if many have the same check and level, print only the first ones in full.

        Of the other findings, only the subjects are printed.
        """
        new = list(findings)
        self.findings += new
        alike: dict[tuple[str, Level], list[Finding]] = {}
        for one in new:
            alike.setdefault((one.check, one.level), []).append(one)
        for (check, level), same in alike.items():
            in_full = 1 if check.startswith("topic.") and level is not Level.PROBLEM else _MAX_IN_FULL
            for one in same[:in_full]:
                self._print(one)
            if others := [one.subject for one in same[in_full:]]:
                complete = "" if len(others) <= _MAX_NAMED else "; --json prints all"
                self._write(level, [f"also: {named(others, _MAX_NAMED)}{complete}"], None)
        sys.stdout.flush()

    def end(self) -> None:
        """Print the number of problems, warnings and skipped checks."""
        counts = Counter(one.level for one in self.findings)
        found = [counted(counts[level], noun) for level, noun in _NOUNS.items() if counts[level]]
        sys.stdout.write(f"\n{', '.join(found) if found else 'no problems'}\n")
        sys.stdout.flush()

    def _print(self, one: Finding) -> None:
        paragraphs = [f"{one.subject}: {one.text}"]
        if one.advice:
            paragraphs.append(f"next: {one.advice}")
        self._write(one.level, paragraphs, one.command)

    def _write(self, level: Level, paragraphs: Iterable[str], command: str | None) -> None:
        lines = [line for text in paragraphs for line in self._wrapped(escaped(text))]
        if command:
            lines += [f"  {line}" for line in self._continued(escaped(command))]
        label = f"{_LABELS[level]:<{_LABEL_WIDTH}}"
        if self._is_colored:
            label = f"\x1b[{_COLORS[level]}m{label}\x1b[0m"
        indent = f"\n{'':<{_LABEL_WIDTH}}"
        sys.stdout.write(f"{label}{indent.join(lines)}\n")

    def _wrapped(self, text: str) -> list[str]:
        if self._width is None:
            return [text]
        return textwrap.wrap(text, max(self._width - _LABEL_WIDTH, 20), break_on_hyphens=False)

    def _continued(self, command: str) -> list[str]:
        """Return the lines of a command, which is broken between its words and continued with a backslash."""
        width = None if self._width is None else self._width - _LABEL_WIDTH - len("  ") - len(" \\")
        lines: list[str] = []
        for word in re.findall(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""", command):
            if lines and (width is None or len(lines[-1]) + 1 + len(word) <= width):
                lines[-1] += f" {word}"
            else:
                lines.append(f"  {word}" if lines else word)
        return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


_NOUNS = {Level.PROBLEM: "problem", Level.WARNING: "warning", Level.SKIPPED: "skipped check"}
