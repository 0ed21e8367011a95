"""The report of `trident repair`: a command line that can be typed, and no credential in it."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace

import pytest

from tests.repair.test_repair_plan import CHANGE, Model
from trident.config import TridentConfig, is_secret_setting
from trident.coordinators import processes
from trident.coordinators.errors import Halted
from trident.repair.apply import Repaired, report, where_words
from trident.repair.diagnose import diagnose
from trident.running.status import TopologyStatus
from trident.running.zookeeper import other_leader
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.delta.manifest import ManifestStore, ManifestTable
from trident.states.publishing.incarnations import check_group_is_new


def test_the_suggested_command_hides_credentials_and_can_be_typed() -> None:
    facts = Model(((1, 2, 3),) * 2, 4, attempts=(0, 0, 0), marks=(3, 3)).facts(words={"foreign": CHANGE})
    found = diagnose(facts)
    secret = [name for name in TridentConfig().shown() if is_secret_setting(name)]
    assert {"zookeeper_auth", "zookeeper_sasl_password", "zookeeper_tls_key_password", "http_token"} <= set(secret)
    given = [f"{name}=digest:me:hunter2=;x" for name in secret]
    where = where_words(
        ["warehouse=/my data/w", "zookeeper=a:1,b:2", "max_spout_pending=2", f" {given[0]}", *given[1:]]
    )
    text = report(Repaired(facts, found, [], found), where, False)
    assert "hunter2" not in text
    assert all(f"TRIDENT_{name.upper()}" in text and f"{name}=***" in text for name in secret)
    (command,) = [line for line in text.splitlines() if "--undo-foreign" in line]
    words = shlex.split(command)[1:]
    assert words[:7] == ["trident", "repair", "top", "--set", "warehouse=/my data/w", "--set", "zookeeper=a:1,b:2"]
    assert words[7:9] == ["--set", "max_spout_pending=2"] and words[-3:] == ["--undo-foreign", "words", "--apply"]
    plain = report(Repaired(facts, found, [], found), where_words([]), False)
    assert "***" not in plain and "- trident repair top --undo-foreign words --apply" in plain


@pytest.mark.parametrize(
    ("kind", "incarnation", "refused"), [("map", "inc", True), ("memory", "inc", False), ("map", "other", False)]
)
def test_a_group_that_zookeeper_forgot_is_not_begun_again(tmp_path, kind: str, incarnation: str, refused: bool) -> None:
    check_group_is_new(GroupContext(Place(tmp_path), "top", "lines", "inc"))  # a first start
    manifest = Model(attempts=(0,)).manifest(1).manifest
    parts = (ManifestTable("totals", kind, "_trident/top/lines/states/totals", "", "", ()),)
    ManifestStore(tmp_path, "top", "lines", incarnation).write(replace(manifest, incarnation=incarnation, tables=parts))
    check_group_is_new(GroupContext(Place(tmp_path), "top", "others", "inc"))
    if not refused:
        check_group_is_new(GroupContext(Place(tmp_path), "top", "lines", "inc"))
        return
    with pytest.raises(Halted) as caught:
        check_group_is_new(GroupContext(Place(tmp_path), "top", "lines", "inc"))
    assert "trident repair top" in str(caught.value) and "transaction 1, attempt 0" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "epoch", "found"),
    [
        ({}, 2, True),  # this very process leads, and the named ZooKeeper has not heard of it
        ({}, 3, False),  # it has: its lease decides
        ({"role": "stopped"}, 2, False),
        ({"role": "halted"}, 2, False),
        ({"process_started": "1"}, 2, False),  # the pid is another process's now
        ({"host": "elsewhere", "boot_id": "other"}, 2, True),
        ({"host": "elsewhere", "boot_id": "other", "written_at": 80.0}, 2, False),
    ],
)
def test_a_leader_that_uses_another_zookeeper_is_seen_by_its_status(changes: dict, epoch: int, found: bool) -> None:
    status = replace(TopologyStatus("top", "inc", "run", 3, written_at=95.0), **changes)
    assert bool(other_leader(status, epoch, now=100.0)) == found
    assert not found or f"pid {os.getpid()}, epoch 3" in other_leader(status, epoch, now=100.0)
    assert not processes.has_ended(os.getpid(), processes.started(os.getpid()) or "")
