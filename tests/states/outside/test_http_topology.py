"""HttpState in whole topologies: beside a Delta table, by the coordinator and by tasks, with one that is replaced."""

from __future__ import annotations

import importlib.util
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

from tests.servers.zk_fixtures import eventually
from tests.states.outside.http_server import TAKES, Answer, Asked, Server, serving
from tests.topology_helpers import WAIT_SECS
from trident import DeltaAppend, FixedBatchSpout, HttpState, OutsidePart, TridentTopology
from trident.coordinators import faults
from trident.running.status import format_status, read_status
from trident.states.publishing import other_stores

BATCHES = [[("a", 1), ("b", 2)], [("a", 3)], [], [("a", 4), ("c", 5)]]
ALL = [(word, n) for batch in BATCHES for word, n in batch]

if importlib.util.find_spec("httpx") is None:
    pytest.skip("NOT TESTED: HttpState. The client is missing: pip install httpx", allow_module_level=True)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def topology(server: Server, **more: Any) -> TridentTopology:
    made = TridentTopology("words")
    stream = made.new_stream("words", FixedBatchSpout("word string, n long", BATCHES))
    stream.partition_persist(DeltaAppend("rows"))
    stream.partition_persist(HttpState(server.url, "out", honours_keys=True, **more))
    return made


def taken(server: Server) -> Counter:
    return Counter((body["word"], body["n"]) for body in server.bodies)


def in_delta(folder: Path) -> Counter:
    table = deltalake.DeltaTable(str(folder / "warehouse" / "rows")).to_pyarrow_table()
    return Counter((row["word"], row["n"]) for row in table.to_pylist())


def test_each_row_is_sent_behind_its_transaction_and_once_whatever_is_lost(start, server, tmp_path, monkeypatch):
    """A lost answer: it is published again. `make kills`: a coordinator is replaced amid that, and wakes up."""
    monkeypatch.setattr(other_stores, "_DRIVER_ROWS_MAX", 1)  # batches of more rows go by tasks
    here: set[int] = set()  # published in this process, which is no task's
    publish = HttpState.publish

    def noted(self: HttpState, part: OutsidePart, batches: Any) -> None:
        here.add(part.mark.txid)
        publish(self, part, batches)

    monkeypatch.setattr(HttpState, "publish", noted)
    if os.environ.get("TRIDENT_KILLS") == "all":  # make kills
        start.replace_at("publish.outside", topology(server, partitions=2), topology(server, partitions=2))
    else:
        faults.arm("publish.outside:do_then_fail:2")
        start.run(topology(server, partitions=2))
    assert here & {1, 2, 4} == {2}, "batches of two rows go by tasks"
    assert taken(server) == Counter(ALL) == in_delta(tmp_path)
    incarnations = {asked.key.partition("-")[0] for asked in server.asked}
    assert len(incarnations) == 1 and {asked.key.split("-")[1] for asked in server.asked} == {"1", "2", "4"}


@pytest.mark.long
def test_one_that_is_away_is_shown_and_a_refused_row_is_a_dead_letter(start, server: Server, tmp_path: Path) -> None:
    away = [True]

    def answers(asked: Asked) -> Answer:
        return Answer(503) if away[0] and asked.row["n"] == 3 else Answer(422) if asked.row["n"] == 2 else TAKES

    server.answers = answers
    query = start(topology(server, dead_letters=True), max_attempts=1, status_interval_secs=0.0)
    status = tmp_path / "warehouse/_trident/words/status.json"
    assert eventually(lambda: (status.exists() and "IS AWAY" in said(tmp_path)) or not query.is_active, WAIT_SECS)
    assert query.is_active, query.exception()
    told = said(tmp_path)
    assert "has transaction 1, 1 dead letters, transaction 2 waits: IS AWAY" in told and "status 503" in told
    away[0] = False
    query.process_all_available(WAIT_SECS)
    query.stop(WAIT_SECS)
    assert "outside  out: has transaction 4, 1 dead letters\n" in said(tmp_path) + "\n"
    assert taken(server) == Counter(row for row in ALL if row[1] != 2) and in_delta(tmp_path) == Counter(ALL)
    (file,) = (tmp_path / "warehouse" / "words__out__outbox" / "refused").iterdir()
    (letter,) = map(json.loads, file.read_text().splitlines())
    assert (letter["txid"], json.loads(letter["body"])) == (1, {"word": "b", "n": 2})


def said(folder: Path) -> str:
    return format_status(read_status(folder / "warehouse", "words"))
