"""Makes tests/upgrade/NAME.tar.xz with the code that is imported.

    python -m tests.upgrade.make round-two

Two kinds of archive, each with a program of its own, which goes on with every archive of its kind:

``round-one``, by job.py: keyed tables half merged, append tables, an SQLite map with opaque values, a queue, an opaque
source in partitions, a tracked stream with a dead letter, begun attempts, and a decision of which one table is
published.

``round-two``, by round_two.py: windows as parts and as rows, sessions, duplicates, timers, a join over time,
an Upsert by a sequence, one with history, reducers and combiners in Python, look-ups of a state, the tables of
transactions and of views, a fork, an outbox, marks in Kafka, a job that was taken over from Structured Streaming.
The archive has two folders: ``rest``, where all was stopped, and the fork and the job have not begun; and ``killed``,
the same folder with more input, and each topology killed in the middle of a transaction. What both have in common
takes no space.

A release makes archives of its own before its version is published. In a checkout of its tag:

    python -m tests.upgrade.make round-one-1.4
    python -m tests.upgrade.make round-two-1.4

(the beginning of the name says which program). Commit them beside the others: the tests find them by their names. An
archive is never made again: it is what that version wrote. A program is changed only where public names change. A
stored thing that no program has gets a program and a kind of archive of its own: the older archives do not have it.

Making ``round-two`` needs a Kafka broker, as the tests of tests/kafka do. The broker's data stay outside: the archive
has the topic's messages and the offsets of the state's group as JSON, which a test puts into a broker of its own.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.servers.kafka_fixtures import KafkaBroker
from tests.upgrade import kafka_copy
from trident.coordinators.embedded import EmbeddedZooKeeper

HERE = Path(__file__).resolve().parent
FED = 9  # how many inputs each source of a fixture of round one has
# Of round two: files in the folder at rest, and in that of the killed one.
AT_REST, KILLED = 3, 5
GROUP = "trident/topics/mirrored"
PARTITIONS = 2
DIED_AT_MAIL = 40
ELSEWHERE = "/elsewhere"
# The server makes these anew; they name this machine.
OF_THE_SERVER = (
    *["endpoint.json", "start.lock", "owner.lock", "server.out", "zookeeper.log", "port", "zoo.cfg"],
    "log4j2.properties",
)
# Where each topology of round two is killed: tables are published, side by side, then states outside of the warehouse.
KILLS = {
    "kept": {"TRIDENT_FAULTS": "publish.table:do_then_die:9"},
    "kept_fork": {"TRIDENT_FAULTS": "publish.table:do_then_die:15"},
    "moved": {"TRIDENT_FAULTS": "publish.table:do_then_die:1"},
    "sent": {"DIE_AT_MAIL": str(DIED_AT_MAIL)},
    "topics": {"TRIDENT_FAULTS": "publish.outside:do_then_die:1"},
}


def program_of(name: str) -> Path:
    """The program that goes on with an archive."""
    return HERE / ("round_two.py" if name.startswith("round-two") else "job.py")


def job(
    folder: Path,
    *arguments: str,
    faults: str = "",
    timeout_secs: float = 400,
    program: Path = HERE / "job.py",
    **environment: str,
) -> subprocess.CompletedProcess:
    settings = {"TRIDENT_FAULTS": faults, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run(
        [sys.executable, str(program), str(folder), *arguments],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=timeout_secs,
    )


def stop_servers(folder: Path) -> None:
    for server in folder.glob("*/_trident/zookeeper"):
        EmbeddedZooKeeper.stop(server)


def round_one(folder: Path) -> None:
    job(folder, "feed", "0", "5").check_returncode()
    job(folder, "run").check_returncode()
    job(folder, "feed", "5", str(FED)).check_returncode()
    died = job(folder, "run", faults="publish.table:do_then_die:3")
    assert died.returncode == -9, died.stderr


def round_two(folder: Path) -> None:
    rest, killed = folder / "rest", folder / "killed"
    rest.mkdir()
    with tempfile.TemporaryDirectory(prefix="trident-upgrade-kafka-") as made:
        broker = KafkaBroker(Path(made))
        try:
            broker.start()
            broker.create("mirrored", PARTITIONS)
            at_rest(rest, broker)
            shutil.copytree(rest, killed, symlinks=True)
            in_the_middle(killed, broker)
        finally:
            stop_servers(rest)
            stop_servers(killed)
            broker.kill()


def two(folder: Path, *arguments: str, **environment: str) -> None:
    done = job(folder, *arguments, program=HERE / "round_two.py", **environment)
    assert done.returncode == 0, done.stdout + done.stderr


def command(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trident.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def at_rest(folder: Path, broker: KafkaBroker) -> None:
    two(folder, "feed", "0", str(AT_REST - 1))
    two(folder, "run", "kept")
    two(folder, "old")
    two(folder, "feed", str(AT_REST - 1), str(AT_REST))
    # The plain tables are not brought up to date: the last transaction is in the states' logs alone.
    settings = {"BROKERS": broker.address, "TRIDENT_MERGE_AT_STOP_SECS": "0"}
    two(folder, "run", "kept", "sent", "topics", **settings)
    program = folder / "program.py"
    program.write_text("from tests.upgrade.round_two import moved\n\ntopology = moved()\n")
    command(folder, "migrate", "checkpoint", "--topology", "program.py", "--warehouse", "warehouse")
    program.unlink()
    places = ["--warehouse", "fork", "--source", "warehouse"]
    command(folder, "fork", "kept", "--at", str(AT_REST - 1), "--as", "kept_fork", *places)
    stop_servers(folder)
    (folder / "kafka.json").write_text(json.dumps(kafka_copy.taken(broker, "mirrored", GROUP)))


def in_the_middle(folder: Path, broker: KafkaBroker) -> None:
    two(folder, "feed", str(AT_REST), str(KILLED))
    for name, kill in KILLS.items():
        settings: dict[str, Any] = {"BROKERS": broker.address, **kill}
        died = job(folder, "run", name, program=HERE / "round_two.py", **settings)
        assert died.returncode == -9, (name, died.stdout, died.stderr)
    stop_servers(folder)
    for name, warehouse in (("kept", "warehouse"), ("kept_fork", "fork")):
        logs = published(folder / warehouse, name)
        assert 0 < list(logs.values()).count(max(logs.values())) < len(logs), (
            f"{name} was not killed between two: {logs}"
        )
    (folder / "kafka.json").write_text(json.dumps(kafka_copy.taken(broker, "mirrored", GROUP)))


def published(warehouse: Path, topology: str) -> dict[str, int]:
    """Of the log of each keyed state of a topology the last transaction that it has."""
    mark = re.compile(rf'"appId":"trident/{topology}/[^"]*","version":(\d+)')
    found = {}
    for log in warehouse.glob("*__log/_delta_log"):
        entries = "".join(entry.read_text() for entry in log.glob("*.json"))
        if f'topology\\": \\"{topology}\\"' in entries:
            found[log.parent.name] = max(map(int, mark.findall(entries)), default=0)
    return found


def make_one(name: str) -> Path:
    with tempfile.TemporaryDirectory(prefix="trident-upgrade-") as made:
        folder = Path(made)
        (round_two if name.startswith("round-two") else round_one)(folder)
        stop_servers(folder)
        return pack(folder, HERE / f"{name}.tar.xz")


def pack(folder: Path, target: Path) -> Path:
    """Leaves out what a run makes anew on each machine."""
    for server in folder.rglob("_trident/zookeeper"):
        for left in OF_THE_SERVER:
            (server / left).unlink(missing_ok=True)
    for left in (*folder.rglob(".copies"), *folder.rglob("__pycache__"), *folder.rglob("spark-warehouse")):
        shutil.rmtree(left)
    # A fork's record names the warehouse of its original, which lies elsewhere by now.
    for record in folder.rglob("fork.json"):
        record.write_text(re.sub('(?<="warehouse": ")[^"]*(?=/)', ELSEWHERE, record.read_text()))
    with lzma.open(target, "wb", preset=9) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".", filter=_anonymous)
    return target


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    print(make_one(sys.argv[1]))
