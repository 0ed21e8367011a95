"""The wheel, installed in a new environment: the README's program runs there, and nothing of a user's meets ours.

It is built from the source distribution, as it is for an index: the packages trident.states and trident.coordinators
are links in this checkout. ``make cluster`` has a user's own states.py and coordinators.py in a run with workers, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.cluster.installed import bare_environment, site_packages
from tests.pages.page_runner import blocks

ROOT = Path(__file__).resolve().parents[2]
JOB = """
import sys
import coordinators, states
import trident, trident.coordinators, trident.states
from trident import Count, DeltaMapState, FixedBatchSpout, TridentTopology

assert states.MINE and coordinators.MINE and not hasattr(trident.states, "MINE")
print("FROM", trident.__file__, trident.states.__file__)

def split(line: str) -> list[str]:
    import coordinators, states
    assert states.MINE and coordinators.MINE
    return line.split()

topology = TridentTopology("installed")
lines = topology.new_stream("lines", FixedBatchSpout("line string", [[("a b a",)], [("b",)]]))
words = lines.each("line", split, "word string").group_by("word")
words.persistent_aggregate(DeltaMapState("counts"), Count(), "n")
if "run" in sys.argv:
    query = topology.start(progress="none", spark_master="local[2]")
    query.process_all_available(300)
    print("COUNTS", sorted((row.word, row.n) for row in query.snapshot("counts").collect()))
    spark = query.spark
    query.stop()
    spark.stop()
elif __name__ == "__main__":
    topology.explain()
    print("EXPLAINED")
"""


def run(*command: object, cwd: Path, timeout: int = 120, code: int = 0) -> str:
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    said = {"capture_output": True, "text": True, "timeout": timeout}
    done = subprocess.run([str(one) for one in command], cwd=cwd, env=clean, **said)
    assert done.returncode == code, done.stdout + done.stderr[-3000:]
    return done.stdout


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.py")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked; made without the network."""
    pytest.importorskip("setuptools", minversion="77")  # pyproject.toml has its licence as text
    copy, unpacked = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("trident", "states", "coordinators"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    setup = "import warnings; warnings.simplefilter('ignore'); from setuptools import setup; setup()"
    run(sys.executable, "-c", setup, "-q", "sdist", "-d", copy / "dist", cwd=copy)
    with tarfile.open(next((copy / "dist").glob("*.tar.gz"))) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()], "a link leads nowhere there"
        archive.extractall(unpacked, filter="data")
    return next(unpacked.iterdir())


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    setup = "import warnings; warnings.simplefilter('ignore'); from setuptools import setup; setup()"
    run(sys.executable, "-c", setup, "-q", "bdist_wheel", "-d", folder, cwd=source)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment into which pip has installed the wheel."""
    python = bare_environment(tmp_path_factory.mktemp("environment") / "env")
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=wheel.parent)
    return python


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A user's folder with names that are the framework's too."""
    (tmp_path / "states").mkdir()
    for name in ("states.py", "coordinators.py"):
        (tmp_path / name).write_text("MINE = True\n")
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path / "job.py"


@pytest.mark.long
def test_the_readmes_program_runs_where_only_the_wheel_is(installed: Path, tmp_path: Path) -> None:
    (program,), (console,) = (
        [block for block in blocks(ROOT / "README.md") if block.language == language]
        for language in ("python", "console")
    )
    assert program.title == "wordcount.py"
    (tmp_path / program.title).write_text(program.text, encoding="utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1.txt").write_text("the cat and the dog\n")
    printed = run(installed, program.title, cwd=tmp_path, timeout=600)
    assert printed.strip() == console.text.partition("$ python wordcount.py\n")[2].strip()
    trident = installed.parent / "trident"  # the command that the wheel brings
    assert "word-count: stopped" in run(trident, "status", "word-count", cwd=tmp_path, code=5)
    run(trident, "zookeeper", "stop", cwd=tmp_path)


def test_all_modules_are_installed_and_no_top_level_name_but_trident(installed: Path) -> None:
    libraries = site_packages(installed.parent.parent)
    there = {one.name for one in libraries.iterdir() if one.suffix != ".dist-info"}
    assert there - {"libraries.pth", "__pycache__"} == {"trident"}
    for ours, theirs in (("trident", "."), ("states", "states"), ("coordinators", "coordinators")):
        assert files_of(ROOT / ours) == files_of(libraries / "trident" / theirs)
    assert (libraries / "trident" / "py.typed").exists() and (libraries / "trident" / "__init__.pyi").exists()
    assert len(list((libraries / "trident" / "commands" / "project").glob("*.template"))) == 8


def test_the_licence_goes_with_the_package(source: Path) -> None:
    assert (source / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    told = (source / "PKG-INFO").read_text(encoding="utf-8")
    assert "License-Expression: Apache-2.0\n" in told and "License-File: LICENSE\n" in told


def test_a_cluster_is_sent_the_same_framework_from_the_wheel_as_from_this_checkout(
    installed: Path, tmp_path: Path
) -> None:
    """The name is a digest of all that is sent."""
    send = (
        "from types import SimpleNamespace\nfrom trident.spark.cluster_files import send_framework\n"
        "class Context(SimpleNamespace):\n    __hash__ = object.__hash__\n"
        "print(send_framework(Context(master='yarn', addPyFile=lambda path: None)))\n"
    )
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    said = {"capture_output": True, "text": True, "timeout": 60, "check": True}
    checkout = subprocess.run([sys.executable, "-c", send], cwd=tmp_path, env=here, **said).stdout
    assert checkout.startswith("trident-framework-") and run(installed, "-c", send, cwd=tmp_path) == checkout


def test_a_users_states_and_coordinators_are_the_users(installed: Path, job: Path) -> None:
    told = run(installed, job, cwd=job.parent)
    assert f"FROM {site_packages(installed.parent.parent)}/trident/__init__.py" in told and "EXPLAINED" in told
    assert "installed" in run(installed, "-m", "trident.cli", "plan", job, cwd=job.parent)


@pytest.mark.long
def test_a_users_program_with_types_passes_mypy_strict(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = shutil.copy(Path(__file__).parent / "typed_program.py", tmp_path)
    lines = enumerate(Path(program).read_text().splitlines(), 1)
    wrong = sorted((number, line.partition("# wrong: ")[2]) for number, line in lines if "# wrong: " in line)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed), "--show-error-codes"]
    # PySpark's part of the cache is the same in every run: seconds.
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "users"), "--no-pretty", program]
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=300)
    errors = re.findall(r"^(.*?):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert sorted((int(number), code) for _, number, code in errors) == wrong, done.stdout + done.stderr
    assert wrong and {Path(file).name for file, *_ in errors} == {"typed_program.py"}


@pytest.mark.skipif(os.environ.get("TRIDENT_CLUSTER") != "all", reason="a wheel, and Spark; TRIDENT_CLUSTER=all")
def test_the_wheel_runs_with_workers_and_the_embedded_zookeeper(wheel: Path, tmp_path: Path, job: Path) -> None:
    python = bare_environment(tmp_path / "env")
    with zipfile.ZipFile(wheel) as packed:
        names = {name for name in packed.namelist() if ".dist-info/" not in name}
        assert names and all(name.startswith("trident/") for name in names)
        packed.extractall(site_packages(tmp_path / "env"))
    assert "COUNTS [('a', 2), ('b', 2)]" in run(python, job, "run", cwd=job.parent, timeout=400)
    assert "running at" in run(python, "-m", "trident.cli", "zookeeper", "status", cwd=job.parent)
    run(python, "-m", "trident.cli", "zookeeper", "stop", cwd=job.parent)
