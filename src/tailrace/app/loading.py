"""Import of an App by its name, such as ``shop:billing``."""

from __future__ import annotations

import re
import sys
from importlib import import_module

from tailrace.app.app import App
from tailrace.app.stack_frames import where_raised
from tailrace.errors import ConfigurationError, TailraceError
from tailrace.user_exceptions import error_text

__all__ = ["load_app", "split_app_name"]


def split_app_name(where: str) -> tuple[str, str]:
    """Split ``MODULE:APP`` into the name of the module and the name of the app.

    Raises:
        ConfigurationError: ``where`` does not have the form ``MODULE:APP``.
    """
    module_name, separator, name = where.partition(":")
    if not separator or not module_name or not name:
        raise ConfigurationError(f"{where!r} does not name an app - write MODULE:APP, such as shop:billing")
    return module_name, name


def load_app(where: str) -> App:
    """Import and return the App that ``MODULE:APP`` names; modules in the current directory are found, too.

    Raises:
        ConfigurationError: ``MODULE`` does not exist or cannot be imported, or does not contain an App named ``APP``.
        ModuleNotFoundError: ``MODULE`` imports another module that does not exist.
        TailraceError: raised by the code of the module.
    """
    module_name, name = split_app_name(where)
    if module_name.startswith(".") or not re.fullmatch(r"[\w.]+", module_name):
        raise ConfigurationError(f"{module_name!r} is not a module name - {_hint(module_name, name)}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ConfigurationError(f"there is no module {module_name!r} - {_hint(module_name, name)}") from None
    except TailraceError:
        raise
    except Exception as error:
        line = where_raised(error)
        at = "" if line is None else f" at {line}"
        raise ConfigurationError(
            f"module {module_name!r} cannot be imported: {error_text(error)}{at}"
            f" - `python -c 'import {module_name}'` shows the whole traceback"
        ) from error
    app = getattr(module, name, None)
    if not isinstance(app, App):
        apps = [variable for variable, value in vars(module).items() if isinstance(value, App)]
        hint = f"use one of {', '.join(apps)}" if apps else "the module defines no App"
        raise ConfigurationError(f"{name!r} of {module_name} is not an App - {hint}")
    return app


def _hint(module_name: str, name: str) -> str:
    if module_name.endswith(".py"):
        meant = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        return f"did you mean {meant}:{name}?"
    return f"run this where `import {module_name}` works"
