"""Columns are added to what is kept, and nothing else is changed: by us at a start, or by others meanwhile."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tests.states import group_helpers
from tests.states.keyed_helpers import Group, Native, append, keyed
from trident.coordinators.errors import CommitConflict, Halted, SchemaMismatch
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.leadership import Leadership
from trident.coordinators.registration import Registration, identity_conflicts, identity_difference
from trident.states.core.control import DOMAIN, decode_control
from trident.states.delta.delta_log import TableCommit
from trident.states.delta.evolution import add_columns, columns_only_added
from trident.states.delta.history import commits_since, foreign, harmful_change
from trident.states.delta.kernel import CommitOutcomeUnknown, KernelEngine
from trident.states.keyed.compactor import Compactor
from trident.states.keyed.reading import read_state
from trident.udf.types import as_schema

UPSERT = Native("upsert")


def users(schema="id bigint, name string", name="users"):
    return keyed(name, schema, ("id",), UPSERT, "last")


def evolve(group, binding):
    """As a start does: the plain table, the log, the descriptor."""
    for spec in reversed(binding.tables):
        snapshot = add_columns(group.engine, str(group.warehouse / spec.path), spec.schema_json)
        assert spec.fits(snapshot.schema_json)
    group.bindings[binding.name] = binding
    group.descriptor(binding.name).save(group.warehouse)


def rows(group, name, txid=None):
    frame = read_state(group.spark, group.warehouse, name, txid)
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def is_ours(commit):
    """As the committer does it."""
    control = commit.control.get(DOMAIN)
    return commit.engine_info.endswith("/trident/inc1") and isinstance(control, dict)


# --- the identity -------------------------------------------------------------------------------------

APPEND = {"keys": [], "value_schema": "struct<a:int,s:struct<x:int>>", "aggregator": "append"}
WIDER = "struct<a:int,s:struct<x:int>,b:decimal(10,2)>"


def identity(**changes):
    state = {**APPEND, **changes}
    return {"streams": {"x": "X"}, "states": {"s": state}, "groups": {"x": ["x"]}}


@pytest.mark.parametrize("aggregator", ["append", "upsert"])
def test_columns_behind_the_others_are_allowed_and_written_back(zk, aggregator):
    before, after = identity(aggregator=aggregator), identity(aggregator=aggregator, value_schema=WIDER)
    lease = Leadership(zk, "evolve", ["x"]).acquire()
    registration = Registration(zk, "evolve")
    registration.ensure(before, fences=lease.fences.values())
    difference = identity_difference(registration.read()[1], after)
    assert difference == [f"value_schema of state 's' was {APPEND['value_schema']}, now {WIDER}"]
    registration.ensure(after, fences=lease.fences.values())
    assert registration.read()[1]["states"]["s"]["value_schema"] == WIDER
    # The code before it again, and again the one after: the column stays in the table, null where it was not known.
    for given in (before, after, identity(aggregator=aggregator, value_schema="struct<a:int,b:decimal(10,2)>")):
        registration.ensure(given, fences=lease.fences.values())
        assert registration.read()[1]["states"]["s"]["value_schema"] == given["states"]["s"]["value_schema"]


@pytest.mark.parametrize(
    "change",
    [
        {"value_schema": "struct<b:int,a:int,s:struct<x:int>>"},
        {"value_schema": "struct<a:bigint,s:struct<x:int>,b:int>"},
        {"value_schema": "struct<a:int,s:struct<x:int,y:int>>"},
        {"value_schema": "struct<a:bigint>"},
        {"value_schema": "struct<a:int,b:int>"},
        {"value_schema": "struct<s:struct<x:int>,a:int>"},
        {"value_schema": "struct<a:int>", "aggregator": "sum"},
        {"value_schema": WIDER, "aggregator": "upsert"},
        {"value_schema": WIDER, "keys": ["a"]},
    ],
)
def test_any_other_change_is_refused_with_the_difference(change):
    assert any(str(change.get("aggregator", "")) in line for line in identity_conflicts(identity(), identity(**change)))


@pytest.mark.parametrize("aggregator", ["count", "sum", "python:mine.Mine"])
def test_an_aggregate_keeps_its_columns(aggregator):
    before, after = identity(aggregator=aggregator), identity(aggregator=aggregator, value_schema=WIDER)
    (line,) = identity_conflicts(before, after)
    assert WIDER in line


# --- the tables -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_columns_that_are_added_and_left_out_again_are_null_where_they_were_not_known(spark, engine, tmp_path):
    narrow, wide = users(), users("id bigint, name string, mail string, tags array<struct<t:string>>")
    group = Group(spark, engine, tmp_path, narrow, append())
    old = Compactor(spark, engine, tmp_path, group.descriptor("users"))
    group.publish(1, {"users": [(1, "ann", False), (2, "bo", False)], "lines": [("one",)]})
    old.merge_once(1, force=True)
    group.publish(2, {"users": [(3, "cy", False)], "lines": []})
    before = {path: engine.load(str(tmp_path / path)) for path in ("users", "users__log", "lines")}
    evolve(group, wide)
    evolve(group, append(schema="line string, n decimal(38,10)"))
    for path, snapshot in before.items():
        now = engine.load(str(tmp_path / path))
        assert (now.version, now.table_id) == (snapshot.version + 1, snapshot.table_id)
        assert now.control(DOMAIN) == snapshot.control(DOMAIN), "nothing is committed but the columns"
    assert rows(group, "users") == [(1, "ann", None, None), (2, "bo", None, None), (3, "cy", None, None)]
    tagged = [(1, "ann", "a@x", [{"t": "t"}], False), (2, "bo", "b@x", None, False)]
    group.publish(3, {"users": tagged, "lines": [("two", 7)]})
    assert rows(group, "lines", 2) == [("one", None)] and len(rows(group, "lines")) == 2
    expected = [(1, "ann", "a@x", [(("t"),)]), (2, "bo", "b@x", None), (3, "cy", None, None)]
    assert rows(group, "users")[1:] == expected[1:] and rows(group, "users")[0][2] == "a@x"
    # A compactor made before the columns were added must not leave their values behind.
    assert old.merge_once(3, force=True).p_new == 3
    assert rows(group, "users")[0][:3] == (1, "ann", "a@x") and rows(group, "users")[1:] == expected[1:]
    assert rows(group, "users", 1) == [(1, "ann", None, None), (2, "bo", None, None)]

    # The code before it again: what it writes has null there, an earlier value keeps what it had.
    evolve(group, narrow)
    evolve(group, append())
    group.publish(4, {"users": [(1, "ann4", False)], "lines": [("four",)]})
    assert rows(group, "users") == [(1, "ann4"), (2, "bo"), (3, "cy")]
    assert rows(group, "lines") == [("four",), ("one",), ("two",)]
    Compactor(spark, engine, tmp_path, group.descriptor("users")).merge_once(4, force=True)
    group.publish(5, {"users": [(3, "cy5", False)], "lines": []})
    evolve(group, wide)
    evolve(group, append(schema="line string, n decimal(38,10)"))
    assert rows(group, "users") == [(1, "ann4", None, None), (2, "bo", "b@x", None), (3, "cy5", None, None)]
    assert [row[0] for row in rows(group, "lines") if row[1] is None] == ["four", "one"]
    group.publish(6, {"users": [(4, "di", "d@x", None, False)], "lines": [("six", 6)]})
    assert rows(group, "users")[3] == (4, "di", "d@x", None) and rows(group, "users", 3)[1:] == expected[1:]


@pytest.mark.long
def test_adding_again_does_nothing_and_conflicts_are_tried_again(spark, engine, tmp_path):
    group = Group(spark, engine, tmp_path, append())
    group.publish(1, {"lines": [("one",)]})
    spec = append(schema="line string, n int").published_table
    outcomes = [CommitConflict("overtaken"), CommitOutcomeUnknown("lost"), None]
    tried = []

    class Unlucky(KernelEngine):
        """Others come first, then our own commit's answer is lost."""

        def add_columns(self, *args):
            outcome = outcomes[len(tried)]
            tried.append(outcome)
            if isinstance(outcome, CommitConflict):
                group.publish(2, {"lines": [("two",)]})
                raise outcome
            done = super().add_columns(*args)
            if outcome is not None:
                raise outcome
            return done

    after = add_columns(Unlucky(spark), str(tmp_path / "lines"), spec.schema_json)
    assert len(tried) == 2 and after.version == 3
    assert add_columns(engine, after.path, spec.schema_json).version == 3
    assert sorted(map(tuple, spark.read.format("delta").load(after.path).collect())) == [("one", None), ("two", None)]


@pytest.mark.parametrize(
    "schema",
    [
        *["line bigint, n int", "line string, Line string", "line string, `a b` int"],
        *["line string, n struct<`a,b`:int>", "line string, t timestamp_ntz", "line string, t array<timestamp_ntz>"],
        "line string, _deleted boolean",
    ],
)
def test_what_cannot_be_added_is_refused_and_changes_nothing(spark, engine, template, schema):
    path = str(template.warehouse / "lines")
    version = engine.load(path).version
    with pytest.raises(SchemaMismatch, match="columns of table"):
        add_columns(engine, path, append(schema=schema).published_table.schema_json)
    assert engine.load(path).version == version


@pytest.fixture(scope="module")
def template(spark, engine, tmp_path_factory):
    """A group whose table nobody changes."""
    return Group(spark, engine, tmp_path_factory.mktemp("evolution"), append())


def test_a_log_of_parts_is_not_taken_for_one_of_whole_values_nor_the_other_way(engine, spark, tmp_path):
    parts = keyed("s", "k string, v string", ("k",), SimpleNamespace(combine=None))
    whole = replace(parts, merging="last")
    group = Group(spark, engine, tmp_path, parts)
    for there, wanted in ((parts, whole), (whole, parts)):
        assert not wanted.published_table.fits(there.published_table.schema_json)
    with pytest.raises(SchemaMismatch, match="_deleted"):
        add_columns(engine, str(group.warehouse / "s__log"), whole.published_table.schema_json)


# --- who changed the schema ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_crash_right_after_is_no_foreign_change_and_decided_rows_fit_still(spark, engine, tmp_path):
    group = Group(spark, engine, tmp_path, append())
    path = str(tmp_path / "lines")
    group.publish(1, {"lines": [("one",)]})
    staged, snapshot = group.write("lines", 2, [("staged before",)]), engine.load(path)
    schema_hash = hashlib.sha256(snapshot.schema_json.encode()).hexdigest()  # what the manifest has
    assert columns_only_added(path, snapshot.version, schema_hash)

    ours = add_columns(engine, path, append(schema="line string, n int").published_table.schema_json)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (theirs struct<x:int> COMMENT 'of others')")
    assert [foreign(commit, is_ours) for commit in commits_since(path, snapshot.version)] == [None, None]
    after = engine.load(path)
    assert (ours.version, after.version) == (snapshot.version + 1, snapshot.version + 2)
    assert decode_control(path, after.control(DOMAIN)).txid == 1
    for version in (ours.version, after.version):
        assert columns_only_added(path, version, schema_hash)
    assert not columns_only_added(path, after.version, "another schema")

    # The rows that were staged with the narrow schema are published into the wide table.
    control = replace(decode_control(path, after.control(DOMAIN)), txid=2, attempt_id=0, digest="d2")
    engine.commit_files(after, staged, ("trident/top/g", 2), {DOMAIN: control.encode()}, "trident/inc1")
    read = spark.read.format("delta").load(path).orderBy("line")
    assert [tuple(row) for row in read.collect()] == [("one", None, None), ("staged before", None, None)]

    # What was said long ago is known from a checkpoint, when its log entry was cleaned up.
    newest = engine.load(path)
    assert engine.run_maintenance(newest, every=1)
    add_columns(engine, path, append(schema="line string, later int").published_table.schema_json)
    for version in range(newest.version):
        (tmp_path / "lines/_delta_log" / f"{version:020d}.json").unlink()
    (commit,) = commits_since(path, newest.version)
    assert not commit.harm
    assert columns_only_added(path, commit.version, hashlib.sha256(newest.schema_json.encode()).hexdigest())
    assert not columns_only_added(path, commit.version, schema_hash), "not known any more: halt"


@pytest.mark.long
def test_a_start_with_further_columns_after_any_crash_finds_what_was_decided_and_goes_on(spark, engine, tmp_path):
    """The committer itself: others add a column under a decided batch, we add one at the next start, which dies."""
    narrow = [group_helpers.append_binding()]
    group = group_helpers.Group(engine, tmp_path, narrow).open()
    group.commit(1, ["a"])
    decision = group.prepare(TransactionAttempt(2, 0), ["decided"])
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/rows` ADD COLUMNS (theirs int)")
    successor = group_helpers.Group(engine, tmp_path, [], epoch=2, record=group.record)
    successor.advance(decision, successor.committer.publish(decision, successor.record))

    schema = StructType([*group_helpers.ROWS.fields, StructField("extra", LongType())])
    wide = [replace(narrow[0], schema=schema, value_fields=tuple(schema.names))]
    for epoch in (3, 4):  # the first of the two dies before its first transaction
        latest = group_helpers.Group(engine, tmp_path, wide, epoch=epoch, record=successor.record).open()
    latest.commit(3, ["b"])
    read = spark.read.format("delta").load(f"{tmp_path}/rows").orderBy("word")
    assert [tuple(row) for row in read.collect()] == [(word, 1, None, None) for word in ("a", "b", "decided")]
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/rows` ALTER COLUMN n COMMENT 'of others'")
    latest = group_helpers.Group(engine, tmp_path, wide, epoch=5, record=latest.record).open()
    spark.sql(f"ALTER TABLE delta.`{tmp_path}/rows` ADD CONSTRAINT some CHECK (n > 0)")
    with pytest.raises(Halted, match="ADD CONSTRAINT .* added the constraint some"):
        group_helpers.Group(engine, tmp_path, wide, epoch=6, record=latest.record).open()


META = {
    "id": "1",
    "format": {"provider": "parquet"},
    "partitionColumns": [],
    "configuration": {"delta.a": "b"},
    "schemaString": as_schema("x int, y string", "the tests").json(),
}


def schema_of(*fields):
    every = [{"type": "integer", "nullable": True, "metadata": {}, **field} for field in fields]
    return {"schemaString": json.dumps({"type": "struct", "fields": every})}


X, Y, Z = {"name": "x"}, {"name": "y", "type": "string"}, {"name": "z"}


@pytest.mark.parametrize(
    ("change", "good"),
    [
        (schema_of(X, Y, Z), True),
        (schema_of(Z, X, Y), True),
        (schema_of(X, Y, {**Z, "metadata": {"comment": "c"}}), True),
        (schema_of(X, Y, {**Z, "nullable": False}), False),
        (schema_of(X, Y, {**Z, "metadata": {"CURRENT_DEFAULT": "1"}}), False),
        (schema_of(Y, X, Z), False),
        (schema_of(X, Z), False),
        (schema_of({**X, "type": "long"}, Y, Z), False),
        ({**schema_of(X, Y, Z), "configuration": {"delta.a": "c"}}, False),
        ({"configuration": {"delta.a": "b", "delta.constraints.c": "x > 0"}}, False),
        ({"configuration": {"delta.a": "b", "owner": "sales", "delta.logRetentionDuration": "interval 9 days"}}, True),
        ({"description": "the lines", "name": "lines"}, True),
        (schema_of({**X, "metadata": {"comment": "c"}}, Y), True),
        (schema_of({**X, "nullable": False}, Y), False),
        (schema_of({**X, "metadata": {"delta.generationExpression": "y"}}, Y), False),
        ({**schema_of(X, Y, Z), "id": "2"}, False),
        ({**schema_of(X, Y, Z), "partitionColumns": ["x"]}, False),
    ],
)
def test_only_further_nullable_columns_and_what_no_row_shows_are_harmless(change, good):
    assert (harmful_change(META, {**META, **change}) == "") is good


@pytest.mark.parametrize(
    ("more", "good"),
    [
        ([], True),
        ([{"remove": {"path": "f", "dataChange": True}}], False),
        ([{"txn": {"appId": "a", "version": 1}}], False),
        ([{"domainMetadata": {"domain": "trident", "configuration": "{}"}}], False),
        ([{"protocol": {"minReaderVersion": 1}}], False),
        ([{"commitInfo": {"operation": "OPTIMIZE"}}], True),
    ],
)
def test_a_commit_of_others_that_is_harmless_does_nothing_else(more, good):
    actions = [{"commitInfo": {"operation": "ADD COLUMNS"}}, {"metaData": {"id": "t"}}, *more]
    commit = TableCommit.of(3, [each for action in actions for each in action.items()])
    assert (foreign(replace(commit, harm=""), lambda _: False) is None) is good
    assert foreign(replace(commit, harm="took away a column"), lambda _: False) is not None
