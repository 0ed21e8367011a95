"""The backlog of a batch group: the sum over its streams, of what all of them know."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from trident.coordinators.errors import Halted
from trident.coordinators.identities import TransactionAttempt as At
from trident.spouts.contracts import Backlog
from trident.spouts.host import RecoverySpouts, TridentSpoutHost


def stream(found: Any) -> Any:
    def backlog() -> Backlog | None:
        if isinstance(found, Exception):
            raise found
        return found

    return SimpleNamespace(backlog=backlog)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([Backlog(rows=3, bytes=30, files=1), Backlog(rows=4, bytes=5, files=6)], {"rows": 7, "bytes": 35, "files": 7}),
        ([Backlog(rows=0), Backlog(rows=0, files=0)], {"rows": 0}),
        ([Backlog(rows=0), None], {}),
        ([Backlog(rows=0), Backlog()], {}),
        ([Backlog(rows=0), OSError("away")], {}),
        ([Backlog(rows=5, files=2), Backlog(files=1)], {"files": 3}),
        ([], {}),
    ],
)
def test_what_one_stream_does_not_know_is_unknown_for_all(found: list[Any], expected: dict[str, int]) -> None:
    host = TridentSpoutHost({str(number): stream(one) for number, one in enumerate(found)})
    host.ask_backlog()
    assert host.backlog() == expected


# --- who hears of what while a decision of an earlier coordinator is finished ------------------


class Executor:
    """A stream's executor that writes down what it is told."""

    def __init__(self, heard: list, tx_id: str) -> None:
        self.heard, self.tx_id = heard, tx_id

    def commit(self, attempt, data):
        self.heard.append(("commit", self.tx_id, attempt, data))

    def success(self, attempt):
        self.heard.append(("success", self.tx_id, attempt))
        if self.tx_id == "raises":
            raise ValueError("no")


def test_success_of_the_transaction_before_is_told_to_every_stream():
    """Its coordinator died after the next decision, before it told: with the next advance nobody would."""
    heard: list = []
    spouts = RecoverySpouts(lambda tx_id: Executor(heard, tx_id), ["raises", "b"], finishing=5)
    with pytest.raises(ValueError):
        spouts.success(At(4, 2))
    assert heard == [("success", "raises", At(4, 2)), ("success", "b", At(4, 2))]


def test_the_one_that_is_finished_is_left_to_the_host_with_all_spouts():
    made: list = []
    spouts = RecoverySpouts(made.append, ["a"], finishing=5)
    spouts.success(At(5, 0))
    assert made == []


def test_commit_makes_only_the_streams_that_have_data_and_each_spout_once():
    heard: list = []
    made: list = []

    def make(tx_id):
        made.append(tx_id)
        return Executor(heard, tx_id)

    spouts = RecoverySpouts(make, ["a", "b"], finishing=5)
    spouts.commit(At(5, 0), {"a": [1]})
    assert made == ["a"] and heard == [("commit", "a", At(5, 0), [1])]
    # Commit and success come from two threads.
    threads = [threading.Thread(target=spouts.success, args=(At(4, 0),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == ["a", "b"]


def test_commit_data_of_a_stream_that_is_gone_halts():
    spouts = RecoverySpouts(lambda tx_id: None, ["a"], finishing=5)
    with pytest.raises(Halted, match="commit data of stream 'gone'"):
        spouts.commit(At(5, 0), {"gone": [1]})
