"""A fresh clone: what is imported is declared, and what is missing on the machine is said clearly."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.pages.rooms import statements

ROOT = Path(__file__).resolve().parents[2]
OURS = {"trident", "coordinators", "states", "tests", "examples", "benchmarks"}
# Module -> the distribution that brings it, where the names differ or another one depends on it.
DISTRIBUTION = {
    "hdfs_native": "hdfs-native",
    "importlinter": "import-linter",
    "delta": "delta-spark",
    "py4j": "pyspark",
    "numpy": "pandas",
    "confluent_kafka": "confluent-kafka",
    "yaml": "PyYAML",
    "prometheus_client": "prometheus-client",
}
TESTS_ONLY = {"pytest", "hypothesis", "deltalake"}


def project() -> str:
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@cache
def imported(folder: str) -> set[str]:
    names = set()
    for path in (ROOT / folder).rglob("*.py"):
        if path.relative_to(ROOT).as_posix() in OF_EXTRAS:
            continue
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "typing_extensions" and node.col_offset:
                continue  # under TYPE_CHECKING: type checkers bring it
            if isinstance(node, ast.ImportFrom) and node.col_offset and _is_of(path, node.module):
                continue
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add((node.module or "").partition(".")[0])
    return names - OURS - set(sys.stdlib_module_names)


# Modules whose functions import the library of an extra, and that library.
WITHIN_FUNCTIONS = {"trident/watching/lineage.py": "openlineage"}


def _is_of(path: Path, imported_from: str | None) -> bool:
    library = WITHIN_FUNCTIONS.get(path.relative_to(ROOT).as_posix())
    return library is not None and (imported_from or "").partition(".")[0] == library


# Modules that are imported where an extra is used, and the library that this extra brings.
OF_EXTRAS = {
    "states/core/object_storage.py": "obstore",
    "states/core/hdfs_storage.py": "hdfs_native",
    "trident/watching/otel_data.py": "opentelemetry",
}


@pytest.mark.parametrize("package", ["trident", "coordinators", "states"])
def test_what_the_packages_import_is_a_dependency(package):
    dependencies = project().partition("[project.optional-dependencies]")[0]
    names = imported(package)
    assert names, "nothing found: the test looks in the wrong place"
    for name in names:
        assert f'"{DISTRIBUTION.get(name, name)}' in dependencies, f"{package} imports {name}"


@pytest.mark.parametrize(("module", "library"), OF_EXTRAS.items())
def test_a_module_of_an_extra_is_imported_where_it_is_used(module: str, library: str) -> None:
    text = (ROOT / module).read_text(encoding="utf-8")
    assert re.search(rf"^(import|from) {library}", text, re.M)
    assert f'"{library.replace("_", "-")}' in project().partition("[project.optional-dependencies]")[2]
    package, _, name = module.removeprefix("trident/").removesuffix(".py").replace("/", ".").rpartition(".")
    taken = re.compile(rf"^( *)from trident\.{package}(\.{name} import| import {name}\b)", re.M)
    users = [path for path in (ROOT / module).parent.glob("*.py") if taken.search(path.read_text("utf-8"))]
    assert [path.name for path in users] == ["otel.py" if library == "opentelemetry" else "storage.py"]
    found = taken.search(users[0].read_text("utf-8"))
    assert found is not None and len(found[1]) >= 8, "within a function"


def test_what_the_tests_import_is_a_dependency_of_the_tests():
    for name in imported("tests"):
        assert f'"{DISTRIBUTION.get(name, name)}' in project(), f"tests import {name}"


def test_the_packages_do_not_need_what_only_the_tests_have():
    assert not TESTS_ONLY & (imported("trident") | imported("coordinators") | imported("states"))


def test_every_package_with_modules_is_installed():
    """setuptools finds packages by their ``__init__.py``, through the links to ``states`` and ``coordinators``."""
    assert 'include = ["trident*"]' in project().partition("[tool.setuptools.packages.find]")[2]
    for package in ("trident", "coordinators", "states"):
        for file in (ROOT / package).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), f"{file} is in a folder that is no package"


# --- make -------------------------------------------------------------------------------------


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    if shutil.which("make") is None:
        pytest.skip("there is no make")
    env = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "JAVA_HOME")}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={**env, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def java_that_says(folder: Path, version: str) -> str:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("version", ["17.0.15", "21-ea", "21", "25.0.1"])
def test_a_java_that_is_new_enough_is_taken(tmp_path, version):
    assert make("check-java", JAVA_HOME=java_that_says(tmp_path, version)).returncode == 0


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "nonsense"])
def test_a_java_that_is_too_old_is_named(tmp_path, version):
    done = make("check-java", JAVA_HOME=java_that_says(tmp_path, version))
    assert done.returncode != 0
    assert "Java 17 or later is needed" in done.stderr
    assert f"{tmp_path}/bin/java, version {version}" in done.stderr and "apt-get install openjdk" in done.stderr


def test_no_java_is_said_before_anything_is_installed(tmp_path):
    done = make("test", JAVA_HOME=str(tmp_path), VENV=str(tmp_path / "venv"))
    assert done.returncode != 0 and "(none that runs)" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_python_that_is_too_old_is_named(tmp_path):
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\ncase $1 in --version) echo Python 3.8.1;; *) exit 1;; esac\n")
    python.chmod(0o755)
    done = make("venv", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode != 0
    assert "Python 3.10 or later is needed" in done.stderr and "Python 3.8.1" in done.stderr


def test_continuous_integration_is_valid_bash():
    assert subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], timeout=60).returncode == 0
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
