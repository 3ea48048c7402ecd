"""Implementation of ``tailrace spark``."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

from tailrace.app.app import load_app
from tailrace.config import parse_option
from tailrace.errors import ConfigurationError, TailraceError
from tailrace.observe.log_format import escaped
from tailrace.signals import handle_signals
from tailrace.spark import SparkPipeline, spark_session
from tailrace.spark.pipeline import check_run
from tailrace.spark.session import line_of

if TYPE_CHECKING:
    from tailrace.app.app import App
    from tailrace.config import ConsumerOptions
    from tailrace.spark import SparkQuery

__all__ = ["work"]

_SIGINT_EXIT_CODE = 130
_SIGTERM_EXIT_CODE = 143
_POLL_INTERVAL_S = 1
_USAGE_ERROR_EXIT_CODE = 2


def work(options: argparse.Namespace) -> int:
    """Run the action that ``options`` names and return the exit code, 2 for a wrong argument.

    Raises:
        TailraceError: the action failed. Errors of Spark are reduced to one line.
    """
    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return _run_action(options)
    except Exception as error:
        if (line := line_of(error)) is None:
            raise
        raise TailraceError(f"Spark: {line} - see Spark's log above and the logs of its executors") from error


def _run_action(options: argparse.Namespace) -> int:
    try:
        handler, conf = _check_arguments(options)
    except ConfigurationError as error:
        print(f"tailrace spark: {escaped(str(error))}", file=sys.stderr)  # noqa: T201 - message of the command
        return _USAGE_ERROR_EXIT_CODE
    app = load_app(options.app)
    with spark_session(app, **conf) as spark:
        # The pipeline is given MODULE:APP, not the App object, because Spark's workers import the app by name.
        pipeline = SparkPipeline(options.app, spark, getattr(options, "checkpoint", None))
        match options.action:
            case "run":
                return _run_query(pipeline, handler, options)
            case "backfill":
                return _backfill(pipeline, handler, options)
            case _:
                return _handoff(pipeline, handler, options)


def _check_arguments(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Check the arguments, and return the name of the handler and the Spark properties.

    The arguments are checked before Spark starts, because the start takes half a minute.

    Raises:
        ConfigurationError: an argument is wrong.
    """
    app = load_app(options.app)
    for name, text in _split("--set", options.set):
        app.configure(**cast("ConsumerOptions", {name: parse_option(name, text, "--set")}))
    handler = options.handler or _only_handler(app, options.app)
    conf: dict[str, Any] = dict(_split("--conf", options.conf))
    if options.master:
        conf["master"] = options.master
    check_run(app, options.app, handler, parallelism=options.parallelism)
    return handler, conf


def _run_query(pipeline: SparkPipeline, handler: str, options: argparse.Namespace) -> int:
    """Run a streaming query until it ends or a signal stops it, and return the exit code."""
    received_signals: list[int] = []
    with contextlib.ExitStack() as handlers:
        for number in (signal.SIGTERM, signal.SIGINT):
            handlers.enter_context(handle_signals([number], functools.partial(received_signals.append, number)))
        query: SparkQuery = pipeline.start(
            handler,
            trigger=options.trigger,
            max_records_per_batch=options.max_records_per_batch,
            parallelism=options.parallelism,
        )
        _print(f"{handler} runs on Spark in group {_group_of(pipeline, handler)}; press Ctrl-C to stop")
        while not received_signals and not query.await_termination(_POLL_INTERVAL_S):
            pass
        if received_signals:
            query.stop()
    counts = query.counted
    _print(f"{counts.records:,} records handled, {counts.dead_letters:,} dead letters")
    return _SIGINT_EXIT_CODE if signal.SIGINT in received_signals else _SIGTERM_EXIT_CODE if received_signals else 0


def _backfill(pipeline: SparkPipeline, handler: str, options: argparse.Namespace) -> int:
    report = pipeline.backfill(
        handler,
        since=options.since,
        until=options.until,
        max_records_per_batch=options.max_records_per_batch,
        parallelism=options.parallelism,
    )
    _print(
        f"{report.records:,} records handled in {report.duration_s:.1f} s and {report.batches} batches,"
        f" {report.failures:,} failed, {report.dead_letters:,} dead letters"
    )
    if report.already_finished:
        _print(f"{report.already_finished:,} records skipped: they were already finished")
    if report.lost:
        _print(f"{report.lost:,} offsets lost: deleted from the log before they were read")
    _print(f"to continue from here, run: tailrace run {options.app}")
    return 0


def _handoff(pipeline: SparkPipeline, handler: str, options: argparse.Namespace) -> int:
    status = pipeline.handoff(
        handler,
        since=options.since,
        max_lag=options.max_lag,
        max_records_per_batch=options.max_records_per_batch,
        parallelism=options.parallelism,
    )
    _print(f"lag of group {status.group_id}: {status.lag:,} records")
    if status.lag > options.max_lag:
        _print(
            f"the lag is above {options.max_lag:,}: records arrive faster than Spark handles them - give Spark more"
            " cores"
        )
        return 1
    _print(f"the app can take over, run: tailrace run {options.app}")
    return 0


def _only_handler(app: App, app_name: str) -> str:
    names = [one.name for one in app.declared]
    if not names:
        raise ConfigurationError(f"{app_name} has no handler - declare one with @app.handler(...)")
    if len(names) > 1:
        raise ConfigurationError(f"{app_name} has several handlers: give one of {', '.join(names)} as HANDLER")
    return names[0]


def _group_of(pipeline: SparkPipeline, handler: str) -> str:
    return pipeline.group_status(handler).group_id


def _split(option: str, settings: Iterable[str]) -> Iterator[tuple[str, str]]:
    for setting in settings:
        name, separator, text = setting.partition("=")
        if not separator:
            raise ConfigurationError(f"{option} must be NAME=VALUE, not {setting!r}")
        yield name, text


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - output of the command
