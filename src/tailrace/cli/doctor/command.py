"""Implementation of ``tailrace doctor``."""

from __future__ import annotations

import argparse
import shlex
import time
from typing import Any

from tailrace.admin.diagnosis.brokers import reason_and_advice
from tailrace.admin.diagnosis.examination import examine
from tailrace.admin.diagnosis.findings import Finding, Level, exit_code
from tailrace.admin.diagnosis.software import software_facts, software_findings
from tailrace.admin.diagnosis.wording import CommandLines, counted, named
from tailrace.cli.doctor.named_needs import NeedsOf, no_needs, with_named_needs
from tailrace.cli.doctor.report import JsonReport, TextReport
from tailrace.cli.tools.connection import explicit_options
from tailrace.config import ConsumerConfig, resolve
from tailrace.errors import ConfigurationError, TailraceError

__all__ = ["work"]

_INTERVAL_S = 6.0
"""Time between two reads of a group's offsets: more than Kafka's default interval of automatic commits, 5 s."""
_MARGIN_S = 1.0
"""Time that is added to the app's interval of automatic commits."""


async def work(options: argparse.Namespace) -> int:
    """Check the cluster and print the findings; return 2 after a problem, 1 after a warning with --strict, else 0."""
    report = JsonReport() if options.json else TextReport()
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
        await examine(
            config,
            needs_of,
            _commands(options, config),
            report.add,
            now_ms=lambda: time.time() * 1000,
            timeout_s=options.timeout,
            interval_s=_interval_s(options, config),
        )
    report.end()
    return exit_code(report.findings, strict=options.strict)


def _config(options: argparse.Namespace) -> ConsumerConfig:
    defaults: dict[str, Any] = {"client_id": "tailrace-tools", "socket_connection_setup_timeout_ms": 5_000}
    config = resolve({**defaults, **explicit_options(options)})
    if not config.bootstrap_servers:
        raise ConfigurationError(
            "bootstrap_servers is missing - give --bootstrap-servers HOST:PORT, or set TAILRACE_BOOTSTRAP_SERVERS"
        )
    return config


def _needs_of(options: argparse.Namespace, config: ConsumerConfig, report: JsonReport | TextReport) -> NeedsOf:
    groups = list(options.group)
    if options.app:
        from tailrace.app.app import load_app  # noqa: PLC0415 - a third of the import time
        from tailrace.cli.doctor.app_needs import needs_of_app  # noqa: PLC0415

        plan, needs_of = needs_of_app(load_app(options.app), config, f"tailrace run {shlex.quote(options.app)}")
        handlers = sum(len(bound) for bound in plan.by_group.values())
        group_names = f"group {named(list(plan.by_group))}" if plan.by_group else "no group"
        text = f"{counted(handlers, 'handler')} in {group_names}"
        report.add([Finding("app", Level.OK, f"app {options.app}", text)])
    else:
        needs_of = no_needs
        if config.group_id is not None and not groups:
            groups = [config.group_id]
    return with_named_needs(needs_of, groups, options.topic)


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
