"""Check that texts are in plain language: docstrings, comments, error messages and pages.

Print ``file:line: words`` for each finding, and exit with 1 if there are findings. ``PHRASES`` are phrases that readers
of this project did not understand; a text without them can still be badly written. End a line that needs one of them
with ``# plain: the reason``, and add a file that needs them to ``EXCEPTIONS``.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = ("src", "tests", "examples", "benchmarks", "scripts", "docs")

FIRST_WORDS = re.compile(
    r"(What|Whether|Who|Whoever|Whatever|Whose|Whom|Those|Somebody|Nobody|Anybody|Of|To|That|They|It) \b"
)
"""Words with which no docstring begins: it begins with a verb in the imperative or with a noun phrase."""

PHRASES = {
    r"\bwhoever\b": "name the subject",
    r"\b(some|no|any)body\b": "name the subject",
    r"\bhand(s|ed|ing)? out\b|\bto be handed\b": "deliver, delivered",
    r"\bin hand\b": "in flight",
    r"\bpass(es|ed|ing)? over\b": "skip, skipped",
    r"\bmade anew\b|\bmakes? anew\b": "recreated",
    r"\banew\b": "again",
    r"\btak(e|es|en|ing) back\b|\btook back\b": "abort, aborted",
    r"\bgood-?bye": "LeaveGroup",
    r"\bburie(d|s)\b|\bbury\b": "published to the dead-letter topic",
    r"\bletters?\b(?!, digits|:)(?<!dead letter)(?<!dead-letter)(?<!dead letters)(?<!dead-letters)": "dead letter",
    r"\b(is|are|was|were) (told|said) (of|by|to)\b": "is called with, is reported, is given",
    r"\bsays so\b|\bsay so\b": "name the effect",
    r"\bRule of this file\b": "say what the module contains",
    r"\bwill not do\b": "must be …, not …",
    r"\bthrow-away\b|\bthrown out\b": "removed from the group",
    r"\bthe (house|ground|deed|picture)\b": "name the thing",
}
"""Regular expressions of phrases, and the advice that is printed for each."""
PATTERNS = [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in PHRASES.items()]

EXCEPTIONS = {
    "scripts/language.py": "it lists the phrases",
}
"""Files that are not checked, and the reasons."""

Finding = tuple[int, str]


def phrases_of(text: str, line: int) -> Iterator[Finding]:
    """Yield the phrases of ``text``, whose first line is ``line``, with advice."""
    for number, one in enumerate(text.splitlines(), line):
        if "# plain:" in one:
            continue
        for pattern, advice in PATTERNS:
            if match := pattern.search(one):
                yield number, f"{match[0]!r}: {advice}"


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, including those of attributes."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield statement.lineno, text


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string in a ``raise`` statement."""
    for statement in ast.walk(tree):
        for node in ast.walk(statement) if isinstance(statement, ast.Raise) else ():
            match node:
                case ast.Constant(value=str() as text):
                    yield node.lineno, text


def python_findings(source: str, *, is_test: bool) -> Iterator[Finding]:
    """Yield the findings in a Python file; messages that a test raises are data, and are not checked."""
    for line, text in docstrings(ast.parse(source)):
        if match := FIRST_WORDS.match(text):
            yield line, f"begins with {match[1]!r}: begin with a verb or a noun phrase"
        yield from phrases_of(text, line)
    for line, text in () if is_test else messages(ast.parse(source)):
        yield from phrases_of(text, line)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from phrases_of(token.string, token.start[0])


def findings() -> Iterator[str]:
    """Yield each finding in the project as ``file:line: words``."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    modules = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    for path in sorted([*pages, *modules]):
        name = str(path.relative_to(ROOT))
        if name in EXCEPTIONS:
            continue
        text = path.read_text(encoding="utf-8")
        found = (
            phrases_of(text, 1) if path.suffix == ".md" else python_findings(text, is_test=name.startswith("tests/"))
        )
        yield from (f"{name}:{line}: {words}" for line, words in found)


if __name__ == "__main__":
    lines = list(findings())
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.exit(bool(lines))
