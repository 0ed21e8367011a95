"""Nothing that is read from ZooKeeper, from a table or from the warehouse is run: no pickle, no eval.

Pickles pass between a driver and its own tasks only, on Spark's own connections; each place is named here with the
reason. Whoever can write to ZooKeeper or to the warehouse cannot make anybody run code by it.
"""

from __future__ import annotations

import ast
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trident.coordinators.embedded_server import read_endpoint
from trident.coordinators.errors import CorruptZnode, TridentError
from trident.coordinators.leadership import Leadership
from trident.coordinators.records import (
    Decision,
    GroupRecord,
    Holder,
    Identity,
    Incarnation,
    LeaderRecord,
    decode,
    decode_value,
)
from trident.coordinators.registration import Registration
from trident.coordinators.znodes import Create
from trident.coordinators.zookeeper import ZooKeeper
from trident.messages.dead_letters import ReplayRequests
from trident.running.status import read_status
from trident.states.core.control import decode_control
from trident.states.core.descriptor import load_descriptor
from trident.states.core.tables import StagedFile
from trident.states.core.values import loads
from trident.states.delta.manifest import Manifest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("coordinators", "states", "trident")

# What turns bytes or text into code that runs, or starts a shell.
MODULES = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle", "yaml"}
# They write, or only name.
HARMLESS = {"dumps", "register_pickle_by_value", "unregister_pickle_by_value", "PicklingError"}
BUILTINS = {"eval", "exec", "__import__", "compile"}
CALLS = {"read_pickle", "system", "popen"}
NAMED = re.compile("|".join((*MODULES, *BUILTINS, *CALLS, "import_module", "shell", "allow_pickle")))

FROM_ITS_OWN_DRIVER = "a task reads what its own driver sent it, with the task"
FROM_ITS_OWN_TASK = "a driver reads what its own task answered, in the result of its job"
BY_A_PIPE = "a process and its own child, over the child's standard input and output"
ALLOWED = {
    ("states/keyed/host_copy.py", "main"): BY_A_PIPE,
    ("states/keyed/file_merge.py", "MergeProcess._request"): BY_A_PIPE,
    ("states/keyed/merge_worker.py", "serve"): BY_A_PIPE,
    ("trident/watching/listeners.py", "_made"): "a class of the user's own, by the name that the user's settings give",
    ("trident/workers/chain.py", "SentChain.__call__"): FROM_ITS_OWN_DRIVER,
    ("trident/workers/late_pass.py", "_batch_of_job"): FROM_ITS_OWN_DRIVER,
    ("trident/workers/requests.py", "Answers.__call__"): FROM_ITS_OWN_DRIVER,
    ("trident/workers/requests.py", "Answers.outcomes"): FROM_ITS_OWN_DRIVER,
    ("trident/spouts/files/tasks.py", "read_lines"): FROM_ITS_OWN_DRIVER,
    ("trident/spouts/kafka/reader.py", "read_groups"): FROM_ITS_OWN_DRIVER,
    ("trident/spouts/tasks.py", "_read_one"): FROM_ITS_OWN_DRIVER,
    ("trident/tuples/tasks.py", "BoltRun.__init__"): FROM_ITS_OWN_DRIVER,
    ("trident/tuples/tasks.py", "LevelTask._tuple"): "tuples between tasks of one round, in Spark's memory",
    ("trident/tuples/rounds.py", "RoundRunner._level"): FROM_ITS_OWN_TASK,
    ("trident/spouts/data_source.py", "copy_of"): "the driver tries, in its own memory, whether a reader can be sent",
    ("trident/running/executor_probe.py", "probe"): "imports, on an executor, what its driver's code will import there",
    ("trident/commands/user_file.py", "_run"): "`trident run FILE` runs the user's file",
    ("states/core/imports.py", "client_module"): "imports a client; the callers name its modules",
    ("trident/kafka/client.py", "kafka_module"): "imports the Kafka client; the callers name its modules",
    ("trident/spouts/kafka/decoding.py", "RegistryDecoder._parse"): "imports the user's generated class, in tasks",
    ("states/core/kinds.py", "_known"): "modules of the framework: names of a constant table",
    ("trident/__init__.py", "__getattr__"): "imports of the lazy facade: names of a constant table",
}


def dangers(source: str) -> Iterator[tuple[str, int, str]]:
    """(function, line, what) of everything in a module that could run what it reads."""
    if not NAMED.search(source):  # quicker than a look at the tree of each module
        return
    tree = ast.parse(source)
    loaders: set[str] = set()  # names that were imported from such a module

    def visit(node: ast.AST, where: tuple[str, ...]) -> Iterator[tuple[str, int, str]]:
        inner = where
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = (*where, node.name)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[-1] in MODULES:
            for alias in node.names:
                if alias.name not in HARMLESS:
                    loaders.add(alias.asname or alias.name)
                    yield ".".join(where), node.lineno, f"from {node.module} import {alias.name}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr not in HARMLESS:
            if node.value.id in MODULES:
                yield ".".join(where), node.lineno, f"{node.value.id}.{node.attr}"
        if isinstance(node, ast.alias) and node.asname and node.name.split(".")[-1] in MODULES:
            yield ".".join(where), 0, f"{node.name} under another name"
        if isinstance(node, ast.Call):
            called = node.func
            name = getattr(called, "id", "") or getattr(called, "attr", "")
            builtin = isinstance(called, ast.Name) and name in BUILTINS
            if builtin or name in CALLS or (name == "import_module" and not _constant(node)):
                yield ".".join(where), node.lineno, f"{name}(…)"
            for given in node.keywords:
                if given.arg in ("shell", "allow_pickle") and not _is(given.value, False):
                    yield ".".join(where), node.lineno, f"{given.arg}="
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    yield from visit(tree, ())


def _constant(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant)


def _is(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def found_in_production() -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            for function, line, what in dangers(path.read_text(encoding="utf-8")):
                found.setdefault((file, function), []).append(f"line {line}: {what}")
    return found


def test_code_that_is_read_is_run_in_the_named_places_only() -> None:
    found = found_in_production()
    assert {place: what for place, what in found.items() if place not in ALLOWED} == {}
    assert set(ALLOWED) - set(found) == set()  # and none of these is out of date


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\ndef f(x):\n    return pickle.loads(x)",
        "from pickle import loads",
        "from pyspark import cloudpickle\ncloudpickle.loads(b'')",
        "import cloudpickle as c",
        "from pyspark.cloudpickle import loads as l",
        "import marshal\nmarshal.load(f)",
        "import shelve\nshelve.open('x')",
        "import yaml\nyaml.load(text)",
        "pickle.Unpickler(f)",
        "eval(text)",
        "exec(text)",
        "__import__(name)",
        "importlib.import_module(name)",
        "pandas.read_pickle(p)",
        "numpy.load(p, allow_pickle=True)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
    ],
)
def test_a_planted_danger_is_found(source: str) -> None:
    assert list(dangers(source))


def test_what_only_writes_is_no_danger() -> None:
    assert list(dangers("import pickle\npickle.dumps(x, 5)\nre.compile('x')\njson.loads(text)")) == []


# -- crafted pickles ----------------------------------------------------------


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return open, (str(self._marker), "w")


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """Where the crafted pickles would write; afterwards nothing is there."""
    marker = tmp_path / "was-run"
    pickle.loads(pickle.dumps(Evil(marker))).close()
    assert marker.exists()  # they work
    marker.unlink()
    yield marker
    assert not marker.exists()


def crafted(marker: Path) -> bytes:
    """Protocol 0: it is text, too."""
    return pickle.dumps(Evil(marker), 0)


@pytest.mark.parametrize("record", [Decision, GroupRecord, Holder, Identity, Incarnation, LeaderRecord])
def test_a_pickle_in_a_znode_is_an_error_that_names_it(record: type, marker: Path) -> None:
    for data in (crafted(marker), pickle.dumps(Evil(marker), 5), json.dumps(crafted(marker).decode()).encode()):
        with pytest.raises(CorruptZnode, match="/trident/top/znode"):
            decode("/trident/top/znode", data, record)
        with pytest.raises(CorruptZnode, match="/trident/top/lines/user/p0/3"):  # pins, metadata of partitions
            decode_value("/trident/top/lines/user/p0/3", data)


def test_a_pickle_in_a_znode_of_a_real_server_stops_who_reads_it(zk: ZooKeeper, marker: Path) -> None:
    root = zk.config.root
    zk.ensure_path(f"{root}/top/g")
    paths = {name: f"{root}/top/{name}" for name in ("identity", "incarnation", "live", "g/leader")}
    zk.multi([Create(path, crafted(marker)) for path in paths.values()])
    with pytest.raises(CorruptZnode, match=paths["identity"]):
        Registration(zk, "top").read()
    with pytest.raises(CorruptZnode, match=f"{paths['live']}|{paths['g/leader']}"):
        Leadership(zk, "top", ["g"]).acquire()


READERS: dict[str, Callable[[Path, bytes], Any]] = {
    "control record": lambda folder, data: decode_control("w/counts__log", data.decode()),
    "manifest": lambda folder, data: Manifest.decode(data),
    "staged file": lambda folder, data: StagedFile.from_json(data.decode()),
    "stored value of a map": lambda folder, data: loads(data.decode()),
    "state descriptor": lambda folder, data: load_descriptor(_written(folder, "_trident/states/s.json", data), "s"),
    "status": lambda folder, data: read_status(_written(folder, "_trident/top/status.json", data), "top"),
}


@pytest.mark.parametrize("what", sorted(READERS))
def test_a_pickle_in_the_warehouse_is_an_error(what: str, tmp_path: Path, marker: Path) -> None:
    with pytest.raises((TridentError, ValueError)):
        READERS[what](tmp_path, crafted(marker))


def test_a_pickle_as_an_endpoint_or_a_request_is_left_alone(tmp_path: Path, marker: Path) -> None:
    _written(tmp_path, "endpoint.json", crafted(marker))
    assert read_endpoint(tmp_path) is None
    requests = ReplayRequests(tmp_path)
    _written(tmp_path, "replays/1.json", crafted(marker))
    assert list(requests.poll()) == []


def _written(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder
