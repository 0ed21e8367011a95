"""Every transaction of every example, run again while its warehouse is there: the same rows as were committed.

With TRIDENT_REPLAYS=all (`make replays`).
"""

from __future__ import annotations

import os
import runpy
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from trident import TridentTopology, replay
from trident.coordinators.errors import SourceError, TopologyError
from trident.planning.groups import plan
from trident.running.query import TopologyQuery
from trident.states.core.group_context import GroupContext
from trident.states.core.place import Place
from trident.states.history.kept import KeptManifests
from trident.time_travel.replay_inputs import incarnation_of

ROOT = Path(__file__).resolve().parents[2]
ALL = os.environ.get("TRIDENT_REPLAYS") == "all"
# Example → the greatest number of its transactions that are replayed, and why others are not to be had again.
EXAMPLES = {
    "01_word_count.py": (1, ""),
    "02_two_tables.py": (3, ""),
    "03_committer_spout.py": (0, "a QueueSpout is opaque"),
    "04_opaque_source.py": (0, "a DirectoryQueueSpout is opaque"),
    "06_joins.py": (1, ""),
    "07_reach.py": (1, ""),
    "08_windows.py": (4, ""),
    "09_split_and_merge.py": (1, ""),
    "11_event_time.py": (2, ""),
    "13_cdc.py": (2, ""),
}


class Replays:
    """Replays what each topology that is started has kept, at its stop."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._started: dict[int, tuple[TridentTopology, str]] = {}
        self.equal = 0
        self.refused: list[str] = []

    def started(self, topology: TridentTopology, query: TopologyQuery, warehouse: str) -> None:
        self._started[id(query)] = (topology, warehouse)

    def stops(self, query: TopologyQuery) -> None:
        topology, warehouse = self._started.pop(id(query), (None, ""))
        if topology is None:
            return
        place = Place(os.path.abspath(warehouse))
        for group in plan(topology.graph, tracking=False):
            kept = KeptManifests(GroupContext(place, topology.name, group.name, incarnation_of(place, topology.name)))
            for txid in kept.txids():
                self._replay(topology, warehouse, group.name, txid)

    def _replay(self, topology: TridentTopology, warehouse: str, group: str, txid: int) -> None:
        try:
            with replay(topology, warehouse, txid, group=group, spark=self._spark) as replayed:
                assert [str(one) for one in replayed.differences()] == [], f"{group} {txid}"
                for name in replayed.streams:
                    replayed.streams[name].collect()
        except (SourceError, TopologyError) as error:
            self.refused.append(str(error))
        else:
            self.equal += 1


@pytest.mark.skipif(not ALL, reason="replayed with TRIDENT_REPLAYS=all (make replays)")
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example(example, spark, zk_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRIDENT_ZOOKEEPER", zk_server)
    monkeypatch.setenv("TRIDENT_ZOOKEEPER_ROOT", f"/replays-{uuid.uuid4().hex}")
    monkeypatch.setattr(sys, "argv", [example])
    replays, begin = Replays(spark), TridentTopology.start

    def start(topology: TridentTopology, *given: Any, **settings: Any) -> TopologyQuery:
        query = begin(topology, *given, **settings)
        replays.started(topology, query, str(settings.get("warehouse", "trident-warehouse")))
        return query

    end = TopologyQuery.stop

    def stop(query: TopologyQuery, *given: Any, **settings: Any) -> None:
        replays.stops(query)
        end(query, *given, **{**settings, "compact": False})

    monkeypatch.setattr(TridentTopology, "start", start)
    monkeypatch.setattr(TopologyQuery, "stop", stop)
    runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")
    least, why = EXAMPLES[example]
    print(f"{example}: {replays.equal} transactions replayed; {replays.refused}")
    assert replays.equal >= least and (why or not replays.refused)
    assert all(why in text for text in replays.refused) and (not why or replays.refused)
