"""Makes tests/upgrade/NAME.tar.xz with the code that is imported: one for each release.

    python -m tests.upgrade.make NAME

What is in it: keyed tables half merged, append tables, an SQLite map with opaque values, a queue, an opaque source
in partitions, a tracked stream with a dead letter, begun attempts, and a decision of which one table is published.
"""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from trident.coordinators.embedded import EmbeddedZooKeeper

HERE = Path(__file__).resolve().parent
JOB = HERE / "job.py"
FED = 9  # how many inputs each source of a fixture has
# The server makes these anew; they name this machine.
OF_THIS_MACHINE = (
    "endpoint.json",
    "start.lock",
    "owner.lock",
    "server.out",
    "zookeeper.log",
    "port",
    "zoo.cfg",
    "log4j2.properties",
)


def job(folder: Path, *arguments: str, faults: str = "", timeout_secs: float = 400) -> subprocess.CompletedProcess:
    environment = {**os.environ, "TRIDENT_FAULTS": faults, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, str(JOB), str(folder), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_secs,
    )


def make(name: str) -> Path:
    with tempfile.TemporaryDirectory(prefix="trident-upgrade-") as made:
        folder = Path(made)
        job(folder, "feed", "0", "5").check_returncode()
        job(folder, "run").check_returncode()
        job(folder, "feed", "5", str(FED)).check_returncode()
        died = job(folder, "run", faults="publish.table:do_then_die:3")
        assert died.returncode == -9, died.stderr
        server = folder / "warehouse" / "_trident" / "zookeeper"
        EmbeddedZooKeeper.stop(server)
        for left in OF_THIS_MACHINE:
            (server / left).unlink(missing_ok=True)
        target = HERE / f"{name}.tar.xz"
        with lzma.open(target, "wb", preset=9) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(folder, arcname=".", filter=_anonymous)
    return target


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    print(make(sys.argv[1]))
