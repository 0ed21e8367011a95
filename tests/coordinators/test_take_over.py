"""After a take-over the first transaction is alone until it has advanced: nothing else delays the first commit."""

from __future__ import annotations

import logging
import threading
from typing import Any, ClassVar

import pytest

from tests.servers.zk_fixtures import eventually
from trident.coordinators.driver import GroupDriver
from trident.coordinators.errors import OutcomeUnknown, SessionEnded, SourceError
from trident.coordinators.group_store import GroupStore
from trident.coordinators.identities import TransactionAttempt
from trident.coordinators.leadership import Leadership
from trident.coordinators.master import Limits, Mode
from trident.coordinators.ports import Initialized, PreparedBatch, ProcessedBatch
from trident.coordinators.records import GroupRecord, Marker

PENDING = 3


class Surroundings:
    """Spouts, runner, committer and observer of empty batches; one step of the first one waits for the test."""

    def __init__(self, first_txid: int, fails: bool = False, waits_in: str = "process") -> None:
        self.first_txid, self.fails, self.waits_in = first_txid, fails, waits_in
        self.processing: list[int] = []
        self.goes_on, self.advanced_txids = threading.Event(), []

    def is_ready(self, txid: int) -> bool:
        return txid < self.first_txid + PENDING

    def initialize(self, beginning: Any) -> Initialized:
        return Initialized({"lines": {}})

    def process(self, attempt: TransactionAttempt, *_: Any) -> ProcessedBatch:
        self.processing.append(attempt.txid)
        self._step("process", attempt)
        return ProcessedBatch({})

    def _step(self, name: str, attempt: TransactionAttempt) -> None:
        if name == self.waits_in and attempt.txid == self.first_txid:
            self.goes_on.wait(30)
            if self.fails:
                self.fails = False
                raise RuntimeError("the first try")

    def resolve(self, attempt: TransactionAttempt, processed: ProcessedBatch, *_: Any) -> ProcessedBatch:
        return processed

    def prepare(self, attempt: TransactionAttempt, *_: Any) -> PreparedBatch:
        self._step("prepare", attempt)
        return PreparedBatch(None)

    def close(self) -> None: ...

    def advanced(self, attempt: TransactionAttempt, *_: Any) -> None:
        if attempt.txid not in self.advanced_txids:
            self.advanced_txids.append(attempt.txid)

    def nothing(self, *_: Any) -> None: ...

    cancel = commit = success = began = failed = retries = event = nothing


def driver_of(zk: Any, record: GroupRecord, around: Surroundings, explain: Any = lambda error: error) -> GroupDriver:
    lease = Leadership(zk, "taken", ["lines"]).acquire()
    store = GroupStore(zk, "taken", "lines", ["lines"], lease.fences["lines"])
    store.load()
    store.create(record)
    return GroupDriver(store, around, around, around, around, Limits(max_spout_pending=PENDING), None, explain)


@pytest.mark.parametrize(("fails", "waits_in"), [(False, "prepare"), (True, "process")])
def test_the_first_transaction_after_a_take_over_is_alone_until_it_has_advanced(
    zk: Any, fails: bool, waits_in: str
) -> None:
    around = Surroundings(5, fails, waits_in)
    driver = driver_of(zk, GroupRecord("life", 5, last=Marker(4, 0, "")), around)
    driver.start()
    assert eventually(lambda: len(driver.state.live) == PENDING), "the others have begun"
    assert not eventually(lambda: around.processing != [5], 0.5)
    around.goes_on.set()
    assert eventually(lambda: around.advanced_txids == [4, 5, 6, 7]), "4 is told again"
    driver.stop()
    assert driver.wait(10) and driver.error is None
    driver.close()


def test_at_a_first_start_nothing_waits(zk: Any) -> None:
    around = Surroundings(1)
    driver = driver_of(zk, GroupRecord("life", 1), around)
    driver.start()
    assert eventually(lambda: sorted(around.processing) == [1, 2, 3])
    around.goes_on.set()
    driver.stop()
    assert driver.wait(10)
    driver.close()


def test_a_failure_that_comes_again_is_a_warning_once_and_data_at_fault_stops_after_three(zk: Any, caplog: Any) -> None:
    """So is that of a spout that raises whenever it is asked, ten times a second."""

    class Poisoned(Surroundings):
        asked = 0

        def is_ready(self, txid: int) -> bool:
            self.asked += 1
            if self.asked <= 3:
                raise SourceError("the folder is away")
            return super().is_ready(txid)

        def process(self, attempt: TransactionAttempt, *_: Any) -> ProcessedBatch:
            error = SourceError(f"a row of attempt {attempt} cannot be parsed")
            error.fingerprint = "the row"
            raise error

    caplog.set_level(logging.INFO, "trident.coordinator")
    driver = driver_of(zk, GroupRecord("life", 1), Poisoned(1))
    driver.start()
    assert driver.wait(30) and driver.state.mode is Mode.GAVE_UP
    assert "fails the same way each time (3 times in a row): a row of attempt 1:2 cannot" in str(driver.error)
    of_first = [one for one in caplog.records if "attempt" not in one.getMessage() or " 1:" in one.getMessage()]
    assert [(one.levelname, one.getMessage()) for one in of_first] == [
        ("WARNING", "the spouts of taken/lines cannot say what waits: the folder is away"),
        ("WARNING", "attempt 1:0 of taken/lines failed: a row of attempt 1:0 cannot be parsed"),
        ("INFO", "attempt 1:1 of taken/lines failed the same way: 2 times in a row"),
        ("INFO", "attempt 1:2 of taken/lines failed the same way: 3 times in a row"),
    ]
    driver.close()


@pytest.mark.parametrize("of_the_store", [False, True])
def test_an_unknown_outcome_costs_the_lease_only_when_it_is_zookeepers(zk: Any, of_the_store: bool, armed: Any) -> None:
    """That of a queue, or a map, is an error like any other: tried again."""

    class Unsure(Surroundings):
        failures = 0

        def process(self, attempt: TransactionAttempt, *_: Any) -> ProcessedBatch:
            if not of_the_store and not self.failures:
                self.failures += 1
                raise OutcomeUnknown("it may have been put")
            return ProcessedBatch({})

    around = Unsure(1)
    driver = driver_of(zk, GroupRecord("life", 1), around)
    if of_the_store:
        armed("zk.advance:fail_before>zk.sync:fail_before")
    driver.start()
    if of_the_store:
        assert driver.wait(10) and driver.state.mode is Mode.DEPOSED and driver.error is None
    else:
        assert eventually(lambda: around.advanced_txids == [1, 2, 3])
        driver.stop()
        assert driver.wait(10) and driver.state.mode is Mode.STOPPED
    driver.close()


def test_a_session_that_is_gone_ends_the_driver_at_once_and_without_a_word_about_attempts(zk: Any) -> None:
    """What Spark raises then is all sorts of things; the next start goes on, so it is no HALT and no attempt cap."""

    class Gone(Surroundings):
        heard: ClassVar[list[Any]] = []

        def process(self, attempt: TransactionAttempt, *_: Any) -> ProcessedBatch:
            self.processing.append(attempt.txid)
            raise AttributeError("'NoneType' object has no attribute 'setJobGroup'")

        def failed(self, *args: Any) -> None:
            self.heard.append(args)

    around = Gone(1)
    gone = SessionEnded("the Spark session was stopped")
    driver = driver_of(zk, GroupRecord("life", 1), around, lambda error: gone)
    driver.start()
    assert driver.wait(10) and driver.error is gone and driver.state.mode is Mode.DEPOSED
    driver.close()
    assert not around.heard and len(set(around.processing)) == len(around.processing), "nothing is tried again"


def test_a_driver_that_is_abandoned_meanwhile_ends(zk: Any) -> None:
    around = Surroundings(5)
    driver = driver_of(zk, GroupRecord("life", 5, last=Marker(4, 0, "")), around)
    driver.start()
    assert eventually(lambda: len(driver.state.live) == PENDING)
    driver.abandon()
    around.goes_on.set()
    assert driver.wait(10)
    driver.close()
    assert around.processing == [5]
