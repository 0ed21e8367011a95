"""One moment for readers of plain tables: which transaction it is, and how it is told."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import random
import time
import uuid
from html import escape
from pathlib import Path
from typing import Any

import deltalake
import pytest

import trident
from tests.servers import store_servers
from tests.states.history.test_versions import KEYED, OWNER, record
from tests.states.keyed_helpers import Group, append, keyed
from trident.coordinators import faults
from trident.coordinators.errors import ConfigError, TableError, TopologyError
from trident.running.view import recorder
from trident.states.core import storage
from trident.states.core.control import DOMAIN
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.delta.kernel import KernelEngine
from trident.states.history.kept import published_as_of
from trident.states.history.views import GroupView, ViewedTable, read_view, view_path, write_view
from trident.states.keyed.background_compactor import BackgroundCompactor
from trident.states.keyed.compaction import MergePoints, common_point
from trident.states.keyed.compactor import Compactor

SEED = int(os.environ.get("TRIDENT_SEED") or random.randrange(10**6))


# --- which transaction --------------------------------------------------------------------------------------


def test_states_of_any_settings_come_to_common_points_without_more_merges():
    """Each state is merged when its own settings say; how often is counted against merging to the last transaction."""
    print("TRIDENT_SEED =", SEED)
    for seed in range(SEED, SEED + 10):
        rng = random.Random(seed)
        every = {f"s{n}": rng.choice((1, 7, 20, 50, 200)) for n in range(rng.randint(2, 4))}
        points, at = MergePoints(every), {name: [0] for name in every}
        merges, advanced, commons = dict.fromkeys(every, 0), 0, [0]
        while advanced < 2000:
            advanced += rng.randint(1, 3)
            for name in rng.sample(sorted(every), len(every)):
                while advanced - at[name][-1] >= every[name]:
                    upto = points.upto(name, at[name][-1], advanced)
                    assert at[name][-1] < upto <= advanced
                    points.merged(name, upto)
                    at[name].append(upto)
                    merges[name] += 1
            common = set.intersection(*map(set, at.values()))
            commons += [max(common)] if max(common) > commons[-1] else []
        # The lag is what the state allows that is merged least often, and what was left over from its last time.
        assert max(new - old for old, new in zip(commons, [*commons[1:], advanced])) <= 3 * max(every.values()) + 10, (
            seed
        )
        for name, count in merges.items():
            assert count <= 2.2 * 2000 / every[name] + 2, (seed, name, every)


def test_the_greatest_common_point_is_found():
    print("TRIDENT_SEED =", SEED)
    for seed in range(SEED, SEED + 100):
        rng = random.Random(seed)
        tables = [sorted({0, *rng.sample(range(1, 60), rng.randint(0, 30))}) for _ in range(rng.randint(1, 4))]
        above = rng.randint(0, 40)
        common = [point for point in set.intersection(*map(set, tables)) if point > above]

        def merged(txid: int, tables: list[list[int]] = tables) -> list[int]:
            return [max(point for point in table if point <= txid) for table in tables]

        assert common_point(merged, 60, above) == max(common, default=None), seed
    assert common_point(lambda _: [], 60, 0) is None


# --- the file -----------------------------------------------------------------------------------------------


def view_of(txid: int, epoch: int = 1, **more: Any) -> GroupView:
    tables = {"counts": ViewedTable("counts", txid * 2), "top__g__dead_letters": ViewedTable("top__g__dead_letters", 1)}
    return dataclasses.replace(GroupView("top", "g", "inc1", epoch, txid, 12.5, tables), **more)


def described(warehouse: Path, incarnation: str = "inc1") -> None:
    dataclasses.replace(KEYED, incarnation=incarnation).save(warehouse)


def test_an_older_view_never_takes_the_place_of_a_newer_one(tmp_path):
    described(tmp_path)
    warehouse = Place(tmp_path)
    assert read_view(warehouse, "top", "g") is None
    assert write_view(warehouse, view_of(5)) and write_view(warehouse, view_of(7))
    assert not write_view(warehouse, view_of(6)) and not write_view(warehouse, view_of(7))
    assert read_view(warehouse, "top", "g") == view_of(7)
    assert write_view(warehouse, view_of(6, epoch=2))  # the tables were taken back, under a later leader
    assert read_view(warehouse, "top", "g") == view_of(6, epoch=2)


def test_a_view_from_before_a_reset_is_none(tmp_path):
    described(tmp_path, "inc2")
    write_view(Place(tmp_path), view_of(5))
    assert read_view(Place(tmp_path), "top", "g") is None
    assert write_view(Place(tmp_path), view_of(1, incarnation="inc2"))


def test_a_view_with_one_bit_wrong_is_refused_and_replaced(tmp_path):
    print("TRIDENT_SEED =", SEED)
    described(tmp_path)
    warehouse, rng = Place(tmp_path), random.Random(SEED)
    write_view(warehouse, view_of(5))
    path = Path(view_path(warehouse, "top", "g"))
    whole = path.read_bytes()
    for at in range(len(whole)):
        torn = bytearray(whole)
        torn[at] ^= 1 << rng.randrange(7)
        path.write_bytes(torn)
        try:
            assert read_view(warehouse, "top", "g") == view_of(5), at  # of blanks between the values
        except TableError as error:
            assert "trident compact" in str(error)
    for bad in (b"", whole[:40], b"[]", json.dumps({"schema": 1}).encode()):
        path.write_bytes(bad)
        with pytest.raises(TableError, match="view.json cannot be read"):
            read_view(warehouse, "top", "g")
    assert write_view(warehouse, view_of(4))
    assert read_view(warehouse, "top", "g") == view_of(4)


def test_a_view_in_a_store_is_replaced_as_a_whole_and_names_urls(request):
    warehouse = Place(f"{store_servers.running('s3')}/{uuid.uuid4().hex[:8]}")
    request.addfinalizer(lambda: storage.delete(warehouse))
    KEYED.save(warehouse)
    assert (
        write_view(warehouse, view_of(5))
        and write_view(warehouse, view_of(7))
        and not write_view(warehouse, view_of(6))
    )
    found = trident.view(str(warehouse), "top", "g")
    assert (found.txid, found.tables["counts"]) == (7, (f"{warehouse}/counts", 14))
    for version in range(4):
        said = {"domain": DOMAIN, "configuration": record(version).encode(), "removed": False}
        folder = warehouse / "lines" / "_delta_log"
        storage.write(folder / f"{version:020d}.json", json.dumps({"domainMetadata": said}).encode())
    assert [published_as_of(warehouse / "lines", *OWNER, txid).version for txid in (0, 2, 9)] == [0, 2, 3]


# --- real tables --------------------------------------------------------------------------------------------


@pytest.fixture
def group(spark, tmp_path) -> Group:
    return Group(spark, KernelEngine(spark), tmp_path, keyed("counts"), keyed("totals"), append("lines"))


def publish(group: Group, txids: range) -> None:
    for txid in txids:
        words = [(f"w{txid % 5}", txid), ("the", 1)]
        group.publish(txid, {"counts": words, "totals": words, "lines": [(f"line {txid}",)]})


def compactors(group: Group, **every: int) -> list[Compactor]:
    made = []
    for name in ("counts", "totals"):
        binding = group.bindings[name]
        settings = type(binding.state)(name, merge_every_txids=every.get(name, 1), merge_interval_secs=3600)
        state = group.descriptor(name)
        made.append(Compactor(group.spark, group.engine, group.warehouse, state, settings, binding.aggregator))
    return made


def recorded(group: Group, merged: list[Compactor], epoch: int = 1) -> Any:
    return recorder(group.engine, GroupContext(Place(group.warehouse), "top", "g", "inc1"), merged, epoch)


def table(view: trident.View, name: str) -> Any:
    return deltalake.DeltaTable(*view.tables[name]).to_pyarrow_table()


def check(group: Group, view: trident.View) -> None:
    """Each table of a view has the rows of all transactions up to its own, by a reader that knows no Trident."""
    for name in ("counts", "totals"):
        found = {(row["word"],): (row["count"],) for row in table(view, name).to_pylist()}
        assert found == group.expected(name, view.txid)
    assert sorted(table(view, "lines")["line"].to_pylist()) == sorted(f"line {n}" for n in range(1, view.txid + 1))


def check_lines(group: Group, view: trident.View) -> None:
    """The lines that a view gives run as they are, and read what it names."""
    rows = {
        "delta-rs": lambda counts: counts.to_pylist(),
        "duckdb": lambda counts: counts.to_arrow_table().to_pylist(),
        "spark": lambda counts: [row.asDict() for row in counts.collect()],
    }
    html = view._repr_html_()
    for reader, rows_of in rows.items():
        if reader == "duckdb" and importlib.util.find_spec("duckdb") is None:
            continue
        assert view.lines(reader) in str(view) and escape(view.lines(reader)) in html
        names: dict[str, Any] = {"spark": group.spark}
        exec(view.lines(reader), names)
        assert {"counts", "totals", "lines"} <= names.keys()
        found = {(row["word"],): (row["count"],) for row in rows_of(names["counts"])}
        assert found == group.expected("counts", view.txid), reader
    with pytest.raises(ConfigError, match="no lines for this reader; found: 'pandas'"):
        view.lines("pandas")


@pytest.mark.long
def test_a_view_is_one_transaction_of_all_tables_and_is_found_at_once(group, tmp_path):
    counts, totals = made = compactors(group)
    views = recorded(group, made)
    publish(group, range(1, 4))
    assert views.record() is None
    with pytest.raises(TableError, match="there is no view of batch group 'g' of topology 'top' yet"):
        trident.view(tmp_path, "top")
    counts.merge_once(2, force=True)
    totals.merge_once(2, force=True)
    counts.merge_once(3, force=True)  # the other one's has not come yet
    publish(group, range(4, 6))
    assert views.record().txid == 2 and views.last_txid == 2
    view = trident.view(tmp_path, "top")
    check(group, view)
    assert (view.txid, sorted(view.tables)) == (2, ["counts", "lines", "totals"])
    totals.merge_once(5, force=True, upto=3)
    assert views.record().txid == 3
    assert views.record() is None  # nothing newer
    check(group, trident.view(tmp_path, "top", "g"))
    check(group, view)  # the older one is what it was
    check_lines(group, view)


@pytest.mark.long
def test_a_log_that_begins_behind_the_last_merge_has_no_view_yet(group, tmp_path):
    """O6: as of a fork that began between two MERGEs, whose tables have no earlier versions."""
    made = compactors(group)
    views = recorded(group, made)
    publish(group, range(1, 4))
    for one in made:
        one.merge_once(2, force=True)
    lines = group.engine.load(str(tmp_path / "lines"))
    assert group.engine.run_maintenance(lines, every=1)  # a checkpoint, from which on it is whole
    for version in range(lines.version):
        (tmp_path / f"lines/_delta_log/{version:020d}.json").unlink()
    assert views.record() is None
    publish(group, range(4, 5))
    for one in made:
        one.merge_once(4, force=True)
    assert views.record().txid == 4
    check(group, trident.view(tmp_path, "top"))


@pytest.mark.long
def test_the_views_table_has_a_row_for_each_table_of_each_view(group, tmp_path):
    made = compactors(group)
    for txid in (1, 2):
        publish(group, range(txid, txid + 1))
        for compactor in made:
            compactor.merge_once(txid, force=True)
        recorded(group, made).record()
    recorded(group, made, epoch=2).record()  # a later leader: nothing is new
    rows = deltalake.DeltaTable(str(tmp_path / "top__g__views")).to_pyarrow_table().to_pylist()
    assert sorted((row["txid"], row["state"], row["path"]) for row in rows) == [
        (txid, name, name) for txid in (1, 2) for name in ("counts", "lines", "totals")
    ]
    newest = {row["state"]: row["version"] for row in rows if row["txid"] == 2}
    assert newest == {name: at.version for name, at in trident.view(tmp_path, "top").tables.items()}


# The rows are the first entry of the point, the file is the second.
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("compact.view:do_then_fail:1", marks=pytest.mark.long),
        "compact.view:fail_before:2",
        pytest.param("compact.settle:fail_before:2", marks=pytest.mark.long),
    ],
)
def test_a_record_that_failed_is_written_by_the_next_try(group, tmp_path, fault):
    made, told = compactors(group), []
    publish(group, range(1, 2))
    faults.arm(fault)
    background = BackgroundCompactor(
        made, lambda name, _: told.append(name), poll_secs=0.01, record=recorded(group, made).record
    )
    background.start(1)
    try:
        deadline = time.monotonic() + 30
        while not told or read_view(Place(tmp_path), "top", "g") is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        faults.disarm()
        assert background.stop(timeout_secs=30)
    assert told == ["the views"]
    view = trident.view(tmp_path, "top")
    assert view.txid == 1
    check(group, view)
    rows = deltalake.DeltaTable(str(tmp_path / "top__g__views")).to_pyarrow_table()
    assert rows.num_rows == 3


@pytest.mark.long
def test_old_views_leave_their_table(group, tmp_path, monkeypatch):
    monkeypatch.setattr("trident.states.history.views._VIEWS_KEPT", 2)
    monkeypatch.setattr("trident.states.history.views._VIEWS_MORE", 2)
    made = compactors(group)
    views = recorded(group, made)
    for txid in range(1, 4):
        publish(group, range(txid, txid + 1))
        for compactor in made:
            compactor.merge_once(txid, force=True)
        views.record()
    rows = deltalake.DeltaTable(str(tmp_path / "top__g__views")).to_pyarrow_table().to_pylist()
    assert sorted({row["txid"] for row in rows}) == [2, 3]


def test_of_appends_alone_the_tables_are_asked(spark, tmp_path):
    group = Group(spark, KernelEngine(spark), tmp_path, append("lines"), append("words"))
    for txid in (1, 2):
        group.publish(txid, {"lines": [(f"line {txid}",)], "words": [(f"word {txid}",)]})
    group.publish(3, {"lines": [("line 3",)]}, only=["lines"])  # decided, and published to one of them yet
    view = trident.view(tmp_path, "top")
    assert view.txid == 2
    assert sorted(table(view, "lines")["line"].to_pylist()) == ["line 1", "line 2"]
    assert sorted(table(view, "words")["line"].to_pylist()) == ["word 1", "word 2"]


def test_what_a_newcomer_may_get_wrong_is_told(spark, tmp_path):
    engine = KernelEngine(spark)
    with pytest.raises(TopologyError, match="no state of a topology 'top'"):
        trident.view(tmp_path, "top")
    Group(spark, engine, tmp_path, append("lines"))
    Group(spark, engine, tmp_path, append("words"), group="h")
    with pytest.raises(TopologyError, match="several batch groups") as several:
        trident.view(tmp_path, "top")
    assert "g, h" in str(several.value)
    with pytest.raises(TopologyError, match="no batch group 'i'"):
        trident.view(tmp_path, "top", "i")
    assert trident.view(tmp_path, "top", "h").txid == 0
