"""Functions that Spark sends to workers whose environment is not the driver's."""

import subprocess
import sys

import pytest
from pyspark import cloudpickle

from tailrace.installation import VERSION
from tailrace.spark.worker.entry import portable

_WORKER = """
import pickle, sys
from pyspark import SparkFiles

SparkFiles._is_running_on_worker, SparkFiles._root_directory = True, sys.argv[1]
{preparation}
try:
    print(list(pickle.load(sys.stdin.buffer)([1, 2])))
except ImportError as error:
    print(error)
"""


def run_in_worker(folder, preparation: str = "") -> str:
    def double(batches):
        for number in batches:
            yield 2 * number

    sent = portable(double, "charge")
    assert sent.__name__ == "charge"
    command = [sys.executable, "-c", _WORKER.format(preparation=preparation), str(folder)]
    return subprocess.run(
        command, input=cloudpickle.dumps(sent), capture_output=True, timeout=60, check=True
    ).stdout.decode()


def test_a_worker_with_tailrace_runs_the_function(tmp_path):
    """A worker with the same version of tailrace runs the function."""
    assert run_in_worker(tmp_path) == "[2, 4]\n"


@pytest.mark.parametrize(
    ("file", "hint"), [("shop.zip", ""), ("tailrace-1.whl", "Spark imports nothing from a wheel, ")]
)
def test_a_worker_without_tailrace_says_what_to_do(tmp_path, file, hint):
    """A worker without tailrace raises an error that says how to send it."""
    (tmp_path / file).touch()

    text = run_in_worker(tmp_path, "sys.modules['tailrace'] = None")

    assert text.startswith("Spark's executors cannot import tailrace (")
    assert f" - {hint}" in text
    assert f"install tailrace {VERSION} with the extra 'arrow' on all nodes, or send an environment" in text


def test_a_worker_with_another_version_names_both(tmp_path):
    """A worker with another version of tailrace raises an error that names both versions."""
    text = run_in_worker(tmp_path, "import tailrace.installation; tailrace.installation.VERSION = '0.0.1'")

    assert text.startswith(f"Spark's executors have tailrace 0.0.1, and the driver has {VERSION} - install")
