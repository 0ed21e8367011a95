"""Log entries that Python writes: the same as Kernel's, for tables that ask no more, without a call to the JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.jvm.spark_fixtures import calls_to_the_jvm
from trident.coordinators.errors import TableError
from trident.states.core.tables import StagedFile
from trident.states.delta.delta_log import DeltaLog
from trident.states.delta.kernel import KernelEngine, TableSnapshot
from trident.states.delta.kernel_files import add_action, is_plain
from trident.udf.types import as_schema

SCHEMA = as_schema("id long, word string", "the tests").json()
OURS = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata", "invariants", "appendOnly"]}
STATS = json.dumps({"numRecords": 1, "minValues": {"id": 1}, "maxValues": {"id": 1}, "nullCount": {"id": 0}})


def made(engine: KernelEngine, path: Path, **properties: str) -> TableSnapshot:
    return engine.create_table(str(path), SCHEMA, ["word"], properties, {"trident": "{}"}, "trident/tests")


def part(name: str, word: str | None = "w") -> StagedFile:
    return StagedFile(f"data/{name}.parquet", 700, 1_700_000_000_123, 1, STATS, {"word": word})


def comparable(path: str, version: int) -> list[tuple[str, Any]]:
    """The actions of an entry, without what every commit has for its own."""
    found = []
    for kind, body in DeltaLog(path).actions(version):
        body = {key: value for key, value in body.items() if key not in ("timestamp", "txnId", "lastUpdated")}
        if kind == "commitInfo":
            body["engineInfo"] = body["engineInfo"].partition("/")[2]
        found.append((kind, body))
    return sorted(found, key=lambda one: (one[0], json.dumps(one[1], sort_keys=True)))


CASES: list[tuple[list[StagedFile], tuple[str, int] | None, dict[str, str]]] = [
    ([], None, {"trident": "{}"}),
    ([part("1")], ("app/é", 7), {"trident": '{"txid": 7}'}),
    ([part("a b"), part("a%20b", None), part("König-刘备", "a b/c=d%e"), part("#?&", '\n\u2028"\\')], ("a", 1), {}),
    ([part("1", ""), part("2")], ("a", 2**40), {"trident": '"\\n刘备"', "other.domain": "no JSON \n"}),
]


@pytest.mark.parametrize(("files", "txn", "control"), CASES, ids=range(len(CASES)))
def test_python_writes_the_entry_that_kernel_writes(engine, tmp_path, files, txn, control) -> None:
    ours, kernels = made(engine, tmp_path / "ours"), made(engine, tmp_path / "kernels")
    after = engine.commit_files(ours, files, txn, control, "trident/tests")
    actions = [add_action(file) for file in files]
    reference = engine._commit(kernels, actions, txn, control, "trident/tests", engine._write)
    assert comparable(ours.path, 1) == comparable(kernels.path, 1)
    first, second = DeltaLog(ours.path).actions(1)[0], DeltaLog(kernels.path).actions(1)[0]
    assert first[1]["engineInfo"].startswith("Trident/"), "Kernel has written it: this compares nothing"
    assert second[1]["engineInfo"].startswith("Kernel-")
    for domain in ("trident", "other.domain", "third"):
        assert after.control(domain) == reference.control(domain) == engine.load(ours.path).control(domain)
    for app in ("a", "app/é"):
        assert after.txn_version(app) == reference.txn_version(app) == engine.load(ours.path).txn_version(app)
    assert {f.path: f for f in engine.live_files(after)} == {f.path: f for f in engine.live_files(reference)}
    assert len(DeltaTable(ours.path).file_uris()) == len(files)


def test_a_commit_of_files_makes_no_call_to_the_jvm(engine, tmp_path) -> None:
    """It made 24, of a tenth of a millisecond to a millisecond each, and Kernel's own work behind one of them."""
    snapshot = engine.commit_files(made(engine, tmp_path / "t"), [part("1")], ("app", 1), {"trident": "1"}, "x")
    with calls_to_the_jvm() as calls:
        for txid in (2, 3):
            control = {"trident": str(txid)}
            snapshot = engine.commit_files(snapshot, [part(str(txid))], ("app", txid), control, "x")
            assert (snapshot.control("trident"), snapshot.txn_version("app")) == (str(txid), txid)
    assert calls == []
    with calls_to_the_jvm() as calls:
        assert len(engine.live_files(snapshot)) == 3
    assert calls, "the count counts nothing"


def test_kernel_goes_on_from_entries_of_python_and_python_from_kernels(engine, tmp_path) -> None:
    snapshot = made(engine, tmp_path / "t")
    for txid in range(1, 6):
        snapshot = engine.commit_files(snapshot, [part(str(txid))], ("app", txid), {"trident": str(txid)}, "x")
    assert engine.run_maintenance(snapshot, every=5)
    dropped = engine.drop_files(snapshot, lambda file: file.path < "data/3", {"trident": "dropped"}, "x")
    after = engine.commit_files(dropped, [part("6")], ("app", 6), {"trident": "6"}, "x")
    for version in range(5):  # the checkpoint holds what these said
        Path(snapshot.path, "_delta_log", f"{version:020d}.json").unlink()
    loaded = engine.load(snapshot.path)
    assert (loaded.version, loaded.control("trident"), loaded.txn_version("app")) == (7, "6", 6)
    assert after.version == 7
    assert sorted(file.path for file in engine.live_files(after)) == [f"data/{n}.parquet" for n in (3, 4, 5, 6)]


def test_a_snapshot_does_not_take_a_table_that_was_made_anew_for_its_own(engine, tmp_path) -> None:
    table = made(engine, tmp_path / "t")
    snapshot = engine.commit_files(table, [part("1")], None, {"trident": "1"}, "x")
    Path(table.path).rename(tmp_path / "away")
    engine.commit_files(made(engine, tmp_path / "t"), [part("other")], None, {"trident": "1"}, "x")
    with pytest.raises(TableError, match="made anew"):
        engine.live_files(snapshot)


def test_a_table_with_a_feature_that_python_does_not_know_is_kernels(spark, engine, tmp_path) -> None:
    table = made(engine, tmp_path / "t", **{"delta.enableInCommitTimestamps": "true"})
    after = engine.commit_files(table, [part("1")], ("app", 1), {"trident": "1"}, "x")
    info = DeltaLog(table.path).commit(1).info
    assert info["engineInfo"].startswith("Kernel-") and info["inCommitTimestamp"] > 0
    assert engine.load(table.path).version == after.version == 1


@pytest.mark.parametrize(
    ("protocol", "plain"),
    [
        (OURS, True),
        ({**OURS, "writerFeatures": ["domainMetadata"]}, True),
        ({**OURS, "minReaderVersion": 3, "readerFeatures": []}, True),
        ({**OURS, "minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}, False),
        ({**OURS, "minReaderVersion": 2}, False),
        ({**OURS, "minWriterVersion": 8}, False),
        ({"minReaderVersion": 1, "minWriterVersion": 2}, False),
        ({**OURS, "writerFeatures": ["invariants", "appendOnly"]}, False),
        *(
            ({**OURS, "writerFeatures": [*OURS["writerFeatures"], feature]}, False)
            for feature in ("rowTracking", "columnMapping", "inCommitTimestamp", "checkConstraints", "notYetInvented")
        ),
    ],
)
def test_only_a_table_that_asks_no_more_is_plain(protocol: dict[str, Any], plain: bool) -> None:
    assert is_plain(protocol, SCHEMA) is plain


def test_a_column_with_a_rule_of_deltas_makes_the_table_kernels() -> None:
    ruled = json.loads(SCHEMA)
    ruled["fields"][0]["metadata"] = {"delta.invariants": "{}"}
    assert not is_plain(OURS, json.dumps(ruled))
