"""`trident reset` and its guard: what is another ZooKeeper's is left alone, and what was begun can be ended."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from trident import cli
from trident.commands import admin, exit_codes
from trident.commands import dead_letters as dead_letter_admin
from trident.config import TridentConfig
from trident.coordinators.errors import CoordinationError, CorruptZnode, Deposed, TopologyError
from trident.coordinators.leadership import Leadership
from trident.coordinators.records import Marker, UnfinishedRollback, UsedAttempts
from trident.coordinators.registration import Registration, begin_rollback, unfinished_reset
from trident.coordinators.znodes import Create, SetData
from trident.running.status import StatusWriter, TopologyStatus, status_path
from trident.running.zookeeper import own_zookeeper
from trident.states.core.control import DOMAIN, ControlRecord
from trident.states.core.descriptor import StateDescriptor, list_descriptors

IDENTITY = {"streams": {"lines": "A"}, "states": {}, "groups": {"lines": ["lines"]}}
SCHEMA = '{"type":"struct","fields":[]}'


def table(path: Path, incarnation: str, txid: int = 3, attempt_id: int = 0) -> None:
    """The log of a Delta table with one commit: the control record that every commit of ours has."""
    control = ControlRecord("top", "lines", incarnation, txid, attempt_id, "d", 1, 1).encode()
    (path / "_delta_log").mkdir(parents=True)
    action = {"domainMetadata": {"domain": DOMAIN, "configuration": control, "removed": False}}
    (path / "_delta_log" / f"{0:020d}.json").write_text(json.dumps(action) + "\n")
    (path / "rows.parquet").write_text("rows")


def state(warehouse: Path, name: str, kind: str, incarnation: str) -> StateDescriptor:
    descriptor = StateDescriptor(name, kind, "top", "lines", incarnation, (), ("n",), SCHEMA)
    descriptor.save(warehouse)
    for path in {descriptor.published_path, descriptor.plain_path}:
        table(warehouse / path, incarnation)
    return descriptor


@pytest.fixture
def config(tmp_path: Path, zk_server: str, zk_root: str) -> TridentConfig:
    return TridentConfig(warehouse=str(tmp_path / "w"), zookeeper=zk_server, zookeeper_root=zk_root)


@pytest.fixture
def top(config: TridentConfig, zk, tmp_path: Path) -> Path:
    """The warehouse of a topology that was stopped after three transactions, known to the ZooKeeper of `config`."""
    lease = Leadership(zk, "top", ["lines"]).acquire()
    incarnation = Registration(zk, "top").ensure(IDENTITY, fences=lease.fences.values())
    lease.release()
    (tmp_path / "w" / "_trident" / "top" / "streams").mkdir(parents=True)
    state(tmp_path / "w", "counts", "keyed", incarnation)
    state(tmp_path / "w", "words", "append", incarnation)
    return tmp_path / "w"


def listed(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def elsewhere(config: TridentConfig, zk_root: str) -> TridentConfig:
    """The same settings, but for the ZooKeeper: there nobody has heard of the topology."""
    return config.replace(zookeeper_root=f"{zk_root}-other")


def lead_there(warehouse: Path, incarnation: str, epoch: int = 1) -> None:
    """This process leads, as the status says."""
    StatusWriter(status_path(warehouse, "top")).update(TopologyStatus("top", incarnation, "run", epoch))


CALLS = {
    "reset": lambda config: admin.reset("top", True, config),
    "skip": lambda config: admin.skip("top", 3, config),
    "compact": lambda config: admin.compact("top", config),
    "dead-letters replay": lambda config: dead_letter_admin.replay("top", config),
}


@pytest.mark.parametrize("command", sorted(CALLS))
def test_a_topology_of_another_zookeeper_is_left_alone(command: str, top: Path, config, zk_root: str) -> None:
    before = listed(top)
    with pytest.raises(CoordinationError) as caught:
        CALLS[command](elsewhere(config, zk_root))
    for word in (
        "knows nothing of",
        "transaction 3",
        "no topology of this name",
        "--zookeeper",
        "trident repair top",
        f"`trident {command}` with --force",
        "nothing was changed",
    ):
        assert word in str(caught.value)
    assert listed(top) == before


def test_the_default_server_is_not_even_started_to_be_told_that_it_knows_nothing(top: Path) -> None:
    """A shell without TRIDENT_ZOOKEEPER."""
    before = listed(top)
    command = ["reset", "top", "--drop-tables", "--yes", "--warehouse", str(top)]
    done = CliRunner().invoke(cli.main, command, env={"TRIDENT_ZOOKEEPER": None})
    assert done.exit_code == exit_codes.EXIT_BAD_INPUT and "zookeeper=embedded, default" in done.output
    assert listed(top) == before


def test_a_living_leader_elsewhere_keeps_its_files(top: Path, config, zk, zk_root: str) -> None:
    """Also where no table has a transaction, and where the other ZooKeeper has seen more leaders of another life."""
    for path in ("counts", "counts__log", "words"):
        shutil.rmtree(top / path)
    lead_there(top, Registration(zk, "top").read()[0])
    with pytest.raises(CoordinationError, match="led by way of another ZooKeeper.*pid .*epoch 1"):
        admin.reset("top", True, elsewhere(config, zk_root))
    lead_there(top, "another life", epoch=0)
    with pytest.raises(CoordinationError, match="led by way of another ZooKeeper"):
        admin.reset("top", True, config)
    assert (top / "_trident" / "top" / "status.json").exists()


def test_tables_of_another_life_are_left_alone(top: Path, config) -> None:
    shutil.rmtree(top / "words")
    table(top / "words", "another-life")
    with pytest.raises(CoordinationError, match="table words has transaction 3.*incarnation another-life"):
        admin.reset("top", True, config)
    assert (top / "counts").exists()
    assert "dropped" in admin.reset("top", True, config, force=True)
    assert not (top / "words").exists()


def test_force_drops_what_no_zookeeper_knows_of(top: Path, config, zk_root: str) -> None:
    assert "tables (counts, words): dropped" in admin.reset("top", True, elsewhere(config, zk_root), force=True)
    assert listed(top) == ["_trident", "_trident/states"]


def test_its_own_zookeeper_lets_it_go(top: Path, config, zk) -> None:
    assert "tables (counts, words): kept" in admin.reset("top", False, config)
    assert sorted(path.name for path in top.iterdir()) == ["_trident", "counts", "counts__log", "words"]
    with pytest.raises(TopologyError, match="nothing is known"):
        admin.reset("top", False, config)
    assert zk.children(zk.path("top")) == ["lines"]


def test_views_go_with_the_transactions_that_they_name(top: Path, config, zk) -> None:
    table(top / "top__lines__views", "old")
    (top / "_trident" / "top" / "lines").mkdir(parents=True, exist_ok=True)
    (top / "_trident" / "top" / "lines" / "view.json").write_text("{}")
    admin.reset("top", False, config)
    assert sorted(path.name for path in top.iterdir()) == ["_trident", "counts", "counts__log", "words"]
    assert not (top / "_trident" / "top").exists()


@pytest.mark.parametrize("point", ["zk.reset:do_then_fail:1", "zk.reset:fail_before:2"])
def test_a_reset_that_was_interrupted_goes_on(top: Path, config, zk, armed, point: str) -> None:
    armed(point)
    with pytest.raises(CoordinationError):
        admin.reset("top", True, config)
    with pytest.raises(CoordinationError, match="has not ended.*Run `trident reset top` again"):
        Registration(zk, "top").check(IDENTITY)
    try:
        admin.reset("top", True, config)
    except TopologyError:
        assert point.endswith("before:2")  # only the last step was left
    assert unfinished_reset(zk, "top") is None and list_descriptors(top, "top") == []
    assert listed(top) == ["_trident", "_trident/states"]
    Registration(zk, "top").check(IDENTITY)  # a start may begin again


def test_a_reset_that_died_between_two_tables_goes_on(top: Path, config, zk, monkeypatch) -> None:
    def dies(path, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", dies)
    with pytest.raises(KeyboardInterrupt):
        admin.reset("top", True, config)
    monkeypatch.undo()
    lease = Leadership(zk, "top", ["lines"]).acquire()
    with pytest.raises(CoordinationError, match="has not ended"):
        Registration(zk, "top").ensure(IDENTITY, fences=lease.fences.values())
    lease.release()
    for command in ("skip", "compact"):
        with pytest.raises(CoordinationError, match="has not ended"):
            CALLS[command](config)
    assert "dropped" in admin.reset("top", True, config)
    assert listed(top) == ["_trident", "_trident/states"]


def test_what_could_not_be_deleted_is_said(top: Path, config, zk, monkeypatch) -> None:
    real = shutil.rmtree

    def refuses(path, onerror=None, **more):
        if Path(path).name != "counts__log":
            return real(path, onerror=onerror, **more)
        onerror(None, f"{path}/x", (OSError, OSError(13, "Permission denied"), None))

    monkeypatch.setattr(shutil, "rmtree", refuses)
    where = ["--warehouse", str(top), "--zookeeper", config.zookeeper]
    root = f"zookeeper_root={config.zookeeper_root}"
    command = ["reset", "top", "--drop-tables", "--yes", *where, "--set", root]
    done = CliRunner().invoke(cli.main, command)
    assert done.exit_code == exit_codes.EXIT_HALT, done.output
    assert "counts__log is left" in done.output and "Permission denied" in done.output
    assert "this is: counts, words, top" in done.output and "run `trident reset top` again" in done.output
    assert [one.name for one in list_descriptors(top, "top")] == ["counts"]
    monkeypatch.undo()
    done = CliRunner().invoke(cli.main, command)
    assert done.exit_code == 0 and "tables (counts): dropped" in done.output
    assert listed(top) == ["_trident", "_trident/states"]


# --- znodes that a stream of an earlier version has damaged ------------------------------------------------------


@pytest.mark.parametrize("name", ["live", "identity", "incarnation"])
def test_a_reset_clears_what_a_stream_with_a_name_of_the_frameworks_left(name: str, config, zk, tmp_path: Path) -> None:
    (tmp_path / "w" / "_trident" / "top").mkdir(parents=True)
    zk.ensure_path(zk.path("top", name))
    if name != "live":
        zk.multi([Create(f"{zk.path('top', name)}/leader", b'{"epoch":1,"nonce":"n","schema":1}')])
    said = f"stream named .{name}.: give .* another name, then `trident reset top`"
    with pytest.raises(CorruptZnode, match=said) as caught:
        lease = Leadership(zk, "top", ["lines"]).acquire()
        try:
            Registration(zk, "top").check(IDENTITY)
        finally:
            lease.release()
    assert exit_codes.exit_code(caught.value) == exit_codes.EXIT_HALT
    assert "forgotten" in admin.reset("top", False, config)
    assert zk.children(zk.path("top")) in ([], ["lines"])
    lease = Leadership(zk, "top", ["lines"]).acquire()
    Registration(zk, "top").ensure(IDENTITY, fences=lease.fences.values())
    lease.release()


def test_a_live_znode_that_somebody_holds_is_not_cleared(config, zk, tmp_path: Path) -> None:
    lease = Leadership(zk, "top", ["lines"]).acquire()
    Registration(zk, "top").ensure(IDENTITY, fences=lease.fences.values())
    zk.multi([SetData(zk.path("top", "live"), b"damaged", zk.exists(zk.path("top", "live")).znode_version)])
    with pytest.raises(Deposed, match="is running"):
        admin.reset("top", False, config)
    lease.release()


def test_the_guard_gives_the_connection_to_whom_it_lets_pass(top: Path, config) -> None:
    with own_zookeeper(config, top, "top", "skip") as found:
        assert Registration(found, "top").read() is not None
    with own_zookeeper(replace(config), top, "other", "skip") as found:
        assert Registration(found, "other").read() is None


def test_a_skip_sees_a_rollback_that_was_begun_while_its_session_was_made(top: Path, config, zk, monkeypatch) -> None:
    """And killed: the tables may be of then and of now."""

    def rolled_back(*_: object) -> None:
        lease = Leadership(zk, "top", ["lines"]).acquire()
        intent = UnfinishedRollback("lines", 1, Marker(1, 0, "d"), "r1", UsedAttempts(3, 4), {})
        begin_rollback(zk, lease, "top", intent)
        lease.release()

    monkeypatch.setattr(admin, "engine_for", rolled_back)
    monkeypatch.setattr(admin, "_skip", lambda *_: pytest.fail("it leads a topology that is half rolled back"))
    with pytest.raises(CoordinationError, match="`trident rollback top --to 1 --apply` again"):
        admin.skip("top", 3, config)
