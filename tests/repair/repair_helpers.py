"""A topology with two kinds of tables, in states that can be copied, broken and looked at from outside."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.zk_fixtures import connected
from tests.topology_helpers import IN_ONE_PROCESS
from trident import Count, DeltaAppend, DeltaMapState, FixedBatchSpout, TridentConfig, TridentTopology
from trident.coordinators.errors import TridentError
from trident.coordinators.znodes import Create
from trident.coordinators.zookeeper import ZooKeeper
from trident.repair.apply import Repaired, repair
from trident.repair.steps import Choices
from trident.running.query import TopologyQuery
from trident.running.starting import start_topology

WAIT_SECS = 300.0
BATCHES = [[("a b a",), ("b",)], [("c a",)], [("b b",)], [("d",), ("a d",)], [("e a",)]]


# What other writers did → the state that it was done to, and how.
BREAKS = {
    "written by someone else": ("words", "INSERT INTO {words} VALUES ('foreign')"),
    "RESTOREd": ("words", "RESTORE TABLE {words} TO VERSION AS OF 1"),
    "truncated": ("words", "DELETE FROM {words}"),
    "log written": ("counts", "DELETE FROM {counts__log} WHERE word = 'a'"),
    "log RESTOREd": ("counts", "RESTORE TABLE {counts__log} TO VERSION AS OF 2"),
    "plain table written": ("counts", "UPDATE {counts} SET count = 100 WHERE word = 'a'"),
    "plain table RESTOREd": ("counts", "RESTORE TABLE {counts} TO VERSION AS OF 0"),
}
# Up to which transaction the source says that it is ready.
LIMIT = {"txid": 1000}


class GatedSpout(FixedBatchSpout):
    """The batches, one after the other, as far as LIMIT lets them come."""

    def get_coordinator(self, context: Any) -> Any:
        coordinator = super().get_coordinator(context)
        ready = coordinator.is_ready
        coordinator.is_ready = lambda txid: txid <= LIMIT["txid"] and ready(txid)  # type: ignore[method-assign]
        return coordinator


def split(sentence: str) -> Iterator[str]:
    yield from sentence.split()


def topology(batches: int, beside: Any = None, **append: Any) -> TridentTopology:
    """Words of the first so many batches: counted by word, and kept in a table, and in a state beside it."""
    made = TridentTopology("top")
    words = made.new_stream("lines", GatedSpout("line string", BATCHES[:batches])).each("line", split, "word")
    words.group_by("word").persistent_aggregate(DeltaMapState("counts", merge_interval_secs=3600), Count(), "count")
    words.partition_persist(DeltaAppend("words", **append), "word")
    if beside is not None:
        words.partition_persist(beside, "word")
    return made


def fold(batches: int) -> Counter[str]:
    """What both states must hold after so many batches, by nobody's code but this."""
    return Counter(word for batch in BATCHES[:batches] for (line,) in batch for word in line.split())


class World:
    """A warehouse and a ZooKeeper of one test."""

    def __init__(self, spark: Any, warehouse: Any, hosts: str, root: str) -> None:
        self.spark, self.warehouse, self.hosts, self.root = spark, warehouse, hosts, root
        self.queries: list[TopologyQuery] = []

    @property
    def config(self) -> TridentConfig:
        return TridentConfig(
            warehouse=str(self.warehouse),
            zookeeper=self.hosts,
            zookeeper_root=self.root,
            zookeeper_session_timeout_secs=4,
            **IN_ONE_PROCESS,
        )

    def start(self, batches: int, made: TridentTopology | None = None, **settings: Any) -> TopologyQuery:
        query = start_topology(
            made or topology(batches), self.spark, self.config, standby=True, max_attempts=2, **settings
        )
        self.queries.append(query)
        return query

    def run(self, batches: int, compact: bool = False, made: TridentTopology | None = None) -> None:
        """Until all of so many batches is committed; then it stops."""
        query = self.start(batches, made)
        query.process_all_available(WAIT_SECS)
        query.stop(WAIT_SECS, compact=compact)

    def fails(self, batches: int = 5) -> TridentError:
        """The error with which a start ends."""
        query = self.start(batches)
        with pytest.raises(TridentError) as caught:
            query.await_termination(WAIT_SECS)
        return caught.value

    def ends(self, query: TopologyQuery) -> TridentError:
        """The error with which a running topology ends."""
        with pytest.raises(TridentError) as caught:
            query.await_termination(WAIT_SECS)
        return caught.value

    def holds(self) -> tuple[Counter[str], Counter[str]]:
        """What (counts, words) hold, as any reader sees it without the topology."""
        from trident import read

        counts = read(self.spark, str(self.warehouse), "counts")
        words = read(self.spark, str(self.warehouse), "words")
        by_word = Counter({row.word: row["count"] for row in counts.collect()})
        return by_word, Counter(row.word for row in words.collect())

    def repair(self, apply: bool = False, **choices: Any) -> Repaired:
        sets = {name: frozenset(value) if isinstance(value, list) else value for name, value in choices.items()}
        return repair("top", Choices(**sets), apply, self.config, self.spark)

    def dry_run(self, **choices: Any) -> Repaired:
        """A dry run, which must leave every znode and every table as they are."""
        before = self.seen()
        found = self.repair(**choices)
        assert self.seen() == before, "a dry run changed something"
        return found

    def seen(self) -> tuple[dict[str, tuple[bytes, int]], dict[str, int]]:
        """Every znode with its value and version; every file of the warehouse but ZooKeeper's own."""
        with connected(self.hosts, self.root) as zk:
            znodes = dict(znodes_below(zk, self.root))
        files = {
            str(path): path.stat().st_mtime_ns
            for path in self.warehouse.rglob("*")
            if path.is_file() and ".trident" not in path.name
        }
        return znodes, files

    def copy(self, warehouse: Path, root: str) -> World:
        """A world that is the same, elsewhere."""
        shutil.copytree(self.warehouse, warehouse)
        with connected(self.hosts, root) as zk:
            for path, (value, _) in znodes_below(zk, self.root):
                zk.ensure_path(path.replace(self.root, root, 1).rpartition("/")[0])
                zk.multi([Create(path.replace(self.root, root, 1), value)])
        return World(self.spark, warehouse, self.hosts, root)

    def forget(self) -> None:
        """All that ZooKeeper knows is gone."""
        self.root = f"{self.root}x"

    def sql(self, text: str) -> None:
        """A statement of another writer; {words} and the like stand for tables."""
        tables = {name: f"delta.`{self.warehouse / name}`" for name in ("words", "counts", "counts__log")}
        self.spark.sql(text.format(**tables))

    def close(self) -> None:
        for query in self.queries:
            query.stop(WAIT_SECS, compact=False)


def znodes_below(zk: ZooKeeper, root: str) -> Iterator[tuple[str, tuple[bytes, int]]]:
    """(path, (value, znode version)) of everything but who leads now; parents first."""
    for name in zk.children(root):
        path = f"{root}/{name}"
        found = zk.get(path)
        if found is None or name == "live":
            continue
        yield path, (found[0], found[1].znode_version)
        yield from znodes_below(zk, path)
