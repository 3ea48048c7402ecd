"""``tailrace spark``: run an app's handlers on Apache Spark."""

from __future__ import annotations

import argparse
import functools
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from tailrace.cli.options import add_actions, app_settings, parse_time, positive_integer, split_settings
from tailrace.errors import ConfigurationError, TailraceError
from tailrace.observe.log_format import escaped

if TYPE_CHECKING:
    from tailrace.app.app import App
    from tailrace.config import ConsumerOptions
    from tailrace.spark import SparkPipeline, SparkQuery

__all__ = ["arguments", "run"]

_SIGINT_EXIT_CODE = 130
_SIGTERM_EXIT_CODE = 143
_POLL_INTERVAL_S = 1
_USAGE_ERROR_EXIT_CODE = 2

_DESCRIPTION = """\
Run an app's handlers on Apache Spark.

Spark starts at the committed offsets of the app's group and commits to the
same group, so `tailrace run` continues where Spark stopped, and vice versa.
The group must have no live members: stop `tailrace run` first.
"""

_EPILOG = """\
examples:
  tailrace spark backfill shop:billing charge
  tailrace spark run shop:billing charge --checkpoint /var/lib/billing
  tailrace spark handoff shop:billing charge && tailrace run shop:billing

HANDLER is the name of the handler function. Set Spark properties with --conf.
Options of the app that --set gives override those in its code, which override
environment variables such as TAILRACE_BOOTSTRAP_SERVERS.

Run `tailrace spark ACTION --help` for the options of an action.
"""

_RUN = """\
Handle existing and new records in micro-batches until SIGTERM or Ctrl-C, and
commit the offsets of each batch to the group.

On the first signal no further batch starts, and the running batch has 20
seconds to finish. On a second signal the command stops at once. After the next
start, an interrupted batch is handled again.

With --trigger available_now, handle only the records that exist when the
command starts, then exit.
"""

_BACKFILL = """\
Handle the existing records in batches, then exit. Offsets are committed after
each batch, so the next backfill continues where an interrupted one stopped.
"""

_RUN_EPILOG = """\
examples:
  tailrace spark run shop:billing charge --checkpoint /var/lib/billing
  tailrace spark run shop:billing charge --checkpoint hdfs:///billing \\
    --master yarn --conf spark.executor.memory=4g --trigger '10 seconds'
"""

_BACKFILL_EPILOG = """\
examples:
  tailrace spark backfill shop:billing charge
  tailrace spark backfill shop:billing --since 2026-01-01 \\
    --conf spark.cores.max=8
"""

_HANDOFF_EPILOG = """\
examples:
  tailrace spark handoff shop:billing charge && tailrace run shop:billing
  tailrace spark handoff shop:billing --max-lag 500 \\
    --max-records-per-batch 50000

exit codes: 0 the lag is at most --max-lag, 1 the lag is above --max-lag after
ten backfills, or a backfill failed, 2 usage error
"""

_HANDOFF = """\
Run a backfill, and further ones for the records that arrived meanwhile, until
the lag of the group is at most --max-lag, or ten backfills have run. Then print
the lag. `tailrace run` continues at the committed offsets.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_action = add_actions(parser)
    run_parser = add_action("run", "handle records until SIGTERM", _RUN, _RUN_EPILOG)
    backfill = add_action("backfill", "handle the existing records", _BACKFILL, _BACKFILL_EPILOG)
    handoff = add_action("handoff", "backfill until the app can take over", _HANDOFF, _HANDOFF_EPILOG)
    for action in (run_parser, backfill, handoff):
        _add_common_options(action)
    run_parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="FOLDER",
        help="Spark's checkpoint folder; each handler and group needs its own",
    )
    run_parser.add_argument(
        "--trigger",
        metavar="TIME",
        help="interval between the starts of batches, such as '5 seconds', or available_now (default: start each batch"
        " when the previous batch has ended)",
    )
    for action in (backfill, handoff):
        action.add_argument(
            "--since",
            type=_time_or("earliest"),
            metavar="TIME",
            help="where to start partitions without a committed offset: an ISO 8601 time, or earliest (default: the"
            " app's auto_offset_reset)",
        )
    backfill.add_argument(
        "--until",
        type=_time_or("now"),
        default="now",
        metavar="TIME",
        help="end before the first record at or after this ISO 8601 time; now: end at the current ends of the"
        " partitions (default: now)",
    )
    handoff.add_argument(
        "--max-lag",
        type=positive_integer,
        default=10_000,
        metavar="N",
        help="stop when the lag is at most N records (default: %(default)s)",
    )


def _add_common_options(action: argparse.ArgumentParser) -> None:
    action.add_argument("app", metavar="MODULE:APP", help="module and name of the app, such as shop:billing")
    action.add_argument(
        "handler", nargs="?", metavar="HANDLER", help="name of the handler (default: the app's only handler)"
    )
    action.add_argument(
        "--master", metavar="URL", help="Spark master, such as yarn (default: local[*,4], all cores of this machine)"
    )
    action.add_argument(
        "--conf", action="append", default=[], metavar="spark.NAME=VALUE", help="set a Spark property (repeatable)"
    )
    action.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="set an option of the app (repeatable)"
    )
    action.add_argument(
        "--parallelism", type=positive_integer, metavar="N", help="number of Spark tasks (default: one per partition)"
    )
    action.add_argument(
        "--max-records-per-batch",
        type=positive_integer,
        default=200_000,
        metavar="N",
        help="maximum number of records in a batch; after a crash, at most one batch is handled again (default:"
        " %(default)s)",
    )


def _time_or(word: str) -> Callable[[str], int | str]:
    """Return a parser of an argument: it returns ``word`` itself, and a time as milliseconds since the epoch."""
    return lambda text: text if text == word else parse_time(text)


def run(options: argparse.Namespace) -> int:
    """Run the action that ``options`` names and return the exit code, 2 for a wrong argument.

    Raises:
        TailraceError: the action failed. Errors of Spark are reduced to one line.
    """
    from tailrace.spark.session import line_of

    logging.basicConfig(level="WARNING", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return _run_action(options)
    except Exception as error:
        if (line := line_of(error)) is None:
            raise
        raise TailraceError(f"Spark: {line} - see Spark's log above and the logs of its executors") from error


def _run_action(options: argparse.Namespace) -> int:
    from tailrace.app.app import load_app
    from tailrace.spark import SparkPipeline, spark_session

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
    from tailrace.app.app import load_app
    from tailrace.spark.pipeline import check_run

    app = load_app(options.app)
    app.configure(**cast("ConsumerOptions", app_settings(options)))
    handler = options.handler or _only_handler(app, options.app)
    conf: dict[str, Any] = dict(split_settings(options.conf, "--conf must be NAME=VALUE"))
    if options.master:
        conf["master"] = options.master
    check_run(app, options.app, handler, parallelism=options.parallelism)
    return handler, conf


def _run_query(pipeline: SparkPipeline, handler: str, options: argparse.Namespace) -> int:
    """Run a streaming query until it ends or a signal stops it, and return the exit code."""
    from tailrace.signals import handle_signals

    received_signals: list[int] = []
    with ExitStack() as handlers:
        for number in (signal.SIGTERM, signal.SIGINT):
            handlers.enter_context(handle_signals([number], functools.partial(received_signals.append, number)))
        query: SparkQuery = pipeline.start(
            handler,
            trigger=options.trigger,
            max_records_per_batch=options.max_records_per_batch,
            parallelism=options.parallelism,
        )
        _print(f"{handler} runs on Spark in group {pipeline.group_status(handler).group_id}; press Ctrl-C to stop")
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


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - output of the command
