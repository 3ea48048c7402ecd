"""Ways to bring tailrace and an app to the executors of a cluster."""

import json
from pathlib import Path

import pytest

from tailrace.installation import VERSION
from tests.support.standalone_spark import connector, make_environment, pack_environment, pack_modules
from tests.support.witness import Witness

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(700)]

JOB = Path(__file__).with_name("deployed_job.py")
SHOP = """
import os
import msgspec
import tailrace
from tailrace import App

CHECKPOINT = {checkpoint!r}
app = App(bootstrap_servers={broker!r}, group_id="deployed")


class Place(msgspec.Struct):
    tailrace: str
    app: str


@app.handler("places")
async def locate(value: bytes) -> Place:
    return Place(tailrace.__file__, __file__)
"""


def outcomes(cluster, options, artifacts=(), **cases):
    """Run the job; return the outcome of each case. The client of Spark Connect imports the app from an artifact."""
    done = cluster.submit(JOB, json.dumps(cases), *artifacts, options=options, PYTHONPATH=":".join(artifacts[1:]))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def archived(standalone, kafka_server, tmp_path_factory):
    """Outcomes of a job with two archives, and the app in a zip file."""
    folder = tmp_path_factory.mktemp("archived")
    kafka_server.create_topic("places", 2)
    for partition in range(2):
        Witness(kafka_server.bootstrap_servers).produce("places", [b"1"] * 500, partition=partition)
    shop = SHOP.format(checkpoint=f"file://{folder}/checkpoint", broker=kafka_server.bootstrap_servers)
    archives = [
        f"{pack_environment(folder / 'environment.tar.gz', 'tailrace', 'pyarrow')}#environment",
        f"{pack_environment(folder / 'older.tar.gz', 'tailrace', 'pyarrow', version='0.0.1')}#older",
    ]
    options = ["--archives", ",".join(archives), "--jars", connector()]
    options += ["--py-files", str(pack_modules(folder / "shop.zip", shop=shop))]
    return outcomes(
        standalone,
        options,
        bare_pipeline=("pipeline", str(standalone.python)),
        older_pipeline=("pipeline", "./older/bin/python"),
        results=("results", "./environment/bin/python"),
        pipeline=("pipeline", "./environment/bin/python"),
        bare=("results", str(standalone.python)),
        older=("results", "./older/bin/python"),
    )


def test_an_archive_brings_tailrace_and_a_zip_file_the_app(archived):
    """``results`` runs with tailrace of ``--archives`` and the app of ``--py-files``."""
    places = archived["results"]

    assert places
    for tailrace, shop in places:
        assert "/environment/lib/" in tailrace
        assert shop.endswith("/shop.zip/shop.py")


def test_a_pipeline_runs_on_a_cluster(archived):
    """A pipeline handles the records of Kafka on the executors; its checkpoint is a ``file:`` URI."""
    assert archived["pipeline"] == 1_000


def test_executors_without_tailrace_are_an_error_with_advice(archived):
    """``results`` and pipelines fail with one error, which says how to bring tailrace to the executors."""
    kind, text = archived["bare"]
    pipeline_kind, pipeline_text = archived["bare_pipeline"]

    assert kind == "PythonException"
    assert "ImportError: Spark's executors cannot import tailrace (No module named 'tailrace', " in text
    assert f"install tailrace {VERSION} with the extra 'arrow' on all nodes" in text
    assert "--archives environment.tar.gz#environment" in text
    assert pipeline_kind == "ConfigurationError"
    assert pipeline_text.startswith("Spark's executors cannot import tailrace (No module named 'tailrace', ")
    assert "\n" not in pipeline_text


def test_executors_with_another_version_are_an_error(archived):
    """Another version of tailrace on the executors is an error before a handler runs."""
    text = f"Spark's executors have tailrace 0.0.1, and the driver has {VERSION} - "

    assert f"ImportError: {text}" in archived["older"][1]
    assert archived["older_pipeline"][0] == "ConfigurationError"
    assert archived["older_pipeline"][1].startswith(text)


def test_a_zip_file_brings_tailrace_where_its_dependencies_are_installed(standalone, tmp_path):
    """A copy of tailrace runs from a zip file of ``--py-files``, but compiled packages need an environment."""
    shop = SHOP.format(checkpoint="", broker="localhost:1")
    modules = [
        pack_modules(tmp_path / "tailrace.zip", "tailrace"),
        pack_modules(tmp_path / "shop.zip", shop=shop),
    ]
    found = outcomes(
        standalone,
        ["--py-files", ",".join(map(str, modules))],
        zipped=("results", str(make_environment(tmp_path / "dependencies", "tailrace", "pyarrow", without="tailrace"))),
        bare=("results", str(standalone.python)),
    )

    assert found["zipped"]
    assert all("/tailrace.zip/tailrace/" in tailrace for tailrace, _ in found["zipped"])
    assert "Spark's executors cannot import tailrace (No module named " in found["bare"][1]
    assert (
        " - tailrace needs compiled modules of other packages, which Python does not import from zip files; install"
        in found["bare"][1]
    )


def test_a_wheel_is_refused_with_advice(standalone, tmp_path):
    """A wheel given to ``--py-files``, from which Spark imports nothing, is an error with advice."""
    shop = SHOP.format(checkpoint="", broker="localhost:1")
    wheel = pack_modules(tmp_path / f"tailrace-{VERSION}-py3-none-any.whl", "tailrace")
    files = f"{wheel},{pack_modules(tmp_path / 'shop.zip', shop=shop)}"

    found = outcomes(standalone, ["--py-files", files], wheel=("results", str(standalone.python)))

    assert f" - Spark imports nothing from a wheel, such as {wheel.name}; install tailrace" in found["wheel"][1]
