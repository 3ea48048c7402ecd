"""Check of the names of environment variables."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Mapping

from tailrace.errors import ConfigurationError

__all__ = ["PREFIX", "check_variables"]

PREFIX = "TAILRACE_"
_OF_TOOLS = {"DEAD_LETTER_TOPIC", "WORKER"}
_OF_TESTS = "TEST_"
_OF_KUBERNETES = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
"""Variables that Kubernetes injects for a service whose name begins with ``tailrace``."""
_ALIKE = 0.85
_warned: set[str] = set()


def check_variables(environ: Mapping[str, str], options: Collection[str]) -> None:
    """Raise an error for a variable that looks like a mistyped option; log one warning for any other unknown one.

    Raises:
        ConfigurationError: A variable is probably mistyped; the message names the variable that was meant.
    """
    for variable in environ:
        name = variable.removeprefix(PREFIX)
        plain = name.removesuffix("_FILE").lower()
        if name == variable or plain in options or name in _OF_TOOLS or name.startswith(_OF_TESTS):
            continue
        if _OF_KUBERNETES.fullmatch(name):
            continue
        if close := difflib.get_close_matches(plain, options, n=1, cutoff=_ALIKE):
            suffix = "_FILE" if name.endswith("_FILE") else ""
            raise ConfigurationError(
                f"{variable} is not the variable of an option - did you mean {PREFIX}{close[0].upper()}{suffix}?"
            )
        if variable not in _warned:
            _warned.add(variable)
            logging.getLogger("tailrace").warning("%s is not the variable of an option and is ignored", variable)
