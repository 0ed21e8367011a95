"""Spark's file of settings: what it has is kept where the framework adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.spark.session import session_confs
from trident.spark.stores import properties, spark_defaults


def test_properties_are_read_as_java_does() -> None:
    text = """
# a comment
! another
spark.master            spark://host:7077
spark.one=1
spark.two : 2
  spark.driver.extraJavaOptions -Da=b \\
    -Dc=d
spark.path C:\\\\spark
spark.empty
"""
    assert properties(text) == {
        "spark.master": "spark://host:7077",
        "spark.one": "1",
        "spark.two": "2",
        "spark.driver.extraJavaOptions": "-Da=b -Dc=d",
        "spark.path": "C:\\spark",
        "spark.empty": "",
    }


def test_settings_of_the_file_to_which_ours_are_added_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert spark_defaults() == {}
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.driver.extraJavaOptions -Dmine=1\nspark.sql.extensions my.Extension\nspark.driver.extraClassPath /mine\n"
    )
    given = {"spark.master": "local[1]"}
    confs = session_confs(given)
    assert confs["spark.driver.extraJavaOptions"].startswith("-Dmine=1 ")
    assert confs["spark.sql.extensions"].startswith("my.Extension,")
    assert confs["spark.driver.extraClassPath"].endswith(":/mine")
    given["spark.driver.extraJavaOptions"] = "-Dother=1"
    assert "-Dmine" not in session_confs(given)["spark.driver.extraJavaOptions"], "the session's own come in its place"
