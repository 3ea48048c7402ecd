"""An unknown option is explained by its place: consumer, app, handler or producer."""

from __future__ import annotations

import dataclasses

import pytest

from tailrace import App, ConfigurationError, Consumer, HandlerOptions
from tailrace.app.options import AppConfig
from tailrace.app.transactions.kafka_access import TransactionOptions
from tailrace.config.resolution import _OF_APPS, _OF_HANDLERS


@pytest.mark.parametrize("name", ["acks", "linger_ms", "linger.ms", "compression_type", "enable_idempotence"])
@pytest.mark.parametrize("place", ["app", "consumer", "handler"])
def test_a_producers_option_is_not_mistaken_for_another(name, place):
    """An option of producers is named as such, and no option of similar name is suggested."""
    if place == "handler" and "." in name:
        return
    with pytest.raises(ConfigurationError, match="an option of producers - pass it to Producer") as raised:
        pass_option(place, name)

    assert "did you mean" not in str(raised.value)


@pytest.mark.parametrize(
    ("place", "name", "hint"),
    [
        ("app", "compression_type", "to Producer() as compression_type, or to App() as producer={'compression_type': "),
        ("app", "compression", "to Producer() as compression_type, or to App() as producer={'compression_type': ...}"),
        ("app", "batch.size", "to Producer() as max_batch_size, or to App() as producer={'max_batch_size': ...}"),
        ("app", "acks", "pass it to Producer() as acks; an app publishes with acks='all', so that no result or"),
        ("app", "retries", "an option of producers in other clients - use delivery_timeout_ms"),
        ("app", "order_by", "'order_by' is an option of handlers - pass it to @app.handler()"),
        ("app", "orderby", "did you mean 'order_by'? It is an option of handlers - pass it to @app.handler()"),
        ("app", "concurency", "did you mean 'concurrency'? It is an option of handlers"),
        ("consumer", "dead_letter", "'dead_letter' is an option of App - pass it to App()"),
        ("consumer", "concurrency", "'concurrency' is an option of handlers"),
        ("consumer", "grup_id", "did you mean 'group_id'?"),
        ("handler", "auto_offset_reset", "it is an option of consumers - pass it to Consumer() or App()"),
        ("handler", "delivery", "it is an option of App - pass it to App()"),
        ("handler", "delivry", "did you mean 'delivery'? It is an option of App - pass it to App()"),
        ("handler", "concurency", "did you mean 'concurrency'?"),
    ],
)
def test_a_hint_names_the_place_of_the_option(place, name, hint):
    """A hint at an option of another place says where to pass it."""
    with pytest.raises(ConfigurationError) as raised:
        pass_option(place, name)

    assert hint in str(raised.value)


def test_the_places_list_all_options():
    """Each option of App and of handlers has its place."""
    of_apps = {one.name for kind in (AppConfig, TransactionOptions) for one in dataclasses.fields(kind)}
    of_handlers = HandlerOptions.__annotations__.keys() - of_apps - {"group_id"}

    assert of_apps == _OF_APPS
    assert {*of_handlers, "batch"} == _OF_HANDLERS


def pass_option(place: str, name: str) -> None:
    match place:
        case "app":
            App(group_id="g", **{name: 1})
        case "consumer":
            Consumer("t", **{name: 1})
        case _:
            App(group_id="g").handler("t", **{name: 1})
