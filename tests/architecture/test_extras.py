"""Each extra installs what its code imports."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Optional packages that are used if installed; py4j comes with pyspark.
BESIDE = {"tailrace", "py4j", "rich"}


@pytest.mark.parametrize(
    ("extra", "places"),
    [
        ("spark", ("tailrace/spark/", "tailrace/embedded/jars.py")),
        ("testing", ("tailrace/embedded/", "tailrace/testing/")),
    ],
)
def test_an_extra_installs_what_its_code_imports(modules, extra, places):
    """Packages that an extra's folders import are dependencies of the project or of the extra."""
    brought = PROJECT["dependencies"] + PROJECT["optional-dependencies"][extra]
    there = {re.match(r"[\w-]+", one)[0].replace("-", "_") for one in brought} | sys.stdlib_module_names | BESIDE
    missing = [
        f"{module.where}:{one.line}: {one.module}"
        for module in modules
        for one in module.imports()
        if module.where.startswith(places) and one.module.partition(".")[0] not in there
    ]

    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    ("extra", "package", "program"),
    [
        ("prometheus", "prometheus_client", "import tailrace.integrations.prometheus"),
        ("prometheus", "prometheus_client", "from tailrace.integrations.prometheus import metrics_app"),
        ("prometheus", "prometheus_client", "import tailrace.integrations.cluster_exporter"),
        ("prometheus", "prometheus_client", "from tailrace.cli import main; exit(main(['exporter']))"),
        ("opentelemetry", "opentelemetry", "import tailrace.integrations.opentelemetry"),
        ("schema-registry", "confluent_kafka", "import tailrace; tailrace.SchemaRegistry('http://x:1')"),
        ("schema-registry", "fastavro", "import tailrace; tailrace.SchemaRegistry('http://x:1')"),
        ("schema-registry", "jsonschema", "import tailrace; tailrace.SchemaRegistry('http://x:1', format='json')"),
        ("schema-registry", "google", "import tailrace; tailrace.SchemaRegistry('http://x:1', format='protobuf')"),
        ("spark", "pyspark", "from tailrace.spark import spark_session; spark_session(None).__enter__()"),
        ("testing", "psutil", "from tailrace.testing import KafkaServer; KafkaServer().start()"),
        ("cli", "rich", "from tailrace.cli import main; exit(main(['dead-letters', 'list', 't']))"),
        ("cli", "watchfiles", "from tailrace.cli import main; exit(main(['run', 'a:b', '--reload']))"),
    ],
)
def test_a_missing_extra_is_one_sentence_with_its_command(extra, package, program):
    """The last line of the error names the missing package and the command that installs the extra."""
    hidden = (
        f"import sys\nsys.modules[{package!r}] = None\nimport importlib.util as util\nfound = util.find_spec\n"
        f"util.find_spec = lambda name, *more: None if name == {package!r} else found(name, *more)\n"
    )
    done = subprocess.run([sys.executable, "-c", hidden + program], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1].replace("prometheus-client", "prometheus_client")
    assert re.search(rf"{package}\S*( |, which )is not installed - pip|needs {package} - pip", last), done.stderr
    assert f"pip install '.[{extra}" in last
