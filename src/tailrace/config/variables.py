"""Check of the names of environment variables."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Mapping

from tailrace.errors import ConfigurationError

__all__ = ["PREFIX", "check_variables"]

PREFIX = "TAILRACE_"
_TOOL_VARIABLES = {"DEAD_LETTER_TOPIC", "WORKER"}
_TEST_PREFIX = "TEST_"
_KUBERNETES_VARIABLE = re.compile(
    r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Variables that Kubernetes sets for a service whose name begins with ``tailrace``, without their prefix."""
_MIN_SIMILARITY = 0.85
"""Minimum similarity (0 to 1) of a variable's name to that of an option for an error instead of a warning."""
_reported: set[str] = set()
"""Unknown variables for which a warning was logged."""


def check_variables(environ: Mapping[str, str], options: Collection[str]) -> None:
    """Check the names of environment variables with the prefix ``TAILRACE_``; log one warning for each unknown name.

    Raises:
        ConfigurationError: a variable is probably misspelled; the message has the variable of the most similar option.
    """
    for variable in environ:
        name = variable.removeprefix(PREFIX)
        plain = name.removesuffix("_FILE").lower()
        if name == variable or plain in options or name in _TOOL_VARIABLES or name.startswith(_TEST_PREFIX):
            continue
        if _KUBERNETES_VARIABLE.fullmatch(name):
            continue
        if close := difflib.get_close_matches(plain, options, n=1, cutoff=_MIN_SIMILARITY):
            suffix = "_FILE" if name.endswith("_FILE") else ""
            raise ConfigurationError(
                f"{variable} is not the variable of an option - did you mean {PREFIX}{close[0].upper()}{suffix}?"
            )
        if variable not in _reported:
            _reported.add(variable)
            logging.getLogger("tailrace").warning("%s is not the variable of an option and is ignored", variable)
