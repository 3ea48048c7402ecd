"""Function that Spark sends to its workers, which a worker can unpickle without tailrace.

pickle imports the modules of all classes and functions that it finds. Without tailrace, that import would fail before
any code that could say what to do. Therefore, the function refers to no name of a module, and its arguments are
unpickled after the check that tailrace can be imported, and has the version of the driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.context_managers import contextmanager
from tailrace.errors import ConfigurationError
from tailrace.installation import VERSION

__all__ = ["portable", "translated_errors"]

_PREFIX = "Spark's executors "
_ADVICE = (
    f"install tailrace {VERSION} with the extra 'arrow' on all nodes, or send an environment that contains it:"
    " --archives environment.tar.gz#environment, and PYSPARK_PYTHON=./environment/bin/python"
)
_SETUP_ERROR = re.compile(rf"Error: ({_PREFIX}.*)")


def portable(function: Callable[[Any], Iterator[Any]], name: str) -> Callable[[Any], Iterator[Any]]:
    """Return a function that does the same as the generator function ``function`` in a worker.

    Args:
        function: function with one argument.
        name: name of the returned function, which Spark shows in plans.

    The returned function raises ImportError if the worker lacks tailrace or has another version.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    pickled: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    version, prefix, advice = VERSION, _PREFIX, _ADVICE

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib.util  # noqa: PLC0415 - pickled by value, so that all names are local
        import os  # noqa: PLC0415
        import pickle  # noqa: PLC0415
        import sys  # noqa: PLC0415

        from pyspark import SparkFiles  # noqa: PLC0415

        try:
            found = importlib.import_module("tailrace.installation").VERSION
            if found == version:
                importlib.import_module("tailrace.app.app")
        except ImportError as error:
            spec = importlib.util.find_spec("tailrace")
            wheels = [one for one in os.listdir(SparkFiles.getRootDirectory()) if one.endswith(".whl")]  # noqa: PTH208
            hint = ""
            if spec is None and wheels:
                hint = f"Spark imports nothing from a wheel, such as {wheels[0]}; "
            elif spec is not None and ".zip/" in str(spec.origin):
                hint = (
                    "tailrace needs compiled modules of other packages, which Python does not import from zip files; "
                )
            raise ImportError(f"{prefix}cannot import tailrace ({error}, {sys.executable}) - {hint}{advice}") from None
        if found != version:
            raise ImportError(f"{prefix}have tailrace {found}, and the driver has {version} - {advice}")
        yield from pickle.loads(pickled)(batches)  # noqa: S301

    run.__name__ = name
    return run


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise the error of workers that lack tailrace, or have another version, as ConfigurationError."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.startswith(("pyspark.", "py4j.")) and (found := _SETUP_ERROR.search(str(error))):
            raise ConfigurationError(found[1]) from error
        raise
