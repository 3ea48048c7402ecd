"""What ``tailrace spark`` does: a session, a pipeline, and a word of what came of it."""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import signal
import sys
from typing import TYPE_CHECKING, Any, cast

from tailrace.app.loading import load_app
from tailrace.config import parsed_option
from tailrace.errors import ConfigurationError, TailraceError
from tailrace.observe.escaping import escaped
from tailrace.signals import handle_signals
from tailrace.spark import SparkPipeline, spark_session
from tailrace.spark.error_lines import line_of
from tailrace.spark.pipeline import check_run

if TYPE_CHECKING:
    from tailrace.app.app import App
    from tailrace.config import ConsumerOptions
    from tailrace.spark import SparkQuery

__all__ = ["work"]

_SIGTERM = 143
_A_MOMENT_S = 1
_USAGE = 2
"""Exit code of wrong arguments."""


def work(options: argparse.Namespace) -> int:
    """Do what was asked for; gives the exit code.

    Raises:
        TailraceError: it cannot be done, or not to the end.
    """
    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return _work(options)
    except Exception as error:
        if (line := line_of(error)) is None:
            raise
        raise TailraceError(f"Spark: {line} - its lines above and its executors' logs tell more") from error


def _work(options: argparse.Namespace) -> int:
    try:
        handler, conf = _checked(options)
    except ConfigurationError as error:
        print(f"tailrace spark: {escaped(str(error))}", file=sys.stderr)  # noqa: T201 - called wrongly
        return _USAGE
    app = load_app(options.app)
    with spark_session(app, **conf) as spark:
        # By its place, which is where the workers find it, too.
        pipeline = SparkPipeline(options.app, spark, getattr(options, "checkpoint", None))
        match options.action:
            case "run":
                return _run(pipeline, handler, options)
            case "backfill":
                return _backfill(pipeline, handler, options)
            case _:
                return _handoff(pipeline, handler, options)


def _checked(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the handler's name and Spark's settings; Spark takes half a minute to start, and none of it is asked.

    Raises:
        ConfigurationError: an argument is wrong.
    """
    app = load_app(options.app)
    for name, text in map(_split, options.set):
        app.configure(**cast("ConsumerOptions", {name: parsed_option(name, text, "--set")}))
    handler = options.handler or _only_handler(app, options.app)
    conf: dict[str, Any] = dict(map(_split, options.conf))
    if options.master:
        conf["master"] = options.master
    check_run(app, options.app, handler, parallelism=options.parallelism)
    return handler, conf


def _run(pipeline: SparkPipeline, handler: str, options: argparse.Namespace) -> int:
    asked: list[int] = []
    with contextlib.ExitStack() as listening:
        for number in (signal.SIGTERM, signal.SIGINT):
            listening.enter_context(handle_signals([number], functools.partial(asked.append, number)))
        query: SparkQuery = pipeline.start(
            handler,
            trigger=options.trigger,
            max_records_per_batch=options.max_records_per_batch,
            parallelism=options.parallelism,
        )
        _say(f"{handler} runs on Spark for group {_group_of(pipeline, handler)}; Ctrl-C or SIGTERM ends it")
        while not asked and not query.await_termination(_A_MOMENT_S):
            pass
        if asked:
            query.stop()
    tally = query.counted
    _say(f"{tally.records:,} records handled, {tally.dead_letters:,} dead letters")
    return 130 if signal.SIGINT in asked else _SIGTERM if asked else 0


def _backfill(pipeline: SparkPipeline, handler: str, options: argparse.Namespace) -> int:
    report = pipeline.backfill(
        handler,
        since=options.since,
        until=options.until,
        max_records_per_batch=options.max_records_per_batch,
        parallelism=options.parallelism,
    )
    _say(
        f"{report.records:,} records handled in {report.duration_s:.1f} s and {report.batches} batches,"
        f" {report.failures:,} failed, {report.dead_letters:,} of these are dead letters"
    )
    if report.passed:
        _say(f"{report.passed:,} had been finished before")
    if report.lost:
        _say(f"{report.lost:,} offsets had been removed from the log before anybody read them")
    _say(f"the group goes on from here: tailrace run {options.app}")
    return 0


def _handoff(pipeline: SparkPipeline, handler: str, options: argparse.Namespace) -> int:
    standing = pipeline.handoff(
        handler,
        since=options.since,
        max_lag=options.max_lag,
        max_records_per_batch=options.max_records_per_batch,
        parallelism=options.parallelism,
    )
    _say(f"group {standing.group_id} is {standing.lag:,} records behind")
    if standing.lag > options.max_lag:
        _say(f"more than {options.max_lag:,}: records come faster than Spark handles them here - give it more cores")
        return 1
    _say(f"the live app may take over: tailrace run {options.app}")
    return 0


def _only_handler(app: App, where: str) -> str:
    names = [one.name for one in app.declared]
    if len(names) != 1:
        raise ConfigurationError(f"which handler? - {where} has {', '.join(names) or 'none'}; name it behind the app")
    return names[0]


def _group_of(pipeline: SparkPipeline, handler: str) -> str:
    return pipeline.standing(handler).group_id


def _split(setting: str) -> tuple[str, str]:
    name, separator, text = setting.partition("=")
    if not separator:
        raise ConfigurationError(f"{setting}: write it as NAME=VALUE")
    return name, text


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what was asked for
