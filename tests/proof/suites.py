"""The long suites: how each is run, what it shows, and which folders' content its result is about."""

from __future__ import annotations

from dataclasses import dataclass

_CORE = ("coordinators", "states", "trident")


@dataclass(frozen=True)
class Suite:
    """A long suite.

    Attributes:
        shows: the promise that it holds.
        make: the target of the Makefile, and its settings.
        minutes: its budget on two cores; a part of a suite has as much. It is ended then, and has failed.
        parts: it is run in so many parts, each a share of its tests; 1 where it does not run by pytest.
        covers: folders and files; once one of them has changed, the result is old.
        seeded: the name of the setting that takes the seed; "" for the variable TRIDENT_SEED alone.
    """

    name: str
    shows: str
    make: tuple[str, ...]
    minutes: int
    parts: int = 1
    covers: tuple[str, ...] = _CORE
    seeded: str = ""


SUITES = (
    Suite(
        "simulate",
        "the coordinator on simulated ZooKeeper, tables and clocks: 20,000 seeds",
        ("simulate",),
        30,
        covers=("coordinators", "states/publishing", "states/delta"),
    ),
    Suite("long", "the tests that `make test` leaves out", ("long",), 30, 2),
    Suite(
        "sweep",
        "each fault point of a transaction, start or stop × outcome × time × kind of topology",
        ("sweep",),
        45,
        6,
    ),
    Suite("matrix", "each kind of spout with each kind of state under each fault", ("matrix",), 45, 4),
    Suite("random", "random topologies with random faults, and streams against plain Python", ("random",), 45, 2),
    Suite(
        "kills",
        "broker, database, executors and coordinator killed ten times at random, over every state outside",
        ("kills", "FAULTS=10"),
        45,
        seeded="SEED",
    ),
    Suite("failover", "an ensemble of ZooKeeper servers, standbys, zombies, partitions", ("failover",), 40),
    Suite("handover", "leader, standby and command of a hand-over killed at each fault point", ("handover",), 30),
    Suite("repair", "everything that can contradict itself, and its repair", ("repair",), 30),
    Suite("storage", "disks that are full, read-only or slow, executors out of memory", ("storage",), 30),
    Suite(
        "migrate", "a job of Structured Streaming that is killed anywhere and goes on here", ("migrate", "N=200000"), 30
    ),
    Suite("fork", "forks of a topology killed at each piece of I/O", ("fork", "TXIDS=30"), 30),
    Suite("stores", "what each store promises; kill and resume on S3 and HDFS", ("stores",), 45, 2),
    Suite(
        "cluster", "a standalone cluster without the framework on its hosts; kills of its parts", ("cluster",), 45, 2
    ),
    Suite(
        "planted",
        "each bug that was planted is found by the tests that it names",
        ("planted",),
        45,
        6,
        covers=("coordinators", "states", "trident", "tests/planted"),
    ),
    Suite(
        "replays",
        "each transaction of the examples, run again and compared",
        ("replays",),
        30,
        covers=(*_CORE, "examples"),
    ),
    Suite("soak", "random kills every few seconds", ("soak", "MINUTES=30"), 45, seeded="SEED"),
    Suite(
        "races",
        "processes that want one table version, stopped at any moment",
        ("races",),
        30,
        covers=("states", "java"),
    ),
    Suite(
        "types",
        "each kind of key and value through log, reads, merge and table",
        ("types",),
        30,
        covers=("states", "trident/udf"),
    ),
    Suite("views", "ten minutes of kills and merges under a reader of several tables", ("views",), 30),
)
