"""All I/O of the production code passes a fault point, or is in without_a_fault_point.tsv with the reason why not.

The list is derived from the source (tests/whole/fault_point_scan.py): a new call that
writes, or that asks ZooKeeper, Spark or Delta, fails here until it is put into
a ``with fault_point(...)``, where the crash sweep then finds it.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.whole.fault_point_scan import ROOT, scan, scan_all
from trident.coordinators import faults

_TASK = "runs in a Spark task: inside the job that stage.write, spout.emit, resolve.stage or publish.user encloses"
_INSIDE = "called only inside of a fault point of its caller"
# A row of each: the function, how many such calls it has, and why none of them needs a fault point of its own.
TABLE = Path(__file__).with_name("without_a_fault_point.tsv")
EXEMPT: dict[str, tuple[int, str]] = {
    function: (int(calls), reason)
    for function, calls, reason in (line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines())
}


def uncovered() -> dict[str, list[tuple[int, str]]]:
    return {function.name: function.sites for function in scan_all() if function.sites}


def test_every_io_of_the_production_code_passes_a_fault_point_or_says_why_not() -> None:
    found = uncovered()
    problems = [
        f"{name}, line {line}: {what} is in no fault point"
        for name in found.keys() - EXEMPT.keys()
        for line, what in found[name]
    ]
    problems += [
        f"{name} has {len(sites)} calls outside of fault points, {EXEMPT[name][0]} are accounted for: {sites}"
        for name, sites in found.items()
        if name in EXEMPT and len(sites) != EXEMPT[name][0]
    ]
    assert not problems, "\n".join(sorted(problems))


def test_no_exemption_is_left_over() -> None:
    assert EXEMPT.keys() - uncovered().keys() == set()


@pytest.mark.parametrize(
    ("body", "sites"),
    [
        ("os.replace(a, b)", ["os.replace"]),
        ("with faults.fault_point(X):\n        os.replace(a, b)", []),
        ("with lock, fault_point(X):\n        frame.collect()", []),
        ("with lock:\n        frame.collect()", ["frame.collect"]),
        ("open(path, 'wb')", ["open"]),
        ("open(path)", []),
        ("open(path, mode)", ["open"]),
        ("path.open('a')", ["path.open"]),
        ("storage.write(path, data)", ["storage.write"]),
        ("with faults.fault_point(X):\n        storage.delete(path)", []),
        ("storage.read(path)", []),
        ("os.open(path, os.O_WRONLY | os.O_CREAT)", ["os.open"]),
        ("os.open(path, os.O_RDONLY)", []),
        ("def inner():\n        path.unlink()\n    return inner", ["path.unlink"]),
        ("return guard(path, lambda: self._client.set_async(path))", ["guard", "self._client.set_async"]),
    ],
)
def test_the_scan_sees_io(body: str, sites: list[str]) -> None:
    (_, function) = scan(f"def f():\n    {body}\n", "m.py")
    assert [what for _, what in function.sites] == sites


def test_a_method_called_only_inside_a_fault_point_is_so() -> None:
    """The functions that are said to be inside of their caller's fault point have no other caller."""
    functions = scan_all()
    for name, (_, reason) in EXEMPT.items():
        if not reason.startswith(_INSIDE):
            continue
        function = next(one for one in functions if one.name == name)
        inside = {other for other, (_, why) in EXEMPT.items() if why.startswith(_INSIDE) or why == _TASK}
        outside = [
            other.name
            for other in functions
            if other.module == function.module and other.name not in inside and other.calls.get(function.short)
        ]
        assert not outside, f"{name} is called outside of any fault point by {outside}"


# Points that the crash sweep does not arm, by the test file that does.
ELSEWHERE = {
    point: file
    for file, points in {
        "test_adoption.py": "adopt.look",
        "test_contradictions.py": "apply.step repair.restore",
        "test_directory_spout.py": "directory.claim directory.remove",
        "test_file_ledger.py": "spout.ledger",
        "test_file_spout.py": "repair.ledger",
        "test_fork.py": "clone.entry clone.file fork.manifest fork.record fork.stream fork.zookeeper given.write",
        "test_handover.py": "handover.answer handover.enlist handover.request",
        "test_host_copy.py": "copy.host copy.let_go copy.piece",
        "test_local_copies.py": "copy.apply copy.build copy.compact copy.open",
        "test_local_copy.py": "copy.publish",
        "test_migrate.py": "checkpoint.read",
        "test_outside.py": "open.outside publish.outside renew.outside",
        "test_query.py": "publish.memory",
        "test_queue_spout.py": "queue.acknowledge queue.give_back queue.hold queue.put queue.take queue.take_over",
        "test_recorder.py": "history.tidy history.write",
        "test_reliability_faults.py": "ledger.sum",
        "test_replay.py": "capture.write",
        "test_rollback.py": "rollback.table zk.rollback",
        "test_stream_spout.py": "stream.return",
        "test_views.py": "compact.settle compact.view",
        "test_warm_up.py": "standby.stage",
    }.items()
    for point in points.split()
}


@cache
def declared() -> dict[str, str]:
    """point → module, from the source: importing everything would need Spark."""
    found = {}
    for package in ("coordinators", "states", "trident"):
        for path in sorted((ROOT / package).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(source)) if "register" in source else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register":
                    first = node.args[0] if node.args else None
                    if isinstance(first, ast.Constant) and re.fullmatch(r"[a-z]+\.[a-z_]+", str(first.value)):
                        found[str(first.value)] = path.name
    return found


def test_every_fault_point_is_armed_by_the_crash_sweep_or_by_a_test_that_is_named() -> None:
    from tests.chaos.cases import SWEPT

    assert declared().keys() == SWEPT | ELSEWHERE.keys()
    for point, file in ELSEWHERE.items():
        text = next(ROOT.joinpath("tests").rglob(file)).read_text(encoding="utf-8")
        family, _, name = point.partition(".")
        chosen = f"{family}.{{point}}:" in text and f'"{name}"' in text  # a parametrised test
        assert chosen or f"{point}:" in text, f"{file} does not arm {point}"


def test_what_is_declared_in_the_source_is_what_is_registered() -> None:
    import trident.coordinators.zookeeper  # noqa: F401

    assert faults.registered().keys() - {"test.declared"} <= declared().keys()
