"""Standalone cluster of Spark from the pyspark package, and environments that jobs send to its executors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path

import pyspark

import tailrace
from tailrace.installation import VERSION
from tailrace.spark.session import connector_jars, java_home
from tests.support.commands import SOON_OVER, environment

_HOME = Path(pyspark.__file__).parent
_NO_REST = "-Dspark.master.rest.enabled=false"
"""The REST server has a fixed port, which two clusters cannot share."""
_LEFT_OUT = re.compile(r"/(include|tests|src|__pycache__)/|flight|libarrow_s3|\.pyx")
"""Files of packages that executors do not need; without them, pyarrow has half of its size."""


def connector() -> str:
    """Return the jars of Spark's Kafka connector, separated by commas, as for ``--jars``."""
    shipped = [one.name for one in (_HOME / "jars").glob("*.jar")]
    return ",".join(map(str, connector_jars(pyspark.__version__, shipped)))


class StandaloneSpark:
    """Master and workers of a standalone cluster; each worker has one core.

    Attributes:
        url: address of the master, such as ``spark://127.0.0.1:7077``.
        folder: folder of the cluster.
        python: interpreter with pyarrow and without tailrace, which executors use unless a job has another one.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.python = make_environment(folder / "bare", "pyarrow")

    def submit(
        self, job: Path, *arguments: str, options: Sequence[str] = (), python: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``spark-submit`` in client mode; ``python`` is the interpreter of the executors.

        The output of the job, errors included, is in ``stdout``.
        """
        conf = {
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": SOON_OVER,
            "spark.sql.shuffle.partitions": "2",
            "spark.task.maxFailures": "1",
        }
        command = [str(_HOME / "bin" / "spark-submit"), "--master", self.url]
        command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        return subprocess.run(
            [*command, *options, str(job), *arguments],
            env=submit_environment(PYSPARK_PYTHON=python or str(self.python), **variables),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


def submit_environment(**variables: str) -> dict[str, str]:
    """Return environment variables for commands of Spark."""
    return environment(
        SPARK_HOME=str(_HOME),
        JAVA_HOME=str(java_home(pyspark.__version__)),
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_DRIVER_PYTHON=sys.executable,
        **variables,
    )


@contextmanager
def standalone_spark(folder: Path, workers: int = 2) -> Iterator[StandaloneSpark]:
    """Run a standalone cluster on this machine, without a connection to the internet."""
    with ExitStack() as stack:
        line = _start(stack, folder / "master.log", "master.Master", "--port", "0", until="Starting Spark master at ")
        url = line.split()[-1]
        for number in range(workers):
            options = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}")]
            _start(stack, folder / f"worker-{number}.log", "worker.Worker", *options, url)
        yield StandaloneSpark(folder, url)


def _start(stack: ExitStack, log: Path, name: str, *arguments: str, until: str = "") -> str:
    """Start a daemon, end it with ``stack``, and wait for the line of its log that contains ``until``.

    Applications wait for workers, so no line is needed of these.
    """
    command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--webui-port", "0", *arguments],
            env=submit_environment(SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=f"{SOON_OVER} {_NO_REST}"),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def end() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)

    stack.callback(end)
    waiting, give_up_at = threading.Event(), time.monotonic() + 120
    while until and not (found := [line for line in log.read_text().splitlines() if until in line]):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < give_up_at, log.read_text()
        waiting.wait(0.05)
    return found[0] if until else ""


# ---- environments ----------------------------------------------------------------------------------------------------


def make_environment(folder: Path, *packages: str, without: str = "") -> Path:
    """Create a virtual environment with links to installed packages and what they need; return its interpreter."""
    venv.EnvBuilder(symlinks=True).create(folder)
    for name, place in _files_of(*packages).items():
        if name != without:
            (_site_packages(folder) / name).symlink_to(place)
    return folder / "bin" / "python"


def pack_environment(archive: Path, *packages: str, version: str = "") -> Path:
    """Pack a virtual environment with packages and what they need, as ``tar -C FOLDER -czf ARCHIVE .`` does.

    If ``version`` is given, the package tailrace in it claims to have that version. Spark unpacks only a ``.tar.gz``
    file with ``tar``: Java refuses the absolute links of an environment, and loses the permissions of its files.
    """
    folder = archive.with_suffix(".folder")
    venv.EnvBuilder(symlinks=True).create(folder)
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(folder, ".")
        for name, place in _files_of(*packages).items():
            target = _site_packages(Path()) / name
            tar.add(place, str(target), filter=lambda one: None if _LEFT_OUT.search(one.name) else one)
        if version:
            text = (Path(tailrace.__file__).parent / "installation.py").read_text()
            changed = archive.with_suffix(".py")
            changed.write_text(text.replace(f'VERSION = "{VERSION}"', f'VERSION = "{version}"'))
            tar.add(changed, str(_site_packages(Path()) / "tailrace" / "installation.py"))
    return archive


def pack_modules(archive: Path, *packages: str, **modules: str) -> Path:
    """Write a zip file, as for ``--py-files``, with packages without their dependencies, and modules with a text."""
    with zipfile.ZipFile(archive, "w") as file:
        for package in packages:
            place = _place_of(package)
            for one in place.rglob("*"):
                if one.is_file() and "__pycache__" not in one.parts:
                    file.write(one, Path(package, one.relative_to(place)))
        for name, text in modules.items():
            file.writestr(f"{name}.py", text)
    return archive


def _site_packages(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _place_of(package: str) -> Path:
    return Path(tailrace.__file__).parent if package == "tailrace" else Path(_site_packages(Path(sys.prefix)), package)


def _files_of(*packages: str) -> Mapping[str, Path]:
    """Return the folders and modules of packages and of what they need, by their names in ``site-packages``."""
    found: dict[str, Path] = {}
    names = list(packages)
    seen = set()
    while names:
        name = re.split(r"[^\w.-]", names.pop())[0]
        if name in seen:
            continue
        seen.add(name)
        distribution = metadata.distribution(name)
        names += [one for one in distribution.requires or () if ";" not in one]
        if name == "tailrace":
            found[name] = _place_of(name)
            continue
        for file in distribution.files or ():
            first = file.parts[0]
            if first not in {"..", "__pycache__"} and not first.endswith(".dist-info"):
                found[first] = Path(str(distribution.locate_file(first)))
    return found
