"""``trident handover`` with real processes: a leader with old code, standbys with other code, a source that grows.

``TRIDENT_HANDOVER=all`` (``make handover``) kills the leader, the standby and the command at each of their fault
points; without it the command is, once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.handover_harness import RIGHT, WRONG, Deployment
from trident.commands.exit_codes import EXIT_BAD_INPUT, EXIT_DIFFERENT, EXIT_UNREACHABLE
from trident.coordinators.errors import CoordinationError, TopologyError

everything = os.environ.get("TRIDENT_HANDOVER") == "all"


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(tmp_path / "deployment") as made:
        yield made


def test_other_rows_are_refused_with_txid_table_and_key_and_equal_code_takes_over(deployed: Deployment) -> None:
    old = deployed.start("old")
    deployed.wait_leads(old, transactions=6)
    with pytest.raises(TopologyError, match="no standby"):
        deployed.hand_over()

    wrong, right = deployed.start("wrong", WRONG), deployed.start("right", RIGHT, comment="says more than before")
    deployed.wait_stands_by(wrong, right)
    with pytest.raises(TopologyError, match="several standbys with other code") as several:
        deployed.hand_over()
    assert str(wrong.pid) in str(several.value) and str(right.pid) in str(several.value)

    # One line is wrong: the diff names transaction, table and key.
    code, said = deployed.hand_over(to=str(wrong.pid), last=3)
    assert code == EXIT_DIFFERENT, said
    told = [line for line in said if "transaction " in line and "table counts" in line]
    assert told and any("{'word': 'w0'}" in line for line in told), said
    assert not [line for line in said if "table seen" in line], said
    assert deployed.leader() is old and not deployed.request_is_there()

    # The right one takes over, and not the other one; the old one waits.
    code, said = deployed.hand_over(to=str(right.pid), only_rehearse=True)
    assert code == 0 and deployed.leader() is old, said
    code, said = deployed.hand_over(to=str(right.pid))
    assert code == 0, said
    deployed.wait_leads(right)
    deployed.wait(lambda: "hands over" in old.said() and "standby: " in old.said(), "the old leader does not wait")
    assert old.process.poll() is None and not deployed.request_is_there()
    deployed.check()


def test_changes_that_are_accepted_take_over_and_the_old_process_ends(deployed: Deployment) -> None:
    old = deployed.start("old")
    deployed.wait_leads(old, transactions=6)
    wrong = deployed.start("wrong", WRONG)
    deployed.wait_stands_by(wrong)
    code, said = deployed.hand_over(accept_changes=True, stop_old=True, last=3)
    assert code == 0 and any("'w0'" in line for line in said), said
    deployed.wait(lambda: old.process.poll() is not None, "the old process does not end")
    assert old.process.returncode == 0, old.said()
    deployed.wait_leads(wrong)
    deployed.check(changed=True)


def test_the_command_as_a_process_of_its_own_and_bad_input(deployed: Deployment) -> None:
    old = deployed.start("old")
    deployed.wait_leads(old, transactions=4)
    same = deployed.start("same")
    deployed.wait_stands_by(same)
    found = deployed.command()
    assert found.returncode == EXIT_BAD_INPUT and "has the code of its leader" in found.stderr, found
    found = deployed.command("--to", "nowhere:1")
    assert found.returncode == EXIT_BAD_INPUT and f":{same.pid} (the leader's code)" in found.stderr, found
    found = deployed.command("--zookeeper", "127.0.0.1:9", "--set", "zookeeper_connect_timeout_secs=1")
    assert found.returncode == EXIT_UNREACHABLE, found
    found = deployed.command("--without-rehearsal", "--accept-changes")
    assert found.returncode == EXIT_BAD_INPUT and "nothing to compare" in found.stderr, found

    found = deployed.command("--to", str(same.pid))
    assert found.returncode == 0 and "leads (epoch 2)" in found.stdout, found
    deployed.wait_leads(same)
    deployed.check()


# Where each of the three is killed, and the n-th time that it comes there. The first request is for the rehearsal,
# the second for the lease, the third takes it back.
COMMAND = [("handover.request:do_then_die:1", True), ("handover.request:do_then_die:2", everything)]
COMMAND += [("handover.request:do_then_die:3", everything)]
STANDBY = [("handover.answer:do_then_die:1", everything), ("zk.acquire:do_then_die:1", everything)]
STANDBY += [("handover.answer:do_then_die:2", everything), ("handover.enlist:do_then_die:1", everything)]
LEADER = [("zk.release:do_then_die:1", everything)]


@pytest.mark.parametrize("fault", [fault for fault, wanted in COMMAND if wanted])
def test_the_command_is_killed(deployed: Deployment, fault: str) -> None:
    old = deployed.start("old")
    deployed.wait_leads(old, transactions=3)
    new = deployed.start("new", comment="new")
    deployed.wait_stands_by(new)
    killed = deployed.command("--last", "2", faults=fault)
    assert killed.returncode == -signal.SIGKILL, killed
    again_until_it_leads(deployed, new)
    deployed.check()


@pytest.mark.parametrize("fault", [fault for fault, wanted in STANDBY if wanted])
def test_the_standby_is_killed(deployed: Deployment, fault: str) -> None:
    old = deployed.start("old")
    deployed.wait_leads(old, transactions=3)
    new = deployed.start("new", comment="new", faults=fault)
    deployed.wait_stands_by(new)
    try:
        deployed.hand_over(to=str(new.pid), last=2)
    except CoordinationError as error:
        assert "nothing is lost" in str(error)
    except TopologyError as error:  # it died as soon as it had said who it is
        assert "no standby" in str(error)
    deployed.wait(lambda: new.process.poll() is not None, "the standby does not die")
    assert new.process.returncode == -signal.SIGKILL
    deployed.wait_leads(old)
    again = deployed.start("again", comment="new")
    deployed.wait_stands_by(again)
    again_until_it_leads(deployed, again)
    deployed.check()


@pytest.mark.parametrize("fault", [fault for fault, wanted in LEADER if wanted])
def test_the_leader_is_killed(deployed: Deployment, fault: str) -> None:
    old = deployed.start("old", faults=fault)
    deployed.wait_leads(old, transactions=3)
    new = deployed.start("new", comment="new")
    deployed.wait_stands_by(new)
    code, said = deployed.hand_over(last=2)
    assert code == 0, said
    deployed.wait(lambda: old.process.poll() is not None, "the leader does not die")
    assert old.process.returncode == -signal.SIGKILL
    deployed.wait_leads(new)
    deployed.check()


def again_until_it_leads(deployed: Deployment, new: object) -> None:
    """The same command again: what a killed one has left is no hindrance."""
    if deployed.leader() is not new:
        try:
            code, said = deployed.hand_over(to=str(new.pid), last=2)  # type: ignore[attr-defined]
            assert code == 0, said
        except TopologyError:  # the killed one's request has had its effect meanwhile
            assert deployed.leader() is new
    deployed.wait_leads(new)  # type: ignore[arg-type]
