"""``tailrace doctor``: check a cluster, and the topics, groups and permissions that an app needs.

Control characters are escaped, because names and texts from brokers are untrusted. On a terminal, or if COLUMNS is set,
text is wrapped. A command is then continued on the next line after a backslash, so that it can be copied.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import shutil
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from tailrace.admin.diagnosis.findings import (
    ClusterNeeds,
    CommandLines,
    Finding,
    GroupNeeds,
    Level,
    RequestSupport,
    TopicNeeds,
    TopicRole,
    counted,
    exit_code,
    named,
)
from tailrace.cli.options import CONNECTION_HELP, add_connection_options, connection_settings, seconds
from tailrace.cli.output import write_json
from tailrace.errors import ConfigurationError, TailraceError
from tailrace.observe.log_format import escaped

if TYPE_CHECKING:
    from tailrace.app.app import App
    from tailrace.app.lifecycle import Plan
    from tailrace.app.topics.routes import Routes
    from tailrace.config import ConsumerConfig

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Check a cluster and, with --app, the topics, groups and permissions that the app
needs.

The command checks brokers, controllers, clocks, topics, settings, groups and
permissions, and the versions of the installed software. A finding is OK,
skipped (for example because a permission is missing), a warning, or a problem.
Warnings and problems have a next step. Without --app, --group and --topic, all
topics of the cluster are checked.

The command joins no group, commits no offset and creates no topic.
"""

_EPILOG = f"""\
examples:
  tailrace doctor
  tailrace doctor --app shop:billing
  tailrace doctor --group billing --topic orders --strict
  tailrace doctor --app shop:billing --json | jq -r 'select(.level=="problem")'

{CONNECTION_HELP}
exit codes: 0 no problem, 1 warnings with --strict, 2 problems or usage error
"""

_INTERVAL_S = 6.0
"""Time between two reads of a group's offsets: more than Kafka's default interval of automatic commits, 5 s."""
_MARGIN_S = 1.0
"""Time that is added to the app's interval of automatic commits."""
_LABEL_WIDTH = 10
_MAX_WIDTH = 100
_MAX_IN_FULL = 5
"""Maximum number of findings of one check and level that are printed in full; of warnings about topics, only one is."""
_MAX_NAMED = 4
"""Maximum number of other findings whose subjects are named."""
_LABELS = {Level.OK: "OK", Level.SKIPPED: "skipped", Level.WARNING: "warning", Level.PROBLEM: "problem"}
_COLORS = {Level.OK: "32", Level.SKIPPED: "2", Level.WARNING: "33", Level.PROBLEM: "31"}
_NOUNS = {Level.PROBLEM: "problem", Level.WARNING: "warning", Level.SKIPPED: "skipped check"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "--group", action="append", default=[], metavar="GROUP", help="check this group and its topics (repeatable)"
    )
    parser.add_argument("--topic", action="append", default=[], metavar="TOPIC", help="check this topic (repeatable)")
    parser.add_argument(
        "--interval",
        type=seconds,
        metavar="SECONDS",
        help="time between two reads of the committed offsets of a group with lag, to find stalled members (default:"
        " with --app, its auto_commit_interval_ms plus 1 second; otherwise 6)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with code 1 if there are warnings")
    add_connection_options(parser, timeout_help="time limit of all checks together, not counting --interval")


async def run(options: argparse.Namespace) -> int:
    """Check the cluster and print the findings; return 2 after a problem, 1 after a warning with --strict, else 0."""
    from tailrace.admin.diagnosis.examination import Examination
    from tailrace.admin.diagnosis.facts import reason_and_advice
    from tailrace.admin.diagnosis.software import software_facts, software_findings

    report = _JsonReport() if options.json else _TextReport()
    report.add(software_findings(software_facts()))
    try:
        config = _config(options)
        needs_of = _needs_of(options, config, report)
    except ModuleNotFoundError as error:
        report.add([_app_problem(options, f"cannot be imported: {error}", "install that module")])
    except TailraceError as error:
        reason, advice = reason_and_advice(error)
        report.add([_app_problem(options, reason, advice)])
    else:
        await Examination(
            config,
            needs_of,
            _commands(options, config),
            report.add,
            now_ms=lambda: time.time() * 1000,
            timeout_s=options.timeout,
            interval_s=_interval_s(options, config),
        ).run()
    report.end()
    return exit_code(report.findings, strict=options.strict)


def _config(options: argparse.Namespace) -> ConsumerConfig:
    from tailrace.config import resolve

    config = resolve(connection_settings(options))
    if not config.bootstrap_servers:
        raise ConfigurationError(
            "bootstrap_servers is missing - give --bootstrap-servers HOST:PORT, or set TAILRACE_BOOTSTRAP_SERVERS"
        )
    return config


def _needs_of(options: argparse.Namespace, config: ConsumerConfig, report: _JsonReport | _TextReport) -> _NeedsOf:
    groups = list(options.group)
    if options.app:
        from tailrace.app.app import load_app

        plan, needs_of = _needs_of_app(load_app(options.app), config, f"tailrace run {shlex.quote(options.app)}")
        handlers = sum(len(bound) for bound in plan.by_group.values())
        group_names = f"group {named(list(plan.by_group))}" if plan.by_group else "no group"
        text = f"{counted(handlers, 'handler')} in {group_names}"
        report.add([Finding("app", Level.OK, f"app {options.app}", text)])
    else:
        needs_of = _no_needs
        if config.group_id is not None and not groups:
            groups = [config.group_id]
    return _with_named_needs(needs_of, groups, options.topic)


def _app_problem(options: argparse.Namespace, reason: str, advice: str) -> Finding:
    subject, module = "options", ""
    if options.app:
        subject, module = f"app {options.app}", options.app.partition(":")[0]
    command = f"python -c {shlex.quote(f'import {module}')}" if module.replace(".", "").isidentifier() else ""
    return Finding("configuration", Level.PROBLEM, subject, reason, advice or "correct it", command)


def _commands(options: argparse.Namespace, config: ConsumerConfig) -> CommandLines:
    """Return a builder of the commands that findings suggest, with the connection arguments of this command."""
    arguments = []
    if options.app:
        arguments.append(f"--app {shlex.quote(options.app)}")
    if options.bootstrap_servers:
        arguments.append(f"--bootstrap-servers {shlex.quote(options.bootstrap_servers)}")
    user = config.sasl_plain_username or ("ANONYMOUS" if config.security_protocol == "PLAINTEXT" else "NAME")
    return CommandLines(
        ",".join(config.bootstrap_servers),
        " ".join(arguments),
        client_config=config.security_protocol != "PLAINTEXT",
        principal=f"User:{user}",
    )


def _interval_s(options: argparse.Namespace, config: ConsumerConfig) -> float:
    """Return the time between two reads of a group's offsets, in which an active member commits."""
    if options.interval is not None:
        return float(options.interval)
    commits_ms = config.auto_commit_interval_ms if options.app else None
    return _INTERVAL_S if commits_ms is None else commits_ms / 1000 + _MARGIN_S


# ---- needs ---------------------------------------------------------------------------------------------------------

_NeedsOf: TypeAlias = Callable[[Collection[str]], ClusterNeeds]
"""Function that returns the topics and groups to check, given the names of all topics of the cluster."""


def _no_needs(_existing: Collection[str]) -> ClusterNeeds:
    """Return no topics and no groups, so that all topics of the cluster are checked."""
    return ClusterNeeds()


def _with_named_needs(needs_of: _NeedsOf, groups: Iterable[str], topics: Iterable[str]) -> _NeedsOf:
    """Return a function that adds ``groups`` and ``topics`` to the result of ``needs_of``."""

    def needs(existing: Collection[str]) -> ClusterNeeds:
        found = needs_of(existing)
        known = {one.group_id for one in found.groups}
        return replace(
            found,
            groups=(*found.groups, *(GroupNeeds(one) for one in dict.fromkeys(groups) if one not in known)),
            topics={**{name: TopicNeeds(name) for name in topics}, **found.topics},
        )

    return needs


def _needs_of_app(app: App, config: ConsumerConfig, start: str) -> tuple[Plan, _NeedsOf]:
    """Return the plan of an app, and a function that returns the app's needs in a cluster.

    Args:
        app: an app that is not started.
        config: options of the app's consumers.
        start: command that starts the app, which findings give as the next step.

    Raises:
        ConfigurationError: a handler is declared wrongly.
    """
    from tailrace.app.broker_needs import broker_needs
    from tailrace.app.lifecycle import make_plan
    from tailrace.app.topics.routes import Routes
    from tailrace.protocol.transactions import IDEMPOTENCE

    plan = make_plan(app, config.group_id, app.runtime)
    handlers = itertools.chain.from_iterable(plan.by_group.values())
    has_transactions = app.runtime.transactions is not None
    capabilities = frozenset(broker_needs(handlers, config.group_protocol, has_transactions=has_transactions).required)
    if app.runtime.config.producer_config(config).enable_idempotence:
        capabilities |= {IDEMPOTENCE}
    routes = {group_id: Routes(group_id, handlers) for group_id, handlers in plan.by_group.items()}

    def needs(existing: Collection[str]) -> ClusterNeeds:
        topics: dict[str, TopicNeeds] = {}
        for group_id, group_routes in routes.items():
            matched = _matched_topics(plan, group_id, existing)
            for name, role, origins, delay_ms in _topic_uses(group_routes, matched, existing):
                known = topics.get(name, TopicNeeds(name))
                topics[name] = replace(
                    known,
                    roles=known.roles | {role},
                    origins=known.origins | origins,
                    delay_ms=max(known.delay_ms, delay_ms),
                )
        groups = tuple(
            GroupNeeds(
                group_id,
                group_routes.topics,
                config.group_protocol,
                tuple(map(_strategy_name, config.partition_assignment_strategy)),
                start,
            )
            for group_id, group_routes in routes.items()
        )
        return ClusterNeeds(groups, topics, capabilities)

    return plan, needs


def _matched_topics(plan: Plan, group_id: str, existing: Collection[str]) -> list[str]:
    """Return the existing topics that patterns of the group's handlers match."""
    from tailrace.app.topics.routes import HandlerTopics

    patterns = [HandlerTopics(one, group_id) for one in plan.by_group[group_id] if one.pattern is not None]
    return [name for name in existing if any(name in one for one in patterns)]


def _topic_uses(
    routes: Routes, matched: Iterable[str], existing: Collection[str]
) -> Iterable[tuple[str, TopicRole, frozenset[str], int]]:
    """Yield name, role, origins and delay of each topic that a group uses.

    The origins are the topics whose records are written to a retry, replay or dead-letter topic; empty for other roles.
    The delay in milliseconds is that of a topic whose records wait; 0 for other roles.
    """
    for name in (*sorted(routes.topics - routes.publish_delays_ms.keys()), *matched):
        yield name, TopicRole.READ, frozenset(), 0
    for name, delay_ms in routes.publish_delays_ms.items():
        yield name, TopicRole.PUBLISH_DELAY, routes.topics - routes.publish_delays_ms.keys(), delay_ms
    for name, retry in routes.retries.items():
        yield name, TopicRole.RETRY, frozenset({retry.origin}), retry.delay_ms
    uses: dict[TopicRole, dict[str, set[str]]] = defaultdict(dict)
    dead, replays = routes.dead_letters(existing)
    uses[TopicRole.DEAD_LETTER] |= dead
    uses[TopicRole.REPLAY] |= replays
    for role, names in uses.items():
        for name, origins in names.items():
            yield name, role, frozenset(origins), 0
    for name in routes.publish_topics:
        yield name, TopicRole.PUBLISH, frozenset(), 0


def _strategy_name(strategy: object) -> str:
    return strategy if isinstance(strategy, str) else str(getattr(strategy, "name", strategy))


# ---- report --------------------------------------------------------------------------------------------------------


class _JsonReport:
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
                **({"table": [_row_data(row) for row in one.table]} if one.table else {}),
            }
            for one in new
        )

    def end(self) -> None:
        """Print nothing."""


def _row_data(row: RequestSupport) -> dict[str, object]:
    """Return a row of the table in JSON types; versions are pairs, or null if the broker does not offer the request."""
    offered = {str(node): [one[0], one[-1]] if one else None for node, one in row.offered.items()}
    return {
        "capability": row.capability,
        "request": row.request,
        "needed": [row.needed[0], row.needed[-1]],
        "offered": offered,
    }


class _TextReport:
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
        self._write(one.level, paragraphs, one.command, self._table(one.table))

    def _write(self, level: Level, paragraphs: Iterable[str], command: str | None, table: Iterable[str] = ()) -> None:
        lines = [line for text in paragraphs for line in self._wrapped(escaped(text))]
        if command:
            lines += [f"  {line}" for line in self._continued(escaped(command))]
        lines += table
        label = f"{_LABELS[level]:<{_LABEL_WIDTH}}"
        if self._is_colored:
            label = f"\x1b[{_COLORS[level]}m{label}\x1b[0m"
        indent = f"\n{'':<{_LABEL_WIDTH}}"
        sys.stdout.write(f"{label}{indent.join(lines)}\n")

    def _table(self, rows: Sequence[RequestSupport]) -> list[str]:
        """Return the lines of a table, with one column for all brokers that offer the same versions.

        If the columns are too wide, the others follow in further tables.
        """
        if not rows:
            return []
        alike: dict[tuple[range, ...], list[int]] = {}
        for node_id in rows[0].offered:
            alike.setdefault(tuple(row.offered[node_id] for row in rows), []).append(node_id)
        capabilities = [row.capability for row in rows]
        names = [one if one != before else "" for before, one in itertools.pairwise(["", *capabilities])]
        fixed = [["feature", *names], ["request", *(row.request for row in rows)], ["needs", *map(_needed, rows)]]
        brokers = [[_column_name(nodes), *(_offered(row, nodes[0]) for row in rows)] for nodes in alike.values()]
        lines: list[str] = []
        while brokers:
            shown = [brokers.pop(0)]
            while brokers and (
                self._width is None or _width([*fixed, *shown, brokers[0]]) <= self._width - _LABEL_WIDTH
            ):
                shown.append(brokers.pop(0))
            columns = [*fixed, *shown]
            widths = [max(map(len, column)) for column in columns]
            lines += [
                "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
                for cells in zip(*columns, strict=True)
            ]
        return lines

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


def _width(columns: Iterable[Sequence[str]]) -> int:
    """Return the width of a table, with two spaces between the columns."""
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def _versions(versions: range) -> str:
    return f"{versions[0]}-{versions[-1]}"


def _needed(row: RequestSupport) -> str:
    return _versions(row.needed)


def _offered(row: RequestSupport, node_id: int) -> str:
    """Return the versions that a broker offers; "no" if the capability needs others."""
    offered = row.offered[node_id]
    if row.is_enough(node_id):
        return _versions(offered)
    return f"no ({_versions(offered)})" if offered else "no"


def _column_name(nodes: Sequence[int]) -> str:
    """Return the name of a column for these brokers: their node ids, or their number if there are many."""
    if len(nodes) > _MAX_NAMED:
        return f"{len(nodes)} brokers"
    return f"broker{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
