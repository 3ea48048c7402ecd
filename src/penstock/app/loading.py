"""From ``shop:billing`` to the App of that name."""

from __future__ import annotations

import sys
from importlib import import_module

from penstock.app.app import App
from penstock.errors import ConfigurationError

__all__ = ["check_place", "load_app"]


def check_place(where: str) -> tuple[str, str]:
    """The module and the name in it.

    Raises:
        ConfigurationError: it is no such thing.
    """
    module_name, separator, name = where.partition(":")
    if not separator or not module_name or not name:
        raise ConfigurationError(f"{where!r} says no app - write MODULE:APP, such as shop:billing")
    return module_name, name


def load_app(where: str) -> App:
    """The App at ``module:name``; modules are looked for in the current folder, too.

    Raises:
        ConfigurationError: there is none.
    """
    module_name, name = check_place(where)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ConfigurationError(
            f"there is no module {module_name!r} - run this where `import {module_name}` works"
        ) from None
    found = getattr(module, name, None)
    if not isinstance(found, App):
        apps = [one for one, value in vars(module).items() if isinstance(value, App)]
        hint = f"it has {', '.join(apps)}" if apps else "it has no App at all"
        raise ConfigurationError(f"{name!r} of {module_name} is no App - {hint}")
    return found
