"""Draws the state diagrams of docs/explanation/group-membership.md from the tables that run: python docs/diagrams.py.

An arrow stands for all events that lead from one state to another; what leaves a member where it is, is left out. A
rule may lead to several states, depending on what the member owns; each has its arrow.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace.consumer.group import classic, kip848

PAGE = Path(__file__).parent / "explanation" / "group-membership.md"
TABLES = {"classic": classic.TABLE, "consumer": kip848.TABLE}


def is_drawn(state: str, event: str) -> bool:
    """Left out is what leads from every state the same way: a failure, and a stop but from where it is usual."""
    return event != "MembershipFailed" and (event != "StopMembership" or state == "STABLE")


def diagram(table: Mapping[tuple[Any, type], Any]) -> str:
    """The table as Mermaid reads it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), rule in table.items():
        for then in (rule.then, *rule.exceptions):
            if then is not state and is_drawn(state.name, event.__name__):
                arrows.setdefault((state.name, then.name), []).append(event.__name__)
    states = list(dict.fromkeys(state for state, _ in table)) + [
        then for rule in table.values() for then in (rule.then, *rule.exceptions)
    ]
    lines = ["stateDiagram-v2", "    [*] --> IDLE"]
    lines += [f"    {state.name}: {state.value}" for state in dict.fromkeys(states)]
    lines += [f"    {start} --> {end}: {', '.join(events)}" for (start, end), events in arrows.items()]
    ends = sorted({state.name for state in states} - {start for start, _ in arrows})
    lines += [f"    {name} --> [*]" for name in ends]
    return "\n".join(lines)


def drawn(text: str) -> str:
    """Return the page with its diagrams drawn from the present tables."""
    for name, table in TABLES.items():
        block = f"<!-- {name} -->\n```mermaid\n{diagram(table)}\n```"
        text = re.sub(rf"<!-- {name} -->\n```mermaid\n.*?```", lambda _, block=block: block, text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    before = PAGE.read_text()
    PAGE.write_text(drawn(before))
    sys.stderr.write(f"{PAGE}: {'unchanged' if PAGE.read_text() == before else 'written'}\n")
