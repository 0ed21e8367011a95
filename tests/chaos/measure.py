"""What is measured from outside: processes in /proc, folders on disk, znodes. Nothing here asks the product."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from tests.chaos.oracle import Table, data_files
from trident.coordinators.embedded import EmbeddedZooKeeper

PAGE = os.sysconf("SC_PAGE_SIZE")


# --- processes --------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, str]:
    """pid → command line of every living process below one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it has ended meanwhile
    found: dict[int, str] = {}
    level = {pid}
    while level := {child for child, parent in parents.items() if parent in level and child not in found}:
        found.update((child, command_of(child)) for child in level)
    return found


_DAEMON = re.compile(r"-m (pyspark\.daemon|trident\.workers\.daemon) ")


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def state(pid: int) -> str:
    """As in ps: "T" is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def executors(pid: int) -> list[int]:
    """Those of a coordinator that are processes of their own."""
    return sorted(child for child, command in descendants(pid).items() if "CoarseGrainedExecutorBackend" in command)


def workers(pid: int) -> list[int]:
    """Python workers of a coordinator: what Spark's daemon, or ours in its place, has forked."""
    below = descendants(pid)
    daemons = [child for child, command in below.items() if _DAEMON.search(command)]
    return [child for daemon in daemons for child in descendants(daemon)]


def jvms(pid: int) -> list[int]:
    return [child for child, command in descendants(pid).items() if "SparkSubmit" in command]


def rss_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6
    except (OSError, IndexError):
        return 0.0


def open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


# Spark's own pools, which have bounds of 100 to 1,024 threads, grow with each burst of work and shrink after a minute.
SPARKS_POOLS = (
    *("block-manager-", "shuffle-exchang", "broadcast-excha", "ResultQueryStag", "QueryStageCreat"),
    *("map-output-disp", "Executor task "),
)


def threads(pid: int) -> int:
    """But for those of Spark's own pools."""
    count = 0
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            count += not (thread / "comm").read_text().startswith(SPARKS_POOLS)
        except OSError:  # it has ended
            pass
    return count


def live_heap_mb(pid: int) -> float | None:
    """What lives in a JVM's heap, behind a full collection; None where there is no JDK with jcmd, or no such JVM."""
    command = shutil.which("jcmd")
    if command is None:
        return None
    try:
        said = subprocess.run(
            [command, str(pid), "GC.class_histogram"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    total = re.search(r"^Total\s+\d+\s+(\d+)", said, re.MULTILINE)
    return int(total[1]) / 1e6 if total else None


# --- folders ----------------------------------------------------------------------------------


def walk(folder: Path) -> Iterator[tuple[str, bool, int]]:
    """(path, whether it is a folder, bytes) of everything below; what goes away meanwhile is passed over."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            size = 0 if is_folder else entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
        yield entry.path, is_folder, size
        if is_folder:
            yield from walk(Path(entry.path))


def counted(folder: Path) -> dict[str, float]:
    everything = list(walk(folder))
    files = [size for _, is_folder, size in everything if not is_folder]
    return {"files": len(files), "folders": len(everything) - len(files), "mb": round(sum(files) / 1e6, 2)}


def orphans(table: Path) -> set[str]:
    """Data files that no commit has ever named: what attempts left behind that came to nothing."""
    return set(Table.read(table).unused())


def temporary(folder: Path) -> list[str]:
    """Files that only a writer that was killed, or has failed, leaves."""
    return sorted(
        os.path.relpath(path, folder)
        for path, is_folder, _ in walk(folder)
        if not is_folder and (path.endswith((".tmp", ".tmp.crc", ".new")) or "/.status.json." in path)
    )


# --- ZooKeeper --------------------------------------------------------------------------------


def znodes(hosts: str, root: str) -> dict[str, int]:
    """How many there are, and the bytes in them; −1 while the server is away."""
    client = KazooClient(hosts, timeout=4.0)
    try:
        client.start(timeout=3)
        count, size, level = 0, 0, [root]
        while level:
            path = level.pop()
            data, _ = client.get_async(path).get(timeout=3)
            count, size = count + 1, size + len(data)
            level += [f"{path}/{child}" for child in client.get_children_async(path).get(timeout=3)]
        return {"znodes": count, "znode_bytes": size}
    except Exception:  # it is one of those that are killed
        return {"znodes": -1, "znode_bytes": -1}
    finally:
        client.stop()
        client.close()


def slope_per_minute(points: list[tuple[float, float]]) -> float:
    """Least squares; points are (seconds, value)."""
    n = len(points)
    if n < 2:
        return 0.0
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    below = sum((x - mean_x) ** 2 for x, _ in points)
    return 60.0 * sum((x - mean_x) * (y - mean_y) for x, y in points) / below if below else 0.0


# --- a long run -------------------------------------------------------------------------------


class Watch:
    """What a leader gathers, and what piles up on disk and in ZooKeeper, as long as a deployment runs.

    Args:
        deployment: with an embedded ZooKeeper server.
        struck: fault → how many, which somebody else counts.

    Attributes:
        records: one of the leader every few seconds, one of everything each minute.
    """

    def __init__(self, deployment: Any, struck: Mapping[str, int]) -> None:
        self._deployment, self._struck = deployment, struck
        self.records: list[dict[str, Any]] = []
        self._next = {"leader": 5.0, "totals": 60.0, "heap": 0.0}

    @property
    def _age(self) -> float:
        return time.monotonic() - self._deployment.began

    def look(self, quiet: bool) -> None:
        if self._is_time("leader", 5.0):
            self._look_at_leader(quiet)
        if self._is_time("totals", 60.0):
            print(json.dumps(self._said(self.totals())), flush=True)

    def _is_time(self, what: str, every_secs: float) -> bool:
        if self._age < self._next[what]:
            return False
        self._next[what] = self._age + every_secs
        return True

    def _look_at_leader(self, quiet: bool) -> None:
        leader = self._deployment.leader()
        if leader is None:
            return
        java = jvms(leader.pid)
        found: dict[str, Any] = {
            "kind": "process",
            "at": round(self._age, 1),
            "quiet": quiet,
            "pid": leader.pid,
            "age": round(time.monotonic() - leader.started_at, 1),
            "python_mb": round(rss_mb(leader.pid), 1),
            "jvm_mb": round(sum(map(rss_mb, java)), 1),
            "python_files": open_files(leader.pid),
            "jvm_files": sum(map(open_files, java)),
            "python_threads": threads(leader.pid),
            "jvm_threads": sum(map(threads, java)),
        }
        # It stops the JVM for a moment: now and then only.
        heap = live_heap_mb(java[0]) if quiet and java and self._is_time("heap", 30.0) else None
        self._said({**found, **({} if heap is None else {"heap_mb": round(heap, 1)})})

    def _said(self, record: dict[str, Any]) -> dict[str, Any]:
        self.records.append(record)
        with (self._deployment.folder / "watch.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        return record

    def totals(self) -> dict[str, Any]:
        deployment = self._deployment
        store, server = Path(deployment.url), deployment.server_folder
        endpoint = EmbeddedZooKeeper.status(server)
        hosts = f"127.0.0.1:{endpoint.port}" if endpoint else ""
        tables = [path.parent for path in store.glob("*/_delta_log")]
        queues = [books.group.queue.path for books in deployment.books if books.group.kind == "queue"]
        return {
            "kind": "totals",
            "at": round(self._age, 1),
            "struck": dict(self._struck),
            "lives": deployment.lives,
            "epoch": deployment.epoch(),
            "txids": deployment.transactions(),
            "state": counted(store / "_trident" / "chaos"),
            "zookeeper": counted(server),
            **(znodes(hosts, deployment.root) if hosts else {}),
            "data_files": {table.name: len(data_files(table)) for table in tables},
            "orphans": {table.name: len(orphans(table)) for table in tables},
            "temporary": len(temporary(store)),
            "local": counted(deployment.folder / "local"),
            "queue_kb": sum(Path(queue).stat().st_size // 1000 for queue in queues),
        }
