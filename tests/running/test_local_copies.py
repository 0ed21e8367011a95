"""Batches that look states up give the same with local copies, without them, and with copies that are taken away."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.oracle import Table
from tests.long_cases import sample
from tests.running.test_late_at_once import check_sums, sums
from tests.running.test_late_at_once import topology as at_once
from tests.running.test_query import WAIT_SECS
from tests.servers.zk_fixtures import eventually
from tests.streams.stream_helpers import split
from trident import (
    Count,
    DeltaAppend,
    DeltaMapState,
    FixedBatchSpout,
    MapGet,
    Max,
    Split,
    SpoutContext,
    SpoutKind,
    Stream,
    TridentConfig,
    TridentTopology,
)
from trident.coordinators import faults
from trident.coordinators.errors import TopologyError
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.processes import UNKNOWN
from trident.running.late_part import Able, Breaker, LatePart, Rows, WorkerPass
from trident.running.runner import SparkBatchRunner
from trident.running.site import SparkSite
from trident.running.status import format_status, read_status
from trident.states.core.local_copy import StaleCopy
from trident.states.core.place import Place
from trident.states.keyed import state_copy
from trident.states.keyed.copies import HostCopies, StateCopies, copies_folder, own_folder, settled_shards
from trident.states.keyed.key_reads import KeyReader
from trident.states.publishing.user_tasks import BatchInfo
from trident.workers import look_up
from trident.workers.failures import ERROR, marked

LINES = ["a b a", "c", "", "a b b longword", "c d", "a e e e"]


class Lengths:
    """An aggregator that goes on from the sum and the count that it has stored."""

    def init(self, batch_id: Any) -> list:
        return [0, 0]

    def resume(self, batch_id: Any, total: int, count: int) -> list:
        return [total, count]

    def aggregate(self, state: list, word: str) -> None:
        state[0] += len(word)
        state[1] += 1

    def complete(self, state: list) -> tuple[int, int]:
        return state[0], state[1]


def topology() -> TridentTopology:
    made = TridentTopology("copied")
    words = lines_of(made).filter("line", bool).each("line", split, "word").project("word")
    count(words)
    words.group_by("word").persistent_aggregate(DeltaMapState("lengths"), "word", Lengths(), "total, count")
    return made


def own_topology() -> TridentTopology:
    """Late parts without a function of the user's."""
    made = TridentTopology("owned")
    count(lines_of(made).each("line", Split(), "word").project("word"))
    return made


def lines_of(made: TridentTopology) -> Stream:
    return made.new_stream("lines", FixedBatchSpout("line string", [[(line,)] if line else [] for line in LINES]))


def count(words: Stream) -> None:
    """Words, whose new counts are stored, and what they were before."""
    counts = words.group_by("word").persistent_aggregate(DeltaMapState("counts"), Count(), "n")
    counts.new_values_stream().partition_persist(DeltaAppend("news"))
    words.state_query(counts, "word", MapGet(), "before").partition_persist(DeltaAppend("asked"))


def expected() -> dict[str, Counter]:
    running, news, asked = Counter(), Counter(), Counter()
    for line in LINES:
        batch = Counter(line.split())
        asked.update({(word, running.get(word)): count for word, count in batch.items()})
        running += batch
        news.update((word, running[word]) for word in batch)
    lengths = Counter((word, len(word) * n, n) for word, n in running.items())
    return {"news": news, "asked": asked, "counts": Counter(running.items()), "lengths": lengths}


def found(query: Any, warehouse: Path, maps: Sequence[str] = ("counts", "lengths")) -> dict[str, Counter]:
    rows = {name: Counter(tuple(row) for row in query.snapshot(name).collect()) for name in maps}
    for name, columns in (("news", ("word", "n")), ("asked", ("word", "before"))):
        rows[name] = Counter(tuple(row[column] for column in columns) for row in Table.read(warehouse / name).rows())
    return rows


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each batch that looked states up: whether it was given copies."""
    given: list[bool] = []
    real = StateCopies.as_of

    def noted(self: StateCopies, states: Any, txid: int) -> Any:
        copies = real(self, states, txid)
        given.append(copies is not None)
        return copies

    monkeypatch.setattr(StateCopies, "as_of", noted)
    return given


@pytest.mark.parametrize("local_copies", sample([True, False], True))
def test_they_are_used_for_every_batch_and_give_what_a_fold_gives(start, tmp_path, uses, local_copies, monkeypatch):
    # An attempt that fails after it has staged must leave nothing that the copies could take.
    faults.arm("resolve.stage:do_then_fail:3")
    query = start.run(topology(), local_copies=local_copies)
    assert not faults.unfired()
    assert found(query, tmp_path / "warehouse") == expected()
    assert all(uses) and bool(uses) == local_copies
    copies = {copy["state"]: copy for copy in query.status["groups"][0]["copies"]}
    assert set(copies) == ({"counts", "lengths"} if local_copies else set())
    for copy in copies.values():
        runs = (tmp_path / "warehouse" / "_trident" / ".copies").glob(f"*/{copy['state']}/*.copy/*.*")
        size = sum(file.stat().st_size for file in runs if file.suffix != ".list")
        assert copy["condition"] == "following" and copy["txid"] == len(LINES) - 1 and copy["builds"] == 1
        assert 0 < copy["bytes"] == size <= copy["bytes_max"]

    def shown() -> Any:
        return read_status(tmp_path / "warehouse", "copied")

    assert eventually(lambda: shown().to_json()["groups"][0]["copies"] == tuple(copies.values()), WAIT_SECS)
    assert not copies or f"lengths: following transaction {len(LINES) - 1}" in format_status(shown())
    read_tables: list[bool] = []
    real = KeyReader.get
    monkeypatch.setattr(KeyReader, "get", lambda *args, **more: (read_tables.append(True), real(*args, **more))[1])
    words = [*(word for word, _ in expected()["counts"]), "never"]
    values = {word: {"n": n} for word, n in expected()["counts"]}
    for _ in range(2):  # the first brings the copies on by a transaction, the second finds them so
        assert query.get("counts", words) == [values.get(word) for word in words]
        assert query.get("lengths", "longword") == {"total": 8, "count": 1} and query.get("lengths", "no") is None
    assert bool(read_tables) != local_copies


@pytest.mark.long
@pytest.mark.parametrize(
    ("keep_plans", "small"), [(True, 1000), (False, 1000), (True, 0)], ids=["one task", "no kept plan", "shards"]
)
def test_one_task_gives_what_spark_gives_on_the_tables(  # noqa: PLR0913
    start, tmp_path, uses, monkeypatch, keep_plans, small
):
    monkeypatch.setattr("trident.running.late_part.TASK_ROWS", small)
    forms: list[set[str]] = []
    kept, stage = [], WorkerPass.stage
    monkeypatch.setattr(WorkerPass, "stage", lambda *args: (kept.append(True), stage(*args))[1])
    real, read = SparkBatchRunner.resolve, StateCopies.as_of

    def noted(self: SparkBatchRunner, *args: Any) -> Any:
        done = real(self, *args)
        forms.append({name.removeprefix("resolve_by_") for name in done.duration_ms if "resolve_by_" in name})
        return done

    def taken_away(self: StateCopies, states: Any, txid: int) -> Any:
        copies = read(self, states, txid)
        if copies and txid == 3:
            shutil.rmtree(copies["counts"].folder)
        return copies

    monkeypatch.setattr(SparkBatchRunner, "resolve", noted)
    monkeypatch.setattr(StateCopies, "as_of", taken_away)
    monkeypatch.setattr(LatePart, "stage_fused", lambda *_: None)  # as where several are in flight
    faults.arm("stage.write:do_then_fail:4")  # an attempt that fails after it has staged
    query = start.run(own_topology(), keep_plans=keep_plans)
    assert not faults.unfired()
    assert kept
    want = {name: rows for name, rows in expected().items() if name != "lengths"}
    assert found(query, tmp_path / "warehouse", ["counts"]) == want
    assert Counter(map(frozenset, forms)) >= Counter({frozenset({"pass"}): 3, frozenset({"tables"}): 1})


def test_explain_says_which_form_few_rows_take() -> None:
    job = "before (few rows: by the early half's Spark job when it begins in the turn, else"
    assert f"{job} by another):" in sums().explain()
    assert f"{job} by another):" in at_once().explain()
    assert "before (few rows: one Spark job):" in own_topology().explain()
    assert "before (few rows: one Spark job):" in topology().explain()


_POINTS = ("copy.open:", "copy.build:", "copy.apply:")
_SWEEP = os.environ.get("TRIDENT_SWEEP") == "all"
_ONE_EACH = "copy.open:fail_before:1,copy.build:do_then_fail:1,copy.apply:do_then_fail:2"
_EACH = [
    f"{point}{outcome}:{nth}" for point in _POINTS for outcome in ("fail_before", "do_then_fail") for nth in (1, 2)
]


@pytest.mark.parametrize("armed", [_ONE_EACH, *(_EACH if _SWEEP else ())])
@pytest.mark.long
def test_a_copy_that_fails_at_any_point_costs_no_exactness(start, tmp_path, monkeypatch, armed):
    monkeypatch.setattr(state_copy, "_OFF_SECS_MAX", 0.0)  # so that each of these batches tries again
    faults.arm(armed)
    query = start.run(topology())
    assert not faults.unfired()
    assert found(query, tmp_path / "warehouse") == expected()
    assert {copy["condition"] for copy in query.status["groups"][0]["copies"]} == {"following"}


@pytest.mark.skipif(not _SWEEP, reason="TRIDENT_SWEEP=all runs it")
@pytest.mark.parametrize(
    ("fault", "form"),
    [
        *((f"{point}do_then_die:{nth}", "several jobs") for point in _POINTS for nth in (1, 2)),
        # One copy, which is built once.
        *((f"{point}do_then_die:1", "one job") for point in _POINTS),
        ("copy.apply:do_then_die:2", "one job"),
        *((f"copy.publish:do_then_die:{nth}", "one job") for nth in (1, 2)),
        ("copy.compact:do_then_die:1", "small runs"),
    ],
)
def test_a_leader_that_dies_at_a_copy_is_gone_on_from(start, tmp_path, zk_server, zk_root, fault, form):
    code = _LEADER
    if form == "one job":
        code = code.replace("test_local_copies import", "test_late_at_once import sums as")
        code = code.replace("settings = {", 'settings = {"max_spout_pending": 1, ')
    if form == "small runs":
        code = code.replace("topology().start", "local_copy._SMALL_ROWS = 0\ntopology().start")
        code = f"from trident.states.core import local_copy\n{code}"
    command = [sys.executable, "-c", code, str(tmp_path / "warehouse"), zk_server, zk_root]
    environment = {**os.environ, "TRIDENT_FAULTS": fault}
    died = subprocess.run(command, env=environment, start_new_session=True, timeout=WAIT_SECS)
    assert died.returncode == -signal.SIGKILL
    query = start.run(sums(), max_spout_pending=1) if form == "one job" else start(topology())
    if form == "one job":
        check_sums(query, tmp_path / "warehouse")
    else:
        assert found(query, tmp_path / "warehouse") == expected()


_LEADER = """
import sys
from tests.running.test_local_copies import topology
from trident.spark.session import make_session
spark = make_session("leader", {"spark.master": "local[2]", "spark.ui.enabled": "false"})
warehouse, zookeeper, root = sys.argv[1:]
settings = {"zookeeper": zookeeper, "zookeeper_root": root, "zookeeper_session_timeout_secs": 4}
topology().start(spark, warehouse=warehouse, **settings).await_termination()
"""


@pytest.mark.long
def test_a_standby_that_takes_over_has_followed_and_builds_no_copy(start, tmp_path, zk_server, zk_root, uses):
    warehouse = tmp_path / "warehouse"
    leader = subprocess.Popen(
        [sys.executable, "-c", _LEADER, str(warehouse), zk_server, zk_root],
        env={**os.environ, "TRIDENT_FAULTS": "zk.advance:hang:4"},  # published, not advanced
        start_new_session=True,
    )
    try:
        assert eventually(lambda: (warehouse / "_trident" / "copied" / "status.json").exists(), WAIT_SECS)
        query = start(topology(), warm_standby=True)
        copies = query._reporter.site.copies("lines")
        assert eventually(lambda: [one.txid for one in copies.health()] == [4, 4], WAIT_SECS)
    finally:
        os.killpg(leader.pid, signal.SIGKILL)
        leader.wait()
    before = {state: copies.as_of([state], 4)[state].folder for state in ("counts", "lengths")}
    uses.clear()
    query.process_all_available(WAIT_SECS)
    assert found(query, warehouse) == expected()
    assert [(one.builds, one.txid) for one in copies.health()] == [(1, len(LINES) - 1)] * 2
    assert {state: copies.as_of([state], len(LINES))[state].folder for state in before} == before
    assert len(uses) >= 2 and all(uses)


@pytest.mark.parametrize(("boot", "kept"), [("one", True), (UNKNOWN, False)])
def test_where_two_boots_cannot_be_told_apart_there_are_no_copies(monkeypatch, tmp_path: Path, boot, kept) -> None:
    """As on macOS without psutil: a copy is not flushed, and of an earlier boot it may be half of one."""
    monkeypatch.setattr("trident.running.site.boot_id", lambda: boot)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]"))
    plan = SimpleNamespace(copied_states=["counts"])
    site = SimpleNamespace(config=TridentConfig(), spark=spark, engine=None, warehouse=Place(tmp_path))
    assert (SparkSite._new_copies(site, plan) is not None) == kept


def test_threads_that_ask_at_once_share_the_copies_of_a_group() -> None:
    made: list[object] = []

    def new_copies(plan: Any, asked: Any) -> Any:
        time.sleep(0.05)  # another thread asks meanwhile
        made.append(object())
        return made[-1]

    site = SimpleNamespace(_copies={}, _copies_lock=threading.Lock(), plans={"lines": None}, _asked={})
    site._new_copies = new_copies
    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(lambda _: SparkSite.copies(site, "lines"), range(4)))
    assert found == set(made) and len(made) == 1


INFO = BatchInfo(TransactionAttempt(3, 0))


def _late_part(copies: Any, on_copies: Callable[..., Any]) -> LatePart:
    """A late part in a task that looks states up in copies: without Spark."""
    made: Any = object.__new__(LatePart)
    made._plan, made._states, made._copies = SimpleNamespace(name="lines"), ["counts"], copies
    made._able, made._breaker = Able(False, tasks=True, shards=False), Breaker()
    made._worker = SimpleNamespace(stage=on_copies)
    made._size, made._by_spark = lambda staged: Rows(False, 1), lambda *_: {}
    return made


@pytest.mark.parametrize("fails", [False, True])
def test_copies_are_told_when_a_batch_could_use_them(fails: bool) -> None:
    told: list[tuple] = []
    copies = SimpleNamespace(
        as_of=lambda states, txid: dict.fromkeys(states, 1),
        served=lambda states: told.append(("served", *states)),
        damaged=lambda state, copy, why: told.append(("damaged", state, why)),
    )

    def late_on_copies(*_: Any) -> Any:
        if fails:
            raise StaleCopy(look_up.copy_error("counts", ValueError("damaged")))
        return {}

    form, _ = _late_part(copies, late_on_copies).stage(TransactionAttempt(3, 0), {}, INFO, lambda: None)
    assert (form.value, told) == (
        ("tables", [("damaged", "counts", "damaged")]) if fails else ("pass", [("served", "counts")])
    )


@pytest.mark.parametrize(
    ("error", "form"),
    [("Python worker exited unexpectedly (crashed)", "tables"), (f"ValueError: x {marked({'kind': ERROR})}", "pass")],
)
def test_the_attempt_behind_one_whose_worker_died_reads_the_tables(error: str, form: str) -> None:
    """Its batch is the same, and would need as much memory. A user's function fails in each form."""
    copies = SimpleNamespace(as_of=lambda states, txid: dict.fromkeys(states, 1), served=lambda states: None)
    errors = [RuntimeError(error)]

    def late_on_copies(*_: Any) -> Any:
        if errors:
            raise errors.pop()
        return {}

    late = _late_part(copies, late_on_copies)
    with pytest.raises(RuntimeError):
        late.stage(TransactionAttempt(3, 0), {}, INFO, lambda: None)
    next_ones = TransactionAttempt(3, 1), TransactionAttempt(4, 0)
    assert [late.stage(one, {}, INFO, lambda: None)[0].value for one in next_ones] == [form, "pass"]


@pytest.mark.parametrize(
    ("error", "jobs"),
    [
        ("Python worker exited unexpectedly (crashed)", 1),
        ("pyarrow.lib.ArrowTypeError: no such cast", 1),
        ("the source does not answer", 2),
    ],
)
def test_the_attempt_behind_a_single_job_that_failed_in_its_form_has_a_job_for_each_part(error: str, jobs: int) -> None:
    """A batch of few rows may look up values that are too large together."""
    tried: list[TransactionAttempt] = []

    def one_job(attempt: TransactionAttempt, *_: Any) -> None:
        tried.append(attempt)
        raise RuntimeError(error)

    late: Any = _late_part(SimpleNamespace(as_of=lambda states, txid: dict.fromkeys(states, 1)), one_job)
    late._able, late._large, late._advanced = Able(True, tasks=True, shards=False), Breaker(), 2
    late._one_job = SimpleNamespace(stage=one_job)
    for attempt_id in (0, 1):
        with suppress(RuntimeError):
            assert late.stage_fused(TransactionAttempt(3, attempt_id), {}, INFO, SimpleNamespace()) is None
    assert len(tried) == jobs


class Texts:
    """Gives words of bytes, each in a transaction of its own, as Spark has them: to it a text is any bytes."""

    output_schema = "word string"
    kind = SpoutKind.TRANSACTIONAL

    def __init__(self, words: list[bytes]) -> None:
        self._words = words

    def open(self, context: SpoutContext) -> None:
        self._spark = context.spark

    def is_ready(self, txid: int) -> bool:
        return txid <= len(self._words)

    def emit_batch(self, txid: int) -> Any:
        words = [f"('{word.hex()}')" for word in self._words[txid - 1].split()]
        return self._spark.sql(f"select cast(unhex(h) as string) as word from values {', '.join(words)} as t(h)")

    def ack(self, txid: int) -> None: ...

    def close(self) -> None: ...


@pytest.mark.long
def test_texts_that_are_not_utf_8_are_looked_up(start, tmp_path):
    """Python would not read them: on workers and in a copy they are bytes."""
    batches = [b"a b", b"a tw\xffo", b"tw\xffo \xc3", b"a b"]
    made = TridentTopology("bytes")
    words = made.new_stream("words", Texts(batches))
    best = words.group_by("word").persistent_aggregate(DeltaMapState("best"), "word", Max(), "greatest")
    words.state_query(best, "word", MapGet(), "before").partition_persist(DeltaAppend("asked"))
    query = start.run(made)
    asked = query.snapshot("asked").selectExpr("hex(word)", "hex(before)").collect()
    found, known, expected = Counter(map(tuple, asked)), set[bytes](), Counter[tuple]()
    for batch in batches:
        expected.update((word.hex().upper(), word.hex().upper() if word in known else None) for word in batch.split())
        known.update(batch.split())
    assert found == expected
    assert {row[0] for row in query.snapshot("best").selectExpr("hex(word)").collect()} == {
        word.hex().upper() for word in known
    }


@pytest.mark.parametrize("asked", [(), ("counts",)])
def test_on_a_cluster_the_driver_has_copies_for_requests_alone_on_its_own_disk(monkeypatch, tmp_path, asked):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    spark = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077"))
    plan = SimpleNamespace(copied_states=["counts", "others"])
    site = SimpleNamespace(config=TridentConfig(), spark=spark, engine=None, warehouse=Place(tmp_path / "shared"))
    copies = SparkSite._new_copies(site, plan, asked)
    if copies is None:
        assert not asked
        return
    assert copies._states == [*asked] and copies._folder.is_relative_to(tmp_path / "tmp")
    (above,) = (tmp_path / "tmp").iterdir()
    above.chmod(0o770)
    assert SparkSite._new_copies(site, plan, asked) is None, "others could put values there"


@pytest.mark.parametrize("fails", [None, "a log that is not mounted there"])
@pytest.mark.long
def test_tasks_bring_up_the_copies_of_their_own_hosts_or_the_tables_are_read(start, tmp_path, monkeypatch, fails):
    """As on a cluster: the master is local, and the batches are told that it is not."""
    monkeypatch.setattr("trident.running.site.is_local_master", lambda master: False)
    if fails:
        monkeypatch.setattr(HostCopies, "as_of", _elsewhere(HostCopies.as_of, fails))
    query = start.run(topology(), state_shards=3)
    warehouse = tmp_path / "warehouse"
    assert found(query, warehouse) == expected()
    copies = {copy["state"]: copy for copy in query.status["groups"][0]["copies"]}
    assert set(copies) == {"counts", "lengths"} and not (warehouse / "_trident" / ".copies").exists()
    own = own_folder(warehouse)
    if fails:
        failed = [copy for copy in copies.values() if copy["reason"]]  # a task tells the first one
        assert failed and all(fails in copy["reason"] and copy["condition"] in ("off", "following") for copy in failed)
        assert not list(own.glob("executors/*/*/*/*.copy"))
    else:
        assert all(copy["on_executors"] for copy in copies.values() if copy["condition"] != "waiting")
        assert eventually(lambda: len(list(own.glob("executors/*/*/?-of-3/*.copy"))) == 2 * 3, WAIT_SECS)
    shutil.rmtree(own, ignore_errors=True)


def _elsewhere(as_of: Callable[..., Any], folder: str) -> Callable[..., Any]:
    """Tells tasks of copies whose tables they cannot find."""

    def told(*asked: Any) -> Any:
        copies = as_of(*asked)
        return copies and {state: replace(copy, warehouse=f"/{folder}") for state, copy in copies.items()}

    return told


@pytest.mark.parametrize(
    ("found", "shards"), [(None, 4), (b"6", 6), (b"", 4), (b"6\x00", 4), (b"\xff", 4), (b"0", 4), (b"-6", 4)]
)
def test_the_number_of_shards_is_that_of_the_first_leader_and_a_damaged_file_has_none(tmp_path, found, shards):
    warehouse = Place(tmp_path)
    (tmp_path / "_trident").mkdir()
    if found is not None:
        (tmp_path / "_trident" / ".state-shards").write_bytes(found)
    assert [settled_shards(warehouse, cores) for cores in (4, 2)] == [shards] * 2


def test_the_folder_of_copies_is_that_of_no_topology(tmp_path: Path) -> None:
    name = copies_folder(tmp_path, "host", "boot").relative_to(tmp_path / "_trident").parts[0]
    with pytest.raises(TopologyError):
        TridentTopology(name)


def test_copies_of_earlier_boots_of_this_host_are_removed_and_those_of_other_hosts_stay(tmp_path):
    old, other = copies_folder(tmp_path, "here", "boot 1"), copies_folder(tmp_path, "elsewhere", "boot 1")
    for folder in (old, other):
        (folder / "counts").mkdir(parents=True)
    new = copies_folder(tmp_path, "here", "boot 2")
    assert not old.exists() and other.exists() and new != old
