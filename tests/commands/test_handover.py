"""``trident handover`` with real processes: a leader with old code, standbys with other code, a source that grows.

`make test` has none of these: there the simulator hands over, and one real leader that dies is succeeded
(tests/whole/test_chaos.py). ``TRIDENT_HANDOVER=all`` (``make handover``) kills the leader, the standby and the command
at each of their fault points; without it the command is, once. Each process starts Spark, so a deployment has several
kills, one after the other: what is killed leaves a topology that is led, or is led again by the one that waits.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import trident
from tests.chaos.checker import compare, number_of
from tests.chaos.deployment import WRONG, Coordinator, Deployment
from tests.chaos.oracle import fold
from tests.chaos.sources import Words
from tests.chaos.workload import Group
from trident.commands.exit_codes import EXIT_BAD_INPUT, EXIT_DIFFERENT, EXIT_UNREACHABLE
from trident.coordinators.errors import CoordinationError, TopologyError

everything = os.environ.get("TRIDENT_HANDOVER") == "all"

# Where each of the three is killed, and the n-th time that it comes there. The command's first request is for the
# rehearsal, the second for the lease, the third takes it back.
COMMAND = [f"handover.request:do_then_die:{nth}" for nth in (1, 2, 3)]
# Before it leads, and once the leader has let go. Each with how often the leader lets go before the last hand-over,
# in which it is killed itself.
STANDBY = [
    (("handover.enlist:do_then_die:1", "handover.answer:do_then_die:1"), 0),
    (("zk.acquire:do_then_die:1", "handover.answer:do_then_die:2"), 2),
]


CONF = {"spark.master": "local[1]", "spark.driver.memory": "600m", "spark.sql.shuffle.partitions": "1"}


def deployment(folder: Path, warm: bool) -> Deployment:
    """Its source grows by a transaction a second.

    Args:
        warm: whether standbys rehearse by themselves, too, which takes a core for half a minute.
    """
    group = Group("transactional", "", keys=7, per_batch=10)
    settings = {"zookeeper_session_timeout_secs": 6, "max_spout_pending": 2, "warm_standby": str(warm).lower()}
    made = Deployment(folder, [group], conf=CONF, settings=settings)
    made.feed(8)
    made.grow(random.Random(), 1.0, 1, ahead=100)
    return made


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployment]:
    with deployment(tmp_path / "deployment", False) as made:
        yield made


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Deployment]:
    with deployment(tmp_path / "deployment", True) as made:
        yield made


@pytest.mark.long
def test_other_rows_are_refused_with_txid_table_and_key_and_equal_code_takes_over(warm: Deployment) -> None:
    deployed = warm
    old = deployed.start("old")
    deployed.wait_leads(old, transactions=6)
    with pytest.raises(TopologyError, match="no standby"):
        deployed.hand_over()

    wrong, right = (deployed.start("wrong", expression=WRONG), deployed.start("right", comment="says more than before"))
    deployed.wait_stands_by(wrong, right)
    with pytest.raises(TopologyError, match="several standbys with other code") as several:
        deployed.hand_over()
    assert str(wrong.pid) in str(several.value) and str(right.pid) in str(several.value)

    # One line is wrong: the diff names transaction, table and key.
    code, said = deployed.hand_over(to=str(wrong.pid), last=3)
    assert code == EXIT_DIFFERENT, said
    told = [line for line in said if "transaction " in line and "table counts" in line]
    assert told and any("{'key': 'k0'}" in line for line in told), said
    assert not [line for line in said if "table audit" in line], said
    assert deployed.leader() is old and not deployed.request_is_there()

    # The right one takes over, and not the other one; the old one waits.
    code, said = deployed.hand_over(to=str(right.pid), last=2, only_rehearse=True)
    assert code == 0 and deployed.leader() is old, said
    code, said = deployed.hand_over(to=str(right.pid), last=2)
    assert code == 0, said
    deployed.wait_leads(right)
    deployed.wait(lambda: old.events("hands over") and old.stands_by(), "the old leader does not wait")
    assert old.runs and not deployed.request_is_there()
    check_so_far(deployed)

    # Changes that are accepted take over, and the process that led ends.
    code, said = deployed.hand_over(to=str(wrong.pid), accept_changes=True, stop_old=True, last=3)
    assert code == 0 and any("'k0'" in line for line in said), said
    right.asked_to_end = True
    deployed.wait(lambda: not right.runs, "the process that led does not end")
    assert right.process.returncode == 0, right.story()
    deployed.wait_leads(wrong)
    deployed.finish()
    deployed.check(counted=False)


@pytest.mark.long
def test_the_command_as_a_process_of_its_own_is_killed_and_bad_input_is_told(deployed: Deployment) -> None:
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

    leader, standby = old, same
    for fault in COMMAND if everything else COMMAND[:1]:
        killed = deployed.command("--to", str(standby.pid), "--last", "2", faults=fault)
        assert killed.returncode == -signal.SIGKILL, killed
        again_until_it_leads(deployed, standby)
        deployed.wait_stands_by(leader)
        leader, standby = standby, leader

    found = deployed.command("--to", str(standby.pid), "--last", "2")
    assert found.returncode == 0 and "leads (epoch " in found.stdout, found
    deployed.wait_leads(standby)
    deployed.finish()
    deployed.check()


@pytest.mark.skipif(not everything, reason="make handover")
@pytest.mark.parametrize(("faults", "let_go"), STANDBY, ids=["before it leads", "once the leader has let go"])
def test_standbys_are_killed_and_then_the_leader(deployed: Deployment, faults: tuple[str, ...], let_go: int) -> None:
    old = deployed.start("old", faults=f"zk.release:do_then_die:{let_go + 1}")
    deployed.wait(lambda: deployed.leader() is old, "the first process does not lead")
    # The next standby starts while the leader goes on: it comes up long after the leader leads again.
    standbys = [(f"new{number}", fault) for number, fault in enumerate(faults)] + [("again", "")]
    new = deployed.start(standbys[0][0], comment="new", faults=standbys[0][1])
    for (_, fault), (name, next_fault) in zip(standbys, standbys[1:]):
        deployed.wait_leads(old, transactions=3)
        deployed.wait(lambda new=new: new.pid in deployed.contenders() or new.died(), "a standby does not come up")
        try:
            deployed.hand_over(to=str(new.pid), last=2)
        except CoordinationError as error:
            assert "nothing is lost" in str(error)
        except TopologyError as error:  # it died as soon as it had said who it is
            assert "no standby" in str(error)
        deployed.wait(new.died, f"the standby does not die at {fault}")
        new = deployed.start(name, comment="new", faults=next_fault)

    again = new
    deployed.wait_leads(old)
    deployed.wait_stands_by(again)
    code, said = deployed.hand_over(to=str(again.pid), last=2)
    assert code == 0, said
    deployed.wait(old.died, "the leader does not die once it has let go")
    deployed.wait_leads(again)
    deployed.finish()
    deployed.check()


def check_so_far(deployed: Deployment) -> None:
    """What is committed by now is counted once; the source goes on."""
    (books,) = deployed.books
    txid = books.committed.look().txid
    deployed.wait(lambda: books.committed.look().txid > txid, "the next transaction does not come")  # it has this one
    audit = {at: words for at, words in books.stored.audit().items() if at <= txid}
    compare(Words(7)[: 10 * txid], sorted((word for words in audit.values() for word in words), key=number_of), True)
    keys = [f"k{number}" for number in range(7)]
    found = trident.get(deployed.url, "counts", keys, txid=txid)
    counts = {key: (one or {"n": 0})["n"] for key, one in zip(keys, found)}
    assert counts == fold([word for words in audit.values() for word in words])


def again_until_it_leads(deployed: Deployment, new: Coordinator) -> None:
    """The same command again: what a killed one has left is no hindrance."""
    for _ in range(3):
        if deployed.leader() is new:  # the killed one's request has had its effect
            break
        try:
            code, said = deployed.hand_over(to=str(new.pid), last=2)
            assert code == 0, said
        except (CoordinationError, TopologyError) as error:  # it has it just now: no process leads, or another one
            print(f"the command is run once more: {error}")
            time.sleep(1.0)
    deployed.wait_leads(new)
