"""Public names are exported, documented and consistent."""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib
import inspect
import pickle
import re
import types
import typing
from collections.abc import Sequence

import pytest

import tailrace
from tailrace import errors
from tailrace.app.handlers import Handler
from tailrace.app.options import AppConfig, AppOptions, HandlerOptions
from tailrace.app.transactions.kafka_access import TransactionOptions
from tailrace.config import ConsumerConfig, ConsumerOptions, ProducerConfig, ProducerOptions
from tailrace.records import TopicPartition

# Names used by documentation, examples and tests, by the package they are imported from.
SURFACE = {
    "tailrace": {
        "App",
        "Consumer",
        "ConsumerOptions",
        "Depends",
        "Handlers",
        "Header",
        "Key",
        "Message",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
        "Producer",
        "ProducerOptions",
        "Published",
        "Record",
        "Reject",
        "Retry",
        "TopicPartition",
        "run",
    },
    "tailrace.spark": {"SparkPipeline", "spark_session"},
    "tailrace.testing": {"FaultProxy", "KafkaCluster", "KafkaServer", "TestApp"},
}

CONSUMER = """
    start stop getone getmany batches arrow_batches streams ack commit committed transaction_offsets position seek
    seek_to_beginning seek_to_end seek_to_time seek_to_committed pause resume paused assign assigned assignment
    subscribe unsubscribe subscription beginning_offsets end_offsets offsets_for_times lag highwater last_stable_offset
    offsets topics partitions_for_topic reconfigure health metrics statistics
"""

OF_TESTING = {errors.KafkaServerError, errors.KafkaNotAvailableError, errors.SimulationError}

ERRORS = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, BaseException) and one.__module__ == errors.__name__
]


@pytest.mark.parametrize("front", SURFACE)
def test_public_names_can_be_imported(front, modules):
    """Each documented name can be imported from the documented package."""
    here = [module for module in modules if f"{module.name}.".startswith(f"{front}.")]
    defined = {name for module in here for name, _ in module.public_definitions()}
    wanted = SURFACE[front] & defined
    if not here:
        return  # the package does not exist yet

    assert wanted <= set(importlib.import_module(front).__all__)
    assert wanted or front != "tailrace"


def test_consumer_has_only_documented_methods():
    """Each public method of Consumer is documented, and none has a second name."""
    public = {name for name, _ in inspect.getmembers(tailrace.Consumer) if not name.startswith("_")}

    assert public <= set(CONSUMER.split())
    assert {"start", "stop", "getone", "getmany", "commit", "seek", "pause", "resume"} <= public


# ---- options -------------------------------------------------------------------------------------------------------


def test_consumer_options_equal_consumer_config():
    """Consumer and ConsumerConfig have the same options in the same order."""
    assert list(ConsumerOptions.__annotations__) == [field.name for field in dataclasses.fields(ConsumerConfig)]
    assert not ConsumerOptions.__required_keys__


@pytest.mark.parametrize("name", ConsumerOptions.__annotations__)
def test_types_of_options_match(name):
    """An option of Consumer has the type of its field in ConsumerConfig, or a type that is converted to it."""
    holds, takes = (
        members(typing.get_type_hints(ConsumerConfig)[name]),
        members(anything_for_variables(typing.get_type_hints(ConsumerOptions)[name])),
    )
    loosened = {Sequence[typing.get_args(one)[0]] if is_open_tuple(one) else one for one in holds}

    one_of_several = {part for one in holds if is_open_tuple(one) for part in members(typing.get_args(one)[0])}
    assert takes - loosened - one_of_several <= {str}
    assert loosened <= takes


def test_producer_options_equal_producer_config():
    """Producer and ProducerConfig have the same options in the same order."""
    assert list(ProducerOptions.__annotations__) == [field.name for field in dataclasses.fields(ProducerConfig)]
    assert not ProducerOptions.__required_keys__


def members(hint: object) -> set[object]:
    return set(typing.get_args(hint)) if typing.get_origin(hint) in {typing.Union, types.UnionType} else {hint}


def anything_for_variables(hint: object) -> object:
    """Return the type with ``Any`` in place of the types of keys and values."""
    variables = getattr(hint, "__parameters__", ())
    return hint[(typing.Any,) * len(variables)] if variables else hint


def is_open_tuple(hint: object) -> bool:
    return typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (Ellipsis,)


@pytest.mark.parametrize(
    "option",
    {one.name: one for kind in (ConsumerConfig, ProducerConfig) for one in dataclasses.fields(kind)}.values(),
    ids=lambda option: option.name,
)
def test_every_option_has_a_default_and_a_unit(option):
    """Each option has a default; times are milliseconds, and their names end in _ms."""
    assert option.default is not dataclasses.MISSING
    assert not re.search(r"_(s|sec|seconds|timeout|interval|age|backoff|wait)$", option.name)


def test_options_of_handlers_and_apps_are_those_that_are_documented():
    """HandlerOptions and AppOptions have the names of the documented options."""
    handler = [field.name for field in dataclasses.fields(Handler)]
    app = [field.name for kind in (AppConfig, TransactionOptions) for field in dataclasses.fields(kind)]

    assert [*HandlerOptions.__annotations__] == [
        one for one in handler if one not in {"function", "name", "topics", "batch", "delays_ms"}
    ]
    assert [*AppOptions.__annotations__] == [*ConsumerOptions.__annotations__, *app]
    assert not HandlerOptions.__required_keys__
    assert not AppOptions.__required_keys__


# ---- errors --------------------------------------------------------------------------------------------------------


def drawn_tree() -> dict[str, str | None]:
    """Return the parent of each error in the tree of errors.py's docstring."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"((?:[│ ] {3}|[├└]── )*)(\w+Error(?:, \w+Error)*)", line)
        if found is None:
            continue
        depth = len(found[1]) // 4
        for name in found[2].split(", "):
            parents[name] = path[depth - 1] if depth else None
            path[depth:] = [name]
    return parents


def test_the_documented_tree_of_errors_is_correct():
    """The tree in the docstring of errors.py has all errors, except some subclasses of BrokerError."""
    real = {one.__name__: one.__base__.__name__ if one is not errors.TailraceError else None for one in ERRORS}
    drawn = drawn_tree()

    assert drawn.items() <= real.items()
    assert {name for name in real.keys() - drawn.keys() if real[name] != "BrokerError"} == set()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_exported(error):
    """Each error can be imported from tailrace, those of the embedded broker from tailrace.testing."""
    front = importlib.import_module("tailrace.testing") if error in OF_TESTING else tailrace

    assert getattr(front, error.__name__, None) is error
    assert error.__name__ in front.__all__
    assert error.__name__.endswith("Error")
    assert issubclass(error, errors.TailraceError)


def test_all_errors_are_in_errors_py(modules):
    """All errors are defined in errors.py, except `Reject`, which handlers raise."""
    elsewhere = [
        f"{module.where}: {name}"
        for module in modules
        for name, node in module.public_definitions()
        if isinstance(node, ast.ClassDef) and name.endswith(("Error", "Exception", "Warning"))
        if module.name != "tailrace.errors" and is_an_exception(module.name, name)
    ]

    assert not elsewhere, "\n".join(elsewhere)


def is_an_exception(module: str, name: str) -> bool:
    return issubclass(getattr(importlib.import_module(module), name), BaseException)


def made(error: type[errors.TailraceError]) -> errors.TailraceError:
    """Return an instance, created as the code does."""
    if issubclass(error, errors.BrokerError):
        return error(3, "orders: no such topic")
    if error is errors.OffsetOutOfRangeError:
        return error("orders", 3, 17)
    if error is errors.LogTruncatedError:
        return errors.LogTruncatedError("orders", 3, 17, 12)
    if error is errors.OffsetGapError:
        return errors.OffsetGapError(TopicPartition("orders", 3), 42, 45)
    if issubclass(error, errors.UnreadableBatchError):
        return error(TopicPartition("orders", 3), 17, 42, "its checksum is wrong")
    return error("what happened - what to do")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
@pytest.mark.parametrize(
    "travel",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deep"],
)
def test_errors_can_be_pickled_and_copied(error, travel):
    """A pickled or copied error keeps its type, message and attributes."""
    before = made(error)

    after = travel(before)

    assert type(after) is error
    assert str(after) == str(before)
    assert vars(after) == vars(before)
